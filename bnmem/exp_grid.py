"""Running the grid: rows in the order of their tiers, what is missing computed, the rest read.

Finished cells are found by their settings, not by the images: the scorecard needs no data set at hand.
"""

import fnmatch
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from bnmem import exp_membership_inference as attacks
from bnmem import exp_regularization as mitigations
from bnmem import grid_cells, grid_trials, jobs, records
from bnmem.errors import InputError
from bnmem.grid_rows import ARMS, NAME, ROWS, Cells, Row
from bnmem.grid_trials import TRAINED, diverged
from bnmem.jobs import Job
from bnmem.records import Record
from bnmem.settings import Settings, setting
from bnmem.training import SEARCH

KINDS = (SEARCH, TRAINED)
_UNKNOWN = Record(NAME, "", "", {}, "", "", {}, {}, {})  # stands for a record that is not there yet


@dataclass(frozen=True)
class Grid(Settings):
    """Which rows: tiers, and a pattern for their names."""

    tiers: tuple = setting((1, 2), "tiers of rows", (0, 1, 2, 3))
    only: str = setting("*", "pattern of row names, such as trainings/cifar10/*")

    @classmethod
    def profiles(cls) -> dict[str, dict]:
        return {"smoke": {"tiers": (0,)}, "laptop": {"tiers": (1, 2, 3)}, "grid": {}}

    def rows(self) -> list[Row]:
        """The chosen rows, tier after tier. Raises InputError where none is chosen."""
        chosen = [row for row in ROWS if row.tier in self.tiers and fnmatch.fnmatch(row.name, self.only)]
        if not chosen:
            raise InputError(f"no row of tiers {list(self.tiers)} matches {self.only!r}; see: run grid --list")
        return chosen


SETTINGS = Grid


@dataclass(frozen=True)
class Result:
    """All finished rows."""

    settings: Grid
    rows: list[Cells]
    notes: list[str]

    @property
    def records(self) -> list[Record]:
        """Every record once."""
        return list({record.key: record for cells in self.rows for record in _used(cells)}.values())

    def with_record(self, new: Record) -> "Result":
        """The same result with `new` in the place of the record of its key."""

        def swap(found):
            return {name: new if record.key == new.key else record for name, record in found.items()}

        return replace(self, rows=[replace(c, searches=swap(c.searches), runs=swap(c.runs)) for c in self.rows])


class Store:
    """The stored records of the grid's experiments, found by kind and settings."""

    def __init__(self):
        found = [records.load(path) for name in (NAME, attacks.NAME, mitigations.NAME) for path in records.stored(name)]
        self.found = {(r.kind, json.dumps(r.settings, sort_keys=True)): r for r in found}

    def get(self, job: Job) -> Record | None:
        return self.found.get((job.kind.name, json.dumps(job.settings.changed(), sort_keys=True)))

    def all(self, jobs_: dict) -> dict | None:
        """The records of jobs by name, or None where one is missing."""
        found = {name: self.get(job) for name, job in jobs_.items()}
        return None if None in found.values() else found

    def row(self, row: Row) -> Cells | None:
        """A row's records, or None where one is missing."""
        searches = self.all(row.searches())
        if searches is None:
            return None
        best, abandoned = settle(row, searches, self.get)
        runs = self.all(jobs_of(row, best))
        if runs is None:
            return None
        given_up = [record for job in abandoned if (record := self.get(job))]
        try:
            return Cells(row, searches, runs | attacks_of(row, runs, self.need), best, given_up)
        except LookupError:
            return None

    def need(self, plan: list[Job]) -> list[Record]:
        """The records of jobs. Raises LookupError where one is missing."""
        found = [self.get(job) for job in plan]
        if None in found:
            raise LookupError(f"{found.count(None)} of {len(plan)} records are not there yet")
        return found


def _used(cells: Cells) -> list[Record]:
    return [*cells.searches.values(), *cells.abandoned, *cells.runs.values()]


def settle(
    row: Row, searches: dict[str, Record], get: Callable[[Job], Record | None]
) -> tuple[dict[str, float], list[Job]]:
    """arm -> the learning rate to use, as far as records tell, and the jobs at rates that are given up for it."""
    best, abandoned = {}, []
    for arm, search in searches.items():

        def at(lr, arm=arm):
            return [job for name, job in jobs_of(row, dict.fromkeys(ARMS, lr)).items() if arm in name]

        *given_up, best[arm] = grid_trials.settle(search, at, get)
        abandoned += [job for lr in given_up for job in at(lr)]
    return best, abandoned


def jobs_of(row: Row, best: dict[str, float]) -> dict[tuple, Job]:
    """The row's computations beside the searches and beside attacks that wait for trainings."""
    if row.what == "trainings":
        return row.trainings(best)
    if row.what == "regularization":
        plan = mitigations.trainings(row.settings)
        return {(point, seed): job for point, jobs_ in plan.items() for seed, job in enumerate(jobs_)}
    s = row.attack(best)
    arms = {(rate, norm): attacks.arm_of(s, rate, norm) for rate in s.rates for norm in ARMS}
    return {name: grid_trials.attack_job(arm) for name, arm in arms.items()}


def attacks_of(row: Row, runs: dict[tuple, Record], find: Callable) -> dict[tuple, Record]:
    """The attacks of a row of regularization, (point,) -> record: which arms are attacked depends on its trainings."""
    if row.what != "regularization" or not row.settings.attack:
        return {}
    result = mitigations.attack(grid_cells.mitigated(row, runs), find)
    return {(point,): record for point, record in (*result.attacks.items(), *result.unstable.items())}


def run(
    s: Grid,
    *,
    fresh: bool = False,
    only_stored: bool = False,
    workers: int | None = None,
    progress: bool = True,
) -> Result:
    """Compute what is missing of the chosen rows; options as those of `jobs.run`.

    only_stored: read the finished rows and raise LookupError where one is not.
    """
    rows = s.rows()
    if not only_stored:
        for row in rows:
            _compute(row, fresh=fresh, workers=workers, progress=progress)
    result = stored(s)
    if len(result.rows) < len(rows):
        raise LookupError(f"{len(rows) - len(result.rows)} of {len(rows)} rows are not finished yet")
    return result


def _compute(row: Row, **options) -> None:
    if row.what == "regularization":
        if options["fresh"] or Store().row(row) is None:
            mitigations.run(row.settings, **options)
        return
    searches, store = row.searches(), Store()
    if store.row(row) and not options["fresh"]:
        return
    found = store.all(searches)
    if found is None or options["fresh"]:
        found = dict(zip(searches, jobs.run(list(searches.values()), **options), strict=True))
    if options["fresh"]:
        _run(row, settle(row, found, store.get)[1], **options)
    made = []
    while not made or any(map(diverged, made)):
        best, _ = settle(row, found, Store().get)
        made = _run(row, list(jobs_of(row, best).values()), **options)


def _run(row: Row, plan: list[Job], **options) -> list[Record]:
    if row.what == "lira":
        return mitigations.run_attacks(plan, options | {"only_stored": False})
    return jobs.run(plan, **options)


def stored(s: Grid) -> Result:
    """The finished ones of the chosen rows, without a look at the images."""
    store = Store()
    rows = [cells for row in s.rows() if (cells := store.row(row))]
    used = [record for cells in rows for record in _used(cells)]
    return Result(s, rows, jobs.check_code((*KINDS, attacks.SHADOWS, *mitigations.KINDS), used))


@dataclass(frozen=True)
class Plan:
    """What a row still needs: computations there are, those missing, and the hours of one core they will take."""

    row: Row
    total: int
    missing: int
    hours: float


def plan(rows: list[Row]) -> list[Plan]:
    """How far each row is. Times are those of like records so far, NaN where there are none."""
    store, counted = Store(), set()
    seconds = [(r.kind, r.settings.get("arch", "lenet"), r.settings.get("dataset"), r.provenance["seconds"])
               for r in store.found.values()]  # fmt: skip
    plans = []
    for row in rows:
        searches = row.searches()
        found = store.all(searches)
        best = settle(row, found, store.get)[0] if found else dict.fromkeys(ARMS, 0.02)
        first = jobs_of(row, best)
        work = [*searches.values(), *first.values()]
        runs = store.all(first)
        if runs:
            attacks_of(row, runs, partial(_note, work, store))
        lacking = [job for job in work if job not in counted and (store.get(job) is None)]
        counted.update(work)
        hours = sum(_seconds(job, seconds) for job in lacking) / 3600 if lacking else 0.0
        plans.append(Plan(row, len(work), len(lacking), hours))
    return plans


def _note(work: list[Job], store: Store, more: list[Job]) -> list[Record]:
    """Add jobs to the work of a plan; as far as records tell which come next."""
    work += more
    return [store.get(job) or _UNKNOWN for job in more]


def _seconds(job: Job, known: list[tuple]) -> float:
    """The mean of records of the same kind and net, of the same data set where there are some."""
    alike = [row for row in known if row[:2] == (job.kind.name, job.settings.arch)]
    same = [row[3] for row in alike if row[2] == job.settings.dataset]
    return float(np.mean(same or [row[3] for row in alike])) if alike else float("nan")


def statuses(result: Result) -> list[str]:
    """ "holds", "fails" or "open" for every cell of the finished rows."""
    return [status for cells in result.rows for status in grid_cells.statuses(cells)]
