"""Claim C3: are the gradient norms of noisy samples larger with batch normalisation, and by which definition?

Arms `norm`, `against` and `also`, from the same weights with the same batches and flipped labels; the norms of the same
samples at checkpoints of the training, by all definitions of `bnmem.grads`.
"""

from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import spearmanr
from sklearn.metrics import roc_auc_score

from bnmem import jobs
from bnmem import norms as switch
from bnmem.errors import InputError
from bnmem.gradients import GRADIENTS, Gradients
from bnmem.jobs import Job
from bnmem.records import Record
from bnmem.rules import RULES, Cell, cell_status
from bnmem.settings import setting
from bnmem.stats import Interval, first_crossing, t_interval, value_at
from bnmem.training import Common

NAME = "gradient_norms"
KINDS = (GRADIENTS,)
CLAIMS = {"log2_norm_noisy_over_clean": "C3", "log2_norm_batch_over_none": "C3"}
# Levels of clean-training accuracy at which the arms are compared, where all runs reach them.
FIT_LEVELS = (0.7, 0.8, 0.85, 0.9, 0.925, 0.95, 0.975)


@dataclass(frozen=True)
class GradientNorms(Common):
    """The experiment's parameters; every one can be set through papermill."""

    norm: str = setting("batch", "normalisation under study", switch.NORMS)
    against: str = setting("none", "normalisation it is compared with", switch.NORMS)
    also: tuple = setting(("affine",), "further arms; naming one of the two adds nothing", switch.NORMS)
    corruption: str = setting("flip", "kind of noise", ("flip", "ood"))
    lr: float = setting(0.02, "learning rate of all arms", low=1e-8)
    epochs: int = setting(60, "epochs", low=1)
    compared: int = setting(30, "last epoch of the comparison at equal epochs", low=1)
    probe: int = setting(2048, "training samples whose gradients are measured", low=4)
    checkpoints: tuple = setting(Gradients.checkpoints, "epochs of the measurements", low=0)
    seeds: int = setting(3, "number of seeds", low=1, high=100)

    @classmethod
    def profiles(cls) -> dict[str, dict]:
        small = {"n_train": 400, "n_val": 100, "n_test": 200, "batch_size": 32, "epochs": 6, "compared": 4, "seeds": 2}
        return {
            "smoke": small | {"probe": 128, "rate": 0.1, "checkpoints": (0, 1, 2, 4, 6)},
            "laptop": {},
            "grid": {"ood": "sibling", "probe": 1024},
            "paper": {"n_train": 50_000, "n_val": 5_000, "n_test": 10_000, "ood": "sibling"},
        }


SETTINGS = GradientNorms


@dataclass(frozen=True)
class Result:
    """All records of one run: arm -> one record a seed."""

    settings: GradientNorms
    runs: dict[str, list[Record]]
    notes: list[str]

    @property
    def arms(self) -> tuple[str, ...]:
        return tuple(self.runs)

    @property
    def records(self) -> list[Record]:
        return [record for rows in self.runs.values() for record in rows]

    def with_record(self, new: Record) -> "Result":
        """The same result with `new` in the place of the record of its key."""
        swap = {arm: [new if r.key == new.key else r for r in rows] for arm, rows in self.runs.items()}
        return replace(self, runs=swap)


def run(s: GradientNorms, **options) -> Result:
    """Read the experiment's records, computing what is missing; options go to `jobs.run`.

    Raises InputError when the arms are one or no checkpoint lies in the comparison, and Diverged when a training does.
    """
    if s.norm == s.against:
        raise InputError(f"norm and against are both {s.norm!r}; choose two different normalisations")
    if not [e for e in s.checkpoints if 0 < e <= s.compared]:
        raise InputError(f"no checkpoint lies within epochs 1 to {s.compared}; change checkpoints or compared")
    arms = tuple(dict.fromkeys((s.norm, s.against, *s.also)))
    plan = [job_of(s, arm, seed) for arm in arms for seed in range(s.seeds)]
    found = jobs.run(plan, **options)
    runs = {arm: found[i * s.seeds : (i + 1) * s.seeds] for i, arm in enumerate(arms)}
    return Result(s, runs, jobs.check_code(KINDS, found))


def job_of(s: GradientNorms, arm: str, seed: int) -> Job:
    same = {name: getattr(s, name) for name in (*Common.__dataclass_fields__, *("corruption", "lr", "epochs"))}
    same |= {"probe": s.probe, "checkpoints": s.checkpoints}
    return Job(NAME, GRADIENTS, Gradients(**same, norm=arm, seed=seed))


def epochs(result: Result) -> np.ndarray:
    """The checkpoints, float64 [checkpoints]."""
    return np.asarray(result.records[0].numbers["epoch"], float)


def norm_of(record: Record, definition: str = "eval", what: str = "norm") -> np.ndarray:
    """float64 [checkpoints, P]. A net without batch statistics has one set of norms: that of every definition."""
    name = f"{what}_{definition}"
    return record.arrays[name if name in record.arrays else f"{what}_eval"].astype(np.float64)


def log2_median(record: Record, noisy: bool, definition: str = "eval", what: str = "norm") -> np.ndarray:
    """log2 of the median norm over the noisy or the clean samples, float64 [checkpoints]."""
    values = norm_of(record, definition, what)[:, record.arrays["noisy"] == noisy]
    return np.log2(np.median(values, axis=1))


def noisy_over_clean(result: Result, arm: str, definition: str = "eval") -> np.ndarray:
    """log2 of the ratio of medians in one net, float64 [seeds, checkpoints]."""
    rows = result.runs[arm]
    return np.array([log2_median(r, True, definition) - log2_median(r, False, definition) for r in rows])


def over(result: Result, definition: str = "eval", against: str | None = None, what: str = "norm") -> np.ndarray:
    """log2 of the ratio of the noisy samples' medians, `norm` over the other arm, float64 [seeds, checkpoints]."""
    pairs = zip(result.runs[result.settings.norm], result.runs[against or result.settings.against], strict=True)
    return np.array([log2_median(a, True, definition, what) - log2_median(b, True, definition, what) for a, b in pairs])


def mean_until_compared(result: Result, curves: np.ndarray) -> Interval:
    """Mean over the checkpoints after initialisation up to the last compared epoch; interval over seeds."""
    inside = (epochs(result) > 0) & (epochs(result) <= result.settings.compared)
    return t_interval(curves[:, inside].mean(axis=1))


def auroc(result: Result, arm: str, definition: str = "eval") -> np.ndarray:
    """How well the norm alone tells noisy from clean: area under the ROC, float64 [seeds, checkpoints]."""
    return np.array([
        [roc_auc_score(r.arrays["noisy"], row) for row in norm_of(r, definition)] for r in result.runs[arm]
    ])  # fmt: skip


def foretells(result: Result, arm: str, definition: str = "eval") -> np.ndarray:
    """Spearman's rank correlation, over noisy samples, of the norm at each checkpoint with the margin score phi at the
    last compared epoch (larger = memorized), float64 [seeds, checkpoints]."""
    end = int(np.flatnonzero(epochs(result) <= result.settings.compared)[-1])
    rows = []
    for r in result.runs[arm]:
        noisy = r.arrays["noisy"]
        phi = r.arrays["phi"][end, noisy]
        rows.append([spearmanr(row[noisy], phi).statistic for row in norm_of(r, definition)])
    return np.array(rows)


def equal_fit(result: Result, definition: str = "eval", against: str | None = None) -> dict[float, Interval]:
    """The control: log2 of the noisy samples' median norm, `norm` minus the other arm, at equal fit.

    Level of clean-training accuracy, where first reached -> paired difference, for the levels that all runs reach.
    """
    arms = (result.settings.norm, against or result.settings.against)
    found = {}
    for level in FIT_LEVELS:
        values = np.array([[_at_level(r, level, definition) for r in result.runs[arm]] for arm in arms])
        if np.isfinite(values).all():
            found[level] = t_interval(values[0] - values[1])
    return found


def cells(result: Result, definition: str = "eval") -> dict[str, list[Cell]]:
    """The cells of the scorecard at equal epochs: claim -> effects with intervals."""
    where = f"{result.settings.dataset} / {result.settings.arch} / {definition}"
    found = {
        "log2_norm_noisy_over_clean": noisy_over_clean(result, result.settings.norm, definition),
        "log2_norm_batch_over_none": over(result, definition),
    }
    means = {name: mean_until_compared(result, curves) for name, curves in found.items()}
    return {"C3": [Cell(name, where, i.mean, i.low, i.high) for name, i in means.items()]}


def statuses(result: Result) -> list[str]:
    """ "holds", "fails" or "open" for every cell."""
    metrics = {metric.name: metric for metric in RULES["C3"].metrics}
    return [cell_status(cell, metrics[cell.metric]) for cell in cells(result)["C3"]]


def _at_level(record: Record, level: float, definition: str) -> float:
    epoch = np.asarray(record.numbers["epoch"], float)
    at = first_crossing(epoch, record.numbers["accuracy"]["clean"], level)
    return value_at(epoch, log2_median(record, True, definition), at)
