"""Audit a model: a checkpoint of the reader's, or a small net that is trained for the demonstration."""

from dataclasses import dataclass, fields, replace

import numpy as np

from bnmem import jobs, plots_audit, training
from bnmem.audit import Audit
from bnmem.audit_file import audit_file
from bnmem.audited import AUDITED, Audited, unpack
from bnmem.digits import significant
from bnmem.errors import InputError
from bnmem.jobs import Job
from bnmem.records import Record
from bnmem.settings import Settings, setting

NAME = "audit_model"
KINDS = (AUDITED,)
CLAIMS: dict[str, str] = {}  # a tool, no evidence for or against a claim
# Fashion-MNIST's classes, by label
CLASSES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot")


@dataclass(frozen=True)
class AuditModel(Settings):
    """What is audited. With a checkpoint, arch and data are as for the command, and nothing is trained or stored."""

    checkpoint: str = setting("", "file of weights; empty: train a small net on Fashion-MNIST and audit that")
    arch: str = setting("resnet8", "architecture: torchvision:NAME or bnmem:NAME; of the small net one of bnmem's")
    data: str = setting("", "folder of class folders of images, or npz; empty: gamma/sigma alone")
    limit: int = setting(2000, "samples at most", low=2)
    size: int = setting(0, "side to which images are scaled and cut; 0: the first image's", low=0)
    n_train: int = setting(4000, "training images of the small net", low=2)
    rate: float = setting(0.05, "wrong labels among them", low=0.0, high=0.5)
    epochs: int = setting(8, "its epochs", low=1)
    lr: float = setting(0.05, "its learning rate", low=1e-8)
    batch_size: int = setting(128, "its batch size", low=2)
    seed: int = setting(0, "seed of all streams", low=0)

    @classmethod
    def profiles(cls) -> dict[str, dict]:
        return {"smoke": {"n_train": 600, "limit": 200, "batch_size": 32, "epochs": 3}, "laptop": {}}


SETTINGS = AuditModel


@dataclass(frozen=True)
class Result:
    """record: of the small net, None for a checkpoint; classes: names by label, empty where unknown."""

    settings: AuditModel
    audit: Audit
    record: Record | None
    classes: tuple[str, ...]
    notes: list[str]

    @property
    def records(self) -> list[Record]:
        return [self.record] if self.record else []

    def with_record(self, new: Record) -> "Result":
        return replace(self, audit=unpack(new.numbers, new.arrays), record=new)


def run(s: AuditModel, **options) -> Result:
    """Audit the checkpoint, or the small net (from its record where there is one); options go to `jobs.run`.

    Raises InputError as `audit_file.audit_file` does, and for data without a checkpoint.
    """
    if s.checkpoint:
        made = audit_file(s.checkpoint, s.arch, s.data or None, limit=s.limit, size=s.size or None, progress=True)
        return Result(s, made.audit, None, made.classes, list(made.notes))
    if s.data or s.size:
        raise InputError("data and size belong to a checkpoint; name one as well")
    found = jobs.run([job_of(s)], **options)
    record = found[0]
    return Result(s, unpack(record.numbers, record.arrays), record, CLASSES, jobs.check_code(KINDS, found))


def job_of(s: AuditModel) -> Job:
    shared = {f.name for f in fields(Audited)} & {f.name for f in fields(AuditModel)}
    values = {name: getattr(s, name) for name in shared} | {"arch": s.arch.removeprefix("bnmem:")}
    return Job(NAME, AUDITED, Audited(**values))


def found_noisy(result: Result) -> tuple[int, int, float]:
    """Of the samples with the largest norms, as many as have a wrong label: how many do; that number; and the share
    that chance would find. Only for the small net."""
    noisy = result.record.arrays["noisy"]
    top = result.audit.samples.order[: noisy.sum()]
    return int(noisy[top].sum()), int(noisy.sum()), float(noisy.mean())


def median_norms(result: Result) -> tuple[float, float]:
    """Median gradient norm of the samples with a wrong label, and of those with a right one. Only for the small net."""
    noisy, norm = result.record.arrays["noisy"], result.record.arrays["norm"]
    return float(np.median(norm[noisy])), float(np.median(norm[~noisy]))


def images(result: Result) -> np.ndarray:
    """The audited images of the small net, uint8 [n, H, W], in the order of the samples."""
    _, bad = training.inputs(job_of(result.settings).settings)
    return bad.images[result.record.arrays["rows"]]


def statuses(result: Result) -> list[str]:
    """No claim rests on an audit."""
    return []


def deviations(old: Record, new: Record) -> float:
    """The change of the test accuracy in standard deviations of a count over the test images: there is one seed."""
    a, b = (r.numbers["accuracy"]["test"][-1] for r in (old, new))
    n = Audited(**old.settings).n_test
    return abs(a - b) / max((a * (1 - a) / n) ** 0.5, 1 / n)


def glue_values(result: Result) -> dict[str, str]:
    """The numbers that the how-to page quotes, as text, by name; only for the small net."""
    hits, n, share = found_noisy(result)
    made, s = result.audit, result.settings
    above = sum(layer.ratio.mean() > 1 for layer in made.ratio)
    values = {"above": str(above), "layers": str(len(made.ratio)), "samples": f"{len(made.samples.norm):,}"}
    values |= {"epochs": str(s.epochs), "images": f"{s.n_train:,}", "hits": str(hits), "wrong": str(n)}
    wrong, right = median_norms(result)
    values |= {"chance": f"{share * n:.0f}", "norm-wrong": significant(wrong), "norm-right": significant(right)}
    return {f"au-{name}": text for name, text in values.items()}


def verdict_rows(result: Result) -> list[dict[str, str]]:
    """Table for the command line: gamma/sigma, layer by layer."""
    return plots_audit.ratio_rows(result.audit)
