"""Running computations: what is missing is computed, each result stored as soon as it is there.

A `Job` names its settings; `run` looks every job's record up and computes the rest, one single-thread worker a core.
The order and the number of workers never change a number.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import joblib
import torch
from tqdm import tqdm

from bnmem import records, train
from bnmem.errors import InputError
from bnmem.records import Record
from bnmem.settings import Settings


@dataclass(frozen=True)
class Kind:
    """How one kind of record is made.

    fingerprint(settings) -> hash of the selected data; compute(settings, progress) -> (numbers, arrays); code: the
    bnmem files that can change the numbers.
    """

    name: str
    settings: type[Settings]
    fingerprint: Callable[[Settings], str]
    compute: Callable[[Settings, bool], tuple[dict, dict]]
    code: tuple[str, ...]


@dataclass(frozen=True)
class Job:
    """One computation of an experiment. Its key is known only with the data at hand."""

    experiment: str
    kind: Kind
    settings: Settings

    def key(self) -> str:
        return records.key(self.kind.name, self.settings, self.kind.fingerprint(self.settings))

    def stored(self) -> Record | None:
        return records.find(self.experiment, self.key())

    def compute(self, progress: bool = False) -> Record:
        """Compute on one thread, without storing."""
        start = datetime.now(UTC)
        with train.one_thread():
            numbers, arrays = self.kind.compute(self.settings, progress)
        return Record(
            experiment=self.experiment,
            kind=self.kind.name,
            key=self.key(),
            settings=self.settings.changed(),
            data=self.kind.fingerprint(self.settings),
            code=records.code_hash(self.kind.code),
            numbers=numbers,
            arrays=arrays,
            provenance=records.provenance(self.kind.code, start, threads=1),
            fresh=True,
        )


def run(
    jobs: Sequence[Job],
    *,
    fresh: bool = False,
    only_stored: bool = False,
    workers: int | None = None,
    progress: bool = True,
) -> list[Record]:
    """The records of all jobs, in their order; the missing ones (all, when `fresh`) are computed and stored.

    workers: None takes one a core, or one in all where a GPU is used. only_stored: raise LookupError instead of
    computing. A job that fails ends the run with its error; the records stored before it stay, so that a second run
    goes on from there.
    """
    jobs = list(jobs)
    found = {job: None if fresh else job.stored() for job in jobs}
    todo = [job for job, record in found.items() if record is None]
    if todo and only_stored:
        raise LookupError(f"{len(todo)} of {len(found)} records are not there yet")
    if todo:
        records.require_writable(todo[0].experiment)
        workers = min(len(todo), workers or (1 if torch.cuda.is_available() else joblib.cpu_count()))
        backend = "loky" if workers > 1 else "sequential"
        parallel = joblib.Parallel(workers, backend=backend, return_as="generator_unordered")
        code = {kind.name: records.code_hash(kind.code) for kind in {job.kind for job in todo}}
        made = parallel(joblib.delayed(_compute)(job, code[job.kind.name], progress and workers == 1) for job in todo)
        for job, record in tqdm(made, jobs[0].experiment, len(todo), unit="record", disable=train.quiet(progress)):
            found[job] = record
    return [found[job] for job in jobs]


def check_code(kinds: Sequence[Kind], found: Sequence[Record]) -> list[str]:
    """Notes about records that older code computed and nobody has verified since; empty when all are current."""
    current, equivalent = {kind.name: records.code_hash(kind.code) for kind in kinds}, records.verified()
    stale = [r for r in found if not r.fresh and current[r.kind] not in equivalent.get(r.code, {r.code})]
    return [f"{r.experiment}/{r.key} comes from older code; try: python -m bnmem verify {r.key}" for r in stale]


def _compute(job: Job, code: str, progress: bool) -> tuple[Job, Record]:
    """In a worker: compute and store. Refused when the code on disk is not what the run began with."""
    record = job.compute(progress)
    if record.code != code:
        raise InputError("bnmem's files changed while it was computing; run again with the new code")
    records.save(record)
    return job, record
