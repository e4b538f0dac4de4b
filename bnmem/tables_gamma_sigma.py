"""The tables of gamma/sigma in trained nets, and the numbers that the book's prose quotes."""

import numpy as np

from bnmem import exp_gamma_sigma as exp
from bnmem import rules
from bnmem.digits import percent
from bnmem.plots_gamma_sigma import archs, inits, name_of, set_name
from bnmem.stats import Interval, factor, interval

READING_NAMES = {
    "ratio": "γ/σ",
    "scale_free": "scale-free",
    "running": "γ/σ, running σ",
}
INIT_NAMES = {"he": "He"}
NOT_COMPUTED = "not computed"


def verdict_rows(result: exp.Result) -> list[dict[str, str]]:
    """Table: each metric of the scorecard's rules in each net, the least effect that counts, and what was found."""
    metrics = {metric.name: metric for metric in rules.RULES["C8"].metrics}
    rows = []
    for cell in exp.cells(result)["C8"]:
        metric = metrics[cell.metric]
        effect = interval(Interval(cell.effect, cell.low, cell.high, result.settings.seeds))
        net = f"{set_name(result.settings.dataset)}, {name_of(cell.where.split(' / ')[1])}"
        row = {"net": net, "metric": metric.says, "least effect": f"{metric.margin:g}"}
        rows.append(row | {"effect": effect, "verdict": rules.cell_status(cell, metric)})
    return rows


def reading_rows(result: exp.Result) -> list[dict[str, str]]:
    """Table: the same numbers for each initialisation, weight decay and reading, before training and after it."""
    rows = []
    for (arch, init, decay), records in result.runs.items():
        for reading in exp.READINGS:
            values = np.array([_known(exp.by_layer(r, reading)) for r in records])  # [seeds, layers, checkpoints]
            found, running = exp.effects(records, reading), reading == "running"
            row = {"net": _arm(arch, init, decay if decay != result.settings.weight_decay else None)}
            row |= {"reading": READING_NAMES[reading], "layers": str(values.shape[1])}
            row["before"] = "-" if running else f"{values[..., 0].mean():.2f}"
            row["after"] = f"{values[..., -1].mean():.2f}"
            row["factor"] = factor(found["log2_ratio_change"], 2)
            row["above 1 before"] = "-" if running else percent(exp.share_before(records, reading))
            rows.append(row | {"above 1 after": percent(found["share_above_one"].mean + 0.5)})
    return rows


def layer_rows(result: exp.Result, init: str | None = None) -> list[dict[str, str]]:
    """Table: every BN layer, means over seeds: ratio and scale-free reading before and after."""
    init = init or inits(result)[0]
    rows = []
    for arch in archs(result):
        records = result.of(arch, init)
        ratio, free = (np.mean([exp.by_layer(r, k) for r in records], axis=0) for k in ("ratio", "scale_free"))
        above = [np.mean([(exp.channels(r)[name][-1] > 1).mean() for r in records]) for name in _layers(records)]
        for i, name in enumerate(_layers(records)):
            row = {"net": name_of(arch), "layer": name, "channels": str(records[0].numbers["channels"][i])}
            row |= {"γ/σ before": f"{ratio[i, 0]:.2f}", "after": f"{ratio[i, -1]:.2f}"}
            row["channels above 1 after"] = percent(above[i])
            for label, end in (("scale-free before", 0), ("scale-free after", -1)):
                row[label] = f"{free[i, end]:.2f}" if np.isfinite(free[i, end]) else "-"
            rows.append(row)
    return rows


def rewinding_rows(result: exp.Result, init: str | None = None) -> list[dict[str, str]]:
    """Table: what rewinding each BN layer to its initialisation makes the net forget, means over seeds."""
    init = init or inits(result)[0]
    rows = []
    for arch in archs(result):
        records = result.of(arch, init)
        lost = {g: np.mean([r.arrays[f"forgotten_{g}"][0] for r in records], axis=0) for g in ("corrupted", "clean")}
        enough = all(r.numbers["fitted"]["corrupted"][0] >= exp.ENOUGH_FITTED for r in records)
        for i, name in enumerate(_layers(records)):
            row = {"net": name_of(arch), "layer": name}
            row["rewound with it"] = records[0].numbers["fed_by"][i] or "γ and β alone"
            row["corrupted forgotten"] = percent(lost["corrupted"][i]) if enough else "too few fitted"
            rows.append(row | {"clean forgotten": percent(lost["clean"][i])})
    return rows


def correlation_rows(result: exp.Result) -> list[dict[str, str]]:
    """Table: the rank correlation, over layers, of two readings with how strongly a layer memorizes."""
    rows = []
    for arch, init in result.plain:
        records = result.of(arch, init)
        fitted = np.array([r.numbers["fitted"]["corrupted"] for r in records])
        row = {"net": _arm(arch, init), "corrupted fitted": percent(fitted[:, 0].sum() / fitted[:, 1].sum())}
        row["layers"] = str(sum(name is not None for name in records[0].numbers["fed_by"]))
        for early, to in ((0, "initialization"), (1, f"epoch {result.settings.early}")):
            row[f"γ/σ, rewound to {to}"] = _rank(exp.correlation(records, "ratio", early))
        rows.append(row | {"scale-free, rewound to initialization": _rank(exp.correlation(records, "scale_free"))})
    return rows


def record_rows(result: exp.Result) -> list[dict[str, str]]:
    """Table: where the numbers come from."""
    return [
        {"what": f"{_arm(arch, init, decay)}, seed {seed}", "record": record.line}
        for (arch, init, decay), rows in result.runs.items()
        for seed, record in enumerate(rows)
    ]


def glue_values(result: exp.Result) -> dict[str, str]:
    """The numbers that the chapter's prose quotes, as text, by name."""
    s = result.settings
    values = {"verdict": rules.verdict("C8", exp.cells(result)["C8"]), "seeds": str(s.seeds), "decay": f"{s.decay:g}"}
    values |= {"images": f"{s.n_train:,}", "images-deep": f"{s.n_deep:,}", "rate": percent(s.rate)}
    values |= {"test-images": f"{s.n_test:,}"}
    values |= {"epochs": str(s.epochs), "epochs-deep": str(s.epochs_deep), "early": str(s.early)}
    for (arch, init, decay), records in result.runs.items():
        name = f"{arch}-{init}" + ("" if decay == s.weight_decay else "-decay")
        for reading, short in (("ratio", ""), ("scale_free", "free-")):
            means = np.array([_known(exp.by_layer(r, reading)).mean(axis=0) for r in records]).mean(axis=0)
            found = exp.effects(records, reading)
            values[f"{name}-{short}before"], values[f"{name}-{short}after"] = f"{means[0]:.2f}", f"{means[-1]:.2f}"
            values[f"{name}-{short}change"] = factor(found["log2_ratio_change"], 2)
            values[f"{name}-{short}times"] = f"{2 ** found['log2_ratio_change'].mean:.2f}"
            values[f"{name}-{short}climb"] = f"{means[-1] / means.min():.2f}"
            values[f"{name}-{short}share"] = percent(found["share_above_one"].mean + 0.5)
            values[f"{name}-{short}share-before"] = percent(exp.share_before(records, reading))
        values[f"{name}-rank"] = _rank(exp.correlation(records))
        values[f"{name}-rank-free"] = _rank(exp.correlation(records, "scale_free"))
        fitted = np.array([r.numbers["fitted"]["corrupted"] for r in records])
        values[f"{name}-fitted"] = percent(fitted[:, 0].sum() / fitted[:, 1].sum())
        for group in ("clean", "test"):
            values[f"{name}-{group}"] = f"{np.mean([r.numbers['accuracy'][group][-1] for r in records]):.2f}"
    return {f"gs-{name}": text for name, text in values.items()}


def _arm(arch: str, init: str, decay: float | None = None) -> str:
    """ "LeNet, He", with its weight decay where one is given."""
    return f"{name_of(arch)}, {INIT_NAMES.get(init, init)}" + (f", weight decay {decay:g}" if decay is not None else "")


def _rank(i: Interval | None) -> str:
    return NOT_COMPUTED if i is None else interval(i)


def _known(values: np.ndarray) -> np.ndarray:
    """The layers that have this reading."""
    return values[np.isfinite(values[:, -1])]


def _layers(records) -> list[str]:
    return records[0].numbers["layers"]
