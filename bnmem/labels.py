"""Labels beside the points of a scatter plot, placed so that they overlap neither each other nor the points."""

import numpy as np
from matplotlib import patheffects
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text
from matplotlib.transforms import Bbox

# Where a label may stand, seen from its point: distance in points of type, then direction in degrees.
_PLACES = [(r, a) for r in (9, 16, 24, 34, 46, 60, 76) for a in (45, 315, 135, 225, 0, 180, 90, 270, 22, 338, 158, 202)]
OUTSIDE = 10  # a place beyond the axes is as bad as so many overlaps


def place(ax, points: list[tuple[float, float]], texts: list[str], colours: list[str], size: float = 8.5) -> None:
    """Write texts [n] beside points [n] (data units), the crowded points first, a thin line to those pushed away.

    The axes' limits must be final: the places are found on the figure as it is laid out now.
    """
    figure = ax.figure
    figure.draw_without_rendering()
    renderer, scale = FigureCanvasAgg(figure).get_renderer(), figure.dpi / 72
    at = ax.transData.transform(points)
    inside = ax.get_window_extent(renderer)
    taken = [Bbox.from_bounds(x - 4 * scale, y - 4 * scale, 8 * scale, 8 * scale) for x, y in at]
    crowd = [-np.sort(np.hypot(*(at - here).T))[:4].sum() for here in at]
    ground = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.5}  # lines below do not strike it out
    halo = [patheffects.withStroke(linewidth=2.5, foreground="white")]
    for i in sorted(range(len(at)), key=lambda i: -crowd[i]):
        tried = []
        for radius, angle in _PLACES:
            dx, dy = radius * np.cos(np.radians(angle)), radius * np.sin(np.radians(angle))
            line = {"arrowstyle": "-", "color": colours[i], "lw": 0.6, "alpha": 0.6, "shrinkA": 0, "shrinkB": 4}
            text = ax.annotate(texts[i], points[i], (dx, dy), textcoords="offset points", fontsize=size, va="center",
                               ha="left" if dx > 1 else "right" if dx < -1 else "center", color=colours[i],
                               path_effects=halo, bbox=ground, arrowprops=line if radius > 16 else None)  # fmt: skip
            text.update_positions(renderer)  # until then an annotation does not know where it stands
            box = Text.get_window_extent(text, renderer).expanded(1.02, 1.05)  # the text, without its line
            clash = sum(box.overlaps(other) for k, other in enumerate(taken) if k != i)
            inner = box.x0 >= inside.x0 and box.x1 <= inside.x1 and box.y0 >= inside.y0 and box.y1 <= inside.y1
            clash += 0 if inner else OUTSIDE
            tried.append((clash, len(tried), text, box))
            if not clash:
                break
        *others, best = sorted(tried, key=lambda row: (-row[0], -row[1]))
        for _, _, text, _ in others:
            text.remove()
        taken.append(best[3])
