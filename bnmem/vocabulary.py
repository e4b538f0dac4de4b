"""The names in which the theorems are written, how they are printed, and how a formula over them gets a value.

A theorem is written once, with the names of the book: ``gamma``, ``sigma``, ``x[i]``, ``Delta(m[i])``. An
*environment*, a dict, says what each name stands for: sympy expressions (`bnmem.channel`) or the numbers of a torch
network (the tests). `evaluate` puts either in.
"""

import sympy as sp
from sympy import Function, IndexedBase, Symbol, symbols
from sympy.printing.precedence import PRECEDENCE


def _operator(name, head, tight=False):
    """A named operation that sympy leaves alone, and the way it is printed; ``tight`` puts sums in parentheses."""

    def _latex(self, printer, exp=None):
        level = PRECEDENCE["Mul"] if tight else 0
        text = head(*(printer.parenthesize(argument, level, strict=True) for argument in self.args))
        if exp is None:
            return text
        return rf"{text}^{{{exp}}}" if name == "Norm" else rf"\left({text}\right)^{{{exp}}}"

    return type(name, (Function,), {"_latex": _latex, "__module__": __name__})


# Operations on values. Where an environment knows the class, it holds the function to apply.
Norm = _operator("Norm", lambda u: rf"\left\lVert {u} \right\rVert")
Dot = _operator("Dot", lambda p, q: rf"{p} \cdot {q}", tight=True)
Inner = _operator("Inner", lambda p, q: rf"\left\langle {p},\, {q} \right\rangle")
P = _operator("P", lambda u: rf"P \left({u}\right)")
Q = _operator("Q", lambda i, u: rf"Q_{{{i}}} \, {u}")
Cov = _operator("Cov", lambda i, u: rf"C_{{{i}}} \, {u}")
Scaled = _operator("Scaled", lambda u: rf"\left. {u} \right|_{{k w,\, k^{{2}} \varepsilon}}")
# Names of results: an environment holds their value, which sympy or torch has derived from the definitions.
After = _operator("After", lambda u, p: rf"{u}\left({p}\right)")
Change = _operator("Change", lambda p: rf"\Delta {p}")
Step = _operator("Step", lambda i, p: rf"\Delta_{{{i}}} {p}")
Grad = _operator("Grad", lambda u, p: rf"\frac{{\partial {u}}}{{\partial {p}}}")
Rate = _operator("Rate", lambda u: rf"\frac{{d}}{{d t}} {u}")
Delta = _operator("Delta", lambda u: rf"\Delta {u}")
DeltaNone = _operator("DeltaNone", lambda u: rf"\Delta^{{\mathrm{{none}}}} {u}")
DeltaFixed = _operator("DeltaFixed", lambda u: rf"\Delta^{{\mathrm{{fixed}}}} {u}")
MatesMean = _operator("MatesMean", lambda i: rf"\bar{{x}}_{{\setminus {i}}}")


i, j, r = symbols("i j r", integer=True)  # sample, sample, position
B, S = symbols("B S", positive=True)
eta, sigma, eps, tau, k = symbols(r"eta sigma varepsilon tau k", positive=True)
mu, gamma, beta, v, b, w, q, u, f_plain = symbols("mu gamma beta v b w q u f", real=True)
v_folded, b_folded, x_bar = symbols(r"v' b' \bar{x}", real=True)
x, a, h, f, y, m, g, K, z, s, delta = (IndexedBase(name) for name in "x a h f y m g K z s delta".split())
a_hat, loss = IndexedBase(r"\hat{a}"), IndexedBase(r"\ell")
x_pool, a_pool = IndexedBase(r"\tilde{x}"), IndexedBase(r"\tilde{a}")  # averages over the positions of one sample
kappa, gamma_0, v_0, gamma_t, v_t = (
    Symbol(name, real=True) for name in ("kappa", "gamma_0", "v_0", r"\gamma(t)", "v(t)")
)
w_1, w_2, gamma_1, gamma_2, h_1 = symbols("w_1 w_2 gamma_1 gamma_2 h_1", real=True)
sigma_1, sigma_2 = symbols("sigma_1 sigma_2", positive=True)


def plus(*terms):
    """Their sum, printed in this order and without parentheses."""
    return sp.Add(*terms, evaluate=False)


# Sums over a bound index, for which j and r have a second, distinct symbol that prints alike.
BOUND = {i: Symbol(i.name, integer=True, positive=True) for i in (j, r)}
_Sum = _operator("_Sum", lambda term, i, last: rf"\sum_{{{i}=1}}^{{{last}}} {term}", tight=True)
_Average = _operator(
    "_Average", lambda term, i, last: rf"\frac{{1}}{{{last}}} \sum_{{{i}=1}}^{{{last}}} {term}", tight=True
)
_Mates = _operator("_Mates", lambda term, i, out: rf"\frac{{1}}{{B - 1}} \sum_{{{i} \neq {out}}} {term}", tight=True)


def total(index, last, term):
    """The sum of ``term`` for ``index`` = 1 ... ``last``."""
    return _Sum(term.xreplace(BOUND), BOUND[index], last)


def average(index, last, term):
    """The mean of ``term`` for ``index`` = 1 ... ``last``."""
    return _Average(term.xreplace({index: BOUND[index]}), BOUND[index], last)


def average_of_mates(index, without, term):
    """The mean of ``term`` over all ``index`` = 1 ... B but ``without``."""
    return _Mates(term.xreplace(BOUND), BOUND[index], without)


def evaluate(expression, env, **index):
    """The value of a formula: names looked up in ``env``, sums written out, everything else computed.

    Args:
        expression: sympy formula over the names of this module.
        env: dict from names (``Symbol``, ``Indexed`` with integer index, operator applied to a name) to values: sympy
            expressions and column vectors, or floats and NumPy arrays. An operator class (``Norm``, ``P``) maps to a
            function of values, ``Scaled`` to the environment in which its argument is meant; ``"number"``, if there,
            to the function that converts numbers.
        index: integer values of the free indices, counted from 1, e.g. ``i=1, j=2``.

    Returns:
        A scalar or vector of the kind that ``env`` holds.

    Raises:
        KeyError: a name has no value in ``env``.
    """
    return _value(expression.xreplace({Symbol(name, integer=True): sp.Integer(n) for name, n in index.items()}), env)


def _value(node, env):
    if node in env:
        return env[node]
    if node.is_Number:
        return env.get("number", lambda number: number)(node)
    if isinstance(node, (_Sum, _Average, _Mates)):
        return _over(*node.args, env, node.func)
    if not node.args or isinstance(node, sp.Indexed):
        raise KeyError(f"{node} has no value here; give it one in the environment")
    if node.func is Scaled:
        return _value(node.args[0], env[Scaled])
    parts = [_value(argument, env) for argument in node.args]
    if node.func in env:
        return env[node.func](*parts)
    if node.is_Add:
        return _fold(lambda left, right: left + right, parts)
    if node.is_Mul:
        return _fold(lambda left, right: left * right, parts)
    if node.is_Pow:
        return parts[0] ** parts[1]
    if node.func.__module__ == __name__:
        raise KeyError(f"{node} has no value here; give it one in the environment")
    return node.func(*parts)


def _over(term, index, bound, env, kind):
    last = int(_value(B if kind is _Mates else bound, env))
    rows = [row for row in range(1, last + 1) if kind is not _Mates or row != bound]
    result = _fold(lambda left, right: left + right, [_value(term.xreplace({index: sp.Integer(r)}), env) for r in rows])
    return result if kind is _Sum else result / len(rows)


def _fold(combine, parts):
    result = parts[0]
    for part in parts[1:]:
        result = combine(result, part)
    return result
