"""One test a theorem: the identity vanishes in sympy, and torch's autograd gives the same numbers on random batches.

Label on the theorem page = test name here = section of the notebook; a test fails if one of the three is missing.
"""

import dataclasses
import json
import re

import numpy as np
import pytest
import sympy as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bnmem import vocabulary as n
from bnmem.report_audit import LIMITS
from bnmem.theory import THEOREMS

from .conftest import ROOT
from .torch_channel import ETA, Batch, Network, numbers

PAGES = [ROOT / "book/theory.md", ROOT / "book/where_the_theory_stops.md"]
EQUATIONS = [equation for theorem in THEOREMS.values() for equation in theorem.equations]
TOLERANCE = 1e-10

batches = st.builds(
    Batch,
    seed=st.integers(0, 10**6),
    samples=st.integers(3, 16),
    dimension=st.integers(2, 6),
    positions=st.integers(2, 4),
    eps=st.sampled_from([1e-300, 1e-5, 0.1, 1.0]),
    distance=st.sampled_from([1.0, 5.0, 20.0]),
)


def agrees(equation, batch):
    """Assert that torch's left side equals the right side of the equation, in each of its settings."""
    for setting in equation.settings:
        i, j = batch.draw()[2:4]
        env = numbers(batch, setting)
        left, right = (n.evaluate(side, env, i=i, j=j) for side in (equation.left, equation.right))
        scale = 1 + np.abs(left).max() + np.abs(right).max()
        assert np.abs(left - right).max() <= TOLERANCE * scale, f"{equation.name} in {setting}: {left} and {right}"


def proves(label):
    """Assert that every equation of a theorem holds, symbolically and on random batches."""

    @settings(max_examples=15, deadline=None, derandomize=True, database=None)
    @given(batch=batches)
    def on_random_batches(batch):
        for equation in THEOREMS[label].equations:
            agrees(equation, batch)

    for equation in THEOREMS[label].equations:
        assert equation.holds(), equation.name
    on_random_batches()


def exact_growth(x, w, i, eps=1e-300):
    """||P(x_i - x_bar)||^2 as torch has it: sigma^2 times the squared length of d a_hat_i / d w; x (B, d), w (d,)."""
    w = torch.tensor(w, dtype=torch.float64, requires_grad=True)
    a = torch.tensor(x, dtype=torch.float64) @ w
    a_hat = torch.nn.functional.batch_norm(a[:, None], None, None, training=True, eps=eps)[i - 1, 0]
    slope = torch.autograd.grad(a_hat, w)[0]
    return (slope @ slope).item() * (a.var(unbiased=False).item() + eps)


def over_fixed(x, w, i, eps=1e-300):
    """Exact over fixed-statistics growth of sample i, at equal sigma."""
    return exact_growth(x, w, i, eps) / (np.asarray(x[i - 1]) ** 2).sum()


def test_def_channel():
    proves("def-channel")


def test_thm_no_bn():
    proves("thm-no-bn")


def test_thm_fixed_bn():
    proves("thm-fixed-bn")


def test_thm_no_index():
    proves("thm-no-index")


def test_thm_equal_function():
    proves("thm-equal-function")
    # Trained on and on at the learning rate eta gamma^2/sigma^2, the plain net from u = (gamma/sigma) w is the BN net.
    net = Network(Batch(seed=1, samples=8, dimension=3), "fixed")
    gamma, sigma, v = net.gamma.item(), net.sigma, net.v.item()
    plain = Network(Batch(seed=1, samples=8, dimension=3), "none")
    with torch.no_grad():
        plain.w *= gamma / sigma
        plain.b += v * (net.beta.item() - gamma * net.mu / sigma)
    for step in range(20):
        for network, rate in ((net, ETA), (plain, ETA * (gamma / sigma) ** 2)):
            slope = network.slope(network.forward()[step % 8] * 0 + network.loss[step % 8], network.w)
            with torch.no_grad():
                network.w -= rate * torch.tensor(slope)
        assert torch.allclose(net.forward(), plain.forward(), rtol=TOLERANCE, atol=TOLERANCE)


def test_thm_bound():
    proves("thm-bound")
    # With the statistics of the batch the bound fails: here |gamma|/sigma = 1 = tau, and w alone grows a thousandfold.
    x, w = [[0.0, 0.1], [-(1.5**0.5), 5.0], [1.5**0.5, 5.0]], [1.0, 0.0]
    assert over_fixed(x, w, 1) > 1000 and np.isclose(np.var(np.dot(x, w)), 1)


def test_thm_exact_bn():
    proves("thm-exact-bn")
    rng = np.random.default_rng(0)
    line = rng.normal(size=(6, 1))
    assert exact_growth(line, [0.7], 3) < 1e-25 < exact_growth(line, [0.7], 3, eps=0.1)
    net = Network(Batch(seed=2, samples=6, dimension=4, eps=1e-300, distance=5.0), "exact")
    w = net.w.detach().numpy()
    for loss in net.loss:
        step = -ETA * net.slope(loss, net.w)
        assert abs(w @ step) < 1e-13 and np.linalg.norm(w + step) >= np.linalg.norm(w)


def test_thm_damping():
    proves("thm-damping")
    rng = np.random.default_rng(0)
    for samples in (3, 8, 16):
        x, w = rng.normal(size=(samples, 3)), rng.normal(size=3)
        across = np.cross(w, rng.normal(size=3))
        ratios = {}
        for distance in (1e2, 1e4):
            for name, direction in (("along", w), ("askew", w + across), ("across", across)):
                x[0] = x[1:].mean(0) + distance * direction
                ratios[name, distance] = over_fixed(x, w, 1)
            a = x @ w
            assert abs(a[0] - a.mean()) / a.std() <= np.sqrt(samples - 1) * (1 + 1e-12)
        # Farther out by 100, the ratio falls by 100^4 if w sees the sample at all: |P|^2 falls, |x|^2 rises.
        assert np.isclose(ratios["askew", 1e2] / ratios["askew", 1e4], 1e8, rtol=0.2)
        assert ratios["along", 1e4] < 1e-10
        assert np.isclose(ratios["across", 1e4], (1 - 1 / samples) ** 2, rtol=1e-3)


def test_the_fixed_form_is_neither_a_lower_nor_an_upper_bound():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(128, 2)) * [0.02, 1.0]
    x[0] = [0.2, 0.0]
    assert over_fixed(x, [1.0, 0.02], 1) > 100  # w in a direction of little variance, the sample ten deviations out
    x = rng.normal(size=(16, 2)) + 1
    x[0] = 0.02
    assert over_fixed(x, [0.3, 1.0], 1) > 10  # x near 0
    x[0] = [30.0, 30.0]
    assert over_fixed(x, [0.3, 1.0], 1) < 0.01  # far out


@pytest.mark.parametrize("setting", ["exact", "batch"])
def test_what_the_first_order_leaves_out_is_of_second_order(setting):
    net = Network(Batch(seed=3, samples=7, dimension=3, distance=5.0), "exact")
    loss = net.loss[net.i - 1] if setting == "exact" else net.loss.mean()
    parameters = [net.w] if setting == "exact" else net.parameters
    margin, start = net.m[net.i - 1], [p.detach().clone() for p in parameters]
    down = torch.autograd.grad(loss, parameters, retain_graph=True)
    up = torch.autograd.grad(margin, parameters, retain_graph=True)
    slope = -sum((a * b).sum().item() for a, b in zip(down, up, strict=True))
    rest = []
    for eta in (1e-3, 5e-4):
        with torch.no_grad():
            for p, p_0, d in zip(parameters, start, down, strict=True):
                p.copy_(p_0 - eta * d)
            rest.append(net.forward()[net.i - 1].item() - margin.item() - eta * slope)
    assert abs(rest[0] / rest[1] - 4) < 0.05


def test_thm_batch():
    proves("thm-batch")


def test_thm_gamma():
    proves("thm-gamma")
    net = Network(Batch(seed=4, samples=12, dimension=3, offsets=False), "exact")
    seen = set()
    for row, loss in enumerate(net.loss):
        shrinks = net.gamma.item() * -net.slope(loss, net.gamma) < 0
        assert shrinks == (net.m[row].item() < 0)
        seen.add(shrinks)
    assert seen == {True, False}


def test_thm_scale():
    proves("thm-scale")
    # The scale-free reading is the channel's, not the function's: gamma, beta times c, and v over c.
    net = Network(Batch(seed=3, samples=8, dimension=3), "exact")
    before, c = net.forward().detach().clone(), -2.5
    with torch.no_grad():
        for parameter, factor in ((net.gamma, c), (net.beta, c), (net.v, 1 / c)):
            parameter *= factor
    assert torch.allclose(net.forward(), before, rtol=TOLERANCE, atol=TOLERANCE)


def test_thm_positions():
    proves("thm-positions")


def test_thm_gradient_norm():
    proves("thm-gradient-norm")


def mutated(equation):
    """The equation with every factor (gamma/sigma)^2 replaced by gamma/sigma; None if it has none."""
    with sp.evaluate(False):
        wrong = {square: ratio for ratio in (n.gamma / n.sigma, n.gamma / n.s[n.i]) for square in [ratio**2]}
        right = equation.right.xreplace(wrong)
    return None if right == equation.right else dataclasses.replace(equation, right=right)


def doubled(equation):
    right = 2 * equation.right if equation.right != 0 else n.gamma
    return dataclasses.replace(equation, right=right)


WITH_FACTOR = [mutated(equation) for equation in EQUATIONS if mutated(equation)]


def test_the_wrong_factor_is_looked_for_where_the_theorems_have_it():
    names = {equation.name for equation in WITH_FACTOR}
    wanted = (
        "no-index equal-growth exact-bn damped kernel pool-exact norm-fixed fixed-bn fixed-over-none bound pool-fixed"
    )
    assert names >= {f"eq-{name}" for name in wanted.split()} - {"eq-no-index", "eq-equal-growth"}


@pytest.mark.parametrize("equation", WITH_FACTOR, ids=lambda equation: equation.name)
def test_gamma_over_sigma_instead_of_its_square_fails_both_checks(equation):
    assert not equation.holds()
    with pytest.raises(AssertionError):
        agrees(equation, Batch(seed=5, samples=9, dimension=4, positions=3))


@pytest.mark.parametrize("equation", EQUATIONS, ids=lambda equation: equation.name)
def test_a_right_side_twice_as_large_fails_both_checks(equation):
    assert not doubled(equation).holds()
    with pytest.raises(AssertionError):
        agrees(doubled(equation), Batch(seed=5, samples=9, dimension=4, positions=3))


def displayed(page):
    """Label -> LaTeX of the displayed equations of a page; an equation without a label counts under its own text."""
    text = page.read_text()
    blocks = re.findall(r"^\$\$\n(.*?)\n\$\$(?: \((\S+)\))?$", text, re.M | re.S)
    assert text.count("$$") == 2 * len(blocks) and "{math}" not in text and "\\[" not in text, (
        "write $$, equation, $$ (label)"
    )
    return {label or body: body for body, label in blocks}


def test_every_displayed_equation_of_the_pages_is_a_tested_object():
    known = {equation.name: equation.latex for equation in EQUATIONS}
    for page in PAGES:
        for label, body in displayed(page).items():
            assert known.get(label) == body, (page.name, label)
    assert set(displayed(PAGES[0])) == set(known)


@pytest.mark.parametrize("label", THEOREMS)
def test_every_label_is_on_the_page_in_the_tests_and_in_the_notebook(label):
    page = PAGES[0].read_text()
    assert len(re.findall(rf"^:label: {label}$", page, re.M)) == 1
    assert THEOREMS[label].title in page
    assert callable(globals()[f"test_{label.replace('-', '_')}"])
    notebook = (ROOT / "notebooks/margin_growth.py").read_text()
    assert len(re.findall(rf"^# ## .*`{label}`", notebook, re.M)) == 1
    assert f'show("{label}")' in notebook


def test_theorems_that_are_named_by_number_have_that_number():
    labels = re.findall(r"```\{prf:theorem\}.*\n:label: (\S+)", PAGES[0].read_text())
    assert re.search(r"Theorem (\d+)", " ".join(LIMITS))[1] == str(1 + labels.index("thm-scale"))


def test_the_page_has_no_label_that_the_theory_lacks():
    labels = re.findall(r"^:label: (\S+)$", PAGES[0].read_text(), re.M)
    assert sorted(labels) == sorted(THEOREMS)


def cells_of(name):
    return json.loads((ROOT / f"notebooks/{name}.ipynb").read_text())["cells"]


def test_the_notebooks_print_equations_from_the_objects_and_type_none():
    assert not any("$$" in "".join(c["source"]) for name in ("margin_growth", "toy_model") for c in cells_of(name))
    outputs = [o for cell in cells_of("margin_growth") for o in cell.get("outputs", [])]
    shown = "".join("".join(o.get("data", {}).get("text/latex", "")) for o in outputs)
    assert all(equation.latex in shown for equation in EQUATIONS)
