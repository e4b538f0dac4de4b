"""Claims C9 and C10: does limiting gamma/sigma cut memorization and leakage, at what price, and against what else?

A sweep of the penalty's weight and bound; beside it what a practitioner has: weight decay, dropout, early stopping,
other normalisations or none. Every arm trains on the same corrupted set; the chosen ones are attacked with LiRA.
"""

from dataclasses import fields, replace

from bnmem import exp_membership_inference as attacks
from bnmem import jobs, shadows
from bnmem.errors import InputError
from bnmem.jobs import Job
from bnmem.mitigation import MITIGATED
from bnmem.records import Record
from bnmem.regularization import NAME, PARTNERS, Regularization, Result, points, trainings
from bnmem.regularization_measures import (
    UTILITY,
    accuracy,
    auc_saved,
    chosen,
    equal_fit,
    excess,
    of_equal_utility,
    strongest,
)
from bnmem.rules import RULES, Cell, cell_status
from bnmem.shadow_summary import SHADOWS, ArmJob
from bnmem.shadows import Pool, Shadows
from bnmem.stats import Interval, t_interval

KINDS = (MITIGATED, SHADOWS)
SETTINGS = Regularization


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
