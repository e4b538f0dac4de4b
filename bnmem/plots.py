"""One look for every figure: colours that the colour-blind can tell apart, sizes that a phone can show.

Figures are opaque, so they stay readable on a dark page and in a dark notebook. Each figure function of the project
returns a `Figure`, built without pyplot and its hidden state.
"""

import io
from collections.abc import Iterator
from contextlib import contextmanager

import matplotlib as mpl
import matplotlib.figure

from bnmem.norms import NORMS

# Okabe and Ito's palette, with one of Tol's; one colour a meaning, in every figure of the book.
COLOURS = {
    "batch": "#0072B2",
    "none": "#D55E00",
    "affine": "#009E73",
    "group": "#CC79A7",
    "layer": "#56B4E9",
    "instance": "#882255",
    "frozen": "#000000",
    "outlier": "#D55E00",
    "typical": "#0072B2",
    "exact": "#0072B2",
    "fixed": "#E69F00",
    "grey": "#666666",
}
MARKERS = dict(zip(NORMS, "os^DvPX", strict=True))
LINES = dict(zip(NORMS, ("-", "--", "-.", ":", (0, (1, 3)), (0, (5, 1)), (0, (3, 1, 1, 1))), strict=True))
_NAMES = ("BN", "no norm", "affine only", "GroupNorm", "LayerNorm", "InstanceNorm", "frozen BN")
LABELS = dict(zip(NORMS, _NAMES, strict=True))
_STYLE = {
    "figure.facecolor": "white",
    "figure.dpi": 144,
    "savefig.dpi": 144,
    "savefig.facecolor": "white",
    "font.family": "DejaVu Sans",
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "lines.linewidth": 2.0,
    "svg.hashsalt": "bnmem",
}


def named(text: str, arms: tuple[str, ...]) -> str:
    """A metric's sentence with the arms that were compared in the place of BN and none."""
    ours, theirs = arms[:2]
    return (
        text
        if (ours, theirs) == ("batch", "none")
        else f"{text} (here: BN is {LABELS[ours]}, none is {LABELS[theirs]})"
    )


class Figure(matplotlib.figure.Figure):
    """A matplotlib figure that a notebook shows by itself, at twice the pixels of its width."""

    def png(self) -> bytes:
        """The figure as a PNG, equal bytes for equal figures (no date, no version inside)."""
        buffer = io.BytesIO()
        with style():
            if self.get_layout_engine() is not None:  # lay out once: each further pass would move things a little
                self.draw_without_rendering()
                self.set_layout_engine("none")
            self.savefig(buffer, format="png", dpi=_STYLE["savefig.dpi"], metadata={"Software": None})
        return buffer.getvalue()

    def _repr_png_(self):
        width, height = (round(inches * 72) for inches in self.get_size_inches())
        return self.png(), {"width": width, "height": height}

    def __repr__(self):
        return f"<Figure with {len(self.axes)} panels>"


@contextmanager
def style() -> Iterator[None]:
    """The project's matplotlib settings inside, the caller's after."""
    with mpl.rc_context(_STYLE):
        yield


def panels(rows: int, columns: int, *, width: float = 10.0, height: float = 4.0, **options) -> tuple[Figure, list]:
    """A Figure and its axes as a list of rows; options go to `Figure.subplots`."""
    with style():
        figure = Figure(figsize=(width, height), layout="constrained")
        return figure, figure.subplots(rows, columns, squeeze=False, **options).tolist()
