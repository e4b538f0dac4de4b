"""The single-channel model in symbols, built from its definitions; every derivative is taken by sympy.

Three samples in two dimensions (with one or two positions), every number a symbol. `environment` gives the names of
`bnmem.vocabulary` their meaning in one setting; `bnmem.theory` holds the statements, and `bnmem.identity` decides them.

After differentiating, the root in sigma = sqrt(Var + eps) and the exponentials of the losses are renamed, sigma -> s,
exp(-m_j) -> E_j and eps -> s^2 - Var: a one-to-one change of variables that turns every statement into one about
rational functions, where "zero" is decidable.
"""

from functools import cache
from types import SimpleNamespace

import sympy as sp
from sympy.polys.rings import sring

from bnmem import vocabulary as n

SAMPLES, DIMENSION = 3, 2  # B and d of the symbolic check; the tests go to B = 16 with numbers
ROWS = range(1, SAMPLES + 1)
ROOT = sp.Symbol("s", positive=True)
W = sp.Matrix(sp.symbols(f"omega_1:{DIMENSION + 1}", real=True))
U = sp.Matrix(sp.symbols(f"upsilon_1:{DIMENSION + 1}", real=True))  # any vector
E = dict(zip(ROWS, sp.symbols(f"E_1:{SAMPLES + 1}", positive=True), strict=True))
Y = dict(zip(ROWS, sp.symbols(f"y_1:{SAMPLES + 1}", real=True), strict=True))
OTHER = (n.gamma, n.beta, n.v, n.b)
OPERATIONS = {n.Norm: lambda p: sp.sqrt(p.dot(p)), n.Dot: lambda p, q: p.dot(q), n.Inner: lambda p, q: p.dot(q)}


def canonical(value):
    """The same rational functions, each a monomial times one expanded sum of fixed sign: equal factors look equal."""

    def entry(e):
        numerator, denominator = sp.fraction(sp.together(e))
        if numerator.is_Number:
            return e
        ring, polynomial = sring(numerator)
        powers = tuple(min(column) for column in zip(*polynomial.monoms(), strict=True))
        polynomial = polynomial.quo(ring({powers: ring.domain.one}))
        content, polynomial = polynomial.primitive()
        sign = -1 if polynomial.LC < 0 else 1
        monomial = sp.prod(symbol**power for symbol, power in zip(ring.symbols, powers, strict=True))
        return sign * content * monomial / denominator * (sign * polynomial).as_expr()

    return value.applyfunc(entry) if isinstance(value, sp.MatrixBase) else entry(value)


def _mean(terms):
    return sum(terms[1:], terms[0]) / len(terms)


@cache
def _model(norm, positions=1, offsets=True):
    """a, mu, sigma, a_hat, h, f, m and the loss by their definitions; dicts over samples, lists over positions."""
    beta, b = (n.beta, n.b) if offsets else (sp.Integer(0), sp.Integer(0))
    x = {j: [sp.Matrix(sp.symbols(f"x_{j}{at}_1:{DIMENSION + 1}", real=True)) for at in range(positions)] for j in ROWS}
    a = {j: [W.dot(point) for point in x[j]] for j in ROWS}
    flat = [value for j in ROWS for value in a[j]]
    mu, sigma, radicand = n.mu, n.sigma, None
    if norm == "exact":
        mu = _mean(flat)
        radicand = _mean([(value - mu) ** 2 for value in flat]) + n.eps
        sigma = sp.sqrt(radicand)
    a_hat = {j: [(value - mu) / sigma for value in a[j]] for j in ROWS}
    h = a if norm == "none" else {j: [n.gamma * value + beta for value in a_hat[j]] for j in ROWS}
    f = {j: n.v * _mean(h[j]) + b for j in ROWS}
    m = {j: Y[j] * f[j] for j in ROWS}
    loss = {j: sp.log(1 + sp.exp(-m[j])) for j in ROWS}
    return SimpleNamespace(x=x, a=a, mu=mu, sigma=sigma, a_hat=a_hat, h=h, f=f, m=m, loss=loss, radicand=radicand)


def _tidy(model, value):
    """The change of variables described at the top of this file, applied to a scalar or matrix."""
    exponentials = {sp.exp(sign * model.m[j]): E[j] ** (-sign) for j in ROWS for sign in (1, -1)}
    value = sp.sympify(value).xreplace(exponentials)
    if model.radicand is not None:
        value = value.replace(
            lambda e: e.is_Pow and e.exp.is_Rational and e.exp.q == 2,
            lambda e: (sp.sqrt(sp.cancel(e.base / model.radicand)) * ROOT) ** (2 * e.exp),
        )
        value = value.subs(n.eps, ROOT**2 - sp.expand(model.radicand - n.eps))
    return value


def _gradient(model, value, parameters=W):
    return canonical(_tidy(model, sp.Matrix([sp.diff(value, parameter) for parameter in parameters])))


def _step(model, losses, parameters=W):
    """What one gradient step of size eta on the mean of the losses adds to the parameters."""
    return -n.eta * _mean([_gradient(model, loss, parameters) for loss in losses])


def _growth(model, i, losses, parameters=W):
    """Delta m_i of that step: whole if m is affine in w (statistics held, or none), else the part linear in eta."""
    step = _step(model, losses, parameters)
    if model.radicand is None:
        moved = {p: p + change for p, change in zip(parameters, step, strict=True)}
        return model.m[i].xreplace(moved) - model.m[i]
    return _gradient(model, model.m[i], parameters).dot(step)


@cache
def environment(setting):
    """The meaning of every name in one setting, as sympy expressions in the components of x_j and w.

    Args:
        setting: ``none`` (no normalization), ``fixed`` (mu and sigma are constants) or ``exact`` (mu and sigma of the
            batch), trained by one step on sample i alone; these with two positions, ``none-2``, ``fixed-2``,
            ``exact-2``; ``pair`` (``none`` and ``fixed`` at equal g, v, x); ``batch`` (``exact``, one step of every
            parameter on the mean loss); ``centred`` (``batch`` with beta = b = 0, not trained); ``flow`` (gamma and v
            alone); ``depth`` (two channels in a row).

    Returns:
        dict: name to expression, for `bnmem.vocabulary.evaluate`. Read only: it is shared.
    """
    if setting == "flow":
        return _flow()
    if setting == "depth":
        return _depth()
    if setting == "pair":
        none, fixed = environment("none"), environment("fixed")
        deltas = {n.DeltaNone(n.m[1]): none[n.Delta(n.m[1])], n.DeltaFixed(n.m[1]): fixed[n.Delta(n.m[1])]}
        return fixed | deltas
    if setting in ("batch", "centred"):
        return _batch(offsets=setting == "batch")
    norm, _, positions = setting.partition("-")
    return _alone(norm, int(positions or 1))


def _alone(norm, positions=1, offsets=True):
    model = _model(norm, positions, offsets)
    env = OPERATIONS | {n.B: SAMPLES, n.S: positions, n.w: W, n.eta: n.eta, n.u: U, **{name: name for name in OTHER}}
    env[n.After] = lambda value, at: value.xreplace(dict(zip(W, at, strict=True)))
    env |= {n.mu: model.mu, n.sigma: _tidy(model, model.sigma), n.eps: _tidy(model, n.eps), n.tau: n.tau, n.k: n.k}
    points = [point for j in ROWS for point in model.x[j]]
    x_bar, q = _mean(points), _gradient(model, model.sigma)
    env |= {n.x_bar: x_bar, n.Grad(n.sigma, n.w): q, n.q: q}
    env[n.P] = lambda p: canonical(p - q * W.dot(p) / env[n.sigma])
    for i in ROWS:
        pairs = [(n.x, model.x), (n.a, model.a), (n.a_hat, model.a_hat), (n.h, model.h)]
        for base, values in pairs:
            for at, value in enumerate(values[i], start=1):
                env[base[i] if positions == 1 else base[i, at]] = _tidy(model, value)
        env |= {n.x_pool[i]: _mean(model.x[i]), n.a_pool[i]: _tidy(model, _mean(model.a_hat[i])), n.y[i]: Y[i]}
        env |= {n.f[i]: _tidy(model, model.f[i]), n.m[i]: _tidy(model, model.m[i]), n.loss[i]: sp.log(1 + E[i])}
        env |= {n.g[i]: E[i] / (1 + E[i]), sp.exp(n.m[i]): 1 / E[i], sp.exp(-n.m[i]): E[i]}
    for i in (1, 2) if norm != "exact" else (1,):  # the others are alike, by symmetry
        margin = sp.Symbol("m")
        env[n.Grad(n.loss[i], n.m[i])] = sp.diff(sp.log(1 + sp.exp(-margin)), margin).subs(sp.exp(-margin), E[i])
        env[n.Grad(n.loss[i], n.w)] = _gradient(model, model.loss[i])
        env[n.Delta(n.m[i])] = _growth(model, i, [model.loss[i]])
        env[n.Step(i, n.w)] = _step(model, [model.loss[i]])
        for name in OTHER:
            env[n.Step(i, name)] = _step(model, [model.loss[i]], [name])[0]
        env[n.Grad(n.a_hat[i], n.w)] = _gradient(model, model.a_hat[i][0])
        env[n.Grad(n.a_pool[i], n.w)] = _gradient(model, _mean(model.a_hat[i]))
    if norm == "fixed":
        slope = sp.diff(model.f[1], W[0]) / sp.diff(model.a[1][0], W[0])
        env |= {n.v_folded: slope, n.b_folded: model.f[1].xreplace(dict.fromkeys(W, sp.Integer(0)))}
    if norm == "exact" and positions == 1:
        env |= _mates(model, env) | _rescaled(model, env)
    return env


def _mates(model, env):
    """Sample i against its batch mates: their mean and covariance, the distance delta_i and z_i, the projection Q_i."""
    values, covariance = {}, {}
    for i in ROWS:
        mates = [model.x[j][0] for j in ROWS if j != i]
        mean = _mean(mates)
        covariance[i] = _mean([(point - mean) * (point - mean).T for point in mates])
        spread = canonical(W.dot(covariance[i] * W) + SAMPLES * env[n.eps] / (SAMPLES - 1))
        delta = model.x[i][0] - mean
        values |= {n.MatesMean(i): mean, n.delta[i]: delta, n.s[i]: sp.sqrt(spread)}
        values[n.z[i]] = W.dot(delta) / sp.sqrt(spread)
    values[n.Cov] = lambda i, p: covariance[i] * p
    values[n.Q] = lambda i, p: canonical(p - covariance[i] * W * W.dot(p) / values[n.s[i]] ** 2)
    return values


def _rescaled(model, env):
    """The environment at k w and k^2 eps; sigma and m there are derived from their definitions."""
    scaled = {component: n.k * component for component in W}

    def at_scaled(value):
        return _tidy(model, value.subs(n.eps, n.k**2 * n.eps).xreplace(scaled))

    sigma = at_scaled(model.sigma)
    there = OPERATIONS | {n.gamma: n.gamma, n.w: n.k * W, n.sigma: sigma}
    delta = env[n.Delta(n.m[1])].xreplace(scaled | {ROOT: sigma})
    return {n.Scaled: there | {n.m[1]: at_scaled(model.m[1]), n.Delta(n.m[1]): delta}}


def _batch(offsets):
    """One step of every trained parameter on the mean loss; without offsets, beta = b = 0 are not trained."""
    model, env = _model("exact", 1, offsets), dict(_alone("exact", 1, offsets))
    trained = (*W, n.gamma, n.v, *((n.beta, n.b) if offsets else ()))
    losses = [model.loss[j] for j in ROWS]
    slopes = {i: _gradient(model, model.f[i], trained) for i in ROWS}
    env[n.Delta(n.m[1])] = _growth(model, 1, losses, trained)
    env |= {n.K[1, j]: slopes[1].dot(slopes[j]) for j in ROWS}
    # The gradient flow of the mean loss, which is a step of size eta divided by eta.
    env[n.Rate(n.gamma)], env[n.Rate(n.v)] = _step(model, losses, (n.gamma, n.v)) / n.eta
    env |= {n.Rate(p**2): sp.diff(p**2, p) * env[n.Rate(p)] for p in (n.gamma, n.v)}
    env |= {n.Change(n.gamma): n.eta * env[n.Rate(n.gamma)], n.Change(n.v): n.eta * env[n.Rate(n.v)]}
    env[n.k] = env[n.Rate(n.gamma)] / n.v
    return env


def _flow():
    """The linear system d gamma/d kappa = v, d v/d kappa = gamma, solved by sympy from gamma_0, v_0."""
    gamma, v = sp.Function("Gamma"), sp.Function("V")
    system = [gamma(n.kappa).diff() - v(n.kappa), v(n.kappa).diff() - gamma(n.kappa)]
    solution = sp.dsolve(system, [gamma(n.kappa), v(n.kappa)], ics={gamma(0): n.gamma_0, v(0): n.v_0})
    env = {name: name for name in (n.kappa, n.gamma_0, n.v_0)}
    env |= {n.gamma_t: solution[0].rhs, n.v_t: solution[1].rhs}
    return env | {f(n.kappa): f(n.kappa).rewrite(sp.exp) for f in (sp.cosh, sp.sinh)}


def _depth():
    """Two channels in a row, statistics of both held: f = v (gamma_2 a_hat_2 + beta_2) + b with a_2 = w_2 h_1."""
    x = sp.Matrix(sp.symbols(f"x_1:{DIMENSION + 1}", real=True))
    mu_1, mu_2, beta_1, beta_2 = sp.symbols("mu_1 mu_2 beta_1 beta_2")
    h_1 = n.gamma_1 * (W.dot(x) - mu_1) / n.sigma_1 + beta_1
    h_2 = n.gamma_2 * (n.w_2 * h_1 - mu_2) / n.sigma_2 + beta_2
    margin = Y[1] * (n.v * h_2 + n.b)
    loss = sp.log(1 + sp.exp(-margin))
    slopes = [sp.diff(loss, p).xreplace({sp.exp(-margin): E[1]}) for p in (*W, n.w_2)]
    names = (n.v, n.w_2, n.gamma_1, n.gamma_2, n.sigma_1, n.sigma_2)
    env = OPERATIONS | {n.x[1]: x, n.h_1: h_1, n.g[1]: E[1] / (1 + E[1]), **{name: name for name in names}}
    return env | {n.Grad(n.loss[1], n.w_1): sp.Matrix(slopes[:-1]), n.Grad(n.loss[1], n.w_2): slopes[-1]}
