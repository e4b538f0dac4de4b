"""Images and labels: one name a data set, the same selected images from whatever source holds them.

A subset is the first n images of a fixed order of *official* positions, classes in turn. So every source that holds
them gives the same images, and the fingerprint (a hash of the selected images and labels) proves it.
"""

import hashlib
from dataclasses import dataclass

import numpy as np

from bnmem import seeds, sources
from bnmem.errors import InputError
from bnmem.sources import SETS, Info, require_set

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
    source, arrays = sources.find(name, n_train + n_val, n_test)
    train = _select(name, "train", arrays, n_train + n_val)
    return Dataset(name, source, train[:n_train], train[n_train:], _select(name, "test", arrays, n_test))


def ood_images(name: str, ood: str, n: int) -> np.ndarray:
    """At least n out-of-distribution images of the shape of data set `name`.

    `digits` is scikit-learn's (1,797 grey images, resized to 28x28, always at hand); `sibling` is the real set of the
    same shape (MNIST and Fashion-MNIST, CIFAR-10 and CIFAR-100). uint8 [n, ...].
    """
    info = require_set(name)
    if ood == "digits":
        if info.shape != (28, 28):
            raise InputError(f"digits are grey 28x28 images and {name} is not; choose ood='sibling'")
        images = sources.digits()
    elif ood == "sibling":
        images = load(info.ood, n_train=min(n, require_set(info.ood).n_train), n_test=0).train.images
    else:
        raise InputError(f"unknown OOD source {ood!r}; choose one of {', '.join(OOD_SOURCES)}")
    if n > len(images):
        raise InputError(
            f"{n:,} OOD images are needed and {ood} holds {len(images):,}; lower the rate or the number of images"
        )
    return images


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
        foreign = ood_images(dataset.name, ood, round(rate * len(train)))
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


def _select(name: str, split: str, arrays: dict[str, np.ndarray], n: int) -> Split:
    info = SETS[name]
    official = info.n_train if split == "train" else info.n_test
    images, labels = arrays[f"{split}_images"], arrays[f"{split}_labels"].astype(np.int64)
    index = arrays.get(f"{split}_index", np.arange(len(labels))).astype(np.int64)
    preferred = sources.preferred(name, split)
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
