"""What the grid trains, and at which learning rate: the best of the arm's search at which no training diverges.

The search is short and sees no corrupted sample, so its best rate may be too large for the row itself. A training that
diverges is stored as such, and the arm takes the next rate of its search, under all seeds. Nothing else decides.
"""

from collections.abc import Callable
from dataclasses import replace

from bnmem import shadow_summary, sweep
from bnmem.attacked import AttackJob
from bnmem.errors import Diverged
from bnmem.exp_membership_inference import NAME as MEMBERSHIP
from bnmem.exp_membership_inference import SHADOWS
from bnmem.jobs import Job
from bnmem.records import Record
from bnmem.shadows import Shadows
from bnmem.sweep import SWEEP, Sweep


def train(s: Sweep, progress: bool = False) -> tuple[dict, dict]:
    """As `sweep.compute`; where the training diverges, `diverged`, the message, and nothing else."""
    try:
        return sweep.compute(s, progress)
    except Diverged as error:
        return {"diverged": str(error)}, {}


def attack(s: Shadows, progress: bool = False) -> tuple[dict, dict]:
    """As `shadow_summary.compute`; where a model diverges, `diverged`, the message, and nothing else."""
    try:
        return shadow_summary.compute(s, progress)
    except Diverged as error:
        return {"diverged": str(error)}, {}


TRAINED = replace(SWEEP, compute=train)
ATTACKED = replace(SHADOWS, compute=attack)


def attack_job(arm: Shadows) -> Job:
    return AttackJob(MEMBERSHIP, ATTACKED, arm)


def diverged(record: Record | None) -> bool:
    return record is not None and "diverged" in record.numbers


def rates(search: Record) -> list[float]:
    """The learning rates that trained in a search, the best on validation first; of equals the smaller."""
    rows = zip(search.numbers["lrs"], search.numbers["val_accuracy"], strict=True)
    mean = {lr: sum(row) / len(row) for lr, row in rows if None not in row}
    return sorted(mean, key=lambda lr: -mean[lr])


def settle(search: Record, jobs_at: Callable[[float], list[Job]], get: Callable[[Job], Record | None]) -> list[float]:
    """The rates that were tried, the last of them the one to use: no training at it is known to diverge.

    Raises Diverged when one diverges at every rate.
    """
    tried = []
    for lr in rates(search):
        tried.append(lr)
        if not any(diverged(get(job)) for job in jobs_at(lr)):
            return tried
    raise Diverged(f"at every learning rate of {rates(search)} a training diverges; offer lower ones")
