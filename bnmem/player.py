"""An interactive player of the toy model: one self-contained piece of HTML, the same bytes for the same runs.

It asks no other host for anything, works in the rendered book, in Jupyter and in Colab, with mouse or keyboard, on
light and dark pages. Without JavaScript its first frame shows.
"""

import json
from dataclasses import dataclass

import numpy as np

from bnmem.toy import Run

TITLES = {"exact": "BN, exact", "fixed": "BN, statistics held", "none": "no BN"}
SIDE, TOP, BOTTOM = 220, 24, 62  # pixels
COLOURS = {1.0: "#56B4E9", -1.0: "#222222"}  # by label
DIAMOND = "M0-6L6 0L0 6L-6 0Z"  # a diamond


@dataclass(frozen=True)
class Player:
    """The HTML, which a notebook shows by itself."""

    html: str

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return "<interactive player of the toy model>"


def player(runs: dict[str, Run], frames: int = 40) -> Player:
    """A player that steps through the trainings of all arms side by side.

    Args:
        runs: arm to run, equal samples and steps (`bnmem.toy.train_all`).
        frames: about how many moments to show; they lie denser at the start, where more happens.
    """
    first = next(iter(runs.values()))
    last = len(first.batch)
    steps = sorted({0, *np.geomspace(1, last, frames).round().astype(int).tolist()})
    reach = 1.1 * float(np.abs(first.samples.x).max())
    scenes = {arm: [_scene(run, step, reach) for step in steps] for arm, run in runs.items()}
    panels = "".join(_panel(run, scenes[run.arm][0], reach) for run in runs.values())
    data = json.dumps({"steps": steps, "scenes": list(scenes.values())}, separators=(",", ":"))
    return Player(
        f'<div class="bnmem-player" id="bnmem-player" role="group" tabindex="0" aria-label="{LABEL}">{STYLE}'
        f'<div class="bnmem-arms">{panels}</div>'
        f'<div class="bnmem-controls">{CONTROLS.format(last=len(steps) - 1)}</div>'
        f'<p class="bnmem-help">{HELP}</p>'
        f'<script type="application/json">{data}</script><script>{SCRIPT}</script></div>'
    )


def _scene(run: Run, step: int, reach: float) -> dict:
    """What changes from frame to frame in one panel: the line f = 0, which samples are right, and two lines of text."""
    right = run.margin[step] > 0
    outliers, typical = right[run.samples.outlier], right[~run.samples.outlier]
    ratio = "" if run.arm == "none" else f"γ/σ = {run.ratio[step]:.2f}"
    return {
        "line": _line(run, step, reach),
        "right": "".join(str(int(r)) for r in right),
        "text": [f"right: {outliers.sum()} of {outliers.size} outliers", f"{typical.mean():.0%} of typical", ratio],
    }


def _line(run: Run, step: int, reach: float) -> list[float]:
    """End points in pixels of the line on which f = 0, clipped to the panel; zeros where it lies outside."""
    slope = run.gamma[step] / run.sigma[step] * run.v[step]
    offset = run.v[step] * (run.beta[step] - run.gamma[step] * run.mu[step] / run.sigma[step]) + run.b[step]
    w, length = slope * run.w[step], float(np.linalg.norm(slope * run.w[step]))
    if length == 0 or abs(offset) / length > reach * np.sqrt(2):
        return [0.0, 0.0, 0.0, 0.0]
    normal = w / length
    foot, along = -offset / length * normal, np.array([-normal[1], normal[0]])
    ends = [foot - 3 * reach * along, foot + 3 * reach * along]
    return [round(float(value), 1) for end in ends for value in _pixels(end, reach)]


def _pixels(point, reach):
    return (point[0] / reach + 1) * SIDE / 2, (1 - point[1] / reach) * SIDE / 2


def _panel(run: Run, scene: dict, reach: float) -> str:
    """One arm: frame, line, samples (circles, outliers as diamonds), title and text, drawn at its first scene."""
    marks = []
    for point, label, outlier, right in zip(
        run.samples.x, run.samples.y, run.samples.outlier, scene["right"], strict=True
    ):
        x, y = _pixels(point, reach)
        shape = DIAMOND if outlier else "M-3 0A3 3 0 1 1 3 0A3 3 0 1 1-3 0Z"
        fill = COLOURS[float(label)] if right == "1" else "#ffffff"
        marks.append(
            f'<path class="mark" d="{shape}" transform="translate({x:.1f} {y:.1f})" fill="{fill}" '
            f'stroke="{COLOURS[float(label)]}" stroke-width="1.3"/>'
        )
    x1, y1, x2, y2 = scene["line"]
    texts = "".join(
        f'<text class="say" x="0" y="{TOP + SIDE + 18 + 18 * at}">{text}</text>'
        for at, text in enumerate(scene["text"])
    )
    return (
        f'<svg class="arm" viewBox="0 0 {SIDE} {TOP + SIDE + BOTTOM}" role="img" aria-label="{TITLES[run.arm]}: {ALT}">'
        f'<text class="title" x="0" y="16">{TITLES[run.arm]}</text>'
        f'<svg x="0" y="{TOP}" width="{SIDE}" height="{SIDE}"><rect width="{SIDE}" height="{SIDE}" fill="#ffffff"/>'
        f'<line class="cut" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="#D55E00" stroke-width="2"/>'
        f'{"".join(marks)}<rect width="{SIDE}" height="{SIDE}" fill="none" stroke="#888888" stroke-width="2"/></svg>'
        f"{texts}</svg>"
    )


LABEL = "Player of the toy model"
ALT = "scatter plot of two classes and outliers, with the line that separates the two answers of the net at this step"
HELP = (
    "Circles are typical samples, diamonds outliers; color is the label. Filled: the net is right. Hollow: it is "
    "wrong. Keys: left and right arrow one frame, Home and End, space to play."
)
CONTROLS = (
    '<button type="button" data-do="play">Play</button><button type="button" data-do="back">Back</button>'
    '<button type="button" data-do="next">Next</button>'
    '<input type="range" min="0" max="{last}" value="0" step="1" aria-label="frame"/>'
    '<output aria-live="polite">step 0</output>'
)
STYLE = """<style>
.bnmem-player { max-width: 740px; padding: 4px; font: 14px sans-serif }
.bnmem-arms { display: flex; flex-wrap: wrap; gap: 4px 16px }
.bnmem-arms > svg { flex: 1 1 200px; min-width: 200px; max-width: 240px; height: auto }
.bnmem-player text { fill: currentColor }
.bnmem-player .title { font-weight: bold }
.bnmem-controls { display: flex; gap: 8px; align-items: center; flex-wrap: wrap }
.bnmem-controls button { font: inherit; padding: 4px 12px; border: 1px solid #888; border-radius: 4px;
  background: #f2f2f2; color: #222; cursor: pointer }
.bnmem-controls input { flex: 1 1 120px; min-width: 100px }
.bnmem-controls output { min-width: 5em }
.bnmem-player .bnmem-help { font-size: 13px; margin: 6px 0 0 }
.bnmem-player:focus-visible, .bnmem-player :focus-visible { outline: 2px solid #0072B2; outline-offset: 2px }
</style>"""
SCRIPT = """
document.querySelectorAll(".bnmem-player:not([data-ready])").forEach(function (root) {
  root.dataset.ready = "1";
  var data = JSON.parse(root.querySelector('script[type="application/json"]').textContent);
  var arms = root.querySelectorAll("svg.arm"), slider = root.querySelector("input"), out = root.querySelector("output");
  var play = root.querySelector('[data-do="play"]'), last = data.steps.length - 1, now = 0, timer = null;
  function show(frame) {
    now = Math.max(0, Math.min(last, frame));
    arms.forEach(function (arm, at) {
      var scene = data.scenes[at][now], cut = arm.querySelector(".cut");
      ["x1", "y1", "x2", "y2"].forEach(function (name, k) { cut.setAttribute(name, scene.line[k]); });
      arm.querySelectorAll(".mark").forEach(function (mark, k) {
        mark.setAttribute("fill", scene.right[k] === "1" ? mark.getAttribute("stroke") : "#ffffff");
      });
      arm.querySelectorAll(".say").forEach(function (line, k) { line.textContent = scene.text[k]; });
    });
    slider.value = now;
    out.textContent = "step " + data.steps[now];
    if (now === last) stop();
  }
  function stop() {
    clearInterval(timer); timer = null; play.textContent = "Play"; out.setAttribute("aria-live", "polite");
  }
  function toggle() {
    if (timer) return stop();
    if (now === last) show(0);
    play.textContent = "Pause"; out.setAttribute("aria-live", "off");
    timer = setInterval(function () { show(now + 1); }, 250);
  }
  var acts = {
    play: toggle,
    back: function () { stop(); show(now - 1); },
    next: function () { stop(); show(now + 1); }
  };
  root.addEventListener("click", function (event) {
    var act = event.target.getAttribute("data-do");
    if (act) acts[act]();
  });
  slider.addEventListener("input", function () { stop(); show(Number(slider.value)); });
  root.addEventListener("keydown", function (event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    var key = event.key, moves = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: last };
    if (key === " " && event.target.tagName !== "BUTTON") toggle();
    else if (key in moves && event.target !== slider) { stop(); show(moves[key]); }
    else return;
    event.preventDefault(); event.stopPropagation();
  });
});
"""
