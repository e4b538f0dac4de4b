"""Claims C4 and C5: does batch normalisation make membership inference easier, with outliers in the pool and without?

Arms `norm`, `against` and `also`, each an arm of shadow models on the same halves of the same pool, attacked with LiRA:
at equal epochs, and at equal fit. Beside it one audit of one training an arm.
"""

from dataclasses import dataclass, replace

import numpy as np

from bnmem import canaries, jobs, norms, roc, shadows
from bnmem.canaries import AUDIT, Audit
from bnmem.errors import InputError
from bnmem.influence import INFLUENCE, Influence
from bnmem.jobs import Job
from bnmem.records import Record
from bnmem.roc import Difference
from bnmem.rules import RULES, Cell, cell_status
from bnmem.settings import setting
from bnmem.shadow_summary import GROUPS, SHADOWS, ArmJob
from bnmem.shadows import Pool, Shadows

NAME = "membership_inference"
KINDS = (SHADOWS, AUDIT, INFLUENCE)
CLAIMS = {"auc_gap_1_percent": "C4", "auc_gap_5_percent": "C4", "auc_gap_0_percent": "C5"}
FIT_TOLERANCE = 0.005  # two arms fit equally well when their accuracies on clean IN samples differ by no more


@dataclass(frozen=True)
class MembershipInference(Pool):
    """The experiment's parameters; every one can be set through papermill."""

    norm: str = setting("batch", "normalisation under study", norms.NORMS)
    against: str = setting("none", "normalisation it is compared with", norms.NORMS)
    also: tuple = setting(("affine",), "further arms; naming one of the two adds nothing", norms.NORMS)
    lr_against: float = setting(0.0, "learning rate of the other arms; 0 takes lr", low=0.0)
    corruption: str = setting("flip", "how outliers are made", ("flip", "ood"))
    rates: tuple = setting((0.0, 0.01, 0.05), "outlier fractions of the pools", low=0.0, high=0.5)
    models: int = setting(16, "shadow models an arm, in complementary pairs", low=1, high=shadows.STRIDE)
    scored: tuple = setting(Shadows.scored, "epochs after which the pool is scored", low=0)
    queries: tuple = setting(Shadows.queries, "batch sizes of the query with batch statistics", low=2)
    canaries: int = setting(400, "canaries of the audit", low=2)
    guesses: int = setting(200, "guesses of the audit", low=2)
    measured: tuple = setting(Influence.measured, "epochs of the gradient norms in the risk table", low=0)

    @classmethod
    def profiles(cls) -> dict[str, dict]:
        return {
            "smoke": {
                "pool": 400,
                "n_test": 200,
                "batch_size": 32,
                "models": 6,
                "epochs": 5,
                "scored": (1, 3, 5),
                "queries": (32, 128),
                "canaries": 60,
                "guesses": 40,
                "measured": (1, 3, 5),
            },
            "laptop": {},
            "grid": {"ood": "sibling"},
            "paper": {
                "pool": 50_000,
                "n_test": 10_000,
                "ood": "sibling",
                "models": 256,
                "epochs": 100,
                "scored": (2, 4, 6, 10, 20, 50, 100),
                "canaries": 2000,
                "guesses": 1000,
                "measured": (1, 5, 20, 100),
            },
        }


SETTINGS = MembershipInference


@dataclass(frozen=True)
class Result:
    """All records of one run: arms of shadow models by (rate, norm), audits and, for the pool with the most outliers,
    gradient norms by norm."""

    settings: MembershipInference
    runs: dict[tuple[float, str], Record]
    audits: dict[str, Record]
    influence: dict[str, Record]
    notes: list[str]

    @property
    def arms(self) -> tuple[str, ...]:
        return arms_of(self.settings)

    @property
    def records(self) -> list[Record]:
        return [*self.runs.values(), *self.audits.values(), *self.influence.values()]

    def with_record(self, new: Record) -> "Result":
        """The same result with `new` in the place of the record of its key."""

        def swap(old):
            return {name: new if record.key == new.key else record for name, record in old.items()}

        return replace(self, runs=swap(self.runs), audits=swap(self.audits), influence=swap(self.influence))


def arms_of(s: MembershipInference) -> tuple[str, ...]:
    """norm, against, then the further arms, each once."""
    return tuple(dict.fromkeys((s.norm, s.against, *s.also)))


def arm_of(s: MembershipInference, rate: float, norm: str) -> Shadows:
    """The settings of one arm of shadow models."""
    same = {name: getattr(s, name) for name in (*Pool.__dataclass_fields__, "models", "scored", "queries")}
    same["lr"] = lr_of(s, norm)
    return Shadows(**same, norm=norm, corruption=s.corruption if rate else "none", rate=rate)


def audit_of(s: MembershipInference, norm: str) -> Audit:
    same = {name: getattr(s, name) for name in (*Pool.__dataclass_fields__, "canaries", "guesses")}
    return Audit(**same | {"lr": lr_of(s, norm)}, norm=norm)


def influence_of(s: MembershipInference, norm: str) -> Influence:
    same = {name: getattr(s, name) for name in (*Pool.__dataclass_fields__, "measured")}
    rate = max(s.rates)
    return Influence(**same | {"lr": lr_of(s, norm)}, norm=norm, corruption=s.corruption if rate else "none", rate=rate)


def lr_of(s: MembershipInference, norm: str) -> float:
    return s.lr if norm == s.norm or not s.lr_against else s.lr_against


def run(
    s: MembershipInference,
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
    plan = {(rate, norm): arm_of(s, rate, norm) for rate in dict.fromkeys(s.rates) for norm in arms_of(s)}
    audits = {norm: audit_of(s, norm) for norm in arms_of(s)}
    for arm in plan.values():
        shadows.check(arm)
    for audit in audits.values():
        canaries.check(audit)
    options = {"fresh": fresh, "only_stored": only_stored, "workers": workers, "progress": progress}
    runs = dict(zip(plan, run_arms(list(plan.values()), **options), strict=True))
    audit_jobs = [Job(NAME, AUDIT, audit) for audit in audits.values()]
    audited = dict(zip(audits, jobs.run(audit_jobs, **options), strict=True))
    pulls = {norm: Job(NAME, INFLUENCE, influence_of(s, norm)) for norm in arms_of(s)}
    pulled = dict(zip(pulls, jobs.run(list(pulls.values()), **options), strict=True))
    used = [*runs.values(), *audited.values(), *pulled.values()]
    return Result(s, runs, audited, pulled, jobs.check_code(KINDS, used))


def run_arms(
    arms: list[Shadows],
    *,
    fresh: bool = False,
    only_stored: bool = False,
    workers: int | None = None,
    progress: bool = True,
) -> list[Record]:
    """The records of arms of shadow models; the missing models of all of them are trained in one go."""
    plan = [ArmJob(NAME, SHADOWS, arm) for arm in arms]
    if not only_stored:
        missing = [job.settings for job in plan if fresh or job.stored() is None]
        shadows.fill(missing, fresh=fresh, workers=workers, progress=progress)
    return jobs.run(plan, fresh=fresh, only_stored=only_stored, workers=1, progress=False)


def accuracy(result: Result, rate: float, norm: str, group: str) -> np.ndarray:
    """Accuracy of one group, float64 [epochs, models]: in_clean, in_outliers, out_clean, out_outliers or test."""
    return np.array(result.runs[rate, norm].numbers["accuracy"][group])


def auc(result: Result, rate: float, norm: str, group: str = "all") -> np.ndarray:
    """AUC of LiRA (online, shrunk variance) a target, float64 [epochs, models]."""
    return np.array(result.runs[rate, norm].numbers["auc"][group])


def groups(result: Result, rate: float) -> list[str]:
    """The groups of this pool: all samples, and where there are outliers, those and the clean ones."""
    found = result.runs[rate, result.settings.norm].numbers["auc"]
    return list(GROUPS) if "outliers" in found else ["all"]


def difference(result: Result, rate: float, group: str = "all", against: str | None = None) -> Difference:
    """AUC of `norm` minus `against` at the last epoch, paired over pairs of models."""
    other = against or result.settings.against
    return roc.paired_difference(*(auc(result, rate, norm, group)[-1] for norm in (result.settings.norm, other)))


@dataclass(frozen=True)
class EqualFit:
    """Two epochs at which the arms fit equally well, and what the attack reaches there.

    epochs and fit (mean accuracy on clean IN samples) of norm and of the other arm; gap: group -> paired difference;
    aucs: group -> mean AUC of both.
    """

    epochs: tuple[int, int]
    fit: tuple[float, float]
    gap: dict[str, Difference]
    aucs: dict[str, tuple[float, float]]


def equal_fit(result: Result, rate: float, against: str | None = None) -> EqualFit | None:
    """The control: both arms read at the best fit that they have in common, within FIT_TOLERANCE.

    Of all pairs of scored epochs at which the mean accuracies on clean IN samples agree so well, the one with the
    highest sum. The AUC plays no part in the choice. None where the arms have no such level in common.
    """
    both = (result.settings.norm, against or result.settings.against)
    fits = [accuracy(result, rate, norm, "in_clean").mean(axis=1) for norm in both]
    apart = np.abs(fits[0][:, None] - fits[1][None, :])
    if apart.min() > FIT_TOLERANCE:
        return None
    total = np.where(apart <= FIT_TOLERANCE, fits[0][:, None] + fits[1][None, :], -1)
    i, j = np.unravel_index(total.argmax(), total.shape)
    found = {g: (auc(result, rate, both[0], g)[i], auc(result, rate, both[1], g)[j]) for g in groups(result, rate)}
    scored = result.settings.scored
    return EqualFit(
        (scored[i], scored[j]),
        (float(fits[0][i]), float(fits[1][j])),
        {g: roc.paired_difference(*pair) for g, pair in found.items()},
        {g: (float(pair[0].mean()), float(pair[1].mean())) for g, pair in found.items()},
    )


def risk_table(result: Result, norm: str) -> dict[str, np.ndarray]:
    """Every sample of the pool with the most outliers, all arrays [N]: index (official position), label (trained),
    true_label, group (0 clean, 1 flip, 2 OOD), d_prime, memorization and memorization_se from the shadow models, and
    norm_E float64, the gradient norm after epoch E of one training on the whole pool."""
    arrays = result.runs[max(result.settings.rates), norm].arrays
    names = ("index", "label", "true_label", "group", "d_prime", "memorization", "memorization_se")
    pulled = result.influence[norm]
    norms_ = zip(pulled.numbers["epochs"], pulled.arrays["norms"].astype(np.float64), strict=True)
    return {name: arrays[name] for name in names} | {f"norm_{epoch}": values for epoch, values in norms_}


def metric_of(rate: float) -> str:
    """The scorecard's name for the gap at this rate of outliers."""
    return f"auc_gap_{100 * rate:g}_percent"


def cells(result: Result, reading: str = "equal epochs") -> dict[str, list[Cell]]:
    """The cells of the scorecard, claim -> gaps with intervals, at "equal epochs" (face value) or at "equal fit"."""
    s = result.settings
    where = f"{s.dataset} / {s.arch} / {s.corruption} / {reading}"
    out = {}
    for rate in dict.fromkeys(s.rates):
        control = equal_fit(result, rate) if reading == "equal fit" else None
        if metric_of(rate) in CLAIMS and (control or reading != "equal fit"):
            gap = control.gap["all"] if control else difference(result, rate)
            cell = Cell(metric_of(rate), where, gap.mean, gap.low, gap.high)
            out.setdefault(CLAIMS[metric_of(rate)], []).append(cell)
    return out


def statuses(result: Result) -> list[str]:
    """ "holds", "fails" or "open" for every cell, at equal epochs and at equal fit."""
    metrics = {metric.name: metric for claim in CLAIMS.values() for metric in RULES[claim].metrics}
    found = [
        cell for reading in ("equal epochs", "equal fit") for row in cells(result, reading).values() for cell in row
    ]
    return [cell_status(cell, metrics[cell.metric]) for cell in found]


def deviations(old: Record, new: Record) -> float:
    """How far a recomputed record lies off, in standard deviations: the mean AUC over all samples at the last epoch
    (see `in_errors`); for an audit the right guesses, with their binomial deviation; for gradient norms the quartiles
    of their logarithm at the first measured epoch, in units of a factor of two."""
    if old.kind == "influence":
        quartiles = [np.percentile(np.log2(r.arrays["norms"][0] + 1e-12), (25, 50, 75)) for r in (old, new)]
        return float(np.abs(quartiles[0] - quartiles[1]).max())
    if old.kind == "audit":
        r, correct = old.numbers["guesses"], old.numbers["correct"]
        return abs(correct - new.numbers["correct"]) / max(np.sqrt(correct * (r - correct) / r), 1.0)
    return in_errors(*(np.array(record.numbers["auc"]["all"][-1]) for record in (old, new)))


def in_errors(before: np.ndarray, after: np.ndarray) -> float:
    """The change of a mean over targets [models], in standard errors over pairs of models; the smaller error counts."""
    pairs = np.stack([before, after]).reshape(2, -1, 2).mean(axis=2)
    error = max(pairs.std(axis=1, ddof=1).min() / np.sqrt(pairs.shape[1]), 1e-3)
    return float(abs(before.mean() - after.mean()) / error)
