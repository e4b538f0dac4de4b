"""What an equation and a theorem of the book are as objects, and how a machine decides that an equation holds."""

from dataclasses import dataclass

import sympy as sp

from bnmem.channel import Y, canonical, environment
from bnmem.vocabulary import eta, evaluate, j

LABELS = frozenset(Y.values())


@dataclass(frozen=True)
class Equation:
    """``left = right``, true in each of ``settings`` (see `bnmem.channel.environment`).

    Attributes:
        name: the label of the equation in the book, ``eq-...``.
        left, right: unevaluated sympy formulas over the names of `bnmem.vocabulary`, in the order of their printing.
        settings: names of the settings in which the identity holds.
        first_order: True if the left side is meant up to O(eta^2); an environment then holds its part linear in eta.
    """

    name: str
    left: sp.Expr
    right: sp.Expr
    settings: tuple[str, ...]
    first_order: bool = False

    @property
    def latex(self) -> str:
        """The equation as it stands in the book, without dollar signs."""
        rest = f" + {sp.latex(sp.O(eta**2))}" if self.first_order else ""
        return f"{sp.latex(self.left, order='none')} = {sp.latex(self.right, order='none')}{rest}"

    def residual(self, setting: str, **index: int):
        """Left minus right, both written out in components: a sympy expression or column vector, zero if it holds."""
        env = environment(setting)
        return evaluate(self.left, env, **index) - evaluate(self.right, env, **index)

    def holds(self) -> bool:
        """Whether every residual vanishes identically in each setting: for i = 1 and, if j occurs, for j = 1 and 2.

        The other samples are alike, because the definitions treat all samples of a batch alike.
        """
        others = (1, 2) if j in self.right.free_symbols else (1,)
        return all(is_zero(self.residual(setting, i=1, j=other)) for setting in self.settings for other in others)


@dataclass(frozen=True)
class Theorem:
    """A numbered statement of the book.

    Attributes:
        label: its label on the theorem page, which names its test and its notebook section as well.
        title: a few words.
        assumptions: what it takes for granted, in one line.
        equations: what it says.
    """

    label: str
    title: str
    assumptions: str
    equations: tuple[Equation, ...]

    def equation(self, name: str) -> Equation:
        """The equation of that name; KeyError if the theorem has none."""
        return {equation.name: equation for equation in self.equations}[name]

    def show(self) -> None:
        """Print the equations in a notebook, from the objects that the tests check."""
        from IPython.display import Math, display

        for equation in self.equations:
            display(Math(equation.latex))


def is_zero(value) -> bool:
    """Whether a scalar or vector of rational functions vanishes identically, labels being +1 or -1.

    A point of exact rationals is tried first: a value other than 0 there settles it. Otherwise the numerator is
    expanded by sympy: with every long sum taken for one unknown, if that is enough; then with short sums brought into
    one form; then in full. The first two can only fail to show a zero, never show a false one.
    """
    return all(_entry_is_zero(entry) for entry in (value if isinstance(value, sp.MatrixBase) else [value]))


def _entry_is_zero(entry):
    entry = sp.sympify(entry)
    names = sorted(entry.free_symbols, key=str)
    point = {name: -1 if name in LABELS else sp.Rational(2 * at + 3, at + 2) for at, name in enumerate(names)}
    if sp.simplify(entry.xreplace(point)) != 0:
        return False
    return (
        _numerator(_with_unknowns(entry, 4)) == 0
        or _numerator(_with_unknowns(_alike(entry), 8)) == 0
        or _numerator(entry) == 0
    )


def _alike(entry):
    return sp.together(entry.replace(lambda e: e.is_Add and e.count_ops() < 500, canonical))


def _with_unknowns(entry, length):
    """With one unknown for each expanded sum, inside the entry, of more than ``length`` terms."""
    sums = [part for part in entry.atoms(sp.Add) if part != entry and len(part.args) > length]
    return entry.xreplace({part: sp.Dummy() for part in sums if not any(term.has(sp.Add) for term in part.args)})


def _numerator(entry):
    """The expanded numerator, with the square of a label replaced by 1."""
    numerator = sp.expand(sp.fraction(sp.together(entry))[0])
    return sp.expand(numerator.replace(lambda e: e.is_Pow and e.base in LABELS, lambda e: e.base ** (e.exp % 2)))
