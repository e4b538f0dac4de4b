"""Claims C9 and C10: does limiting gamma/sigma cut memorization and leakage, at what price, and against what else?

A sweep of the penalty's weight and bound; beside it what a practitioner has: weight decay, dropout, early stopping,
other normalisations or none. Every arm trains on the same corrupted set; the chosen ones are attacked with LiRA.
"""

from collections.abc import Callable
from dataclasses import fields, replace

from bnmem import exp_membership_inference as attacks
from bnmem import jobs
from bnmem.attacked import ATTACKED, AttackJob, fill
from bnmem.dp import PRIVATE
from bnmem.errors import InputError
from bnmem.jobs import Job
from bnmem.mitigation import MITIGATED
from bnmem.records import Record
from bnmem.regularization import NAME, PARTNERS, Regularization, Result, middle, points, private_trainings, trainings
from bnmem.regularization_measures import (
    UTILITY,
    accuracy,
    attacked_penalty,
    auc_saved,
    by_validation,
    chosen,
    equal_fit,
    excess,
    of_equal_utility,
)
from bnmem.rules import RULES, Cell, cell_status
from bnmem.shadows import Pool, Shadows
from bnmem.stats import Interval, t_interval

KINDS = (MITIGATED, ATTACKED, PRIVATE)
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

    Which penalty is attacked depends on the trainings, so these come first. A training that diverges is a result.
    Raises InputError when nothing would be corrupted.
    """
    if round(s.rate * s.n_train) < 1:
        raise InputError(f"rate {s.rate} of {s.n_train} images corrupts none of them; raise rate or n_train")
    options = {"fresh": fresh, "only_stored": only_stored, "workers": workers, "progress": progress}
    todo = trainings(s)
    found = iter(jobs.run([job for row in todo.values() for job in row], **options))
    runs = {name: [next(found) for _ in row] for name, row in todo.items()}
    result = Result(s, runs, {}, [])
    if s.attack:
        result = attack(result, lambda plan: run_attacks(plan, options))
    result = replace(result, private=_private(s, options))
    return replace(result, notes=jobs.check_code(KINDS, result.records))


def _private(s: Regularization, options: dict) -> dict[float, list[Record]]:
    """The trainings with DP-SGD; not asked for, they are shown where their records are there."""
    todo = private_trainings(s)
    if not s.private:
        options = options | {"fresh": False, "only_stored": True}
    try:
        found = iter(jobs.run([job for row in todo.values() for job in row], **options))
    except LookupError:
        if s.private:
            raise
        return {}
    return {noise: [next(found) for _ in row] for noise, row in todo.items()}


def run_attacks(plan: list[Job], options: dict) -> list[Record]:
    if not options["only_stored"]:
        missing = [job.settings for job in plan if options["fresh"] or job.stored() is None]
        fill(missing, **{name: options[name] for name in ("fresh", "workers", "progress")})
    return jobs.run(plan, fresh=options["fresh"], only_stored=options["only_stored"], workers=1, progress=False)


def attack(result: Result, find: Callable[[list[Job]], list[Record]]) -> Result:
    """The result with its attacks: BN, the other normalisations, the strongest weight decay and dropout, the penalty in
    the middle of the sweep, and the one that is best on validation and under which every shadow model trains.

    find(jobs) -> their records, or LookupError. An arm in which a model diverged is in `unstable`.
    """
    s = result.settings
    last = {p.family: p.name for p in points(s) if p.family in ("weight decay", "dropout")}
    names = ["BN", *PARTNERS, *last.values(), middle(s).name]
    found = dict(zip(names, find([attack_job(s, name) for name in names]), strict=True))
    for name in by_validation(result):
        if name not in found:
            found |= dict(zip([name], find([attack_job(s, name)]), strict=True))
        if "diverged" not in found[name].numbers:
            break
    stable = {name: record for name, record in found.items() if "diverged" not in record.numbers}
    return replace(result, attacks=stable, unstable={n: r for n, r in found.items() if n not in stable})


def attack_job(s: Regularization, name: str) -> Job:
    """The arm of shadow models of one point."""
    point = {point.name: point for point in points(s)}[name]
    pool = {f.name: getattr(s, f.name) for f in fields(Pool) if hasattr(s, f.name) and f.name not in ("epochs", "seed")}
    pool |= {"epochs": s.attack_epochs, "corruption": s.corruption, "rate": s.rate, "models": s.models}
    pool |= {"scored": s.scored, "queries": (128,)}
    return AttackJob(NAME, ATTACKED, Shadows(**pool | dict(point.changes)))


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
    for metric, saved in alternatives(result, reading).items():
        if (metric == "corrupted_saved" or result.attacks) and (saved or reading != "equal fit"):
            found["C10"][metric] = max(saved.values(), key=lambda i: i.mean, default=nothing)
    s = result.settings
    where = f"{s.dataset} / {s.arch} / {100 * s.rate:g} % {s.corruption}, {s.n_train:,} images, lr {s.lr:g}"
    return {
        claim: [Cell(name, where, i.mean, i.low, i.high) for name, i in row.items()]
        for claim, row in found.items()
        if row
    }


def alternatives(result: Result, reading: str = "equal epochs") -> dict[str, dict[str, Interval]]:
    """What C10 takes the best of: metric -> counted alternative of equal utility -> what it saves against BN.

    The two metrics may count different penalties: one that was attacked must have trained in every shadow model too.
    """
    saved, aucs = {}, {}
    for name in of_equal_utility(result, chosen(result)):
        control = equal_fit(result, name) if reading == "equal fit" else None
        if control:
            saved[name] = t_interval(control.ours["corrupted"] - control.theirs["corrupted"])
        elif reading != "equal fit":
            saved[name] = t_interval(accuracy(result, "BN", "corrupted") - accuracy(result, name, "corrupted"))
    for name in of_equal_utility(result, attacked_penalty(result)):
        if gap := auc_saved(result, name, reading):
            aucs[name] = gap
    return {"corrupted_saved": saved, "auc_saved": aucs}


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
    if "diverged" in old.numbers or "diverged" in new.numbers:
        return 0.0 if old.numbers.keys() == new.numbers.keys() else float("inf")
    if old.kind == "attacked":
        return attacks.deviations(old, new)
    return 100 * abs(old.numbers["accuracy"]["clean"][-1] - new.numbers["accuracy"]["clean"][-1])
