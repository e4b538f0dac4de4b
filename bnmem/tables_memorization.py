"""The tables of forced memorization, and the numbers that the chapter quotes."""

import numpy as np

from bnmem import exp_forced_memorization as exp
from bnmem import rules
from bnmem.plots import LABELS, named
from bnmem.plots_memorization import KINDS, TUNING
from bnmem.stats import Interval, interval, t_interval

NEAR = 0.03  # of validation accuracy: learning rates so close to the best count as nearly a tie in the search


def face_value_rows(result: exp.Result) -> list[dict[str, str]]:
    """Table: accuracy on the corrupted samples at the epoch of comparison, and the epochs until half are memorized."""
    rows = []
    for kind in result.settings.corruptions:
        for tuning in exp.TUNINGS:
            row = {"corrupted by": KINDS[kind], "tuning": f"{TUNING[tuning]} ({_rates(result, tuning, kind)})"}
            means = [exp.at_epoch(result, tuning, kind, arm).mean() for arm in result.arms]
            row[f"accuracy, {_both(result)}"] = " / ".join(f"{mean:.2f}" for mean in means)
            row["difference"] = interval(exp.difference(result, tuning, kind))
            for arm in result.arms:
                row[f"epochs to half, {LABELS[arm]}"] = _epochs(
                    exp.epochs_to(result, tuning, kind, arm, "corrupted", 0.5)
                )
            row["log2 speed-up"] = interval(exp.log2_speedup(result, tuning, kind))
            rows.append(row)
    return rows


def search_rows(result: exp.Result) -> list[dict[str, str]]:
    """Table: the search for each arm's learning rate, the mean validation accuracy at every rate that was tried."""
    rows = []
    for arm, record in result.searches.items():
        row = {"arm": LABELS[arm]}
        for lr, mean in zip(record.numbers["lrs"], _searched(record), strict=True):
            text = f"{mean:.3f}" if np.isfinite(mean) else "diverged"
            row[f"at {lr:g}"] = f"**{text}**" if lr == record.numbers["best"] else text
        rows.append(row)
    return rows


def equal_fit_rows(result: exp.Result) -> list[dict[str, str]]:
    """Table: the control. Empty where the arms have no level of clean-training accuracy in common."""
    rows = []
    for kind in result.settings.corruptions:
        for tuning in exp.TUNINGS:
            control = exp.equal_fit(result, tuning, kind)
            if control:
                level, values, gap = control
                row = {"corrupted by": KINDS[kind], "tuning": TUNING[tuning], "clean accuracy": f"{level:g}"}
                row[f"accuracy, {_both(result)}"] = " / ".join(f"{arm.mean():.2f}" for arm in values)
                row |= {"difference at equal fit": interval(gap)}
                row |= {"difference at equal epochs": interval(exp.difference(result, tuning, kind))}
                rows.append(row)
    return rows


def bought_rows(result: exp.Result) -> list[dict[str, str]]:
    """Table: what normalization bought: epochs to fit the clean images, test accuracy with early stopping."""
    rows = []
    for kind in result.settings.corruptions:
        for tuning in exp.TUNINGS:
            row = {"corrupted by": KINDS[kind], "tuning": TUNING[tuning]}
            for arm in result.arms:
                row[f"epochs to 0.8 clean, {LABELS[arm]}"] = _epochs(
                    exp.epochs_to(result, tuning, kind, arm, "clean", 0.8)
                )
            tests = [exp.test_accuracy(result, tuning, kind, arm) for arm in result.arms]
            for arm, values in zip(result.arms, tests, strict=True):
                row[f"test accuracy, {LABELS[arm]}"] = f"{values.mean():.3f}"
            row["test difference"] = interval(t_interval(tests[0] - tests[1]), 3)
            rows.append(row)
    return rows


def record_rows(result: exp.Result) -> list[dict[str, str]]:
    """Table: where the numbers come from."""
    rows = [{"what": f"search, {LABELS[arm]}", "record": record.line} for arm, record in result.searches.items()]
    for (tuning, kind, arm), found in result.runs.items():
        what = f"{KINDS[kind]}, {LABELS[arm]}, {TUNING[tuning]}"
        rows += [{"what": f"{what}, seed {seed}", "record": record.line} for seed, record in enumerate(found)]
    return rows


def _searched(record) -> np.ndarray:
    """Mean validation accuracy of every learning rate that a search has tried, NaN where one diverged."""
    return np.mean(np.array(record.numbers["val_accuracy"], float), axis=1)


def _both(result: exp.Result) -> str:
    return " / ".join(LABELS[arm] for arm in result.arms)


def _rates(result: exp.Result, tuning: str, kind: str) -> str:
    rates = [result.settings.lr if tuning == "same" else result.searches[arm].numbers["best"] for arm in result.arms]
    return " / ".join(f"{rate:g}" for rate in dict.fromkeys(rates))


def _epochs(rows: list[tuple[float, bool]]) -> str:
    return ", ".join(f"{epoch:.0f}" if reached else f"> {epoch:.0f}" for epoch, reached in rows)


def verdict_rows(result: exp.Result) -> list[dict[str, str]]:
    """Table: each metric of the scorecard's rules, its least effect, the effect, and whether it holds in this cell."""
    rows = []
    for tuning, reading in TUNING.items():
        for claim, found in exp.cells(result, tuning).items():
            metrics = {metric.name: metric for metric in rules.RULES[claim].metrics}
            for cell in found:
                metric = metrics[cell.metric]
                effect = interval(Interval(cell.effect, cell.low, cell.high, result.settings.seeds))
                row = {
                    "claim": claim,
                    "reading": reading,
                    "metric": named(metric.says, result.arms),
                    "least effect": f"{metric.margin:g}",
                }
                rows.append(row | {"effect": effect, "verdict": rules.cell_status(cell, metric)})
    return rows


def glue_values(result: exp.Result) -> dict[str, str]:
    """The numbers that the chapter's prose quotes, as text, by name."""
    values = {"epoch": str(result.settings.epochs), "seeds": str(result.settings.seeds)}
    for kind in result.settings.corruptions:
        for tuning in exp.TUNINGS:
            name = f"{kind}-{tuning}"
            for arm, role in zip(result.arms, ("ours", "theirs"), strict=True):
                values[f"{name}-{role}"] = f"{exp.at_epoch(result, tuning, kind, arm).mean():.2f}"
            values[f"{name}-gap"] = interval(exp.difference(result, tuning, kind))
            control = exp.equal_fit(result, tuning, kind)
            values[f"{name}-level"] = f"{control[0]:g}" if control else "none in common"
            values[f"{name}-fit-gap"] = interval(control[2]) if control else "not comparable"
            tests = [exp.test_accuracy(result, tuning, kind, arm) for arm in result.arms]
            values[f"{name}-test-gap"] = interval(t_interval(tests[0] - tests[1]), 3)
            claim, cells = exp.CLAIMS[kind], exp.cells(result, tuning)[exp.CLAIMS[kind]]
            values[f"{name}-verdict"] = rules.verdict(claim, cells)
            metrics = {metric.name: metric for metric in rules.RULES[claim].metrics}
            held = [rules.cell_status(cell, metrics[cell.metric]) for cell in cells].count("holds")
            values[f"{name}-held"] = f"{held or 'none'} of {len(cells)}"
    for arm, role in zip(result.arms, ("ours", "theirs"), strict=True):
        record = result.searches[arm]
        mean = _searched(record)
        near = mean >= np.nanmax(mean) - NEAR
        rates = np.array(record.numbers["lrs"])[near]
        values[f"search-{role}-best"] = f"{record.numbers['best']:g}"
        values[f"search-{role}-rates"] = f"{rates.min():g} to {rates.max():g}"
        values[f"search-{role}-spread"] = f"{mean[near].min():.3f} to {mean[near].max():.3f}"
    values["search-seeds"] = str(len(record.numbers["val_accuracy"][0]))
    return {f"fm-{name}": text for name, text in values.items()}
