"""The tables of the regularization experiment, and the numbers that the chapter quotes."""

import numpy as np

from bnmem import exp_regularization as exp
from bnmem import regularization_measures as measures
from bnmem import roc, rules
from bnmem.digits import percent
from bnmem.plots_regularization import label
from bnmem.regularization import Result, points
from bnmem.stats import Interval, interval, t_interval

READINGS = ("equal epochs", "equal fit")


def point_rows(result: Result) -> list[dict[str, str]]:
    """Table: every arm at its last epoch, means over seeds, and test accuracy against BN's, paired over seeds."""
    rows, test = [], measures.accuracy(result, "BN", "test")
    for arm in measures.arms(result):
        row = {"arm": label(arm.name, arm.epsilon) + _remark(result, arm)}
        for group, name in zip(measures.READ, ("corrupted", "clean", "validation", "test"), strict=True):
            row[name] = _mean(arm.accuracy[group])
        row["corrupted, BN − arm"] = "0" if arm.name == "BN" else _paired(_ours(result) - arm.accuracy["corrupted"])
        row["test, arm − BN"] = "0" if arm.name == "BN" else _paired(arm.accuracy["test"] - test, 3)
        rows.append({name: "–" if text == "diverged" else text for name, text in row.items()})
    return rows


def equal_fit_rows(result: Result) -> list[dict[str, str]]:
    """Table: the control. Corrupted and test accuracy where BN and an arm fit the clean images equally well. Early
    stopping needs no row: it is a point of BN's own curve."""
    rows = []
    for arm in measures.arms(result):
        if arm.name in ("BN", "BN, early stopping"):
            continue
        row, control = {"arm": label(arm.name)}, None if arm.destroyed else measures.equal_fit(result, arm.name)
        row["clean accuracy"] = f"{control.level:g}" if control else "no level in common"
        for group in ("corrupted", "test"):
            both = [side[group] for side in (control.ours, control.theirs)] if control else []
            row[f"{group}, BN / arm"] = " / ".join(_mean(values) for values in both) or "–"
            row[f"{group}, BN − arm"] = _paired(both[0] - both[1]) if control else "–"
        rows.append(row)
    return rows


def attack_rows(result: Result) -> list[dict[str, str]]:
    """Table: LiRA on the attacked arms at the last epoch, AUC by group, and what BN gives away beyond each (paired over
    pairs). An arm in which a model diverged says so once."""
    rows = []
    for name, record in result.attacks.items():
        row = {"arm": label(name)}
        row |= {f"AUC, {group}": f"{np.mean(auc[-1]):.3f}" for group, auc in record.numbers["auc"].items()}
        rows.append(row | _attack_gaps(result, name, "equal epochs"))
    if rows:
        empty = dict.fromkeys(rows[0], "–")
        rows += [empty | {"arm": f"{label(name)}, **a model diverged**"} for name in result.unstable]
    return rows


def attack_fit_rows(result: Result) -> list[dict[str, str]]:
    """Table: the same differences where both arms fit their clean members equally well."""
    names = [name for name in result.attacks if name != "BN"] if "BN" in result.attacks else []
    return [{"arm": label(name)} | _attack_gaps(result, name, "equal fit") for name in names]


def _attack_gaps(result: Result, name: str, reading: str) -> dict[str, str]:
    out = {}
    for group in ("outliers", "all"):
        gap = None if name == "BN" else measures.auc_saved(result, name, reading, group)
        text = interval(gap, 3) if gap else "no level in common"
        out[f"{group}, BN − arm"] = "0" if name == "BN" else text
    return out


def attack_note(result: Result) -> str:
    """Which penalties were attacked and why, and what became of those of which a shadow model diverged."""
    if not result.attacks:
        return "No arm was attacked."
    centre, best = measures.middle(result.settings).name, measures.attacked_penalty(result)
    reasons = {centre: "the middle of the sweep, added after the others had been attacked"}
    if best:
        why = "the best on validation of those under which every shadow model trained"
        reasons[best] = f"{reasons[best]}, and {why}" if best == centre else why
    told = [f"**{label(name)}** is {why}." for name, why in reasons.items() if name in result.attacks]
    told += [f"Under **{label(name)}** a shadow model diverged: it is not attacked." for name in result.unstable]
    return " ".join(told)


def alternative_rows(result: Result) -> list[dict[str, str]]:
    """Table: C10 against everything that was tried: who keeps BN's test accuracy, and what each saves there."""
    test = {arm.name: arm.test for arm in measures.attacked_arms(result)}
    auc = {arm.name: arm.auc for arm in measures.attacked_arms(result)}
    ours, rows = measures.accuracy(result, "BN", "test"), []
    for arm in measures.arms(result)[1:]:
        if arm.destroyed:
            continue
        gap = arm.accuracy["test"] - ours
        row = {"alternative": label(arm.name, arm.epsilon)}
        row["keeps utility"] = "yes" if gap.mean() >= -measures.UTILITY else "no"
        row["corrupted saved"] = _paired(_ours(result) - arm.accuracy["corrupted"])
        attacked = {"BN", arm.name} <= auc.keys()
        row["AUC saved"] = _signed(auc["BN"], auc[arm.name]) if attacked else "–"
        row["test, shadow models, arm − BN"] = _signed(test[arm.name], test["BN"]) if attacked else "–"
        rows.append(row)
    return rows


def acts_rows(result: Result) -> list[dict[str, str]]:
    """Table: where the penalty acts, layer by layer, start -> end of training."""
    rows = []
    for way, layers in measures.acts(result).items():
        for layer, ends in layers.items():
            row = {"penalty": way, "BN layer": layer}
            row |= {title: " → ".join(f"{v:.2f}" for v in ends[part]) for part, title in measures.PARTS.items()}
            ratio, free = measures.ratios(ends)
            row["mean |γ| / mean σ"] = " → ".join(f"{v:.2f}" for v in ratio)
            rows.append(row | {"times mean ‖w‖": " → ".join("–" if np.isnan(v) else f"{v:.2f}" for v in free)})
    return rows


def verdict_rows(result: Result) -> list[dict[str, str]]:
    """Table: each metric of the scorecard's rules, its least effect, the effect, and whether it holds in this cell."""
    rows = []
    for reading in READINGS:
        found = exp.cells(result, reading)
        for claim in ("C9", "C10"):
            cells = {cell.metric: cell for cell in found.get(claim, [])}
            for metric in rules.RULES[claim].metrics:
                cell = cells.get(metric.name)
                row = {"claim": claim, "reading": reading, "metric": metric.says.replace("penalised", "penalized")}
                share = metric.name == "relative_cut"
                row["least effect"] = percent(metric.margin) if share else f"{metric.margin:g}"
                row["effect"] = _effect(cell) if cell else "not comparable"
                rows.append(row | {"verdict": rules.cell_status(cell, metric) if cell else "no cell"})
    return rows


def verdict(result: Result, claim: str, reading: str = "equal epochs") -> str:
    """The verdict on one claim in one reading, from this experiment alone."""
    return rules.verdict(claim, exp.cells(result, reading).get(claim, []))


def equal_fit_note(result: Result) -> str:
    """How much memorization there was to cut where BN and the chosen penalty fit the clean images equally well."""
    penalty = measures.chosen(result)
    control = penalty and measures.equal_fit(result, penalty)
    if not control:
        return "No penalty has trained to a fit that BN reaches too: C9 has no cell at equal fit."
    ours, theirs = (_mean(side["corrupted"]) for side in (control.ours, control.theirs))
    told = (
        f"Where BN and {label(penalty)} both fit {100 * control.level:g} % of the clean training images, they fit "
        f"{ours} and {theirs} of the corrupted ones; guessing reaches {measures.chance(result):.2f}."
    )
    if (measures.excess(result, control.ours["corrupted"]) > 0).all():
        return told
    return f"{told} BN has not memorized more than chance there under every seed, so C9's relative cut **has no cell**."


def record_rows(result: Result) -> list[dict[str, str]]:
    """Table: where the numbers come from."""
    rows = [{"what": f"{label(name)}, seed {i}", "record": record.line}
            for name, found in result.runs.items() for i, record in enumerate(found)]  # fmt: skip
    rows += [{"what": f"DP-SGD, noise {noise:g}, seed {i}", "record": record.line}
             for noise, found in result.private.items() for i, record in enumerate(found)]  # fmt: skip
    attacked = result.attacks | result.unstable
    return rows + [{"what": f"shadow models, {label(name)}", "record": r.line} for name, r in attacked.items()]


def private_note(result: Result) -> str:
    """What a reader must know about DP-SGD: what was trained, or that it is not shown and how it would be."""
    if not result.private:
        return (
            "DP-SGD is **not shown**: it has no records at these settings. With Opacus installed (`pip install "
            '"opacus>=1.6"`), set `private = True`.'
        )
    s = result.settings
    return (
        f"DP-SGD: the net with GroupNorm, each sample's gradient clipped to norm 1, learning rate {s.private_lr:g}; "
        "ε is the privacy spent after the last epoch at $\\delta = 10^{-5}$."
    )


def glue_values(result: Result) -> dict[str, str]:
    """The numbers that the chapter's prose quotes, as text, by name."""
    s, by_name = result.settings, {arm.name: arm for arm in measures.arms(result)}
    values = {"seeds": str(s.seeds), "epochs": str(s.epochs), "models": str(s.models), "pool": f"{s.pool:,}"}
    chosen = measures.chosen(result)
    roles = {"bn": "BN", "stop": "BN, early stopping", "chosen": chosen, "attacked": measures.attacked_penalty(result)}
    roles["middle"] = measures.middle(s).name
    roles |= {name: name for name in by_name if name in ("none", "group", "affine")}
    roles |= {p.family.replace(" ", "-"): p.name for p in points(s) if p.family in ("weight decay", "dropout")}
    roles["destroyed"] = "too strong"
    for role, name in roles.items():
        arm = by_name.get(name)
        values[f"{role}-name"] = label(name) if name else "none"
        for group in measures.READ:
            values[f"{role}-{group}"] = _mean(arm.accuracy[group]) if arm else "none trained"
        control = measures.equal_fit(result, name) if name in result.runs else None
        values[f"{role}-level"] = f"{control.level:g}" if control else "no level in common"
        for group in ("corrupted", "test"):
            both = (control.ours[group], control.theirs[group]) if control else ()
            values[f"{role}-fit-{group}"] = " and ".join(map(_mean, both)) or "not comparable"
        for reading, name_of in zip(READINGS, ("auc", "fit-auc"), strict=True):
            gap = measures.auc_saved(result, name, reading) if name and name != "BN" else None
            values[f"{role}-{name_of}"] = interval(gap, 3) if gap else "not comparable"
        auc = {arm.name: arm.auc for arm in measures.attacked_arms(result)}.get(name)
        values[f"{role}-auc-at"] = "not attacked" if auc is None else f"{auc.mean():.3f}"
        values[f"{role}-test-gap"] = _paired(arm.accuracy["test"] - by_name["BN"].accuracy["test"], 3) if arm else "–"
        values[f"{role}-saved"] = _paired(_ours(result) - arm.accuracy["corrupted"]) if arm else "–"
    for i, noise in enumerate(s.noise, 1):
        arm = by_name.get(f"DP-SGD, noise {noise:g}")
        values[f"dp-{i}-epsilon"] = f"{arm.epsilon:.2g}" if arm else "not shown"
        values |= {f"dp-{i}-{g}": _mean(arm.accuracy[g]) if arm else "not shown" for g in ("corrupted", "test")}
    values["unstable-name"] = ", ".join(map(label, result.unstable)) or "none"
    values["broken"] = "; ".join(label(p.name) for p in points(s) if measures.destroyed(result, p.name))
    gap = measures.auc_saved(result, "affine", "equal fit", "all") if "affine" in result.runs else None
    values["affine-fit-auc-all"] = interval(gap, 3) if gap else "not comparable"
    values["utility"] = f"{measures.UTILITY:g}"
    values["chance"] = f"{measures.chance(result):.2f}"
    for reading, prefix in zip(READINGS, ("", "fit-"), strict=True):
        found = exp.cells(result, reading)
        for claim in ("C9", "C10"):
            values[f"{claim}-{prefix}verdict"] = verdict(result, claim, reading)
            cells = {cell.metric: cell for cell in found.get(claim, [])}
            for metric in rules.RULES[claim].metrics:
                c = cells.get(metric.name)
                values[f"{claim}-{prefix}{metric.name}"] = _effect(c) if c else "no cell"
        for metric, saved in exp.alternatives(result, reading).items():
            best = max(saved, key=lambda name: saved[name].mean, default=None)
            values[f"C10-{prefix}{metric}-arm"] = label(best) if best else "none"
    for way, layers in measures.acts(result).items():
        for layer, ends in layers.items():
            for part, (start, end) in ends.items():
                key = way.replace("through ", "").replace(" ", "-").replace("γ", "gamma").replace("σ", "sigma")
                values[f"{key}-{layer}-{part}"] = f"{start:.2f} to {end:.2f}"
    return {f"rg-{name}": text for name, text in values.items()}


def _effect(cell: rules.Cell) -> str:
    """ "+0.123 [+0.095, +0.151]", a share as "96 % [86, 106]"."""
    if cell.metric == "relative_cut":
        return f"{percent(cell.effect)} [{100 * cell.low:.0f}, {100 * cell.high:.0f}]"
    return f"{cell.effect:+.3f} [{cell.low:+.3f}, {cell.high:+.3f}]"


def _remark(result: Result, arm: measures.Arm) -> str:
    if arm.destroyed:
        diverged = not np.isfinite(arm.accuracy["clean"]).all()
        return ", **destroyed** (diverged)" if diverged else ", **destroyed**"
    return ", **chosen**" if arm.name == measures.chosen(result) else ""


def _ours(result: Result) -> np.ndarray:
    return measures.accuracy(result, "BN", "corrupted")


def _mean(values: np.ndarray) -> str:
    return f"{values.mean():.2f}" if np.isfinite(values).all() else "diverged"


def _paired(differences: np.ndarray, digits: int = 2) -> str:
    return interval(t_interval(differences), digits) if np.isfinite(differences).all() else "diverged"


def _signed(first: np.ndarray, second: np.ndarray) -> str:
    gap = roc.paired_difference(first, second)
    return interval(Interval(gap.mean, gap.low, gap.high, len(first) // 2), 3)
