"""Claims C1 and C2: does batch normalisation speed up the memorization of flipped and out-of-distribution samples?

Two arms, `norm` and `against`, from the same weights with the same batches; flips and OOD; each arm twice: at the same
learning rate, and at its own best one. Both arms train `patience` times longer than the epoch they are compared at, so
that they can also be compared at equal fit.
"""

from dataclasses import dataclass, replace

import numpy as np

from bnmem import data, jobs, norms
from bnmem.errors import InputError
from bnmem.fit import at_equal_fit
from bnmem.jobs import Job
from bnmem.records import Record
from bnmem.rules import RULES, Cell, cell_status
from bnmem.settings import setting
from bnmem.stats import Interval, first_crossing, t_interval, value_at
from bnmem.training import SEARCH, TRAINING, Common, Search, Training

NAME = "forced_memorization"
KINDS = (SEARCH, TRAINING)
TUNINGS = ("same", "best")
CLAIMS = {"flip": "C1", "ood": "C2"}


@dataclass(frozen=True)
class ForcedMemorization(Common):
    """The experiment's parameters; every one can be set through papermill."""

    norm: str = setting("batch", "normalisation under study", norms.NORMS)
    against: str = setting("none", "normalisation it is compared with", norms.NORMS)
    corruptions: tuple = setting(("flip", "ood"), "kinds of corruption", tuple(CLAIMS))
    lr: float = setting(0.02, "learning rate of the comparison at the same settings", low=1e-8)
    lrs: tuple = setting((0.005, 0.01, 0.02, 0.05, 0.1, 0.2), "learning rates to choose each arm's best from", low=1e-8)
    epochs: int = setting(30, "epoch at which the arms are compared", low=1)
    patience: int = setting(3, "both arms train this many times longer, for the control at equal fit", low=1, high=10)
    seeds: int = setting(3, "number of seeds", low=1, high=100)

    @classmethod
    def profiles(cls) -> dict[str, dict]:
        small = {"n_train": 400, "n_val": 100, "n_test": 200, "batch_size": 32, "epochs": 4, "patience": 2, "seeds": 2}
        return {
            "smoke": small | {"lrs": (0.02, 0.05)},
            "laptop": {},
            "grid": {"ood": "sibling"},
            "paper": {
                "n_train": 50_000,
                "n_val": 5_000,
                "n_test": 10_000,
                "ood": "sibling",
                "epochs": 100,
                "patience": 1,
            },
        }


SETTINGS = ForcedMemorization


@dataclass(frozen=True)
class Result:
    """All records of one run: searches by arm, trainings by (tuning, corruption, arm) with one record a seed."""

    settings: ForcedMemorization
    searches: dict[str, Record]
    runs: dict[tuple[str, str, str], list[Record]]
    notes: list[str]

    @property
    def arms(self) -> tuple[str, str]:
        return self.settings.norm, self.settings.against

    @property
    def records(self) -> list[Record]:
        """Every record once, in the order in which it is first used."""
        used = [*self.searches.values(), *(record for rows in self.runs.values() for record in rows)]
        return list({record.key: record for record in used}.values())

    def with_record(self, new: Record) -> "Result":
        """The same result with `new` in the place of the record of its key."""
        swap = {cell: [new if r.key == new.key else r for r in rows] for cell, rows in self.runs.items()}
        return replace(self, runs=swap)


def run(s: ForcedMemorization, **options) -> Result:
    """Read the experiment's records, computing what is missing; options go to `jobs.run`.

    Raises InputError when nothing would be corrupted or the arms are one, and Diverged when a training does.
    """
    if round(s.rate * s.n_train) < 1:
        raise InputError(f"rate {s.rate} of {s.n_train} images corrupts none of them; raise rate or n_train")
    if s.norm == s.against:
        raise InputError(f"norm and against are both {s.norm!r}; choose two different normalisations")
    if "ood" in s.corruptions:  # refused now rather than after the searches
        data.ood_images(s.dataset, s.ood, round(s.rate * s.n_train))
    arms = (s.norm, s.against)
    searching = {arm: search_job(s, arm) for arm in arms}
    searches = dict(zip(arms, jobs.run(list(searching.values()), **options), strict=True))
    plan = {
        (tuning, kind, arm): [
            training_job(s, kind, arm, s.lr if tuning == "same" else searches[arm].numbers["best"], seed)
            for seed in range(s.seeds)
        ]
        for tuning in TUNINGS
        for kind in s.corruptions
        for arm in arms
    }
    unique = list(dict.fromkeys(job for row in plan.values() for job in row))
    found = dict(zip(unique, jobs.run(unique, **options), strict=True))
    runs = {cell: [found[job] for job in row] for cell, row in plan.items()}
    return Result(s, searches, runs, jobs.check_code(KINDS, [*searches.values(), *found.values()]))


def search_job(s: ForcedMemorization, arm: str) -> Job:
    few = min(s.seeds, 2)
    return Job(NAME, SEARCH, Search(**_common(s), norm=arm, epochs=s.epochs, lrs=s.lrs, seeds=few))


def training_job(s: ForcedMemorization, kind: str, arm: str, lr: float, seed: int) -> Job:
    epochs = s.epochs * s.patience
    return Job(NAME, TRAINING, Training(**_common(s), norm=arm, corruption=kind, lr=lr, epochs=epochs, seed=seed))


def curve(record: Record, group: str, what: str = "accuracy") -> tuple[np.ndarray, np.ndarray]:
    """(epochs, values) of one group of images in one training, float64 [evaluations]."""
    return np.asarray(record.numbers["epoch"], float), np.asarray(record.numbers[what][group], float)


def at_epoch(result: Result, tuning: str, kind: str, arm: str, group: str = "corrupted") -> np.ndarray:
    """Accuracy at the epoch of comparison, one a seed."""
    return np.array([value_at(*curve(r, group), result.settings.epochs) for r in result.runs[tuning, kind, arm]])


def difference(result: Result, tuning: str, kind: str, group: str = "corrupted") -> Interval:
    """Accuracy of `norm` minus `against` at the epoch of comparison, paired over seeds."""
    ours, theirs = (at_epoch(result, tuning, kind, arm, group) for arm in result.arms)
    return t_interval(ours - theirs)


def epochs_to(result: Result, tuning: str, kind: str, arm: str, group: str, level: float) -> list[tuple[float, bool]]:
    """(epoch at which the accuracy first reaches `level`, True), or (last epoch, False) for a run that never does."""
    rows = []
    for record in result.runs[tuning, kind, arm]:
        epoch = first_crossing(*curve(record, group), level)
        rows.append((curve(record, group)[0][-1], False) if np.isnan(epoch) else (epoch, True))
    return rows


def log2_speedup(result: Result, tuning: str, kind: str, level: float = 0.5) -> Interval:
    """log2 of the epochs until half of the corrupted samples are memorized, `against` over `norm`, paired over seeds.

    A run that never gets there counts with its last epoch (see the rule of C1).
    """
    ours, theirs = (
        np.array([max(e, 1e-3) for e, _ in epochs_to(result, tuning, kind, arm, "corrupted", level)])
        for arm in result.arms
    )
    return t_interval(np.log2(theirs / ours))


def equal_fit(result: Result, tuning: str, kind: str) -> tuple[float, np.ndarray, Interval] | None:
    """The control: corrupted accuracy where the clean-training accuracy first reaches the same level in both arms.

    Returns (level, float64 [2, seeds] corrupted accuracy of norm and against, paired difference), or None when there
    is no common level (see fit.py).
    """
    arms = [result.runs[tuning, kind, arm] for arm in result.arms]
    found = at_equal_fit(arms, lambda record, epoch: value_at(*curve(record, "corrupted"), epoch))
    if found is None:
        return None
    level, values = found
    return level, values, t_interval(values[0] - values[1])


def test_accuracy(result: Result, tuning: str, kind: str, arm: str) -> np.ndarray:
    """Test accuracy at the evaluation with the best validation accuracy (early stopping), one a seed."""
    rows = result.runs[tuning, kind, arm]
    return np.array([curve(r, "test")[1][np.argmax(curve(r, "val")[1])] for r in rows])


def cells(result: Result, tuning: str = "same") -> dict[str, list[Cell]]:
    """The cells of the scorecard at face value: claim -> effects with intervals."""
    where = f"{result.settings.dataset} / {result.settings.arch} / {tuning} learning rate"
    out = {}
    for kind in result.settings.corruptions:
        metrics = {
            "corrupted_accuracy": difference(result, tuning, kind),
            "log2_epochs_to_half": log2_speedup(result, tuning, kind),
        }
        out[CLAIMS[kind]] = [Cell(name, where, i.mean, i.low, i.high) for name, i in metrics.items()]
    return out


def _common(s: ForcedMemorization) -> dict:
    return {name: getattr(s, name) for name in Common.__dataclass_fields__}


def statuses(result: Result) -> list[str]:
    """ "holds", "fails" or "open" for every cell, at the same learning rate and at each arm's best."""
    metrics = {metric.name: metric for claim in CLAIMS.values() for metric in RULES[claim].metrics}
    found = [cell for tuning in TUNINGS for row in cells(result, tuning).values() for cell in row]
    return [cell_status(cell, metrics[cell.metric]) for cell in found]
