"""From the records of one row of the grid to the cells of the scorecard, at equal epochs and at equal fit."""

from dataclasses import replace

import numpy as np

from bnmem import exp_forced_memorization as memorization
from bnmem import exp_membership_inference as attacks
from bnmem import exp_regularization as mitigations
from bnmem.exp_forced_memorization import ForcedMemorization
from bnmem.fit import at_equal_fit
from bnmem.grid_rows import ARMS, Cells, Row
from bnmem.records import Record
from bnmem.rules import RULES, Cell, cell_status
from bnmem.stats import Interval, t_interval, value_at

FACE, FIT = "equal epochs", "equal fit"
READINGS = (FACE, FIT)


def found(cells: Cells, reading: str = FACE) -> dict[str, list[Cell]]:
    """claim -> effects with intervals of one row; at equal fit only where the arms have a level in common."""
    if cells.row.what == "regularization":
        named = {claim: [replace(c, where=where(cells)) for c in row]
                 for claim, row in mitigations.cells(mitigated(cells.row, cells.runs), reading).items()}  # fmt: skip
        return named
    if cells.row.what == "lira":
        return {claim: [replace(c, where=where(cells)) for c in row]
                for claim, row in attacks.cells(attacked(cells), reading).items()}  # fmt: skip
    return _memorized(cells, reading) | _gradients(cells, reading) | (_ratios(cells) if reading == FACE else {})


def where(cells: Cells) -> str:
    """The cell's name: data set, net and what was corrupted."""
    s = cells.row.settings
    start = f"{s.dataset} / {s.arch}{', He' if s.init == 'he' else ''}"
    if cells.row.what == "regularization":
        return f"{start} / {100 * s.rate:g} % {s.corruption}, {s.n_train:,} images, lr {s.lr:g}"
    return start if cells.row.what == "lira" else f"{start} / {100 * s.rate:g} % {s.corruption}, {s.n_train:,} images"


def statuses(cells: Cells) -> list[str]:
    """ "holds", "fails" or "open" for every cell of a row, in both readings."""
    metrics = {metric.name: metric for rule in RULES.values() for metric in rule.metrics}
    return [cell_status(c, metrics[c.metric]) for r in READINGS for row in found(cells, r).values() for c in row]


def attacked(cells: Cells) -> attacks.Result:
    """A row of shadow models as a result of the membership experiment, without its audits and gradient norms."""
    return attacks.Result(cells.row.attack(cells.best), cells.runs, {}, {}, [])


def mitigated(row: Row, runs: dict[tuple, Record]) -> mitigations.Result:
    """A row of regularization as a result of that experiment, with the attacks that are among `runs`."""
    trained = {point: [] for point, *_ in runs}
    for name in runs:
        trained[name[0]] += [runs[name]] if len(name) == 2 else []
    attacked_ = {name[0]: runs[name] for name in runs if len(name) == 1}
    stable = {point: r for point, r in attacked_.items() if "diverged" not in r.numbers}
    unstable = {point: r for point, r in attacked_.items() if point not in stable}
    return mitigations.Result(row.settings, trained, stable, [], unstable=unstable)


def memorized(cells: Cells) -> memorization.Result:
    """A row of trainings as a result of the memorization experiment, each arm at its best learning rate."""
    s = cells.row.settings
    same = {name: getattr(s, name) for name in ("dataset", "arch", "init", "rate", "ood", "n_train", "n_val", "n_test")}
    settings = ForcedMemorization(**same, corruptions=(s.corruption,), epochs=s.epochs, patience=1, seeds=s.seeds)
    runs = {("best", s.corruption, norm): [cells.runs[norm, seed] for seed in range(s.seeds)] for norm in ARMS}
    return memorization.Result(settings, cells.searches, runs, [])


def _memorized(cells: Cells, reading: str) -> dict[str, list[Cell]]:
    result, kind = memorized(cells), cells.row.settings.corruption
    claim = memorization.CLAIMS[kind]
    if reading == FACE:
        return {claim: [replace(c, where=where(cells)) for c in memorization.cells(result, "best")[claim]]}
    control = memorization.equal_fit(result, "best", kind)
    return {claim: [_cell("corrupted_accuracy", cells, control[2])]} if control else {}


def _gradients(cells: Cells, reading: str) -> dict[str, list[Cell]]:
    """C3: log2 ratios of medians, definition eval, mean over the checkpoints after initialization."""
    seeds = range(cells.row.settings.seeds)
    ours, theirs = ([cells.runs[norm, seed] for seed in seeds] for norm in ARMS)
    if reading == FACE:
        inside = [np.mean(_log2(r, "noisy")[1:] - _log2(r, "clean")[1:]) for r in ours]
        across = [np.mean(_log2(a, "noisy")[1:] - _log2(b, "noisy")[1:]) for a, b in zip(ours, theirs, strict=True)]
        both = {"log2_norm_noisy_over_clean": inside, "log2_norm_batch_over_none": across}
        return {"C3": [_cell(name, cells, t_interval(values)) for name, values in both.items()]}
    at = at_equal_fit([ours, theirs], lambda r, epoch: value_at(r.numbers["checkpoints"], _log2(r, "noisy"), epoch))
    if at is None:
        return {}
    return {"C3": [_cell("log2_norm_batch_over_none", cells, t_interval(at[1][0] - at[1][1]))]}


def _log2(record: Record, group: str, definition: str = "eval") -> np.ndarray:
    return np.log2(np.maximum(record.numbers["gradients"][definition][group], 1e-30))


def _ratios(cells: Cells) -> dict[str, list[Cell]]:
    """C8: share of BN layers above 1, and the change of their mean by training, in the arm with BN."""
    ratios = [np.array(list(cells.runs["batch", seed].numbers["ratio"].values()))
              for seed in range(cells.row.settings.seeds)]  # fmt: skip
    both = {
        "share_above_one": [np.mean(r[:, -1] > 1) - 0.5 for r in ratios],
        "log2_ratio_change": [np.log2(r[:, -1].mean() / r[:, 0].mean()) for r in ratios],
    }
    return {"C8": [_cell(name, cells, t_interval(values)) for name, values in both.items()]}


def _cell(metric: str, cells: Cells, i: Interval) -> Cell:
    return Cell(metric, where(cells), i.mean, i.low, i.high)
