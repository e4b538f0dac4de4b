"""Where images come from: the package itself, a folder of npz files, or torchvision's download.

Arrays of one source, as everywhere in the project: `train_images`, `test_images` uint8 [n, H, W] or [n, H, W, 3],
`train_labels`, `test_labels` integers [n] and, where a source holds a part of the official files, `train_index` and
`test_index`, the positions there.
"""

import os
import urllib.error
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np

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


def require_set(name: str) -> Info:
    if name not in SETS:
        raise InputError(f"unknown data set {name!r}; choose one of {', '.join(SETS)}")
    return SETS[name]


def at_hand() -> list[str]:
    """The data sets that need no download: the embedded one, and those with a file in BNMEM_DATA."""
    folder = os.environ.get("BNMEM_DATA")
    return [name for name in SETS if name == "fashion_mnist" or (folder and (Path(folder) / f"{name}.npz").exists())]


def find(name: str, n_train: int, n_test: int) -> tuple[str, dict[str, np.ndarray]]:
    """The name and the arrays of the first source that can hold so many images. Raises InputError where none does."""
    if name == "fashion_mnist" and n_train <= 6000 and n_test <= 2000:
        return "embedded", embedded("fashion_mnist.npz")
    folder = os.environ.get("BNMEM_DATA")
    if folder and not Path(folder).is_dir():
        raise InputError(f"BNMEM_DATA={folder} is no folder; set it to one that holds {name}.npz, or unset it")
    if folder and (path := Path(folder) / f"{name}.npz").exists():
        return "BNMEM_DATA", read_npz(path, name)
    return "torchvision", download(name)


def read_npz(path: Path, name: str) -> dict[str, np.ndarray]:
    """The arrays of one npz file, checked: uint8 images of the set's shape, labels in range, equal lengths."""
    info = require_set(name)
    try:
        with np.load(path, allow_pickle=False) as npz:
            arrays = {key: npz[key] for key in npz.files}
    except Exception as error:  # a damaged file fails in many ways: zip, zlib, header, even memory
        raise InputError(
            f"{path} cannot be read ({type(error).__name__}: {error}); fetch it anew or remove it"
        ) from error
    if not all(isinstance(array, np.ndarray) for array in arrays.values()):
        raise InputError(f"{path} holds members that are no arrays; fetch it anew or remove it")
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
        if index.shape != labels.shape or index.dtype.kind not in "iu" or len(np.unique(index)) < len(index):
            raise InputError(f"{path}: {split}_index must hold one official position an image, each once")
        if len(index) and not 0 <= index.min() <= index.max() < official:
            raise InputError(f"{path}: {split}_index must be 0 to {official - 1}")
    return arrays


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bnmem"


def download(name: str) -> dict[str, np.ndarray]:
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


def embedded(file: str) -> dict[str, np.ndarray]:
    """The arrays of an npz file that comes with the package."""
    with resources.files("bnmem.embedded").joinpath(file).open("rb") as f, np.load(f, allow_pickle=False) as npz:
        return {key: npz[key] for key in npz.files}


def preferred(name: str, split: str) -> np.ndarray:
    """Official positions that a subset takes first; empty where the whole set is everywhere at hand."""
    if name == "fashion_mnist":
        return embedded("fashion_mnist.npz")[f"{split}_index"]
    if name.startswith("cifar"):
        return embedded("preferred.npz")[f"{name}_{split}"].astype(np.int64)
    return np.zeros(0, np.int64)


def digits() -> np.ndarray:
    """scikit-learn's 1,797 handwritten digits (8x8, 17 grey levels) as uint8 [1797, 28, 28]."""
    from PIL import Image
    from sklearn.datasets import load_digits

    # Pillow resizes bytes with integer arithmetic: the same pixels on every machine.
    small = np.round(load_digits().images * 255 / 16).astype(np.uint8)
    return np.stack([np.asarray(Image.fromarray(d).resize((28, 28), Image.Resampling.BILINEAR)) for d in small])
