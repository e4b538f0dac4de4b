"""Images and labels: one name a data set, the same selected images from whatever source holds them.

Three sources are tried in turn: the images embedded in this package (a Fashion-MNIST subset), the folder of npz files
named by ``BNMEM_DATA``, and torchvision's download into a user cache. A subset is the first n images of a fixed order
of *official* positions, classes in turn, so every source that holds them gives the same images, and the fingerprint (a
hash of the selected images and labels) proves it.
"""

import hashlib
import os
import urllib.error
import zipfile
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np

from bnmem import seeds
from bnmem.errors import InputError


@dataclass(frozen=True)
class Info:
    """What is known of a data set without its images: sizes, classes, and channel statistics of pixels / 255."""

    n_train: int
    n_test: int
    shape: tuple[int, ...]
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    ood: str
    torchvision: str


SETS = {
    "mnist": Info(60_000, 10_000, (28, 28), 10, (0.1307,), (0.3081,), "fashion_mnist", "MNIST"),
    "fashion_mnist": Info(60_000, 10_000, (28, 28), 10, (0.2860,), (0.3530,), "mnist", "FashionMNIST"),
    "cifar10": Info(
        50_000, 10_000, (32, 32, 3), 10, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), "cifar100", "CIFAR10"
    ),
    "cifar100": Info(
        50_000, 10_000, (32, 32, 3), 100, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762), "cifar10", "CIFAR100"
    ),
}
CORRUPTIONS = ("none", "flip", "ood")
OOD_SOURCES = ("digits", "sibling")
_ORDER_SEED = 0  # of the fixed order in which images outside the preferred ones follow


@dataclass(frozen=True)
class Split:
    """images uint8 [n, H, W] or [n, H, W, 3]; labels int64 [n]; index int64 [n], positions in the official file."""

    images: np.ndarray
    labels: np.ndarray
    index: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, rows) -> "Split":
        return Split(self.images[rows], self.labels[rows], self.index[rows])


@dataclass(frozen=True)
class Dataset:
    """A selection: `val` holds training images that `train` does not."""

    name: str
    source: str
    train: Split
    val: Split
    test: Split

    @property
    def info(self) -> Info:
        return SETS[self.name]


@dataclass(frozen=True)
class Corrupted:
    """A training set with known bad samples.

    images uint8 [n, ...]; labels int64 [n], the *trained* ones; true_labels int64 [n] (-1 for OOD images);
    flipped, ood: int64, sorted rows of the two kinds of bad samples.
    """

    images: np.ndarray
    labels: np.ndarray
    true_labels: np.ndarray
    flipped: np.ndarray
    ood: np.ndarray

    @property
    def corrupted(self) -> np.ndarray:
        """bool [n]: flipped or OOD."""
        mask = np.zeros(len(self.labels), bool)
        mask[self.flipped] = mask[self.ood] = True
        return mask


def require_set(name: str) -> Info:
    if name not in SETS:
        raise InputError(f"unknown data set {name!r}; choose one of {', '.join(SETS)}")
    return SETS[name]


def load(name: str, n_train: int | None = None, n_val: int = 0, n_test: int | None = None) -> Dataset:
    """The first n_train training images of the fixed order, the n_val after them, and n_test test images.

    None takes all there are (after n_val training images are kept aside). Raises InputError when the name is unknown,
    more is asked than the official files hold, a file is damaged, or no source holds the images.
    """
    info = require_set(name)
    n_train = info.n_train - n_val if n_train is None else n_train
    n_test = info.n_test if n_test is None else n_test
    if min(n_train, n_val, n_test) < 0 or n_train + n_val > info.n_train or n_test > info.n_test:
        raise InputError(
            f"{name} has {info.n_train:,} training and {info.n_test:,} test images; asked for "
            f"{n_train:,} + {n_val:,} and {n_test:,}"
        )
    source, arrays = _find(name, n_train + n_val, n_test)
    train = _select(name, "train", arrays, n_train + n_val)
    return Dataset(name, source, train[:n_train], train[n_train:], _select(name, "test", arrays, n_test))


def ood_images(name: str, ood: str, n: int) -> tuple[str, np.ndarray]:
    """Up to n out-of-distribution images of the shape of data set `name`, with the name of their source.

    `digits` is scikit-learn's (1,797 grey images, resized to 28x28, always at hand); `sibling` is the real set of the
    same shape (MNIST and Fashion-MNIST, CIFAR-10 and CIFAR-100). uint8 [n, ...].
    """
    info = require_set(name)
    if ood == "digits":
        if info.shape != (28, 28):
            raise InputError(f"digits are grey 28x28 images and {name} is not; choose ood='sibling'")
        images = _digits()
    elif ood == "sibling":
        images = load(info.ood, n_train=min(n, require_set(info.ood).n_train), n_test=0).train.images
    else:
        raise InputError(f"unknown OOD source {ood!r}; choose one of {', '.join(OOD_SOURCES)}")
    if n > len(images):
        raise InputError(
            f"{n:,} OOD images are needed and {ood} holds {len(images):,}; lower the rate or the number of images"
        )
    return ood if ood == "digits" else info.ood, images[:n] if ood == "sibling" else images


def flip(labels: np.ndarray, rate: float, classes: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Give round(rate * n) samples a wrong label, uniform over the other classes: (labels, sorted rows), both int64."""
    rows = _rows(len(labels), rate, rng)
    flipped = labels.astype(np.int64, copy=True)
    flipped[rows] = (flipped[rows] + rng.integers(1, classes, len(rows))) % classes
    return flipped, rows


def mix_ood(
    images: np.ndarray, labels: np.ndarray, foreign: np.ndarray, rate: float, classes: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Replace round(rate * n) images by foreign ones with uniformly random labels: (images, labels, sorted rows)."""
    rows = _rows(len(labels), rate, rng)
    if len(rows) > len(foreign):
        raise InputError(f"{len(rows):,} OOD images are needed and the source holds {len(foreign):,}; lower the rate")
    if foreign.shape[1:] != images.shape[1:]:
        raise InputError(f"OOD images have shape {foreign.shape[1:]}, the set's have {images.shape[1:]}")
    mixed, mixed_labels = images.copy(), labels.astype(np.int64, copy=True)
    mixed[rows] = foreign[rng.choice(len(foreign), len(rows), replace=False)]
    mixed_labels[rows] = rng.integers(0, classes, len(rows))
    return mixed, mixed_labels, rows


def corrupt(dataset: Dataset, kind: str, rate: float, seed: int, ood: str = "digits") -> Corrupted:
    """The training images of `dataset` with `kind` of corruption ("none", "flip" or "ood") at `rate` (0 to 0.5)."""
    if kind not in CORRUPTIONS:
        raise InputError(f"unknown corruption {kind!r}; choose one of {', '.join(CORRUPTIONS)}")
    check_rate(rate)
    rng, classes, train = seeds.rng(seed, "corrupt"), dataset.info.classes, dataset.train
    nothing = np.zeros(0, np.int64)
    true = train.labels.copy()
    if kind == "flip":
        labels, rows = flip(train.labels, rate, classes, rng)
        return Corrupted(train.images, labels, true, rows, nothing)
    if kind == "ood":
        _, foreign = ood_images(dataset.name, ood, round(rate * len(train)))
        images, labels, rows = mix_ood(train.images, train.labels, foreign, rate, classes, rng)
        true[rows] = -1
        return Corrupted(images, labels, true, nothing, rows)
    return Corrupted(train.images, train.labels, true, nothing, nothing)


def check_rate(rate: float) -> None:
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate <= 0.5:
        raise InputError(f"rate is a fraction from 0 to 0.5 (0.05 is 5 %), not {rate!r}")


def fingerprint(*arrays: np.ndarray) -> str:
    """SHA-256 over dtype, shape and bytes of the arrays, as hex: equal images and labels, equal fingerprint."""
    digest = hashlib.sha256()
    for array in arrays:
        array = np.ascontiguousarray(array)
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(array)
    return digest.hexdigest()


def _rows(n: int, rate: float, rng: np.random.Generator) -> np.ndarray:
    check_rate(rate)
    return np.sort(rng.choice(n, round(rate * n), replace=False))


def _digits() -> np.ndarray:
    from PIL import Image
    from sklearn.datasets import load_digits

    # Pillow resizes bytes with integer arithmetic: the same pixels on every machine.
    small = np.round(load_digits().images * 255 / 16).astype(np.uint8)
    return np.stack([np.asarray(Image.fromarray(d).resize((28, 28), Image.Resampling.BILINEAR)) for d in small])


def _embedded(file: str) -> dict[str, np.ndarray]:
    with resources.files("bnmem.embedded").joinpath(file).open("rb") as f, np.load(f, allow_pickle=False) as npz:
        return {key: npz[key] for key in npz.files}


def _preferred(name: str, split: str) -> np.ndarray:
    """Official positions that a subset takes first; empty where the whole set is everywhere at hand."""
    if name == "fashion_mnist":
        return _embedded("fashion_mnist.npz")[f"{split}_index"]
    if name.startswith("cifar"):
        return _embedded("preferred.npz")[f"{name}_{split}"].astype(np.int64)
    return np.zeros(0, np.int64)


def _select(name: str, split: str, arrays: dict[str, np.ndarray], n: int) -> Split:
    info = SETS[name]
    official = info.n_train if split == "train" else info.n_test
    images, labels = arrays[f"{split}_images"], arrays[f"{split}_labels"].astype(np.int64)
    index = arrays.get(f"{split}_index", np.arange(len(labels))).astype(np.int64)
    preferred = _preferred(name, split)
    rank = np.random.default_rng(_ORDER_SEED).permutation(official) + official
    rank[preferred] = np.arange(len(preferred))
    if len(index) < official and (n > len(preferred) or not np.isin(preferred, index).all()):
        raise InputError(
            f"this source of {name} holds {len(index):,} of {official:,} official {split} images and not all of the "
            f"{n:,} asked for; ask for fewer or unset BNMEM_DATA"
        )
    by_class = np.lexsort((rank[index], labels))
    sorted_labels = labels[by_class]
    starts = np.searchsorted(sorted_labels, np.arange(info.classes))
    turn = np.empty(len(labels), np.int64)
    turn[by_class] = np.arange(len(labels)) - starts[sorted_labels]
    rows = np.lexsort((labels, turn))[:n]
    return Split(images[rows], labels[rows], index[rows])


def _find(name: str, n_train: int, n_test: int) -> tuple[str, dict[str, np.ndarray]]:
    if name == "fashion_mnist" and n_train <= 6000 and n_test <= 2000:
        return "embedded", _embedded("fashion_mnist.npz")
    folder = os.environ.get("BNMEM_DATA")
    if folder and (path := Path(folder) / f"{name}.npz").exists():
        return "BNMEM_DATA", read_npz(path, name)
    return "torchvision", _download(name)


def read_npz(path: Path, name: str) -> dict[str, np.ndarray]:
    """The arrays of one npz file, checked: uint8 images of the set's shape, labels in range, equal lengths."""
    info = require_set(name)
    try:
        with np.load(path, allow_pickle=False) as npz:
            arrays = {key: npz[key] for key in npz.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zipfile.zlib.error) as error:
        raise InputError(f"{path} cannot be read ({error}); fetch it anew or remove it") from error
    for split in ("train", "test"):
        images, labels = arrays.get(f"{split}_images"), arrays.get(f"{split}_labels")
        official = info.n_train if split == "train" else info.n_test
        if images is None or labels is None:
            raise InputError(f"{path} lacks {split}_images or {split}_labels; it holds {', '.join(arrays)}")
        if images.dtype != np.uint8:
            raise InputError(f"{path}: {split}_images are {images.dtype}; give bytes 0 to 255 (uint8)")
        if images.shape[1:] != info.shape:
            raise InputError(f"{path}: {split}_images have shape {images.shape}, not [n, {str(info.shape)[1:-1]}]")
        if labels.shape != images.shape[:1] or not np.issubdtype(labels.dtype, np.integer):
            raise InputError(f"{path}: {split}_labels must be {len(images):,} integers, one an image")
        if len(labels) and not 0 <= labels.min() <= labels.max() < info.classes:
            raise InputError(f"{path}: {split}_labels must be 0 to {info.classes - 1}")
        index = arrays.get(f"{split}_index", np.arange(len(labels)))
        if index.shape != labels.shape or len(np.unique(index)) < len(index):
            raise InputError(f"{path}: {split}_index must hold one official position an image, each once")
        if len(index) and not 0 <= index.min() <= index.max() < official:
            raise InputError(f"{path}: {split}_index must be 0 to {official - 1}")
    return arrays


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bnmem"


def _download(name: str) -> dict[str, np.ndarray]:
    """torchvision's copy. Its CIFAR loader unpickles, and compares each file with its published checksum before."""
    from torchvision import datasets

    maker, root = getattr(datasets, SETS[name].torchvision), cache_folder()
    arrays = {}
    try:
        for split in ("train", "test"):
            part = maker(root, train=split == "train", download=True)
            arrays[f"{split}_images"] = np.asarray(part.data)
            arrays[f"{split}_labels"] = np.asarray(part.targets)
    except (urllib.error.URLError, OSError, RuntimeError) as error:
        raise InputError(
            f"{name} is neither in BNMEM_DATA ({os.environ.get('BNMEM_DATA') or 'not set'}) nor can it be downloaded "
            f"({' '.join(str(error).split())[:120]}); set BNMEM_DATA to a folder that holds {name}.npz"
        ) from error
    return arrays
