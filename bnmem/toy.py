"""The single-channel model of the theory, trained by gradient descent on two classes and a few outliers.

Three arms see the same samples in the same order, from the same weights: ``exact`` (batch normalization), ``fixed``
(its statistics measured at the start and held) and ``none``. NumPy float64; seconds.
"""

from dataclasses import dataclass, replace

import numpy as np

from bnmem import growth
from bnmem.errors import Diverged, InputError
from bnmem.growth import ARMS, PARAMETERS, Samples, State, look
from bnmem.settings import Settings, setting


@dataclass(frozen=True)
class ToyModel(Settings):
    """What is simulated. Lengths are in standard deviations of a class.

    Raises:
        InputError: a value is out of range, or a batch is larger than the training set.
    """

    distance: float = setting(6.0, "distance of the outliers from the origin", low=0.0, high=1e4)
    direction: float = setting(120.0, "angle of the outliers from their own class, in degrees", low=0.0, high=180.0)
    eps: float = setting(1e-5, "added to the batch variance", low=0.0, high=1e4)
    learning_rate: float = setting(0.1, "step size eta, which must be positive", low=1e-12, high=1e12)
    batch_size: int = setting(64, "one sample has no variance, so a batch needs two or more", low=2)
    steps: int = setting(300, "gradient steps", low=1, high=100_000)
    seed: int = setting(0, "seed of the samples, the first weights and the batches", low=0)
    typical: int = setting(120, "typical samples, half of them in each class", low=2, high=2_000)
    outliers: int = setting(8, "outliers, half of them with each label", low=1, high=200)
    scale: float = setting(0.2, "size of the first weights w", low=1e-6, high=1e6)
    repeats: int = setting(5, "seeds of the comparison at equal fit", low=1, high=100)
    trained: tuple = setting(PARAMETERS, "parameters that are trained", PARAMETERS)
    learn_from: str = setting("all", "samples whose loss counts; the others only make statistics", ("all", "outliers"))

    def __post_init__(self):
        super().__post_init__()
        n = self.typical + self.outliers
        if self.batch_size > n:
            raise InputError(f"batch_size {self.batch_size} is more than the {n} samples; take {n} or fewer")

    @classmethod
    def profiles(cls) -> dict[str, dict]:
        return {"smoke": {"steps": 60, "repeats": 2}, "laptop": {}, "grid": {}, "paper": {}}


@dataclass(frozen=True)
class Run:
    """One arm's training of T steps.

    Attributes:
        margin (T+1, n): m_i of all n samples; with statistics over all of them where the arm takes them from the batch.
        w (T+1, 2); gamma, beta, v, b, mu, sigma (T+1,): mu and sigma as for the margin.
        batch (T, B): indices of the samples of each step.
        alone, alone_theorem, alone_paper (T, B): growth of m_i in one step on sample i alone, on w alone, from where
            the training is: measured, by the arm's own theorem, by the form with statistics held.
        alone_small (T, B): the first, measured with a step 1000 times smaller and multiplied by 1000.
        growth, growth_theorem, growth_own (T, B): growth of m_i in the step that is made: measured, by the theorem on
            the whole batch, and the part of the latter that comes from sample i's own gradient.
        pull (T,): k, the mean of g_j y_j a_hat_j, which drives gamma and v; pull_outliers (T,) their part of it.
    """

    arm: str
    settings: ToyModel
    samples: Samples
    margin: np.ndarray
    w: np.ndarray
    gamma: np.ndarray
    beta: np.ndarray
    v: np.ndarray
    b: np.ndarray
    mu: np.ndarray
    sigma: np.ndarray
    batch: np.ndarray
    alone: np.ndarray
    alone_theorem: np.ndarray
    alone_paper: np.ndarray
    alone_small: np.ndarray
    growth: np.ndarray
    growth_theorem: np.ndarray
    growth_own: np.ndarray
    pull: np.ndarray
    pull_outliers: np.ndarray

    @property
    def ratio(self) -> np.ndarray:
        """gamma/sigma (T+1,); gamma = sigma = 1 without normalization."""
        return self.gamma / self.sigma

    @property
    def scale_free(self) -> np.ndarray:
        """|gamma| ||w|| / sigma (T+1,), which does not change when w is scaled."""
        return np.abs(self.gamma) * np.linalg.norm(self.w, axis=1) / self.sigma

    def split(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Outliers and typical samples apart: the columns of a (T+1, n) array, or the entries of a (T, B) one, flat."""
        if len(values) == len(self.batch):
            mask = self.samples.outlier[self.batch]
            return values[mask], values[~mask]
        return values[:, self.samples.outlier], values[:, ~self.samples.outlier]


def _streams(settings):
    return [np.random.default_rng(seed) for seed in np.random.SeedSequence(settings.seed).spawn(3)]


def draw(settings: ToyModel) -> tuple[Samples, State]:
    """The training set and the first weights.

    The classes are round clouds around (2, 0) and (-2, 0), the outliers two tight groups opposite each other. So one
    straight line can tell all labels apart, but not the line that the typical samples alone would choose.
    """
    points, weights, _ = _streams(settings)
    y = np.concatenate([np.resize([1.0, -1.0], settings.typical), np.resize([1.0, -1.0], settings.outliers)])
    outlier = np.arange(len(y)) >= settings.typical
    angle = np.deg2rad(settings.direction)
    far = settings.distance * np.array([np.cos(angle), np.sin(angle)])
    centre = np.where(outlier[:, None], far, [2.0, 0.0])
    x = y[:, None] * centre + points.normal(size=(len(y), 2)) * np.where(outlier, 0.3, 1.0)[:, None]
    return Samples(x, y, outlier), State(w=settings.scale * weights.normal(size=2))


@np.errstate(over="ignore", invalid="ignore")  # what overflows is reported as Diverged
def train(settings: ToyModel, arm: str, start: State | None = None) -> Run:
    """Train one arm by gradient descent and measure every growth on the way.

    Args:
        start: where to begin; by default the seed's first weights, equal in all arms.

    Raises:
        InputError: unknown arm.
        Diverged: the training left the range of floats; the message says what to change.
    """
    samples, first = draw(settings)
    order, state, eta, eps = _streams(settings)[2], start or first, settings.learning_rate, settings.eps
    counts = samples.outlier if settings.learn_from == "outliers" else np.ones(len(samples.y))
    trained = [name for name in settings.trained if arm != "none" or name not in ("gamma", "beta")]
    whole = look(samples, state, "exact", eps)
    held = (whole.mu, whole.sigma)
    states, views, steps = [state], [look(samples, state, arm, eps, held)], []
    for _ in range(settings.steps):
        rows = order.choice(len(samples.y), size=settings.batch_size, replace=False)
        batch = Samples(samples.x[rows], samples.y[rows], samples.outlier[rows])
        view = look(batch, state, arm, eps, held)
        push = counts[rows] * view.g * batch.y
        change = {name: eta * value for name, value in growth.downhill(view, state, push).items() if name in trained}
        after = replace(state, **{name: getattr(state, name) + value for name, value in change.items()})
        parts = eta / len(rows) * batch.y[:, None] * growth.tangent_kernel(view, state, trained) * push
        steps.append(
            {
                "batch": rows,
                **growth.alone(batch, view, state, arm, eta, eps),
                "growth": look(batch, after, arm, eps, held).m - view.m,
                "growth_theorem": parts.sum(1),
                "growth_own": parts.diagonal(),
                "pull": (push * view.a_hat).mean(),
                "pull_outliers": (push * view.a_hat * batch.outlier).mean(),
            }
        )
        state = after
        states.append(state)
        views.append(look(samples, state, arm, eps, held))
    run = {name: np.array([step[name] for step in steps]) for name in steps[0]}
    run |= {name: np.array([getattr(s, name) for s in states]) for name in PARAMETERS}
    run |= {name: np.array([getattr(view, name) for view in views]) for name in ("mu", "sigma")}
    if not all(np.isfinite(values).all() for values in run.values()):
        raise Diverged(f"the arm {arm} left the range of floats; take a smaller learning_rate or distance")
    return Run(arm=arm, settings=settings, samples=samples, margin=np.array([view.m for view in views]), **run)


def train_all(settings: ToyModel) -> dict[str, Run]:
    """Every arm from the same weights on the same batches."""
    return {arm: train(settings, arm) for arm in ARMS}


def at_equal_fit(settings: ToyModel, level: float, seeds: int) -> dict[str, np.ndarray]:
    """Each arm at the first step at which the median margin of its typical samples reaches ``level``.

    Returns:
        arm to (seeds, 2): that step, and the median margin of the outliers then; NaN where it is never reached. Seeds
        count from ``settings.seed``.
    """
    rows = {arm: np.full((seeds, 2), np.nan) for arm in ARMS}
    for at in range(seeds):
        for arm, run in train_all(replace(settings, seed=settings.seed + at)).items():
            outliers, typical = (np.median(values, axis=1) for values in run.split(run.margin))
            reached = np.flatnonzero(typical >= level)
            if len(reached):
                rows[arm][at] = reached[0], outliers[reached[0]]
    return rows


def equal_function_gap(settings: ToyModel) -> float:
    """Largest difference of margins, over steps and samples, between ``fixed`` and its twin without normalization.

    Both train w alone. The twin starts at u = (gamma/sigma) w with the same output everywhere, and its learning rate is
    larger by (gamma/sigma)^2. By the theorem on equal functions the two never part.
    """
    settings = replace(settings, trained=("w",))
    run = train(settings, "fixed")
    ratio, (_, state) = run.ratio[0], draw(settings)
    twin = State(w=ratio * state.w, v=state.v, b=state.b + state.v * (state.beta - ratio * run.mu[0]))
    folded = train(replace(settings, learning_rate=float(settings.learning_rate * ratio**2)), "none", twin)
    return float(np.abs(folded.margin - run.margin).max())


def doubled(settings: ToyModel) -> Run:
    """The exact arm from first weights twice as long, eps four times: the same function, half the gamma/sigma."""
    return train(replace(settings, scale=2 * settings.scale, eps=4 * settings.eps), "exact")


def centred(settings: ToyModel) -> Run:
    """The exact arm with beta = b = 0, not trained, and v = 1/2 at the start, so that gamma and v differ."""
    _, start = draw(settings)
    return train(replace(settings, trained=("w", "gamma", "v")), "exact", replace(start, v=0.5))


def portrait(
    settings: ToyModel, gammas=(0.5, 1.0, 1.8), angles=(175, 200, 320), arm="fixed", learning_rate=0.5, steps=None
) -> list[Run]:
    """Trainings of w and gamma on one outlier alone, from every gamma and every direction of w in degrees; full batch.

    All other samples only make the statistics. beta = b = 0 and v stays at 1. Steps: twice those of the settings.
    """
    n = settings.typical + 1
    settings = replace(settings, outliers=1, batch_size=n, steps=steps or 2 * settings.steps)
    settings = replace(settings, trained=("w", "gamma"), learn_from="outliers", learning_rate=learning_rate)
    directions = [np.array([np.cos(angle), np.sin(angle)]) for angle in np.deg2rad(angles)]
    return [train(settings, arm, State(w=w, gamma=float(gamma))) for gamma in gammas for w in directions]
