"""The single channel as a torch network: the numerical twin of `bnmem.channel`, for the theory's tests.

Everything comes from torch's own batch normalization, its autograd and its SGD, in float64; nothing from the theory.
"""

import dataclasses

import numpy as np
import sympy as sp
import torch
from torch.nn import functional as F

from bnmem import vocabulary as n

ETA = 0.37  # a step that is not small: what is exact must hold for it too
FUNCTIONS = {
    **{sp.exp: np.exp, sp.log: np.log, sp.cosh: np.cosh, sp.sinh: np.sinh},
    **{n.Norm: np.linalg.norm, n.Dot: np.dot, n.Inner: np.dot, "number": float},
}


@dataclasses.dataclass(frozen=True)
class Batch:
    """A random problem; ``i`` and ``j`` are two different samples, counted from 1, and ``i`` is the outlier."""

    seed: int
    samples: int
    dimension: int
    positions: int = 1
    eps: float = 1e-5
    distance: float = 1.0
    offsets: bool = True
    factor: float = 1.0  # w -> factor w and eps -> factor^2 eps

    def draw(self):
        rng = np.random.default_rng(self.seed)
        i, j = rng.choice(self.samples, size=2, replace=False)
        y = rng.choice([-1.0, 1.0], size=self.samples)
        x = rng.normal(size=(self.samples, self.positions, self.dimension))
        x[i] *= self.distance
        w = rng.normal(size=self.dimension) * self.factor
        gamma, beta, v, b, mu, sigma, u = rng.normal(size=7)
        if not self.offsets:
            beta = b = 0.0
        return x, y, int(i) + 1, int(j) + 1, w, (gamma, beta, v, b), mu, abs(sigma) + 0.3, rng.normal(size=len(w)) + u


class Network:
    """The single channel in torch: torch's own batch normalization, on the statistics of the batch or on given ones."""

    def __init__(self, batch, norm):
        x, y, self.i, self.j, w, rest, self.mu, self.sigma, self.u = batch.draw()
        self.norm, self.eps = norm, batch.eps * batch.factor**2
        self.x, self.y = torch.tensor(x), torch.tensor(y)
        self.w = torch.tensor(w, requires_grad=True)
        self.gamma, self.beta, self.v, self.b = (
            torch.tensor([p], requires_grad=True, dtype=torch.float64) for p in rest
        )
        self.parameters = [self.w, self.gamma, self.v, *([self.beta, self.b] if batch.offsets else [])]
        self.forward()

    def normalize(self, a, weight=None, bias=None):
        if self.norm == "exact":
            return F.batch_norm(a[:, None], None, None, weight, bias, training=True, eps=self.eps)[:, 0]
        mean, variance = torch.tensor([self.mu]), torch.tensor([self.sigma**2 - 1e-5])
        return F.batch_norm(a[:, None], mean, variance, weight, bias, training=False, eps=1e-5)[:, 0]

    def forward(self):
        self.a = self.x @ self.w
        self.a_hat = self.a if self.norm == "none" else self.normalize(self.a)
        self.h = self.a if self.norm == "none" else self.normalize(self.a, self.gamma, self.beta)
        self.f = self.v * self.h.mean(1) + self.b
        self.m = self.y * self.f
        self.loss = F.softplus(-self.m)
        return self.m

    def slope(self, value, *parameters):
        """The gradient of a scalar with respect to the parameters, as NumPy arrays (a single one is unpacked)."""
        slopes = torch.autograd.grad(value, parameters, retain_graph=True, allow_unused=True)
        slopes = [torch.zeros_like(p) if s is None else s for s, p in zip(slopes, parameters, strict=True)]
        slopes = [
            s.numpy() if s.numel() > 1 or p is self.w else s.item() for s, p in zip(slopes, parameters, strict=True)
        ]
        return slopes[0] if len(parameters) == 1 else slopes

    def flat(self, value):
        return np.hstack(self.slope(value, *self.parameters))

    def margin_after_step(self, i, eta):
        """m_i after one step of torch's SGD on the loss of sample i, on w alone, the other parameters as they are."""
        before, self.w.grad = self.w.detach().clone(), None
        optimizer = torch.optim.SGD([self.w], lr=eta)
        self.loss[i - 1].backward(inputs=[self.w], retain_graph=True)
        optimizer.step()
        with torch.no_grad():
            margin = self.forward()[i - 1].item()
            self.w.copy_(before)
        self.forward()
        return margin


def numbers(batch, setting):
    """What torch says about every name of the vocabulary in one setting: the numerical twin of channel.environment."""
    if setting == "flow":
        return flow_numbers(batch)
    if setting == "depth":
        return depth_numbers(batch)
    if setting == "pair":
        return pair_numbers(batch)
    if setting == "centred":
        batch = dataclasses.replace(batch, offsets=False)
    norm, _, positions = setting.partition("-")
    batch = dataclasses.replace(batch, positions=batch.positions if positions else 1)
    net = Network(batch, "exact" if norm in ("batch", "centred") else norm)
    env, w = FUNCTIONS | {n.eta: ETA, n.B: float(batch.samples), n.S: float(batch.positions)}, net.w.detach().numpy()
    x = net.x.numpy()
    env |= {n.w: w, n.u: net.u, n.eps: net.eps, n.k: 1.7, n.tau: 0.8, n.x_bar: x.mean((0, 1))}
    env |= {n.gamma: net.gamma.item(), n.beta: net.beta.item(), n.v: net.v.item(), n.b: net.b.item()}
    env |= {n.mu: net.mu, n.sigma: net.sigma}
    if net.norm == "exact":
        sigma = (net.a.var(unbiased=False) + net.eps).sqrt()
        q = net.slope(sigma, net.w)
        env |= {n.mu: net.a.mean().item(), n.sigma: sigma.item(), n.q: q, n.Grad(n.sigma, n.w): q}
        projection = np.eye(len(w)) - np.outer(q, w) / sigma.item()
        env[n.P] = lambda u: projection @ u
    per_position = [(n.x, x), (n.a, net.a), (n.a_hat, net.a_hat), (n.h, net.h)]
    for row in range(1, batch.samples + 1):
        for base, values in per_position:
            for at in range(batch.positions):
                value = values[row - 1, at]
                env[base[row, at + 1] if positions else base[row]] = value if base is n.x else value.item()
        env |= {n.x_pool[row]: x[row - 1].mean(0), n.a_pool[row]: net.a_hat[row - 1].mean().item()}
        for base, values in [
            (n.y, net.y),
            (n.f, net.f),
            (n.m, net.m),
            (n.loss, net.loss),
            (n.g, torch.sigmoid(-net.m)),
        ]:
            env[base[row]] = values[row - 1].item()
    for row in {net.i, net.j}:
        at, loss = row - 1, net.loss[row - 1]
        env[n.Grad(n.loss[row], n.m[row])] = torch.autograd.grad(loss, net.m, retain_graph=True)[0][at].item()
        env[n.Grad(n.loss[row], n.w)] = net.slope(loss, net.w)
        env[n.Step(row, n.w)] = -ETA * net.slope(loss, net.w)
        env[n.Step(row, n.gamma)] = -ETA * net.slope(loss, net.gamma)
        env[n.Grad(n.a_hat[row], n.w)] = env[n.Grad(n.a_pool[row], n.w)] = net.slope(net.a_hat[at].mean(), net.w)
        if net.norm == "exact":
            env[n.Delta(n.m[row])] = -ETA * net.slope(net.m[at], net.w) @ net.slope(loss, net.w)
        else:
            after = net.margin_after_step(row, ETA)
            env |= {n.After(n.m[row], n.w + n.Step(row, n.w)): after, n.After(n.m[row], n.w): net.m[at].item()}
            env[n.Delta(n.m[row])] = after - net.m[at].item()
    if norm in ("batch", "centred"):
        env |= batch_numbers(net, batch.samples)
    if setting == "fixed":
        env[n.v_folded] = net.slope(net.f.sum(), net.a)[0, 0]
        env[n.b_folded] = (net.f[0] - env[n.v_folded] * net.a[0, 0]).item()
    if setting == "exact":
        env |= mates_numbers(net, w, env)
    if setting == "exact" and batch.factor == 1:
        env[n.Scaled] = numbers(dataclasses.replace(batch, factor=env[n.k]), "exact")
    return env


def batch_numbers(net, samples):
    mean_loss, env = net.loss.mean(), {}
    slopes = [net.flat(value) for value in net.f]
    for row in {net.i, net.j}:
        env[n.Delta(n.m[row])] = -ETA * net.flat(net.m[row - 1]) @ net.flat(mean_loss)
        env |= {n.K[row, other]: slopes[row - 1] @ slopes[other - 1] for other in range(1, samples + 1)}
    rates = {n.gamma: -net.slope(mean_loss, net.gamma), n.v: -net.slope(mean_loss, net.v)}
    values = {n.gamma: net.gamma.item(), n.v: net.v.item()}
    for name, rate in rates.items():
        env |= {n.Rate(name): rate, n.Change(name): ETA * rate, n.Rate(name**2): 2 * values[name] * rate}
    return env | {n.k: rates[n.gamma] / values[n.v]}


def mates_numbers(net, w, env):
    points, values, covariance = net.x[:, 0].numpy(), {}, {}
    for row in {net.i, net.j}:
        mates = np.delete(points, row - 1, axis=0)
        covariance[row] = np.cov(mates.T, bias=True).reshape(len(w), len(w))
        delta = points[row - 1] - mates.mean(0)
        spread = (mates @ w).var() + net.eps * len(points) / (len(points) - 1)
        values |= {n.MatesMean(row): mates.mean(0), n.delta[row]: delta}
        values |= {n.s[row]: np.sqrt(spread), n.z[row]: w @ delta / np.sqrt(spread)}
    values[n.Cov] = lambda row, u: covariance[int(row)] @ u
    values[n.Q] = lambda row, u: u - covariance[int(row)] @ w * (w @ u) / values[n.s[int(row)]] ** 2
    return values


def pair_numbers(batch):
    """Both nets at one x, y, w, v; the bias of the plain one makes the margin of sample i, so g_i, equal."""
    env, plain = numbers(batch, "fixed"), Network(dataclasses.replace(batch, positions=1), "none")
    i, margin = plain.i, env[n.m[plain.i]]
    with torch.no_grad():
        plain.b += env[n.f[i]] - plain.f[i - 1]
    plain.forward()
    after = plain.margin_after_step(i, ETA)
    return env | {n.DeltaNone(n.m[i]): after - margin, n.DeltaFixed(n.m[i]): env[n.Delta(n.m[i])]}


def flow_numbers(batch):
    gamma_0, v_0, kappa = np.random.default_rng(batch.seed).normal(size=3)
    flow = torch.matrix_exp(kappa * torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)).numpy()
    gamma_t, v_t = flow @ [gamma_0, v_0]
    return FUNCTIONS | {n.gamma_0: gamma_0, n.v_0: v_0, n.kappa: kappa, n.gamma_t: gamma_t, n.v_t: v_t}


def depth_numbers(batch):
    net = Network(dataclasses.replace(batch, positions=1), "fixed")
    mu_2, sigma_2, gamma_2, beta_2 = np.abs(np.random.default_rng(batch.seed + 1).normal(size=4)) + 0.3
    w_2 = torch.tensor(net.u[0], requires_grad=True)
    h_1 = net.h[net.i - 1, 0]
    h_2 = gamma_2 * (w_2 * h_1 - mu_2) / sigma_2 + beta_2
    margin = net.y[net.i - 1] * (net.v * h_2 + net.b)
    loss = F.softplus(-margin)
    env = FUNCTIONS | {
        n.x[net.i]: net.x[net.i - 1, 0].numpy(),
        n.g[net.i]: torch.sigmoid(-margin).item(),
        n.v: net.v.item(),
    }
    env |= {n.h_1: h_1.item(), n.w_2: w_2.item(), n.gamma_1: net.gamma.item(), n.sigma_1: net.sigma}
    env |= {n.gamma_2: gamma_2, n.sigma_2: sigma_2}
    return env | {
        n.Grad(n.loss[net.i], n.w_1): net.slope(loss, net.w),
        n.Grad(n.loss[net.i], n.w_2): net.slope(loss, w_2),
    }
