"""The theorems on margin growth with and without batch normalization: every statement once, as a sympy object.

The book prints `Equation.latex`. `Equation.holds` decides the identity symbolically at B = 3, d = 2 (and S = 2), with
the left side derived by sympy from the definitions, and the tests compare the very same objects with torch's autograd
on random batches. C6 and C7 are claims of Doan, Gu, Alouani, arXiv:2605.24420; labels are those of the theorem page.
"""

import sympy as sp

from bnmem import vocabulary as n
from bnmem.identity import Equation, Theorem

i, j, r, B, S = n.i, n.j, n.r, n.B, n.S
eta, eps, sigma, tau, mu = n.eta, n.eps, n.sigma, n.tau, n.mu
gamma, beta, v, b, k, q = n.gamma, n.beta, n.v, n.b, n.k, n.q
w, x, a, a_hat, h, f, y, m, g, loss, s, z = n.w, n.x, n.a, n.a_hat, n.h, n.f, n.y, n.m, n.g, n.loss, n.s, n.z
x_bar, x_pool, kappa = n.x_bar, n.x_pool, n.kappa
NETS = ("none", "fixed", "exact")


def _definitions():
    return Theorem(
        "def-channel",
        "The single channel",
        "One convolution channel at one position, a linear classifier on top, two classes.",
        (
            Equation("eq-a", a[i], n.Dot(w, x[i]), NETS),
            Equation("eq-mu", mu, n.average(j, B, a[j]), ("exact",)),
            Equation("eq-sigma", sigma**2, n.average(j, B, (a[j] - mu) ** 2) + eps, ("exact",)),
            Equation("eq-a-hat", a_hat[i], (a[i] - mu) / sigma, ("fixed", "exact")),
            Equation("eq-h", h[i], gamma * a_hat[i] + beta, ("fixed", "exact")),
            Equation("eq-f", f[i], v * h[i] + b, NETS),
            Equation("eq-m", m[i], y[i] * f[i], NETS),
            Equation("eq-loss", loss[i], sp.log(1 + sp.exp(-m[i])), NETS),
            Equation("eq-g", g[i], -n.Grad(loss[i], m[i]), NETS),
            Equation("eq-sigmoid", g[i], 1 / (1 + sp.exp(m[i])), NETS),
            Equation("eq-step", n.Step(i, w), -eta * n.Grad(loss[i], w), NETS),
            Equation("eq-delta", n.Delta(m[i]), n.After(m[i], w + n.Step(i, w)) - n.After(m[i], w), ("none", "fixed")),
        ),
    )


def _statistics_held():
    factor, size, common = (gamma / sigma) ** 2, n.Norm(x[i]) ** 2, eta * g[i] * v**2
    yield Theorem(
        "thm-no-bn",
        "Margin growth without batch normalization",
        "One SGD step on sample i alone; only w moves.",
        (Equation("eq-no-bn", n.Delta(m[i]), common * size, ("none",)),),
    )
    yield Theorem(
        "thm-fixed-bn",
        "Margin growth with the statistics held fixed",
        "One SGD step on sample i alone; only w moves; mu and sigma are constants.",
        (
            Equation("eq-fixed-bn", n.Delta(m[i]), common * factor * size, ("fixed",)),
            Equation("eq-fixed-over-none", n.DeltaFixed(m[i]) / n.DeltaNone(m[i]), factor, ("pair",)),
        ),
    )
    ratio = (g[i] * size) / (g[j] * n.Norm(x[j]) ** 2)
    yield Theorem(
        "thm-no-index",
        "The factor has no index",
        "As before; samples i and j make their steps from the same parameters.",
        (Equation("eq-no-index", n.Delta(m[i]) / n.Delta(m[j]), ratio, ("none", "fixed")),),
    )
    step = (eta * factor) * (g[i] * y[i] * v * x[i])
    yield Theorem(
        "thm-equal-function",
        "Equal parameters are not equal functions",
        "mu and sigma are constants.",
        (
            Equation("eq-folded-slope", n.v_folded, v * (gamma / sigma), ("fixed",)),
            Equation("eq-folded-offset", n.b_folded, b + v * (beta - gamma * (mu / sigma)), ("fixed",)),
            Equation("eq-equal-function", f[i], n.v_folded * n.Dot(w, x[i]) + n.b_folded, ("fixed",)),
            Equation("eq-equal-growth", n.Delta(m[i]), eta * g[i] * n.v_folded**2 * size, ("fixed",)),
            Equation("eq-learning-rate", (gamma / sigma) * n.Step(i, w), step, ("fixed",)),
        ),
    )
    yield Theorem(
        "thm-bound",
        "What a bound on gamma/sigma buys",
        "As for the statistics held fixed; g, v and x are equal with and without batch normalization.",
        (
            Equation(
                "eq-bound",
                tau**2 * n.DeltaNone(m[i]) - n.DeltaFixed(m[i]),
                common * (tau**2 - factor) * size,
                ("pair",),
            ),
        ),
    )


def _statistics_of_the_batch():
    factor, common, centred = (gamma / sigma) ** 2, eta * g[i] * v**2, x[i] - x_bar
    leak = eps / sigma**2
    yield Theorem(
        "thm-exact-bn",
        "Margin growth with the statistics of the batch",
        "One gradient step on sample i alone; only w moves, mu and sigma with it; eps >= 0 and sigma > 0.",
        (
            Equation("eq-q", n.Grad(sigma, w), n.average(j, B, a_hat[j] * (x[j] - x_bar)), ("exact",)),
            Equation(
                "eq-exact-gradient", n.Grad(a_hat[i], w), n.plus(x[i], -x_bar, -(a_hat[i] * q)) / sigma, ("exact",)
            ),
            Equation("eq-projection", n.P(n.u), n.u - (n.Dot(w, n.u) / sigma) * q, ("exact",)),
            Equation("eq-exact-bn", n.Delta(m[i]), common * factor * n.Norm(n.P(centred)) ** 2, ("exact",), True),
            Equation("eq-oblique", n.P(n.P(n.u)) - n.P(n.u), leak * (n.P(n.u) - n.u), ("exact",)),
            Equation("eq-radial", n.Dot(w, n.Grad(a_hat[i], w)), leak * a_hat[i], ("exact",)),
            Equation(
                "eq-norm-of-w",
                n.Norm(w + n.Step(i, w)) ** 2,
                n.plus(n.Norm(w) ** 2, n.Norm(n.Step(i, w)) ** 2, 2 * eta * g[i] * y[i] * v * gamma * leak * a_hat[i]),
                ("exact",),
            ),
        ),
    )
    mate, away = x[j] - n.MatesMean(i), 1 + z[i] ** 2 / B
    seen = n.Norm(n.Q(i, n.delta[i])) ** 2
    yield Theorem(
        "thm-damping",
        "A geometric outlier damps its own growth",
        "As for the statistics of the batch; s_i > 0.",
        (
            Equation("eq-mates-mean", n.MatesMean(i), n.average_of_mates(j, i, x[j]), ("exact",)),
            Equation("eq-mates-cov", n.Cov(i, n.u), n.average_of_mates(j, i, n.Dot(mate, n.u) * mate), ("exact",)),
            Equation("eq-delta-i", n.delta[i], x[i] - n.MatesMean(i), ("exact",)),
            Equation("eq-s-i", s[i] ** 2, n.Dot(w, n.Cov(i, w)) + (B / (B - 1)) * eps, ("exact",)),
            Equation("eq-z-i", z[i], n.Dot(w, n.delta[i]) / s[i], ("exact",)),
            Equation("eq-q-i", n.Q(i, n.u), n.u - (n.Dot(w, n.u) / s[i] ** 2) * n.Cov(i, w), ("exact",)),
            Equation("eq-damped-sigma", sigma**2, ((B - 1) / B) * s[i] ** 2 * away, ("exact",)),
            Equation("eq-damped-a-hat", a_hat[i] ** 2, ((B - 1) * z[i] ** 2) / (B + z[i] ** 2), ("exact",)),
            Equation("eq-damped-p", n.P(centred), ((B - 1) / B) * ((1 / away) * n.Q(i, n.delta[i])), ("exact",)),
            Equation(
                "eq-damped",
                n.Delta(m[i]),
                common * ((B - 1) / B) * (gamma / s[i]) ** 2 * (seen / away**3),
                ("exact",),
                True,
            ),
        ),
    )
    through_w = v**2 * factor * n.Inner(n.P(centred), n.P(x[j] - x_bar))
    yield Theorem(
        "thm-batch",
        "The whole batch",
        "One gradient step on the mean loss; w, gamma, beta, v and b move, mu and sigma with w.",
        (
            Equation(
                "eq-batch",
                n.Delta(m[i]),
                (eta / B) * n.total(j, B, g[j] * y[i] * y[j] * n.K[i, j]),
                ("batch",),
                True,
            ),
            Equation(
                "eq-kernel",
                n.K[i, j],
                n.plus(through_w, v**2 * a_hat[i] * a_hat[j], v**2, h[i] * h[j], sp.Integer(1)),
                ("batch",),
            ),
        ),
    )


def _scale():
    own, flow = g[i] * y[i] * v * a_hat[i], ("centred",)
    held = (1 - eta**2 * k**2) * (gamma**2 - v**2)
    yield Theorem(
        "thm-gamma",
        "What moves gamma",
        "The first equation: one step on sample i alone. The others: beta = b = 0, not trained.",
        (
            Equation("eq-gamma-step", n.Step(i, gamma), eta * own, ("fixed", "exact")),
            Equation("eq-gamma-sign", gamma * n.Step(i, gamma), eta * g[i] * m[i], flow),
            Equation("eq-flow-rate", k, n.average(j, B, g[j] * y[j] * a_hat[j]), flow),
            Equation("eq-flow-gamma", n.Rate(gamma), k * v, flow),
            Equation("eq-flow-v", n.Rate(v), k * gamma, flow),
            Equation("eq-closed-gamma", n.gamma_t, n.gamma_0 * sp.cosh(kappa) + n.v_0 * sp.sinh(kappa), ("flow",)),
            Equation("eq-closed-v", n.v_t, n.v_0 * sp.cosh(kappa) + n.gamma_0 * sp.sinh(kappa), ("flow",)),
            Equation("eq-invariant", n.Rate(gamma**2) - n.Rate(v**2), sp.Integer(0), flow),
            Equation("eq-euler", (gamma + n.Change(gamma)) ** 2 - (v + n.Change(v)) ** 2, held, flow),
        ),
    )
    reading = (gamma * n.Norm(w)) / sigma
    growth = (eta / n.Norm(w) ** 2) * g[i] * v**2 * reading**2 * n.Norm(n.P(x[i] - x_bar)) ** 2
    yield Theorem(
        "thm-scale",
        "gamma/sigma is not a property of the function",
        "k > 0. At eps = 0 the change w -> k w alone is meant; with eps > 0, eps grows along.",
        (
            Equation("eq-scale-sigma", n.Scaled(sigma), k * sigma, ("exact",)),
            Equation("eq-scale-margin", n.Scaled(m[i]), m[i], ("exact",)),
            Equation("eq-scale-ratio", n.Scaled(gamma / sigma), gamma / (k * sigma), ("exact",)),
            Equation("eq-scale-free", n.Scaled(reading**2), reading**2, ("exact",)),
            Equation("eq-scale-growth", n.Scaled(n.Delta(m[i])), (1 / k**2) * n.Delta(m[i]), ("exact",), True),
            Equation("eq-two-readings", n.Delta(m[i]), growth, ("exact",), True),
        ),
    )


def _extensions():
    factor, common, average = (gamma / sigma) ** 2, eta * g[i] * v**2, n.Norm(x_pool[i]) ** 2
    centred = x_pool[i] - x_bar
    positions = n.average(j, B, n.average(r, S, a_hat[j, r] * (x[j, r] - x_bar)))
    yield Theorem(
        "thm-positions",
        "S positions and average pooling",
        "f_i reads the average of h_{i,r} over S positions; statistics run over samples and positions; no ReLU.",
        (
            Equation("eq-pool", x_pool[i], n.average(r, S, x[i, r]), ("none-2", "fixed-2", "exact-2")),
            Equation("eq-pool-f", f[i], v * n.average(r, S, h[i, r]) + b, ("none-2", "fixed-2", "exact-2")),
            Equation("eq-pool-none", n.Delta(m[i]), common * average, ("none-2",)),
            Equation("eq-pool-fixed", n.Delta(m[i]), common * factor * average, ("fixed-2",)),
            Equation("eq-pool-q", n.Grad(sigma, w), positions, ("exact-2",)),
            Equation(
                "eq-pool-gradient",
                n.Grad(n.a_pool[i], w),
                n.plus(x_pool[i], -x_bar, -(n.a_pool[i] * q)) / sigma,
                ("exact-2",),
            ),
            Equation("eq-pool-exact", n.Delta(m[i]), common * factor * n.Norm(n.P(centred)) ** 2, ("exact-2",), True),
        ),
    )
    slope, head = n.Norm(n.Grad(loss[i], w)) ** 2, g[i] ** 2 * v**2
    last = (n.gamma_2 / n.sigma_2) ** 2
    deep = head * last * n.w_2**2 * (n.gamma_1 / n.sigma_1) ** 2 * n.Norm(x[i]) ** 2
    yield Theorem(
        "thm-gradient-norm",
        "The gradient norm of one sample",
        "Gradient of the loss of sample i with respect to w. The last two equations: two channels in a row.",
        (
            Equation("eq-norm-none", slope, head * n.Norm(x[i]) ** 2, ("none",)),
            Equation("eq-norm-fixed", slope, head * factor * n.Norm(x[i]) ** 2, ("fixed",)),
            Equation("eq-norm-exact", slope, head * factor * n.Norm(n.P(x[i] - x_bar)) ** 2, ("exact",)),
            Equation("eq-norm-pool", slope, head * factor * average, ("fixed-2",)),
            Equation("eq-depth-last", n.Grad(loss[i], n.w_2) ** 2, head * last * n.h_1**2, ("depth",)),
            Equation("eq-depth-first", n.Norm(n.Grad(loss[i], n.w_1)) ** 2, deep, ("depth",)),
        ),
    )


with sp.evaluate(False):
    THEOREMS = {
        theorem.label: theorem
        for part in ([_definitions()], _statistics_held(), _statistics_of_the_batch(), _scale(), _extensions())
        for theorem in part
    }


def show(label: str) -> None:
    """Print the equations of a theorem in a notebook."""
    THEOREMS[label].show()


def decide() -> tuple[int, int]:
    """How many of all equations sympy finds to hold identically, and how many there are; some 15 seconds."""
    equations = [equation for theorem in THEOREMS.values() for equation in theorem.equations]
    return sum(equation.holds() for equation in equations), len(equations)
