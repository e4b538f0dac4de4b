"""Anybody's labelled images for an audit: a folder with one folder a class, or an npz file."""

import os
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps

from bnmem.checkpoint import some
from bnmem.errors import InputError

ENDINGS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
LARGEST = 512  # pixels of a side of images taken as they are
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_NAMES = (("images", "labels"), ("train_images", "train_labels"))
_DAMAGE = (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError)  # what Pillow's decoders raise


@dataclass(frozen=True)
class Images:
    """n labelled images of one size, read when they are asked for.

    names: n texts. labels: int64 [n]. classes: names by label, empty where the source has none. size: (H, W).
    channels: 1 or 3. read: position -> uint8 [H, W, channels]. notes: what was left out or assumed, for people.
    """

    names: tuple[str, ...]
    labels: np.ndarray
    classes: tuple[str, ...]
    size: tuple[int, int]
    channels: int
    read: Callable[[int], np.ndarray]
    notes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.names)


def find(
    path: str | Path, channels: int, classes: int, limit: int = 2000, size: int | None = None, seed: int = 0
) -> Images:
    """At most `limit` of the images at `path` in a random order that follows from `seed`.

    path: a folder with one folder a class, numbered in the order of their names as torchvision's ImageFolder does
    (images may lie deeper; an empty folder keeps its number), or an npz file with `images` uint8 [n, H, W] or
    [n, H, W, 3] and `labels` integers [n] or [n, 1] (or `train_images`, `train_labels`). Each image is scaled and cut
    around its centre to size x size pixels, or to the size of the first one, and made grey or RGB as `channels` says.
    Raises InputError where there is nothing to read, labels or number of classes do not fit, images are too large to
    be meant as they are, and by its name for an image that cannot be read (when it is read).
    """
    path = Path(path)
    if limit < 1 or (size is not None and size < 1):
        raise InputError(f"limit and size must be 1 or more, not {limit} and {size}")
    if channels not in (1, 3):
        raise InputError(f"the net takes images of {channels} channels; call bnmem.audit.audit(net, batches) in Python")
    if not path.exists():
        raise InputError(f"there is no folder or npz file {path}; check the path")
    found = _folder(path, classes) if path.is_dir() else _npz(path, classes)
    names, labels, class_names, raw, notes = found
    pixels = _pixels(raw(0), names[0])
    height, width = (size, size) if size else pixels.shape[:2]
    if max(height, width) > LARGEST and not size:
        raise InputError(
            f"{names[0]} has {width} x {height} pixels; say --size (224 for most nets of torchvision) to scale images"
        )
    chosen = np.random.default_rng(seed).permutation(len(names))[:limit]

    def read(i: int) -> np.ndarray:
        j = int(chosen[i])
        return _fitted(_pixels(raw(j), names[j]), height, width, channels)

    if len(chosen) < len(names):
        notes = [*notes, f"{len(chosen):,} of {len(names):,} images, chosen at random (--limit)"]
    chosen_names = tuple(names[i] for i in chosen)
    return Images(chosen_names, labels[chosen], tuple(class_names), (height, width), channels, read, tuple(notes))


def statistics(images: Images) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel of pixels / 255. A channel of one value counts as deviation 1."""
    total, squares = np.zeros(images.channels), np.zeros(images.channels)
    for i in range(len(images)):
        pixels = images.read(i).reshape(-1, images.channels) / 255
        total, squares = total + pixels.mean(0), squares + (pixels**2).mean(0)
    mean = total / len(images)
    std = np.sqrt(np.maximum(squares / len(images) - mean**2, 0))
    return tuple(mean.tolist()), tuple(np.where(std > 1e-6, std, 1.0).tolist())


def batches(
    images: Images, mean: tuple[float, ...], std: tuple[float, ...], batch: int = 64
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """(x float32 [b, C, H, W], y int64 [b]) with x = (pixels / 255 - mean) / std, in the order of `images`."""
    mean, std = (np.asarray(values, np.float32) for values in (mean, std))
    for start in range(0, len(images), batch):
        rows = range(start, min(start + batch, len(images)))
        x = (np.stack([images.read(i) for i in rows]).astype(np.float32) / 255 - mean) / std
        yield torch.from_numpy(x).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(images.labels[rows])


def _folder(path: Path, classes: int):
    """Names, labels, class names, position -> file, notes; names relative to the folder."""
    entries = sorted(path.iterdir(), key=lambda p: p.name)
    folders = [p for p in entries if p.is_dir() and not p.is_symlink() and not p.name.startswith(".")]
    loose = [p for p in entries if p.suffix.lower() in ENDINGS and p.is_file()]
    if not folders:
        what = f"{len(loose)} images but no folder in it" if loose else "no folder in it"
        raise InputError(f"{path} has {what}; give a folder with one folder of images a class, or an npz file")
    files, labels, ignored = [], [], [p for p in entries if p not in folders]
    for label, folder in enumerate(folders):
        for where, inner, names in os.walk(folder):  # does not follow links
            inner.sort()
            ignored += [p for p in (Path(where, name) for name in inner) if p.is_symlink() or p.name.startswith(".")]
            inner[:] = [name for name in inner if not name.startswith(".")]
            for p in (Path(where, name) for name in sorted(names)):
                taken = p.suffix.lower() in ENDINGS and not p.name.startswith(".") and not p.is_symlink()
                (files if taken else ignored).append(p)
                labels += [label] * taken
    if not files:
        raise InputError(f"no image ({', '.join(ENDINGS)}) in the {len(folders)} folders of {path}; check the path")
    if len(folders) != classes:
        raise InputError(
            f"{path} has {len(folders)} class folders and the net {classes} classes; make one for each class, empty "
            "where you have no image of it, since the order of their names numbers them, or give an npz file"
        )
    notes = [f"classes are numbered by folder name: {some((f'{i} = {p.name}' for i, p in enumerate(folders)), 10)}"]
    if ignored:
        notes.append(f"ignored (hidden, a link or no image): {some(str(p.relative_to(path)) for p in ignored)}")
    filled = set(labels)
    empty = [p.name for i, p in enumerate(folders) if i not in filled]
    if empty:
        notes.append(f"class folders without an image: {some(empty)}")
    names = [_shown(str(p.relative_to(path))) for p in files]
    return names, np.array(labels, np.int64), [_shown(p.name) for p in folders], lambda i: files[i], notes


def _npz(path: Path, classes: int):
    """The same of an npz file; names are positions in it."""
    try:
        with np.load(path, allow_pickle=False) as npz:
            pair = next((pair for pair in _NAMES if set(pair) <= set(npz.files)), None)
            if pair is None:
                raise InputError(f"{path} holds {some(npz.files) or 'nothing'}; needed are arrays images and labels")
            images, labels = (npz[name] for name in pair)
    except InputError:
        raise
    except (OSError, ValueError, TypeError, AttributeError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(
            f"{path} is no npz file of plain arrays ({type(error).__name__}); save it with np.savez, or give a folder"
        ) from None
    if images.dtype != np.uint8 or images.ndim not in (3, 4) or (images.ndim == 4 and images.shape[3] not in (1, 3)):
        raise InputError(
            f"{path}: {pair[0]} are {images.dtype} {list(images.shape)}; save bytes 0 to 255 (uint8) [n, H, W] or "
            "[n, H, W, 3], channels last"
        )
    labels = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    if labels.dtype.kind not in "iu" or labels.shape != (len(images),):
        raise InputError(
            f"{path}: {pair[1]} are {labels.dtype} {list(labels.shape)} for {len(images)} images; give one integer each"
        )
    if 0 in images.shape:
        raise InputError(f"{path} holds no image; check how it was made")
    if labels.min() < 0 or labels.max() >= classes:
        raise InputError(
            f"{path} has labels {labels.min()} to {labels.max()} and the net classes 0 to {classes - 1}; give data of "
            "the task it was trained on"
        )
    names = [f"{pair[0]}[{i}]" for i in range(len(images))]
    return names, labels.astype(np.int64), [], lambda i: images[i], []


def _pixels(raw: Path | np.ndarray, name: str) -> np.ndarray:
    """uint8 [H, W, C], C 1 or 3, of a file or an array. Transparency is dropped; 16 bits become 8."""
    if isinstance(raw, np.ndarray):
        return raw if raw.ndim == 3 else raw[..., None]
    try:
        with Image.open(raw) as image:
            if image.mode.startswith("I") or image.mode == "F":
                return _eight_bits(np.asarray(image), name)[..., None]
            grey = image.mode in ("1", "L", "LA")
            image = image.convert("RGBA") if "transparency" in image.info else image
            pixels = np.asarray(image.convert("L" if grey else "RGB"))
            return pixels[..., None] if grey else pixels
    except InputError:
        raise
    except _DAMAGE as error:
        raise InputError(f"{raw} cannot be read ({type(error).__name__}: {error}); repair or remove it") from None


def _eight_bits(pixels: np.ndarray, name: str) -> np.ndarray:
    if pixels.dtype.kind == "f" or pixels.min() < 0 or pixels.max() > 65535:
        raise InputError(f"{name} has pixels that are no 8 or 16 bit numbers; save it as PNG")
    return (pixels // 256).astype(np.uint8)


def _fitted(pixels: np.ndarray, height: int, width: int, channels: int) -> np.ndarray:
    """uint8 [height, width, channels]: scaled to cover that size, cut around the centre, grey or RGB."""
    if pixels.shape == (height, width, channels):
        return pixels
    image = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).convert("L" if channels == 1 else "RGB")
    if image.size != (width, height):
        image = ImageOps.fit(image, (width, height), Image.Resampling.BILINEAR)
    pixels = np.asarray(image)
    return pixels[..., None] if channels == 1 else pixels


def _shown(name: str) -> str:
    """A file name as any terminal can show it: odd bytes and control characters become question marks."""
    return "".join(c if c.isprintable() else "?" for c in os.fsencode(name).decode("utf-8", "replace"))
