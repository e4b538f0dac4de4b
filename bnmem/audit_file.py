"""From a checkpoint file, and perhaps a folder of images, to an audit: what the command `audit` does."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from bnmem import images, rebuild, train
from bnmem.audit import Audit, audit
from bnmem.checkpoint import load_state
from bnmem.errors import InputError
from bnmem.images import Images


@dataclass(frozen=True)
class FileAudit:
    """The audit, the images it rests on (None without data), and what was assumed on the way, for people."""

    audit: Audit
    images: Images | None
    notes: tuple[str, ...]

    @property
    def classes(self) -> tuple[str, ...]:
        return self.images.classes if self.images else ()


def audit_file(
    checkpoint: str | Path,
    arch: str,
    data: str | Path | None = None,
    *,
    limit: int = 2000,
    size: int | None = None,
    batch: int = 64,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    seed: int = 0,
    progress: bool = False,
) -> FileAudit:
    """Audit the net `arch` (see `rebuild.build`) with the weights in a file, on a GPU where there is one.

    data: images as `images.find` takes them, with limit, size and seed. mean, std: one number a channel, of pixels
    between 0 and 1; without them those of ImageNet for nets of torchvision on RGB images, else those of the images.
    Raises InputError as `checkpoint.load_state`, `rebuild.build`, `images.find` and `audit.audit` do.
    """
    net = rebuild.build(arch, load_state(checkpoint))
    model = net.model.to(train.device())
    title = f"{Path(checkpoint).name} ({net.name}, {net.classes} classes)"
    if data is None:
        return FileAudit(audit(model, name=title), None, ())
    if batch < 1:
        raise InputError(f"batch must be 1 or more, not {batch}")
    found = images.find(data, net.channels, net.classes, limit, size, seed)
    mean, std, used = _normalization(net, found, mean, std)
    pairs = _with_bar(images.batches(found, mean, std, batch), len(found), progress)
    made = audit(model, pairs, name=title, names=found.names)
    height, width = found.size
    return FileAudit(made, found, (f"{len(found):,} images of {width} x {height} pixels; {used}", *found.notes))


def _normalization(net: rebuild.Net, found: Images, mean, std):
    """mean, std and a sentence that names them."""
    if (mean is None) != (std is None):
        raise InputError("give both --mean and --std, or neither")
    if mean is not None:
        if len(mean) != net.channels or len(std) != net.channels or not all(0 < v < float("inf") for v in std):
            raise InputError(f"--mean and --std take {net.channels} numbers each, std above 0; got {mean} and {std}")
        source = "as given"
    elif net.family == "torchvision" and net.channels == 3:
        (mean, std), source = images.IMAGENET, "ImageNet's, as usual for nets of torchvision (change: --mean, --std)"
    else:
        (mean, std), source = images.statistics(found), "of these images (change: --mean, --std)"
    values = ", ".join(f"{name} {' '.join(f'{v:.4f}' for v in row)}" for name, row in (("mean", mean), ("std", std)))
    return tuple(mean), tuple(std), f"normalized with {values}, {source}"


def _with_bar(pairs, n: int, progress: bool) -> Iterator:
    with tqdm(total=n, desc="gradient norms", unit="image", disable=train.quiet(progress), leave=False) as bar:
        for x, y in pairs:
            yield x, y
            bar.update(len(y))
