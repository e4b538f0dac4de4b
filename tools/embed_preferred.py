"""Make bnmem/embedded/preferred.npz: which official CIFAR images a subset takes first, whatever the source.

    BNMEM_DATA=FOLDER python tools/embed_preferred.py

FOLDER holds cifar10.npz and cifar100.npz with *_index arrays. The order is shuffled once with a fixed seed.
"""

import os
import sys
from pathlib import Path

import numpy as np

TARGET = Path(__file__).resolve().parents[1] / "bnmem" / "embedded" / "preferred.npz"
SEED = 20260523


def build(folder: Path) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(SEED)
    arrays = {}
    for name in ("cifar10", "cifar100"):
        with np.load(folder / f"{name}.npz", allow_pickle=False) as npz:
            for split in ("train", "test"):
                arrays[f"{name}_{split}"] = rng.permutation(np.sort(npz[f"{split}_index"])).astype(np.uint16)
    return arrays


if __name__ == "__main__":
    if not os.environ.get("BNMEM_DATA"):
        sys.exit("set BNMEM_DATA to the folder with cifar10.npz and cifar100.npz")
    np.savez_compressed(TARGET, **build(Path(os.environ["BNMEM_DATA"])))
    print(f"wrote {TARGET.name}, {TARGET.stat().st_size:,} bytes")
