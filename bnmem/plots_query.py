"""The figure and the tables of the query modes."""

import numpy as np

from bnmem import exp_query_mode as exp
from bnmem.plots import COLOURS, LABELS, MARKERS, Figure, panels, style
from bnmem.plots_membership import GROUPS
from bnmem.tables_membership import signed


def modes(result: exp.Result) -> Figure:
    """Left: AUC of the arm under study by query mode, a line a pair of models. Right: its gap to the other arm."""
    s, names = result.settings, result.modes
    with style():
        figure, axes = panels(1, 2, height=4.2)
        left, right = axes[0]
        by_pair = np.array([exp.auc(result, s.norm, mode).reshape(-1, 2).mean(axis=1) for mode in names])
        left.plot(by_pair, MARKERS[s.norm] + "-", ms=5, lw=0.8, color=COLOURS[s.norm], alpha=0.5, mew=0)
        for x, mode in enumerate(names):
            left.plot([x - 0.3, x + 0.3], [by_pair[x].mean()] * 2, color=COLOURS[s.norm], lw=3)
            gap = exp.gap(result, mode)
            right.errorbar(
                x, gap.mean, [[gap.mean - gap.low], [gap.high - gap.mean]], fmt=MARKERS[s.norm], ms=7, capsize=5, lw=2,
                color=COLOURS[s.norm],
            )  # fmt: skip
        other = exp.auc(result, s.against).mean()
        left.axhline(other, color=COLOURS[s.against], ls="--", label=f"{LABELS[s.against]}, mean")
        left.plot([], [], MARKERS[s.norm] + "-", color=COLOURS[s.norm], label=LABELS[s.norm])
        left.set(title=f"{LABELS[s.norm]}, asked in different ways", ylabel="AUC of LiRA, all samples")
        left.legend(loc="best")
        right.axhline(0, color=COLOURS["grey"], lw=1, ls=":")
        right.set(title=f"the gap: {LABELS[s.norm]} minus {LABELS[s.against]}", ylabel="difference of AUC")
        for ax in axes[0]:
            ax.set_xticks(range(len(names)), [name.replace(" ", "\n") for name in names])
            ax.set_xlim(-0.6, len(names) - 0.4)
            ax.grid(axis="x", visible=False)
    return figure


def mode_rows(result: exp.Result) -> list[dict[str, str]]:
    """Table: AUC by mode and group, its shift against running statistics, and the gap to the other arm."""
    s, rows = result.settings, []
    for group in exp.groups(result):
        for mode in result.modes:
            row = {"over": GROUPS[group], "statistics": _name(mode)}
            row[f"AUC, {LABELS[s.norm]}"] = f"{exp.auc(result, s.norm, mode, group).mean():.3f}"
            row["shift"] = "–" if mode == "running" else signed(exp.shift(result, mode, group))
            row[f"gap to {LABELS[s.against]}"] = signed(exp.gap(result, mode, group))
            rows.append(row)
    return rows


def fit_rows(result: exp.Result) -> list[dict[str, str]]:
    """Table: how sure the nets are of the trained label, by mode."""
    rows = []
    for arm in result.arms:
        by_mode = result.runs[arm].numbers["accuracy"]
        for mode in (mode for mode in result.modes if mode in by_mode):
            members, others = by_mode[mode]
            row = {"arm": LABELS[arm], "statistics": _name(mode), "members": f"{members:.3f}"}
            rows.append(row | {"non-members": f"{others:.3f}", "members − non-members": f"{members - others:+.3f}"})
    return rows


def order_rows(result: exp.Result) -> list[dict[str, str]]:
    """Table: the largest change of a score when the same pool is queried in another order."""
    rows = []
    for arm in result.arms:
        moved = result.runs[arm].numbers["moved"]
        row = {"arm": LABELS[arm], "running statistics": f"{moved['running']:.2g}"}
        rows.append(row | {"batch statistics": "no such mode" if moved["batch"] is None else f"{moved['batch']:.2g}"})
    return rows


def verdict_rows(result: exp.Result) -> list[dict[str, str]]:
    """Table: what each mode does to the AUC over all samples; no claim of the paper depends on it."""
    rows = []
    for mode, status in zip(result.modes[1:], exp.statuses(result), strict=True):
        rows.append({"statistics": _name(mode), "shift": signed(exp.shift(result, mode)), "direction": status})
    return rows


def record_rows(result: exp.Result) -> list[dict[str, str]]:
    """Table: where the numbers come from."""
    return [{"what": LABELS[arm], "record": record.line} for arm, record in result.runs.items()]


def glue_values(result: exp.Result) -> dict[str, str]:
    """The numbers that the chapter's prose quotes, as text, by name."""
    s = result.settings
    values = {"rate": f"{100 * s.rate:g} %", "running-gap": signed(exp.gap(result, "running"))}
    values["moved"] = f"{result.runs[s.norm].numbers['moved']['running']:.2g}"
    for mode in result.modes[1:]:
        size = mode.split()[1]
        values[f"batch-{size}-shift"] = signed(exp.shift(result, mode))
        values[f"batch-{size}-gap"] = signed(exp.gap(result, mode))
    return {f"qm-{name}": text for name, text in values.items()}


def _name(mode: str) -> str:
    return "running" if mode == "running" else f"of a query batch of {mode.split()[1]}"
