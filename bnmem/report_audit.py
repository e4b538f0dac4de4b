"""An audit in words and files: what was found, what it cannot say, what to do next."""

import csv
import io
from pathlib import Path

import numpy as np

from bnmem import plots_audit
from bnmem.audit import STATISTICS, Audit
from bnmem.digits import percent, significant
from bnmem.errors import InputError
from bnmem.ratio import LayerRatio

LIMITS = (
    "Whether a sample was in the training set. No number here is evidence of membership: a sample that is hard for "
    "every net has a large norm as well. That takes shadow models, trained with and without the sample.",
    "How much a net memorized, from gamma/sigma alone. The ratio is no property of the function: multiplying the "
    "weights before a layer by k divides it by k and changes no answer (Theorem 9 of the theory chapter). The "
    "scale-free column, |gamma| times the norm of those weights over sigma, is free of that length and of nothing "
    "else: it says how steeply a channel's output follows its input. Multiplying gamma and beta by c and dividing the "
    "next weights by c multiplies it by c and changes no answer either.",
    "What the training did. Gradient norms are those of the finished net with its running statistics (definition "
    "eval). A sample that was memorized early has a small norm by now; a large one means: not fitted, atypical, or "
    "mislabelled.",
)
NEXT = (
    "Look at the samples with the largest norms: are their labels right, are they what the net is meant for?",
    "Measure membership: train shadow models on halves of your data and run LiRA on their logits "
    "(book/howto_lira.md; several machines: book/howto_cluster.md).",
    "Or bound epsilon from one training: put canaries with coin flips into the data (bnmem.audit_one_run, last section "
    "of book/howto_lira.md).",
    "Train again with the ratio limited, bnmem.ratio.GammaSigmaPenalty, or with another normalization, and compare the "
    "attack, not the ratio: a penalty can be met by growing weights.",
)


def findings(audit: Audit) -> list[str]:
    """What was found, one sentence or two a line."""
    lines = []
    if audit.ratio:
        lines.append(f"{_above(audit.ratio)} (running statistics).")
        if audit.in_batches and _known(audit.in_batches):
            lines.append(f"By the statistics of up to {STATISTICS} of the samples: {_above(audit.in_batches)}.")
        free = [layer.scale_free.mean() for layer in _known(audit.ratio) if layer.scale_free is not None]
        if free:
            lines.append(
                f"The scale-free reading |gamma| ||w|| / sigma has a median of {significant(np.median(free), 3)} over "
                f"the {len(free)} layers of which the weights before them are known."
            )
    if audit.samples is not None:
        s, n = audit.samples, len(audit.samples.norm)
        few = max(1, round(0.01 * n))
        share = s.norm[s.order[:few]].sum() / max(s.norm.sum(), 1e-300)
        wrong = int((s.label != s.predicted)[s.order[:few]].sum())
        lines.append(f"The net is right on {percent(s.accuracy, 1)} of {n:,} samples.")
        lines.append(
            f"Gradient norms: median {significant(np.median(s.norm), 3)}, largest {significant(s.norm.max(), 3)}. The "
            f"top 1 % ({few:,}) hold {percent(share)} of the sum; the net contradicts the label of {wrong:,} of them."
        )
    return lines


def text(audit: Audit, classes: tuple[str, ...] = (), notes: tuple[str, ...] = ()) -> str:
    """The whole report in Markdown that also reads well on a terminal."""
    parts = [f"# Audit of {audit.name}", "", *_list(findings(audit))]
    if all_notes := (*notes, *audit.notes):
        parts += ["", "Notes:", "", *_list(all_notes)]
    if audit.ratio:
        parts += ["", "## gamma/sigma, layer by layer", "", *_table(plots_audit.ratio_rows(audit))]
    if audit.samples is not None:
        parts += ["", "## Samples with the largest influence", ""]
        parts += ["By the l2 norm of the gradient of the sample's loss: how hard it pulls on the weights.", ""]
        parts += _table(plots_audit.sample_rows(audit, classes=classes))
    parts += ["", "## What this cannot know", "", *_list(LIMITS), "", "## What to do next", "", *_list(NEXT)]
    return "\n".join(parts) + "\n"


def save(audit: Audit, folder: str | Path, classes: tuple[str, ...] = (), notes: tuple[str, ...] = ()) -> list[Path]:
    """Write report.md and, as far as there is something to write, ratio.csv, ratio.png, samples.csv (by falling norm)
    and influence.png; the files, in this order. Raises InputError for a folder that is not empty or not writable."""
    folder = free(folder)
    files = {"report.md": text(audit, classes, notes).encode()}
    if audit.ratio:
        files["ratio.csv"] = _csv([_numbers(layer) for layer in audit.ratio])
        files["ratio.png"] = plots_audit.ratio(audit).png()
    if audit.samples is not None:
        s = audit.samples
        columns = {"label": s.label, "predicted": s.predicted, "loss": s.loss, "phi": s.phi, "norm": s.norm}
        files["samples.csv"] = _csv([
            {"rank": rank, "sample": s.names[i]} | {name: v[i].item() for name, v in columns.items()}
            for rank, i in enumerate(s.order, 1)
        ])  # fmt: skip
        files["influence.png"] = plots_audit.influence(audit).png()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, raw in files.items():
            (folder / name).write_bytes(raw)
    except OSError as error:
        raise InputError(f"cannot write to {folder} ({error.strerror}); choose another folder with --out") from None
    return [folder / name for name in files]


def free(folder: str | Path) -> Path:
    """The folder, if nothing would be overwritten there. Raises InputError otherwise."""
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} exists already and is not empty; choose another folder with --out, or remove it")
    return folder


def _known(layers: list[LayerRatio]) -> list[LayerRatio]:
    return [layer for layer in layers if np.isfinite(layer.ratio).all()]


def _above(layers: list[LayerRatio]) -> str:
    known = _known(layers)
    above = sum(layer.ratio.mean() > 1 for layer in known)
    unknown = f"; {len(layers) - len(known)} more are unknown" if len(known) < len(layers) else ""
    return f"{above} of {len(known)} batch normalization layers have a mean gamma/sigma above 1{unknown}"


def _numbers(layer: LayerRatio) -> dict:
    """A row of ratio.csv, all digits."""
    quantiles = dict(zip(("q05", "median", "q95"), np.quantile(layer.ratio, (0.05, 0.5, 0.95)).tolist(), strict=True))
    row = {"layer": layer.name, "channels": len(layer.ratio), "mean": float(layer.ratio.mean()), **quantiles}
    row["above_1"] = float((layer.ratio > 1).mean())
    row["scale_free_mean"] = "" if layer.scale_free is None else float(layer.scale_free.mean())
    return row | {"fed_by": layer.fed_by or "", "note": layer.note}


def _csv(rows: list[dict]) -> bytes:
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue().encode()


def _table(rows: list[dict[str, str]]) -> list[str]:
    cells = [list(rows[0]), *([str(v).replace("|", "/") for v in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |" for row in cells]
    return [lines[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|", *lines[1:]]


def _list(lines) -> list[str]:
    return [f"- {line}" for line in lines]
