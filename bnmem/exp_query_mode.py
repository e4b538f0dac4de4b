"""How far the way of asking moves the answer: the same nets queried with running and with batch statistics.

A net with batch normalisation answers in two ways. Deployed, it uses running averages, and the answer for one image
does not depend on the others. In training mode it uses the statistics of the query batch. Some attack code asks that
way. The shadow models are those of `exp_membership_inference`; nothing is trained twice.
"""

from dataclasses import dataclass, replace

import numpy as np

from bnmem import jobs, lira, norms, roc, shadow_summary, shadows
from bnmem.errors import InputError
from bnmem.exp_membership_inference import MembershipInference, in_errors
from bnmem.jobs import Kind
from bnmem.records import Record
from bnmem.roc import Difference
from bnmem.settings import setting
from bnmem.shadow_summary import ArmJob
from bnmem.shadows import Pool, Shadows

NAME = "query_mode"
CODE = (*shadow_summary.CODE, "exp_query_mode")


def compute(s: Shadows, progress: bool = False) -> tuple[dict, dict]:
    """Numbers, at the last epoch: `auc`, "running" or "batch B" -> group -> one AUC a target (LiRA online, shrunk);
    `moved`, "running" and "batch" -> the largest change of phi, over models and samples, when the same pool is queried
    in another order (None where the net has no such mode); `accuracy`, mode -> accuracy on members and on non-members,
    as means over models.
    """
    shadows.fill([s], progress=progress)
    parts, inside = shadow_summary.members_of(s)
    columns = {"running": f"phi_{s.epochs}"}
    if s.norm == "batch":
        columns |= {f"batch {size}": f"phi_batch_{size}" for size in s.queries}
    numbers = {"auc": {}, "accuracy": {}}
    for mode, name in columns.items():
        phi = shadows.column(s, name).astype(np.float64)
        score = lira.score(phi, inside)
        numbers["auc"][mode] = {
            group: roc.auc_per_target(score[:, rows], inside[:, rows]).tolist() for group, rows in parts.items()
        }
        # phi > 0: more than half of the probability on the trained label
        numbers["accuracy"][mode] = [float((phi > 0)[side].mean()) for side in (inside, ~inside)]
    moved = shadows.column(s, "moved").max(axis=0)
    numbers["moved"] = {"running": float(moved[0]), "batch": float(moved[1]) if s.norm == "batch" else None}
    return numbers, {}


QUERIES = Kind("queries", Shadows, shadows.fingerprint, compute, CODE)
KINDS = (QUERIES,)


@dataclass(frozen=True)
class QueryMode(Pool):
    """The experiment's parameters; every one can be set through papermill."""

    norm: str = setting("batch", "normalisation whose query mode is studied", norms.NORMS)
    against: str = setting("none", "normalisation it is compared with", norms.NORMS)
    corruption: str = setting("flip", "how outliers are made", ("flip", "ood"))
    rate: float = setting(0.05, "outlier fraction of the pool", low=0.0, high=0.5)
    models: int = setting(16, "shadow models an arm, in complementary pairs", low=1, high=shadows.STRIDE)
    scored: tuple = setting(Shadows.scored, "epochs after which the pool is scored", low=0)
    queries: tuple = setting(Shadows.queries, "batch sizes of the query with batch statistics", low=2)

    @classmethod
    def profiles(cls) -> dict[str, dict]:
        shared = MembershipInference.profiles()
        return {
            name: {f: v for f, v in values.items() if f in cls.__dataclass_fields__} for name, values in shared.items()
        }


SETTINGS = QueryMode


@dataclass(frozen=True)
class Result:
    """The record of each arm."""

    settings: QueryMode
    runs: dict[str, Record]
    notes: list[str]

    @property
    def arms(self) -> tuple[str, str]:
        return self.settings.norm, self.settings.against

    @property
    def records(self) -> list[Record]:
        return list(self.runs.values())

    @property
    def modes(self) -> list[str]:
        """The ways in which the arm under study was asked: "running", then "batch B" for each size."""
        found = self.runs[self.settings.norm].numbers["auc"]
        return ["running", *(mode for mode in map("batch {}".format, self.settings.queries) if mode in found)]

    def with_record(self, new: Record) -> "Result":
        """The same result with `new` in the place of the record of its key."""
        runs = {arm: new if record.key == new.key else record for arm, record in self.runs.items()}
        return replace(self, runs=runs)


def arm_of(s: QueryMode, norm: str) -> Shadows:
    """The settings of one arm of shadow models: those of the membership experiment at the same rate."""
    same = {name: getattr(s, name) for name in (*Pool.__dataclass_fields__, "models", "scored", "queries")}
    return Shadows(**same, norm=norm, corruption=s.corruption if s.rate else "none", rate=s.rate)


def run(
    s: QueryMode,
    *,
    fresh: bool = False,
    only_stored: bool = False,
    workers: int | None = None,
    progress: bool = True,
) -> Result:
    """Read the experiment's records, computing what is missing; options as those of `jobs.run`.

    Raises InputError when the settings cannot be attacked or the arms are one, and Diverged when a training does.
    """
    if s.norm == s.against:
        raise InputError(f"norm and against are both {s.norm!r}; choose two different normalisations")
    plan = {norm: arm_of(s, norm) for norm in (s.norm, s.against)}
    for arm in plan.values():
        shadows.check(arm)
    todo = [ArmJob(NAME, QUERIES, arm) for arm in plan.values()]
    if not only_stored:
        missing = [job.settings for job in todo if fresh or job.stored() is None]
        shadows.fill(missing, fresh=fresh, workers=workers, progress=progress)
    found = jobs.run(todo, fresh=fresh, only_stored=only_stored, workers=1, progress=False)
    return Result(s, dict(zip(plan, found, strict=True)), jobs.check_code(KINDS, found))


def groups(result: Result) -> list[str]:
    """The groups of the pool: all samples, and where there are outliers, those and the clean ones."""
    found = result.runs[result.settings.norm].numbers["auc"]["running"]
    return list(shadow_summary.GROUPS) if "outliers" in found else ["all"]


def auc(result: Result, norm: str, mode: str = "running", group: str = "all") -> np.ndarray:
    """AUC a target, float64 [models]; an arm that has one mode only is read in that one."""
    by_mode = result.runs[norm].numbers["auc"]
    return np.array(by_mode.get(mode, by_mode["running"])[group])


def shift(result: Result, mode: str, group: str = "all") -> Difference:
    """AUC of `norm` asked in `mode` minus asked with running statistics, paired over pairs of models."""
    norm = result.settings.norm
    return roc.paired_difference(auc(result, norm, mode, group), auc(result, norm, "running", group))


def gap(result: Result, mode: str, group: str = "all") -> Difference:
    """AUC of `norm` asked in `mode` minus AUC of `against`, paired over pairs of models."""
    s = result.settings
    return roc.paired_difference(auc(result, s.norm, mode, group), auc(result, s.against, mode, group))


def statuses(result: Result) -> list[str]:
    """Whether each mode's shift over all samples is "up", "down" or "open" (its interval holds zero)."""
    rows = [shift(result, mode) for mode in result.modes[1:]]
    return ["up" if row.low > 0 else "down" if row.high < 0 else "open" for row in rows]


def deviations(old: Record, new: Record) -> float:
    """How far a recomputed record lies off: the largest change of a mean AUC over all samples, see `in_errors`."""
    both = [{mode: np.array(by_group["all"]) for mode, by_group in r.numbers["auc"].items()} for r in (old, new)]
    return max(in_errors(before, both[1][mode]) for mode, before in both[0].items())
