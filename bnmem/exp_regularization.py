"""Claims C9 and C10: does limiting gamma/sigma cut memorization and leakage, at what price, and against what else?

A sweep of the penalty's weight and bound; beside it what a practitioner has: weight decay, dropout, early stopping,
other normalisations or none. Every arm trains on the same corrupted set; the chosen ones are attacked with LiRA.
"""

from dataclasses import dataclass, fields, replace

import numpy as np

from bnmem import exp_membership_inference as attacks
from bnmem import jobs, shadows
from bnmem.errors import InputError
from bnmem.jobs import Job
from bnmem.mitigation import MITIGATED, Mitigated
from bnmem.records import Record
from bnmem.rules import RULES, Cell, cell_status
from bnmem.settings import setting
from bnmem.shadow_summary import SHADOWS, ArmJob
from bnmem.shadows import Pool, Shadows
from bnmem.sources import SETS
from bnmem.stats import Interval, first_crossing, t_interval, value_at
from bnmem.training import Common

NAME = "regularization"
KINDS = (MITIGATED, SHADOWS)
DESTROYED = 0.5  # of BN's accuracy on clean training images: an arm that stays below has not trained
TOO_STRONG = {"penalty_weight": 10.0, "penalty_bound": 0.1, "penalty_through": "gamma"}
UTILITY = 0.01  # arms are of equal utility when their test accuracies differ by no more
# Levels of accuracy on clean training images at which arms are compared, where both reach them.
FIT_LEVELS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.925, 0.95, 0.975, 0.99)
PARTNERS = ("none", "group", "affine")


@dataclass(frozen=True)
class Regularization(Common):
    """The experiment's parameters; every one can be set through papermill."""

    corruption: str = setting("flip", "kind of corruption", ("flip", "ood"))
    lr: float = setting(0.02, "learning rate of all arms", low=1e-8)
    epochs: int = setting(30, "epochs", low=1)
    seeds: int = setting(3, "number of seeds", low=1, high=100)
    weights: tuple = setting((0.01, 0.1, 1.0), "weights of the penalty", low=1e-9)
    bounds: tuple = setting((0.25, 0.5, 1.0), "bounds of the penalty", low=1e-6)
    weight_decays: tuple = setting((0.001, 0.005), "weight decays to compare with", low=1e-9)
    dropouts: tuple = setting((0.2, 0.5), "dropout probabilities to compare with", low=0.01, high=0.95)
    attack: bool = setting(True, "also attack the chosen arms with LiRA")
    pool: int = setting(4000, "samples of the attack's pool", low=20)
    models: int = setting(16, "shadow models an arm, in complementary pairs", low=6)
    attack_epochs: int = setting(20, "epochs of the shadow models", low=1)
    scored: tuple = setting((2, 4, 6, 8, 10, 12, 14, 16, 18, 20), "epochs after which the pool is scored", low=0)

    @classmethod
    def profiles(cls) -> dict[str, dict]:
        return {
            "smoke": {
                "n_train": 400,
                "n_val": 100,
                "n_test": 200,
                "batch_size": 32,
                "epochs": 4,
                "seeds": 2,
                "weights": (0.1,),
                "bounds": (0.5,),
                "weight_decays": (0.005,),
                "dropouts": (0.5,),
                "pool": 400,
                "models": 6,
                "attack_epochs": 4,
                "scored": (1, 2, 4),
            },
            "laptop": {},
            "grid": {
                "ood": "sibling",
                "lr": 0.05,
                "epochs": 25,
                "weights": (0.1, 1.0),
                "bounds": (0.25, 0.5),
                "weight_decays": (0.005,),
                "dropouts": (0.5,),
                "scored": (4, 8, 12, 16, 20),
                "attack": False,
            },
            "paper": {
                "n_train": 50_000,
                "n_val": 5_000,
                "n_test": 10_000,
                "ood": "sibling",
                "epochs": 100,
                "pool": 50_000,
                "attack_epochs": 100,
                "scored": (2, 4, 10, 20, 50, 100),
            },
        }


SETTINGS = Regularization


@dataclass(frozen=True)
class Point:
    """One arm: its name, its family, and the training settings in which it differs from BN alone."""

    name: str
    family: str
    changes: tuple = ()


def points(s: Regularization) -> list[Point]:
    """All arms, BN alone first. The sweep acts through gamma; the other two ways are tried at its middle."""
    made = [Point("BN", "BN"), *(Point(norm, "norm", (("norm", norm),)) for norm in PARTNERS)]
    made += [_penalty(weight, bound) for weight in s.weights for bound in s.bounds]
    middle = (s.weights[len(s.weights) // 2], s.bounds[len(s.bounds) // 2])
    made += [_penalty(*middle, through) for through in ("sigma", "both")]
    made.append(Point("too strong", "too strong", tuple(TOO_STRONG.items())))
    made += [Point(f"weight decay {wd:g}", "weight decay", (("weight_decay", wd),)) for wd in s.weight_decays]
    return made + [Point(f"dropout {p:g}", "dropout", (("dropout", p),)) for p in s.dropouts]


def _penalty(weight: float, bound: float, through: str = "gamma") -> Point:
    changes = {"penalty_weight": weight, "penalty_bound": bound, "penalty_through": through}
    family = "penalty" if through == "gamma" else f"penalty through {through}"
    return Point(f"{family} {weight:g}, bound {bound:g}", family, tuple(changes.items()))


@dataclass(frozen=True)
class Result:
    """All records of one run: point name -> one record a seed, and point name -> arm of shadow models."""

    settings: Regularization
    runs: dict[str, list[Record]]
    attacks: dict[str, Record]
    notes: list[str]

    @property
    def records(self) -> list[Record]:
        return [*(record for rows in self.runs.values() for record in rows), *self.attacks.values()]

    def with_record(self, new: Record) -> "Result":
        """The same result with `new` in the place of the record of its key."""
        runs = {name: [new if r.key == new.key else r for r in rows] for name, rows in self.runs.items()}
        attacks = {name: new if r.key == new.key else r for name, r in self.attacks.items()}
        return replace(self, runs=runs, attacks=attacks)


def run(
    s: Regularization,
    *,
    fresh: bool = False,
    only_stored: bool = False,
    workers: int | None = None,
    progress: bool = True,
) -> Result:
    """Read the experiment's records, computing what is missing; options as those of `jobs.run`.

    Which penalty is attacked depends on the trainings, so these come first. Raises InputError when nothing would be
    corrupted. A training that diverges is a result.
    """
    if round(s.rate * s.n_train) < 1:
        raise InputError(f"rate {s.rate} of {s.n_train} images corrupts none of them; raise rate or n_train")
    options = {"fresh": fresh, "only_stored": only_stored, "workers": workers, "progress": progress}
    todo = trainings(s)
    found = iter(jobs.run([job for row in todo.values() for job in row], **options))
    runs = {name: [next(found) for _ in row] for name, row in todo.items()}
    result = Result(s, runs, {}, [])
    if s.attack:
        arms = attack_jobs(result)
        if not only_stored:
            missing = [job.settings for job in arms.values() if fresh or job.stored() is None]
            shadows.fill(missing, fresh=fresh, workers=workers, progress=progress)
        rows = jobs.run(list(arms.values()), fresh=fresh, only_stored=only_stored, workers=1, progress=False)
        result = replace(result, attacks=dict(zip(arms, rows, strict=True)))
    return replace(result, notes=jobs.check_code(KINDS, result.records))


def trainings(s: Regularization) -> dict[str, list[Job]]:
    """point name -> one training a seed."""
    same = {f.name: getattr(s, f.name) for f in fields(Common)}
    same |= {"corruption": s.corruption, "lr": s.lr, "epochs": s.epochs}
    return {
        point.name: [
            Job(NAME, MITIGATED, Mitigated(**same | dict(point.changes) | {"seed": i})) for i in range(s.seeds)
        ]
        for point in points(s)
    }


def attack_jobs(result: Result) -> dict[str, Job]:
    """point name -> arm of shadow models: BN, the other normalisations, the chosen and the strongest penalty that has
    trained, the strongest weight decay and dropout."""
    s, by_name = result.settings, {point.name: point for point in points(result.settings)}
    last = {family: name for name, point in by_name.items() if (family := point.family) in ("weight decay", "dropout")}
    names = ["BN", *PARTNERS, chosen(result), strongest(result), *last.values()]
    pool = {f.name: getattr(s, f.name) for f in fields(Pool) if hasattr(s, f.name) and f.name not in ("epochs", "seed")}
    pool |= {"epochs": s.attack_epochs, "corruption": s.corruption, "rate": s.rate, "models": s.models}
    pool |= {"scored": s.scored, "queries": (128,)}
    return {
        name: ArmJob(NAME, SHADOWS, Shadows(**pool | dict(by_name[name].changes)))
        for name in dict.fromkeys(name for name in names if name)
    }


def accuracy(result: Result, name: str, group: str) -> np.ndarray:
    """Accuracy of one group at the last epoch, float64 [seeds]; NaN where the training diverged."""
    rows = result.runs[name]
    return np.array([np.nan if "diverged" in r.numbers else r.numbers["accuracy"][group][-1] for r in rows])


def destroyed(result: Result, name: str) -> bool:
    """Whether the arm has not trained: diverged under a seed, or left clean images unfitted (see DESTROYED)."""
    clean = accuracy(result, name, "clean")
    return not (clean.mean() >= DESTROYED * accuracy(result, "BN", "clean").mean())


def chosen(result: Result) -> str | None:
    """The penalty with the highest mean validation accuracy of those that have trained; the corrupted set plays no
    part in the choice."""
    trained = [p.name for p in points(result.settings) if p.family == "penalty" and not destroyed(result, p.name)]
    return max(trained, key=lambda name: accuracy(result, name, "val").mean(), default=None)


def strongest(result: Result) -> str | None:
    """The penalty with the largest weight, then the smallest bound, that has trained."""
    trained = [p for p in points(result.settings) if p.family == "penalty" and not destroyed(result, p.name)]
    order = max(
        trained, key=lambda p: (dict(p.changes)["penalty_weight"], -dict(p.changes)["penalty_bound"]), default=None
    )
    return order and order.name


def early_stopping(result: Result) -> dict[str, np.ndarray]:
    """BN alone, read at the epoch with the best validation accuracy: group -> accuracy [seeds]."""
    out = {}
    for group in ("corrupted", "clean", "test"):
        rows = [r.numbers["accuracy"] for r in result.runs["BN"]]
        out[group] = np.array([row[group][int(np.argmax(row["val"]))] for row in rows])
    return out


def excess(result: Result, values: np.ndarray) -> np.ndarray:
    """Accuracy on corrupted samples above that of random guessing, 1 / classes, and at least 0."""
    return np.maximum(values - 1 / SETS[result.settings.dataset].classes, 0.0)


@dataclass(frozen=True)
class EqualFit:
    """BN and another arm where their accuracy on clean training images first reaches `level`: group -> accuracies
    [seeds] of BN and of the arm."""

    level: float
    ours: dict[str, np.ndarray]
    theirs: dict[str, np.ndarray]


def equal_fit(result: Result, name: str) -> EqualFit | None:
    """The control: the highest of FIT_LEVELS that both arms reach under every seed; None where there is none."""
    both = [result.runs["BN"], result.runs[name]]
    if any("diverged" in r.numbers for rows in both for r in rows):
        return None
    for level in reversed(FIT_LEVELS):
        at = [
            [first_crossing(r.numbers["epoch"], r.numbers["accuracy"]["clean"], level) for r in rows] for rows in both
        ]
        if np.isfinite(at).all():
            read = [
                {
                    group: np.array([
                        value_at(r.numbers["epoch"], r.numbers["accuracy"][group], epoch)
                        for r, epoch in zip(rows, epochs, strict=True)
                    ])
                    for group in ("corrupted", "test")
                }
                for rows, epochs in zip(both, at, strict=True)
            ]  # fmt: skip
            return EqualFit(level, *read)
    return None


def of_equal_utility(result: Result) -> list[str]:
    """The claim's alternatives, no normalisation and the chosen penalty, whose mean test accuracy is at most UTILITY
    below BN's."""
    ours = accuracy(result, "BN", "test").mean()
    names = [name for name in ("none", chosen(result)) if name and not destroyed(result, name)]
    return [name for name in names if accuracy(result, name, "test").mean() >= ours - UTILITY]


def attacked(result: Result, name: str) -> attacks.Result:
    """BN and another arm as a result of the membership experiment: its measures then apply."""
    s = result.settings
    settings = attacks.MembershipInference(rates=(s.rate,), corruption=s.corruption, scored=s.scored, models=s.models)
    return attacks.Result(settings, {(s.rate, "batch"): result.attacks["BN"], (s.rate, name): result.attacks[name]},
                          {}, {}, [])  # fmt: skip


def auc_saved(result: Result, name: str, reading: str = "equal epochs", group: str = "outliers") -> Interval | None:
    """AUC over outliers, BN minus another arm, paired over pairs of shadow models; None where it cannot be read."""
    rate = result.settings.rate
    if name not in result.attacks:
        return None
    both = attacked(result, name)
    if reading == "equal fit":
        control = attacks.equal_fit(both, rate, name)
        gap = control and control.gap[group]
    else:
        gap = attacks.difference(both, rate, group, name)
    return gap and Interval(gap.mean, gap.low, gap.high, result.settings.models // 2)


def cells(result: Result, reading: str = "equal epochs") -> dict[str, list[Cell]]:
    """The cells of the scorecard at "equal epochs" (face value) or at "equal fit": claim -> effects with intervals.

    C9 is about the chosen penalty; where none has trained, or BN has memorized nothing above chance, it has no cell.
    C10 takes, as its rule says, the best alternative of equal utility, so its effect leans upwards; where no
    alternative is of equal utility nothing is saved: 0.
    """
    found: dict[str, dict[str, Interval]] = {"C9": {}, "C10": {}}
    penalty = chosen(result)
    ours = {group: accuracy(result, "BN", group) for group in ("corrupted", "test")}
    if penalty:
        theirs = {group: accuracy(result, penalty, group) for group in ours}
        control = equal_fit(result, penalty) if reading == "equal fit" else None
        if control:
            ours, theirs = control.ours, control.theirs
        if (control or reading != "equal fit") and (excess(result, ours["corrupted"]) > 0).all():
            cut = 1 - excess(result, theirs["corrupted"]) / excess(result, ours["corrupted"])
            found["C9"]["relative_cut"] = t_interval(cut)
            found["C9"]["test_accuracy_kept"] = t_interval(theirs["test"] - ours["test"] + UTILITY)
    nothing = Interval(0.0, 0.0, 0.0, result.settings.seeds)
    saved, aucs = [], []
    for name in of_equal_utility(result):
        control = equal_fit(result, name) if reading == "equal fit" else None
        if control:
            saved.append(t_interval(control.ours["corrupted"] - control.theirs["corrupted"]))
        elif reading != "equal fit":
            saved.append(t_interval(accuracy(result, "BN", "corrupted") - accuracy(result, name, "corrupted")))
        if result.attacks and (gap := auc_saved(result, name, reading)):
            aucs.append(gap)
    for metric, gaps, measured in (("corrupted_saved", saved, True), ("auc_saved", aucs, bool(result.attacks))):
        if measured and (gaps or reading != "equal fit"):
            found["C10"][metric] = max(gaps, key=lambda i: i.mean, default=nothing)
    s = result.settings
    where = f"{s.dataset} / {s.arch} / {100 * s.rate:g} % {s.corruption}, {s.n_train:,} images, lr {s.lr:g}"
    return {
        claim: [Cell(name, where, i.mean, i.low, i.high) for name, i in row.items()]
        for claim, row in found.items()
        if row
    }


def statuses(result: Result) -> list[str]:
    """ "holds", "fails" or "open" for every cell, in both readings."""
    metrics = {metric.name: metric for claim in ("C9", "C10") for metric in RULES[claim].metrics}
    readings = ("equal epochs", "equal fit")
    return [
        cell_status(c, metrics[c.metric])
        for reading in readings
        for row in cells(result, reading).values()
        for c in row
    ]


def deviations(old: Record, new: Record) -> float:
    """How far a recomputed record lies off, in standard deviations: for attacks as in membership inference, else the
    change of the accuracy on clean training images in units of one point (infinite where one diverged)."""
    if old.kind == "shadows":
        return attacks.deviations(old, new)
    if "diverged" in old.numbers or "diverged" in new.numbers:
        return 0.0 if old.numbers.keys() == new.numbers.keys() else float("inf")
    return 100 * abs(old.numbers["accuracy"]["clean"][-1] - new.numbers["accuracy"]["clean"][-1])
