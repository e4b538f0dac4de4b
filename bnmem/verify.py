"""Recompute stored records and say whether they hold.

Training is chaotic: a nudge of 1e-7 in one weight moves the accuracy on corrupted samples by points. So a recomputed
record must be equal bit by bit on the same processor model, thread number and library versions; elsewhere each final
accuracy must lie within 3 standard deviations over seeds (what an experiment's `deviations` measures, where it has
that function), and the verdicts of its claims must stay as they are.
"""

import importlib.util
from dataclasses import dataclass

import numpy as np

from bnmem import (
    exp_audit_model,
    exp_forced_memorization,
    exp_gamma_sigma,
    exp_gradient_norms,
    exp_grid,
    exp_membership_inference,
    exp_query_mode,
    exp_regularization,
    records,
    shadow_cache,
    sources,
)
from bnmem.errors import Diverged, InputError
from bnmem.jobs import Job
from bnmem.records import Record

EXPERIMENTS = {
    exp.NAME: exp
    for exp in (
        exp_forced_memorization,
        exp_gradient_norms,
        exp_membership_inference,
        exp_query_mode,
        exp_gamma_sigma,
        exp_regularization,
        exp_audit_model,
        exp_grid,
    )
}
SAME = ("processor", "device", "threads", "libraries")
DEVIATIONS = 3.0
MINUTES = 2


@dataclass(frozen=True)
class Outcome:
    """What recomputing one record gave."""

    record: Record
    holds: bool
    how: str


def job_of(record: Record) -> Job:
    """The computation that a stored record is the result of. Raises InputError for one of another version's."""
    module = EXPERIMENTS.get(record.experiment)
    kinds = {kind.name: kind for kind in module.KINDS} if module else {}
    if record.kind not in kinds:
        raise InputError(
            f"{record.experiment}/{record.key} is a {record.kind!r} record that this version does not know"
        )
    kind = kinds[record.kind]
    try:
        return Job(record.experiment, kind, kind.settings(**record.settings))
    except TypeError as error:
        raise InputError(f"{record.experiment}/{record.key} has settings that this version does not know") from error


def recompute(record: Record, progress: bool = False) -> Outcome:
    """Compute the record again and compare. A foreign data fingerprint does not hold, whatever the numbers."""
    job = job_of(record)
    if job.key() != record.key:
        return Outcome(record, False, "its key does not fit: other images, or settings whose defaults changed")
    was = _diverged(record)
    try:
        with shadow_cache.scratch():
            new = job.compute(progress)
    except Diverged:
        return Outcome(record, was, "diverges again" if was else "DIVERGES, and did not")
    if all(record.provenance.get(name) == new.provenance[name] for name in SAME):
        if equal(record, new):
            return Outcome(record, True, "equal bit by bit (same processor model, threads and versions)")
        return Outcome(record, False, "NOT equal bit by bit, on the same processor model, threads and versions")
    return _within_tolerance(record, new)


def _diverged(record: Record) -> bool:
    """Whether the record says that its training diverged (a search lists the rates at which one did)."""
    return isinstance(record.numbers.get("diverged"), str)


def equal(a: Record, b: Record) -> bool:
    """Same numbers and arrays, bit by bit."""
    return (
        a.numbers == b.numbers
        and set(a.arrays) == set(b.arrays)
        and all(_same_bits(a.arrays[name], b.arrays[name]) for name in a.arrays)
    )


def _same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Also where a NaN marks what is not known: those are equal here."""
    return (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())


def _within_tolerance(old: Record, new: Record) -> Outcome:
    other = "on another processor, thread number or version"
    was, now = _diverged(old), _diverged(new)
    if was or now:
        return Outcome(
            old, was == now, f"{'diverges' if now else 'trains'} {'again' if was == now else 'NOW'}, {other}"
        )
    if old.kind == "search":
        same = old.numbers["best"] == new.numbers["best"]
        return Outcome(old, same, f"{'same' if same else 'ANOTHER'} best learning rate, {other}")
    worst = getattr(EXPERIMENTS[old.experiment], "deviations", _deviations)(old, new)
    agree = _verdicts_agree(old, new)
    kept = "the same verdicts" if agree else "OTHER verdicts"
    how = f"final values within {worst:.1f} standard deviations over seeds, {kept}"
    return Outcome(old, worst <= DEVIATIONS and agree, f"{how}, {other}")


def _deviations(old: Record, new: Record) -> float:
    """The largest change of a final accuracy, in standard deviations over seeds."""
    worst = 0.0
    for group, curve in old.numbers["accuracy"].items():
        now = new.numbers["accuracy"][group][-1]
        worst = max(worst, abs(curve[-1] - now) / _spread(old, group, now))
    return worst


def _verdicts_agree(old: Record, new: Record) -> bool:
    """Whether every cell of a stored profile that uses `old` keeps its status with `new` in its place."""
    module = EXPERIMENTS[old.experiment]
    results = [result for profile in ("smoke", "laptop") if (result := _stored(module, profile))]
    return all(module.statuses(r) == module.statuses(r.with_record(new)) for r in results)


def _stored(module, profile: str):
    """A profile's result where the experiment has it and all its records are there, else None."""
    if profile not in module.SETTINGS.profiles():
        return None
    try:
        return module.run(module.SETTINGS.of(profile), only_stored=True)
    except LookupError:
        return None


def _spread(old: Record, group: str, now: float) -> float:
    """Standard deviation over seeds of a final accuracy, at least one image in a thousand.

    Taken with the stored and with the recomputed value, and the smaller one counts: a wrong value must not widen its
    own tolerance.
    """
    same = {**old.settings, "seed": 0}
    found = [records.load(path) for path in records.stored(old.experiment)]
    others = [r for r in found if r.kind == old.kind and r.key != old.key and {**r.settings, "seed": 0} == same]
    finals = [r.numbers["accuracy"][group][-1] for r in others]
    stored = old.numbers["accuracy"][group][-1]
    return max(min(np.std([*finals, value], ddof=1) if finals else 0.0 for value in (stored, now)), 1e-3)


def note_code(outcomes: list[Outcome]) -> list[tuple[str, str, list[str]]]:
    """Write to results/verified.json which older code gave the numbers of today's: (old, new, keys), one a pair.

    A pair is noted only when every recomputed record of it holds.
    """
    pairs: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        new = records.code_hash(job_of(outcome.record).kind.code)
        if new not in records.verified().get(outcome.record.code, {outcome.record.code}):
            pairs.setdefault((outcome.record.code, new), []).append(outcome)
    noted = []
    for (old, new), rows in pairs.items():
        if all(o.holds for o in rows):
            keys = [o.record.key for o in rows]
            records.add_verified(old, new, keys, "; ".join(sorted({o.how for o in rows})))
            noted.append((old, new, keys))
    return noted


def pick(keys: list[str], sample: int) -> list[Record]:
    """The records to recompute: the named ones (a prefix will do), or `sample` random ones, cheap ones first, or by
    default the cheapest one (searches apart) of the smoke and of the laptop profile of each experiment; no laptop
    record that took more than MINUTES is among those. Unnamed records whose images are not at hand are passed over.

    Raises InputError for a key that no record has, or several have.
    """
    paths = records.stored()
    if not paths:
        raise InputError(
            f"no records in {records.folder()}; compute some with: python -m bnmem run forced-memorization"
        )
    if sample < 0:
        raise InputError(f"--sample must be 1 or more, not {sample}")
    if keys:
        return [records.load(_one(paths, key)) for key in keys]
    if sample:
        found = [records.load(path) for path in np.random.default_rng().permutation(np.array(paths, object))]
        found = [record for record in found if _at_hand(record)]
        if not found:
            raise InputError("no record's images are at hand; set BNMEM_DATA to the folder that holds them")
        cheap = sorted(found, key=lambda r: r.provenance["seconds"])[: max(sample, len(found) // 2)]
        chosen = np.random.default_rng().choice(len(cheap), min(sample, len(cheap)), replace=False)
        return [cheap[i] for i in sorted(chosen)]
    results = [_stored(module, profile) for module in EXPERIMENTS.values() for profile in ("smoke", "laptop")]
    rows = [[r for r in result.records if r.kind != "search" and _at_hand(r)] for result in results if result]
    cheapest = [min(row, key=lambda r: r.provenance["seconds"]) for row in rows if row]
    chosen = [r for r in cheapest if r.provenance["seconds"] <= 60 * MINUTES]
    if not chosen:
        raise InputError("no smoke or laptop profile is complete here; name records (verify --list) or run one")
    return chosen


def _at_hand(record: Record) -> bool:
    """Whether its images need no download, nor its kind an optional extra: random choices pass over the others."""
    if record.kind == "private" and not importlib.util.find_spec("opacus"):
        return False
    settings = job_of(record).settings
    needed = {settings.dataset}
    if getattr(settings, "corruption", "") == "ood" and settings.ood == "sibling":
        needed.add(sources.require_set(settings.dataset).ood)
    return needed <= set(sources.at_hand())


def _one(paths, key: str):
    fits = [path for path in paths if path.stem.startswith(key)]
    if len(fits) != 1:
        raise InputError(f"{len(fits)} records begin with {key!r}; list them with: python -m bnmem verify --list")
    return fits[0]
