"""Margin growth as array functions: what `bnmem.theory` states in symbols, computed for a batch in NumPy float64.

Three arms: ``exact`` (batch normalization, statistics of the batch), ``fixed`` (mu and sigma held) and ``none``. Names
are those of the theorem page; the tests compare every function with torch's autograd.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from bnmem.errors import Diverged, InputError
from bnmem.settings import Settings, setting


@dataclass(frozen=True)
class MarginGrowth(Settings):
    """How the notebook on margin growth looks at one outlier in a batch. Lengths are in standard deviations."""

    batch_size: int = setting(32, "one sample has no variance, so a batch needs three or more here", low=3, high=4096)
    distance: float = setting(10.0, "how far out the outlier lies", low=0.1, high=1e4)
    eps: float = setting(0.0, "added to the batch variance", low=0.0, high=1e4)
    spread: float = setting(0.03, "spread of the narrow side of the elongated cloud", low=1e-3, high=1.0)
    draws: int = setting(40, "random batches a point of a curve", low=1, high=10_000)
    seed: int = setting(0, "seed of the random batches", low=0)
    decide: bool = setting(True, "let sympy decide every identity anew")

    @classmethod
    def profiles(cls) -> dict[str, dict]:
        return {"smoke": {"draws": 5}, "laptop": {}, "grid": {}, "paper": {}}


ARMS = ("exact", "fixed", "none")
PARAMETERS = ("w", "gamma", "beta", "v", "b")
ANGLES = (15, 45, 75, 90)  # directions of an outlier from w, in degrees, where a figure or a table shows several


@dataclass(frozen=True)
class Samples:
    """x (n, d) float64, y (n,) in {-1, +1}, outlier (n,) bool."""

    x: np.ndarray
    y: np.ndarray
    outlier: np.ndarray


@dataclass(frozen=True)
class State:
    """One point of the parameter space: w (d,), the rest scalars. Without normalization gamma = 1 and beta = 0 stay."""

    w: np.ndarray
    gamma: float = 1.0
    beta: float = 0.0
    v: float = 1.0
    b: float = 0.0


@dataclass(frozen=True)
class View:
    """A batch of B samples through one net: a_hat, h, f, m, g (B,); mu, sigma; ``reach`` (B, d).

    ``reach`` is what a step on w sees of a sample: x_i, or P(x_i - x_bar) with the statistics of the batch. In every
    arm d m_i / d w = y_i v (gamma/sigma) reach_i.
    """

    a_hat: np.ndarray
    h: np.ndarray
    f: np.ndarray
    m: np.ndarray
    g: np.ndarray
    mu: float
    sigma: float
    reach: np.ndarray


def look(samples: Samples, state: State, arm: str, eps: float, held: tuple[float, float] | None = None) -> View:
    """Forward pass of a batch, with everything that the growth of its margins depends on.

    Args:
        held: (mu, sigma) of the arm ``fixed``.

    Raises:
        InputError: unknown arm, or ``fixed`` without ``held``.
        Diverged: the batch has no spread and eps = 0, or a number left the range of floats.
    """
    x, a = samples.x, samples.x @ state.w
    if arm not in ARMS:
        raise InputError(f"unknown arm {arm!r}; choose from {', '.join(ARMS)}")
    if arm == "fixed" and held is None:
        raise InputError("the arm fixed needs its statistics; give held=(mu, sigma)")
    mu, sigma = {"none": (0.0, 1.0), "fixed": held, "exact": (a.mean(), np.sqrt(a.var() + eps))}[arm]
    if not (np.isfinite(sigma) and np.isfinite(a).all()):
        raise Diverged(f"the arm {arm} left the range of floats; take a smaller learning_rate or distance")
    if sigma == 0:
        raise Diverged("this batch has no spread at all, sigma is 0; take eps > 0")
    a_hat = (a - mu) / sigma
    reach = x
    if arm == "exact":
        centred = x - x.mean(0)
        reach = centred - np.outer(a_hat, a_hat @ centred / len(a))
    h = state.gamma * a_hat + state.beta
    f = state.v * h + state.b
    m = samples.y * f
    return View(a_hat, h, f, m, expit(-m), float(mu), float(sigma), reach)


def downhill(view: View, state: State, push: np.ndarray) -> dict:
    """Minus the gradient of the mean loss, by parameter; ``push`` (B,) is g_j y_j, 0 for samples that do not count."""
    size = len(push)
    return {
        "w": state.v * state.gamma / view.sigma * (push @ view.reach) / size,
        "gamma": state.v * (push @ view.a_hat) / size,
        "beta": state.v * push.sum() / size,
        "v": push @ view.h / size,
        "b": push.sum() / size,
    }


def tangent_kernel(view: View, state: State, trained: tuple) -> np.ndarray:
    """K_ij (B, B) of the theorem on the whole batch (`thm-batch`), over the trained parameters."""
    ones = np.ones((len(view.m), len(view.m)))
    parts = {
        "w": (state.v * state.gamma / view.sigma) ** 2 * view.reach @ view.reach.T,
        "gamma": state.v**2 * np.outer(view.a_hat, view.a_hat),
        "beta": state.v**2 * ones,
        "v": np.outer(view.h, view.h),
        "b": ones,
    }
    return sum((parts[name] for name in trained), np.zeros_like(ones))


def alone(batch: Samples, view: View, state: State, arm: str, eta: float, eps: float) -> dict:
    """One step of size eta on each sample alone, on w alone: how much its own margin grows, (B,) each.

    The theorems are `thm-no-bn`, `thm-fixed-bn` (the paper's form) and `thm-exact-bn`.

    Returns:
        dict: ``alone`` as measured; ``alone_small``, measured with eta/1000 and multiplied by 1000; ``alone_theorem``
        by the arm's own theorem; ``alone_paper`` by the form with the statistics held, at this sigma.
    """
    slope = (batch.y * state.v * state.gamma / view.sigma)[:, None] * view.reach

    def measured(eta):
        a = batch.x @ (state.w + eta * view.g[:, None] * slope).T  # column i: all samples, after sample i's own step
        mu, sigma = (a.mean(0), np.sqrt(a.var(0) + eps)) if arm == "exact" else (view.mu, view.sigma)
        a_hat = (a.diagonal() - mu) / sigma
        return batch.y * (state.v * (state.gamma * a_hat + state.beta) + state.b) - view.m

    factor = eta * view.g * (state.v * state.gamma / view.sigma) ** 2
    return {
        "alone": measured(eta),
        "alone_small": 1000 * measured(eta / 1000),
        "alone_theorem": factor * (view.reach**2).sum(1),
        "alone_paper": factor * (batch.x**2).sum(1),
    }


def over_fixed(x: np.ndarray, w: np.ndarray, eps: float = 0.0) -> np.ndarray:
    """Exact over fixed-statistics growth at equal sigma, ||P(x_i - x_bar)||^2 / ||x_i||^2; x (B, d), w (d,) -> (B,)."""
    ones = np.ones(len(x))
    view = look(Samples(x, ones, ones > 1), State(w), "exact", eps)
    return (view.reach**2).sum(1) / (x**2).sum(1)


def over_fixed_sweep(distances, angles, sizes, draws: int, seed: int, eps: float = 0.0) -> np.ndarray:
    """`over_fixed` of one outlier among B - 1 samples from a round Gaussian in the plane, w along the first axis.

    Args:
        distances: how far out, in standard deviations of the others.
        angles: direction of the outlier from w, in degrees.
        sizes: batch sizes B.
        draws: batches a point, the same in every distance and direction.

    Returns:
        (len(sizes), len(angles), len(distances)): the median over draws.
    """
    rng, directions = np.random.default_rng(seed), np.deg2rad(np.asarray(angles, dtype=float))
    result = np.empty((len(sizes), len(angles), len(distances)))
    for row, size in enumerate(sizes):
        mates = rng.normal(size=(draws, size - 1, 2))
        for column, angle in enumerate(directions):
            for at, distance in enumerate(distances):
                outlier = distance * np.array([np.cos(angle), np.sin(angle)])
                batches = [np.vstack([outlier, others]) for others in mates]
                result[row, column, at] = np.median([over_fixed(x, np.array([1.0, 0.0]), eps)[0] for x in batches])
    return result


def elongated(settings: MarginGrowth) -> tuple[np.ndarray, np.ndarray]:
    """Exact over fixed growth of three samples in a cloud with a narrow side: angles of w (A,), ratios (A, 3)."""
    rng = np.random.default_rng(settings.seed)
    x = rng.normal(size=(max(settings.batch_size, 8), 2)) * [settings.spread, 1.0]
    x[:3] = [[settings.distance * settings.spread, 0.0], [0.0, settings.distance], [0.02, 0.02]]
    angles = np.linspace(-90, 90, 721)
    directions = [np.array([np.cos(angle), np.sin(angle)]) for angle in np.deg2rad(angles)]
    return angles, np.array([over_fixed(x, w, settings.eps)[:3] for w in directions])


def over(measured: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """Measured over predicted growth; NaN below a growth of 1e-9, where rounding of the margin would be measured."""
    return np.divide(measured, predicted, out=np.full_like(predicted, np.nan), where=predicted > 1e-9)


def closed_form(gamma_0: float, v_0: float, kappa: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(gamma, v) of the flow with beta = b = 0 (`thm-gamma`); kappa is the integral of k over time."""
    return gamma_0 * np.cosh(kappa) + v_0 * np.sinh(kappa), v_0 * np.cosh(kappa) + gamma_0 * np.sinh(kappa)


def phase_field(m, ratio, v: float, sigma: float, size: float) -> tuple[np.ndarray, np.ndarray]:
    """The flow of (m_i, gamma/sigma) when w and gamma learn from sample i alone; statistics held, beta = b = 0.

    Then a_hat_i = y_i m_i / (v gamma), so the two numbers determine their own motion:
    dm/dt = g v^2 [(gamma/sigma)^2 ||x_i||^2 + a_hat_i^2] and d(gamma/sigma)/dt = g m / (gamma sigma); for gamma > 0.

    Args:
        m, ratio: arrays of one shape. size: ||x_i||.
    """
    g = expit(-m)
    return g * (v**2 * ratio**2 * size**2 + (m / (ratio * sigma)) ** 2), g * m / (ratio * sigma**2)
