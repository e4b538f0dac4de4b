"""The tables of membership inference, and the numbers that the chapter quotes."""

import numpy as np
from scipy.stats import spearmanr

from bnmem import exp_membership_inference as exp
from bnmem import roc, rules
from bnmem.digits import significant
from bnmem.plots import LABELS, named
from bnmem.plots_membership import GROUPS, pool_name, rates
from bnmem.shadow_summary import ATTACKS, FPRS

READINGS = ("equal epochs", "equal fit")


def signed(gap: roc.Difference, digits: int = 3) -> str:
    """ "+0.061 [+0.050, +0.072]"."""
    return f"{gap.mean:+.{digits}f} [{gap.low:+.{digits}f}, {gap.high:+.{digits}f}]"


def point(result: exp.Result, rate: float, arm: str, group: str, fpr: float) -> str:
    """TPR at an FPR with the false positives it rests on, or why it is not shown."""
    at = result.runs[rate, arm].numbers["tpr"][group][f"{fpr:g}"]
    tpr, false_positives = at["tpr"][-1], at["false_positives"][-1]
    return f"not shown ({false_positives} FP)" if tpr is None else f"{tpr:.4f} ({false_positives} FP)"


def attack_rows(result: exp.Result) -> list[dict[str, str]]:
    """Table: AUC of each arm by pool and group, and the paired difference."""
    rows = []
    for rate in rates(result):
        for group in exp.groups(result, rate):
            row = {"pool": pool_name(rate, result.settings.corruption), "over": GROUPS[group]}
            for arm in result.arms:
                row[f"AUC, {LABELS[arm]}"] = f"{exp.auc(result, rate, arm, group)[-1].mean():.3f}"
            row[f"{LABELS[result.settings.norm]} − {LABELS[result.settings.against]}"] = signed(
                exp.difference(result, rate, group)
            )
            rows.append(row)
    return rows


def tpr_rows(result: exp.Result) -> list[dict[str, str]]:
    """Table: TPR at small FPR, pooled over targets, with the number of false positives."""
    rows = []
    for rate in rates(result):
        for group in exp.groups(result, rate):
            for fpr in FPRS[:2]:
                row = {"pool": pool_name(rate, result.settings.corruption), "over": GROUPS[group], "at FPR": f"{fpr:g}"}
                row |= {f"TPR, {LABELS[arm]}": point(result, rate, arm, group, fpr) for arm in result.arms}
                rows.append(row)
    return rows


def accuracy_rows(result: exp.Result) -> list[dict[str, str]]:
    """Table: what the nets are good for, at the last epoch: accuracy on members, non-members and test images."""
    rows = []
    for rate in rates(result):
        for arm in result.arms:
            row = {"pool": pool_name(rate, result.settings.corruption), "arm": LABELS[arm]}
            for name, group in (("clean members", "in_clean"), ("clean non-members", "out_clean"), ("test", "test")):
                row[f"accuracy, {name}"] = f"{exp.accuracy(result, rate, arm, group)[-1].mean():.3f}"
            outliers = result.runs[rate, arm].numbers["accuracy"].get("in_outliers")
            row["outliers memorized"] = f"{np.mean(outliers[-1]):.3f}" if outliers else "none there"
            ours = f"test, {LABELS[result.settings.norm]} − this arm"
            row[ours] = "0" if arm == result.settings.norm else signed(test_gap(result, rate, arm))
            rows.append(row)
    return rows


def test_gap(result: exp.Result, rate: float, against: str) -> roc.Difference:
    """Test accuracy of the arm under study minus another's at the last epoch, paired over pairs of models."""
    both = (exp.accuracy(result, rate, arm, "test")[-1] for arm in (result.settings.norm, against))
    return roc.paired_difference(*both)


def equal_fit_rows(result: exp.Result) -> list[dict[str, str]]:
    """Table: the control, against every other arm; it says where the arms have no level in common."""
    rows = []
    for rate in rates(result):
        for other in result.arms[1:]:
            control = exp.equal_fit(result, rate, other)
            row = {"pool": f"{pool_name(rate, result.settings.corruption)}; against {LABELS[other]}"}
            both = f"{LABELS[result.settings.norm]} / other"
            row[f"epochs, {both}"] = " / ".join(map(str, control.epochs)) if control else "no common level"
            row["clean accuracy"] = f"{np.mean(control.fit):.3f}" if control else "–"
            row["AUC, at equal fit"] = signed(control.gap["all"]) if control else "not comparable"
            if "outliers" in exp.groups(result, rate):
                row["over outliers"] = signed(control.gap["outliers"]) if control else "not comparable"
            else:
                row["over outliers"] = "none there"
            row["AUC, at equal epochs"] = signed(exp.difference(result, rate, against=other))
            rows.append(row)
    return rows


def method_rows(result: exp.Result) -> list[dict[str, str]]:
    """Table: other attacks on the same nets, over all samples, at the last epoch."""
    rows = []
    for rate in rates(result):
        for name in ("LiRA online, shrunk variance", *ATTACKS, "loss threshold", "RMIA"):
            values = [
                exp.auc(result, rate, arm)[-1]
                if name not in (numbers := result.runs[rate, arm].numbers["attacks"])
                else np.array(numbers[name]["all"])
                for arm in result.arms
            ]
            row = {"pool": pool_name(rate, result.settings.corruption), "attack": name}
            row |= {f"AUC, {LABELS[arm]}": f"{v.mean():.3f}" for arm, v in zip(result.arms, values, strict=True)}
            row["difference"] = signed(roc.paired_difference(values[0], values[1]))
            rows.append(row)
    return rows


def risk_rows(result: exp.Result) -> list[dict[str, str]]:
    """Table: who is exposed. d' of the samples, memorization, and whether another arm exposes the same ones."""
    rows = []
    for rate in rates(result):
        reference = result.runs[rate, result.settings.norm].arrays["d_prime"]
        for arm in result.arms:
            arrays = result.runs[rate, arm].arrays
            for name, chosen in (("clean", arrays["group"] == 0), ("outliers", arrays["group"] > 0)):
                if not chosen.any():
                    continue
                risk = arrays["d_prime"][chosen].astype(float)
                row = {"pool": pool_name(rate, result.settings.corruption), "arm": LABELS[arm], "samples": name}
                row |= {f"d′, {q} %": f"{np.percentile(risk, q):.2f}" for q in (50, 90, 99)}
                row["memorization, mean"] = f"{arrays['memorization'][chosen].astype(float).mean():.3f}"
                same = spearmanr(risk, reference[chosen]).statistic
                row[f"rank correlation with {LABELS[result.settings.norm]}"] = f"{same:.2f}"
                rows.append(row)
    return rows


def sample_rows(result: exp.Result, most: int = 6) -> list[dict[str, str]]:
    """Table: the most exposed outliers and clean samples of the pool with the most outliers, all readings joined."""
    table = exp.risk_table(result, result.settings.norm)
    epochs = result.influence[result.settings.norm].numbers["epochs"]
    rows = []
    for outliers in (True, False):
        chosen = np.flatnonzero((table["group"] > 0) == outliers)
        for i in chosen[np.argsort(-table["d_prime"][chosen], kind="stable")][:most]:
            row = {"index": str(table["index"][i]), "kind": ("clean", "flip", "OOD")[table["group"][i]]}
            row["trained label"] = str(table["label"][i])
            row["d′"] = f"{table['d_prime'][i]:.1f}"
            row["memorization"] = f"{table['memorization'][i]:.2f} ± {table['memorization_se'][i]:.2f}"
            for epoch in (epochs[0], epochs[len(epochs) // 2], epochs[-1]):
                row[f"gradient norm, epoch {epoch}"] = significant(table[f"norm_{epoch}"][i], 3)
            rows.append(row)
    return rows


def foretell_rows(result: exp.Result) -> list[dict[str, str]]:
    """Table: rank correlation, over samples, of the gradient norm at an epoch with d' and with memorization."""
    rows = []
    for arm in result.arms:
        table = exp.risk_table(result, arm)
        for name, chosen in (("clean", table["group"] == 0), ("outliers", table["group"] > 0)):
            for target, label in (("d_prime", "d′"), ("memorization", "memorization")):
                row = {"arm": LABELS[arm], "samples": name, "norm against": label}
                for epoch in result.influence[arm].numbers["epochs"]:
                    both = table[f"norm_{epoch}"][chosen], table[target][chosen].astype(float)
                    row[f"epoch {epoch}"] = f"{spearmanr(*both).statistic:+.2f}" if chosen.sum() > 2 else "none there"
                rows.append(row)
    return rows


def audit_rows(result: exp.Result) -> list[dict[str, str]]:
    """Table: the audit statement of each arm."""
    rows = []
    for arm, record in result.audits.items():
        n = record.numbers
        row = {"arm": LABELS[arm], "ε at least": f"{n['epsilon']:.2f}", "confidence": f"{n['confidence']:g}"}
        row |= {"ceiling": f"{n['ceiling']:.2f}", "right guesses": f"{n['correct']} of {n['guesses']}"}
        row["canaries memorized, IN / OUT"] = (
            f"{n['accuracy']['canaries_in']:.3f} / {n['accuracy']['canaries_out']:.3f}"
        )
        rows.append(row | {"test accuracy": f"{n['accuracy']['test']:.3f}"})
    return rows


def verdict_rows(result: exp.Result) -> list[dict[str, str]]:
    """Table: each metric of the scorecard's rules, its least effect, the effect, and whether it holds in this cell."""
    rows = []
    for reading in READINGS:
        for claim, found in exp.cells(result, reading).items():
            metrics = {metric.name: metric for metric in rules.RULES[claim].metrics}
            for cell in found:
                metric = metrics[cell.metric]
                row = {
                    "claim": claim,
                    "reading": reading,
                    "metric": named(metric.says, result.arms),
                    "least effect": f"{metric.margin:g}",
                }
                row["effect"] = f"{cell.effect:+.3f} [{cell.low:+.3f}, {cell.high:+.3f}]"
                rows.append(row | {"verdict": rules.cell_status(cell, metric)})
    return rows


def verdict(result: exp.Result, claim: str, reading: str = "equal epochs") -> str:
    """The claim's verdict on this data set and net."""
    return rules.verdict(claim, exp.cells(result, reading).get(claim, []))


def record_rows(result: exp.Result) -> list[dict[str, str]]:
    """Table: where the numbers come from."""
    rows = [
        {"what": f"{pool_name(rate, result.settings.corruption)}, {LABELS[arm]}", "record": record.line}
        for (rate, arm), record in result.runs.items()
    ]
    rows += [{"what": f"audit, {LABELS[arm]}", "record": r.line} for arm, r in result.audits.items()]
    return rows + [{"what": f"gradient norms, {LABELS[arm]}", "record": r.line} for arm, r in result.influence.items()]


def glue_values(result: exp.Result) -> dict[str, str]:
    """The numbers that the chapter's prose quotes, as text, by name."""
    s = result.settings
    values = {"models": str(s.models), "pool": f"{s.pool:,}", "epochs": str(s.epochs), "scored": str(len(s.scored))}
    values["reference"] = str((s.models - 2) // 2)  # the target and its partner are left out
    values["then-apart"], values["after-apart"] = _points_of_test_accuracy(result)
    for rate in rates(result):
        name = f"{100 * rate:g}"
        for arm, role in ((s.norm, "ours"), (s.against, "theirs")):
            values[f"{name}-{role}"] = f"{exp.auc(result, rate, arm)[-1].mean():.3f}"
        values[f"{name}-gap"] = signed(exp.difference(result, rate))
        control = exp.equal_fit(result, rate)
        values[f"{name}-fit"] = f"{np.mean(control.fit):.3f}" if control else "no common level"
        values[f"{name}-fit-epochs"] = " and ".join(map(str, control.epochs)) if control else "no common level"
        values[f"{name}-fit-gap"] = signed(control.gap["all"]) if control else "not comparable"
        for other in result.arms[2:]:
            further = exp.equal_fit(result, rate, other)
            values[f"{name}-{other}-fit-gap"] = signed(further.gap["all"]) if further else "not comparable"
            values[f"{name}-{other}-fit"] = f"{np.mean(further.fit):.3f}" if further else "no common level"
        values[f"{name}-test-gap"] = signed(test_gap(result, rate, s.against))
        for group in exp.groups(result, rate)[1:]:
            values[f"{name}-{group}-gap"] = signed(exp.difference(result, rate, group))
            values[f"{name}-{group}-fit-gap"] = signed(control.gap[group]) if control else "not comparable"
            for arm, role in ((s.norm, "ours"), (s.against, "theirs")):
                values[f"{name}-{group}-{role}"] = f"{exp.auc(result, rate, arm, group)[-1].mean():.3f}"
    roles = {LABELS[s.norm]: "", LABELS[s.against]: "-theirs"}
    for row in foretell_rows(result):
        if row["arm"] in roles:
            what = f"{row['samples']}-{'risk' if row['norm against'] == 'd′' else 'memorization'}{roles[row['arm']]}"
            values["foretell-epoch"] = epoch = list(row)[3 + len(s.measured) // 2].removeprefix("epoch ")
            values[f"foretell-{what}"] = row[f"epoch {epoch}"].removeprefix("+")
    for claim in ("C4", "C5"):
        values[f"{claim}-verdict"] = verdict(result, claim)
        values[f"{claim}-fit-verdict"] = verdict(result, claim, "equal fit")
    for arm, role in ((s.norm, "ours"), (s.against, "theirs")):
        n = result.audits[arm].numbers
        values[f"audit-{role}"] = f"{n['epsilon']:.2f}"
        values |= {"audit-ceiling": f"{n['ceiling']:.2f}", "audit-confidence": f"{100 * n['confidence']:g} %"}
        values |= {"audit-guesses": str(n["guesses"]), "audit-canaries": str(n["canaries"])}
    return {f"mi-{name}": text for name, text in values.items()}


def _points_of_test_accuracy(result: exp.Result) -> tuple[str, str]:
    """The most, over the pools, that mean test accuracies differ by: of the two arms where they fit equally well, and
    of the arm under study from there to its last epoch; "0.9 points"."""
    s, then, after = result.settings, [], []
    for rate in rates(result):
        if control := exp.equal_fit(result, rate):
            ours, theirs = (exp.accuracy(result, rate, arm, "test").mean(axis=1) for arm in (s.norm, s.against))
            i, j = (s.scored.index(epoch) for epoch in control.epochs)
            then.append(abs(ours[i] - theirs[j]))
            after.append(abs(ours[-1] - ours[i]))
    return tuple(f"{100 * max(found):.1f} points" if found else "not comparable" for found in (then, after))
