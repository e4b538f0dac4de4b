"""Make bnmem/embedded/fashion_mnist.npz from Debian's package dataset-fashion-mnist (MIT licence, Zalando SE).

    apt-get install dataset-fashion-mnist && python tools/embed_fashion_mnist.py

Class-balanced, 6,000 training and 2,000 test images, drawn once with a fixed seed and stored in an order that takes the
ten classes in turn, so that every prefix is balanced. `*_index` holds each image's position in the official file.
"""

import argparse
import gzip
from pathlib import Path

import numpy as np

PACKAGE = Path("/usr/share/datasets/fashion-mnist")
TARGET = Path(__file__).resolve().parents[1] / "bnmem" / "embedded" / "fashion_mnist.npz"
SEED = 20260523
SIZES = {"train": ("train", 6000), "test": ("t10k", 2000)}


def read_idx(path: Path) -> np.ndarray:
    """An IDX file of unsigned bytes, unpacked: [n] or [n, rows, columns], uint8."""
    raw = gzip.decompress(path.read_bytes())
    dims = raw[3]
    shape = np.frombuffer(raw, ">u4", count=dims, offset=4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * dims).reshape(shape)


def subset(labels: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """Official positions of n images, n / 10 of each class, classes in turn."""
    of_class = [rng.permutation(np.flatnonzero(labels == c))[: n // 10] for c in range(10)]
    return np.stack(of_class, axis=1).ravel()


def build(package: Path = PACKAGE) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(SEED)
    arrays = {}
    for split, (prefix, n) in SIZES.items():
        images = read_idx(package / f"{prefix}-images-idx3-ubyte.gz")
        labels = read_idx(package / f"{prefix}-labels-idx1-ubyte.gz")
        index = subset(labels, n, rng)
        arrays |= {
            f"{split}_images": images[index],
            f"{split}_labels": labels[index],
            f"{split}_index": index.astype(np.int32),
        }
    return arrays


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--package", type=Path, default=PACKAGE, help="folder with the four .gz files")
    args = parser.parse_args()
    if not args.package.is_dir():
        parser.exit(2, f"no folder {args.package}: apt-get install dataset-fashion-mnist, or name it with --package\n")
    np.savez_compressed(TARGET, **build(args.package))
    print(f"wrote {TARGET.name}, {TARGET.stat().st_size:,} bytes")
