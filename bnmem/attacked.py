"""An arm of shadow models whose trainings may fail: the record then says so instead of stopping the experiment."""

from dataclasses import replace

from bnmem import shadow_summary, shadows
from bnmem.errors import Diverged
from bnmem.jobs import Job, Kind
from bnmem.records import Record
from bnmem.shadows import Shadows

CODE = (*shadow_summary.CODE, "attacked")


def compute(s: Shadows, progress: bool = False) -> tuple[dict, dict]:
    """As `shadow_summary.compute`; where a model diverges, `diverged`, the message, and nothing else."""
    try:
        return shadow_summary.compute(s, progress)
    except Diverged as error:
        return {"diverged": str(error)}, {}


ATTACKED = Kind("attacked", Shadows, shadows.fingerprint, compute, CODE)


class AttackJob(Job):
    """A record made of many trainings: its seconds are those of all its models together, on one core."""

    def compute(self, progress: bool = False) -> Record:
        record = super().compute(progress)
        if "diverged" in record.numbers:
            return record
        seconds = round(float(shadows.column(self.settings, "seconds").sum()), 2)
        return replace(record, provenance=record.provenance | {"seconds": seconds})


def fill(arms: list[Shadows], **options) -> None:
    """Train the missing models of all arms; an arm that diverges is passed over, its record will say so."""
    for s in arms:
        try:
            shadows.fill([s], **options)
        except Diverged:
            continue
