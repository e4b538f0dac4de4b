"""All cells of all claims, from all records: what the scorecard shows, and the verdicts by the rules."""

from dataclasses import dataclass, field, replace

from bnmem import (
    exp_forced_memorization,
    exp_gamma_sigma,
    exp_gradient_norms,
    exp_grid,
    exp_membership_inference,
    exp_regularization,
    grid_cells,
    rules,
)
from bnmem.grid_cells import FACE, FIT, READINGS
from bnmem.records import Record
from bnmem.rules import RULES, Cell

EXPERIMENTS = (
    exp_forced_memorization,
    exp_gradient_norms,
    exp_membership_inference,
    exp_gamma_sigma,
    exp_regularization,
)


@dataclass(frozen=True)
class Scorecard:
    """cells: claim -> reading -> cells; used: the records behind them; notes: what a reader must know of those;
    coverage: tier of the grid -> rows finished, and all rows that were chosen; rates: a grid cell's name -> arm -> the
    learning rate that it trained at, its own best."""

    cells: dict[str, dict[str, list[Cell]]]
    used: list[Record]
    notes: list[str]
    coverage: dict[int, tuple[int, int]] = field(default_factory=dict)
    rates: dict[str, dict[str, float]] = field(default_factory=dict)

    def of(self, claim: str, reading: str = FACE) -> list[Cell]:
        return self.cells[claim][reading]

    def verdict(self, claim: str, reading: str = FACE) -> str:
        """By the rules; for a theorem that its tests decide."""
        if not RULES[claim].metrics:
            return rules.PROVED
        found = self.of(claim, reading)
        if reading == FIT and found:  # not every metric has a reading at equal fit: those that have one decide
            metrics = [m for m in RULES[claim].metrics if any(c.metric == m.name for c in found)]
            held = [rules.cell_status(c, m) == "holds" for m in metrics for c in found if c.metric == m.name]
            return rules.REPRODUCED if all(held) else rules.PARTLY if any(held) else rules.NOT
        return rules.verdict(claim, found)


def collect(s: exp_grid.Grid, profile: str = "laptop", fresh: bool = False) -> Scorecard:
    """Every finished cell: of the experiments at `profile`, and of the grid's rows that `s` chooses.

    Reads records; what is not there is not measured. At profile smoke the grid's small row is computed first.
    """
    if profile == "smoke":
        exp_grid.run(s, fresh=fresh)
    cells = {claim: {reading: [] for reading in READINGS} for claim in RULES}
    used, notes = [], []
    for module in EXPERIMENTS:
        try:
            result = module.run(module.SETTINGS.of(profile), only_stored=True)
        except LookupError:
            continue
        used, notes = used + result.records, notes + result.notes
        for reading in READINGS:
            _add(cells, reading, _READ[module.NAME](result, reading))
    grid = exp_grid.stored(s)
    for row in grid.rows:
        for reading in READINGS:
            _add(cells, reading, grid_cells.found(row, reading))
    rows, done = s.rows(), [cells.row for cells in grid.rows]
    coverage = {tier: tuple(sum(row.tier == tier for row in some) for some in (done, rows)) for tier in s.tiers}
    rates = {grid_cells.where(cells): cells.best for cells in grid.rows if cells.searches}
    return Scorecard(cells, list({r.key: r for r in used + grid.records}.values()), notes + grid.notes, coverage, rates)


def _add(cells, reading, found):
    for claim, row in found.items():
        cells[claim][reading] += row


def _memorization(result, reading):
    out = {}
    for tuning, label in (("same", "same learning rate"), ("best", "own learning rates")):
        s = result.settings
        for kind in s.corruptions:
            claim = exp_forced_memorization.CLAIMS[kind]
            where = f"{s.dataset} / {s.arch} / {100 * s.rate:g} % {kind}, {label}"
            if reading == FACE:
                row = [replace(c, where=where) for c in exp_forced_memorization.cells(result, tuning)[claim]]
            else:
                control = exp_forced_memorization.equal_fit(result, tuning, kind)
                i = control and control[2]
                row = [Cell("corrupted_accuracy", where, i.mean, i.low, i.high)] if control else []
            out.setdefault(claim, []).extend(row)
    return out


def _gradients(result, reading):
    s = result.settings
    where = f"{s.dataset} / {s.arch} / {100 * s.rate:g} % {s.corruption}, same learning rate"
    if reading == FACE:
        return {"C3": [replace(c, where=where) for c in exp_gradient_norms.cells(result)["C3"]]}
    levels = exp_gradient_norms.equal_fit(result)
    if not levels:
        return {}
    i = levels[max(levels)]
    return {"C3": [Cell("log2_norm_batch_over_none", where, i.mean, i.low, i.high)]}


def _membership(result, reading):
    s = result.settings
    where = f"{s.dataset} / {s.arch}, same learning rate"
    found = exp_membership_inference.cells(result, reading)
    return {claim: [replace(c, where=where) for c in row] for claim, row in found.items()}


_READ = {
    "forced_memorization": _memorization,
    "gradient_norms": _gradients,
    "membership_inference": _membership,
    "gamma_sigma": lambda result, reading: exp_gamma_sigma.cells(result) if reading == FACE else {},
    "regularization": lambda result, reading: exp_regularization.cells(result, reading),
}
