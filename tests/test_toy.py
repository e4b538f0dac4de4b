"""The toy model: its gradients are torch's, its growth is the theorems', and bad parameters say what to change."""

import dataclasses
import json
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from bnmem import growth, toy
from bnmem import plots_theory as plots
from bnmem import tables_theory as tables
from bnmem.errors import Diverged, InputError
from bnmem.growth import ARMS, PARAMETERS, Samples, State
from bnmem.player import SIDE, _line, player
from bnmem.toy import ToyModel

EPS = 1e-5


def in_torch(samples, parameters, arm, held):
    """The margins of a batch (B,), with torch's batch normalization; parameters are tensors."""
    w, gamma, beta, v, b = parameters
    a = torch.tensor(samples.x) @ w
    if arm != "none":
        mean, variance = (None, None) if arm == "exact" else (torch.tensor([s]) for s in (held[0], held[1] ** 2 - EPS))
        a = F.batch_norm(a[:, None], mean, variance, gamma.view(1), beta.view(1), training=arm == "exact", eps=EPS)[
            :, 0
        ]
    return torch.tensor(samples.y) * (v * a + b)


@st.composite
def problems(draw):
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    size, dimension = draw(st.integers(2, 16)), draw(st.integers(1, 5))
    x = rng.normal(size=(size, dimension))
    x[0] *= draw(st.sampled_from([1.0, 10.0]))
    samples = Samples(x, rng.choice([-1.0, 1.0], size), np.arange(size) < 1)
    gamma, beta, v, b, mu, sigma = rng.normal(size=6)
    return (
        samples,
        (rng.normal(size=dimension), gamma, beta, v, b),
        (mu, abs(sigma) + 0.3),
        rng.choice([0.0, 1.0], size),
    )


@pytest.mark.parametrize("arm", ARMS)
@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(problem=problems())
def test_gradients_and_the_kernel_are_those_of_autograd(arm, problem):
    samples, values, held, counts = problem
    names = PARAMETERS if arm != "none" else ("w", "v", "b")
    state = State(*values) if arm != "none" else State(w=values[0], v=values[3], b=values[4])
    tensors = [torch.tensor(value, requires_grad=True, dtype=torch.float64) for value in values]
    margins = in_torch(samples, tensors, arm, held)
    view = growth.look(samples, state, arm, EPS, held)
    assert np.allclose(view.m, margins.detach(), rtol=1e-10, atol=1e-10)

    loss = (torch.tensor(counts) * F.softplus(-margins)).mean()
    used = [tensors[PARAMETERS.index(name)] for name in names]
    slopes = torch.autograd.grad(loss, used, retain_graph=True)
    ours = growth.downhill(view, state, counts * view.g * samples.y)
    for name, slope in zip(names, slopes, strict=True):
        assert np.allclose(ours[name], -slope.numpy(), rtol=1e-9, atol=1e-10), name

    rows = [torch.autograd.grad(m, used, retain_graph=True) for m in margins * torch.tensor(samples.y)]
    flat = np.array([np.hstack([part.numpy().ravel() for part in row]) for row in rows])
    kernel = growth.tangent_kernel(view, state, names)
    assert np.allclose(kernel, flat @ flat.T, rtol=1e-9, atol=1e-9 * (1 + abs(kernel).max()))


@pytest.mark.parametrize("arm", ARMS)
def test_a_training_is_torchs(arm):
    options = ToyModel(steps=40, learning_rate=0.3, batch_size=16)
    run, (samples, first) = toy.train(options, arm), toy.draw(options)
    a = samples.x @ first.w
    held = a.mean(), np.sqrt(a.var() + EPS)
    tensors = [torch.tensor(getattr(first, name), requires_grad=True, dtype=torch.float64) for name in PARAMETERS]
    optimizer = torch.optim.SGD(tensors, lr=0.3)
    for rows in run.batch:
        batch = Samples(samples.x[rows], samples.y[rows], samples.outlier[rows])
        optimizer.zero_grad()
        F.softplus(-in_torch(batch, tensors, arm, held)).mean().backward()
        optimizer.step()
    for name, tensor in zip(PARAMETERS, tensors, strict=True):
        assert np.allclose(getattr(run, name)[-1], tensor.detach(), rtol=1e-9, atol=1e-10), name
    assert np.allclose(run.margin[-1], in_torch(samples, tensors, arm, held).detach(), rtol=1e-8, atol=1e-9)


@pytest.fixture(scope="module")
def runs():
    return toy.train_all(ToyModel())


def test_growth_alone_is_the_theorem_to_rounding_where_the_theorem_is_exact(runs):
    for arm in ("none", "fixed"):
        run = runs[arm]
        assert abs(run.alone - run.alone_theorem).max() < 1e-12
        assert np.array_equal(run.alone_paper, run.alone_theorem) and run.alone_theorem.min() > 0
    exact = runs["exact"]
    assert abs(exact.alone_small / exact.alone_theorem - 1).max() < 0.2
    assert abs(exact.alone / exact.alone_theorem - 1).max() > abs(exact.alone_small / exact.alone_theorem - 1).max()
    assert np.median(exact.alone_theorem / exact.alone_paper) < 0.5


def test_growth_in_the_batch_approaches_the_theorem_as_the_step_shrinks():
    for arm in ARMS:
        error = {}
        for eta in (1e-3, 1e-4):
            run = toy.train(ToyModel(steps=5, learning_rate=eta), arm)
            error[eta] = abs(run.growth - run.growth_theorem).max() / eta
        assert 8 < error[1e-3] / error[1e-4] < 12


def test_with_statistics_of_the_batch_and_eps_0_no_step_shrinks_w(runs):
    run = toy.train(ToyModel(eps=0.0, steps=100), "exact")
    lengths = np.linalg.norm(run.w, axis=1)
    assert (np.diff(lengths) > -1e-12).all()
    assert np.allclose(run.scale_free, np.abs(run.ratio) * lengths)


def test_the_damping_theorem_in_numbers():
    rng = np.random.default_rng(0)
    x, w, eps = rng.normal(size=(9, 3)), rng.normal(size=3), 0.2
    x[0] *= 12
    mates = x[1:]
    delta, cov = x[0] - mates.mean(0), np.cov(mates.T, bias=True)
    s2 = w @ cov @ w + 9 / 8 * eps
    seen = delta - cov @ w * (w @ delta) / s2
    expected = (8 / 9) ** 2 * (seen @ seen) / (1 + (w @ delta) ** 2 / s2 / 9) ** 2
    assert np.isclose(growth.over_fixed(x, w, eps)[0] * (x[0] @ x[0]), expected, rtol=1e-12)


def test_the_sweep_shows_damping_with_distance_and_less_of_it_in_larger_batches():
    ratios = growth.over_fixed_sweep([3, 10, 30], [0, 45, 90], [8, 128], draws=30, seed=0)
    assert ratios.shape == (2, 3, 3)
    assert (np.diff(ratios[:, 1], axis=1) < 0).all()  # farther out, smaller, at 45 degrees
    assert (ratios[1, 1] > ratios[0, 1]).all()
    assert (ratios[:, 2] > 0.6).all()  # across w: hardly damped


def test_gamma_and_v_follow_the_closed_form_and_each_step_loses_eta_squared_k_squared():
    options = ToyModel(trained=("w", "gamma", "v"), steps=100, learning_rate=0.01, batch_size=128)
    error = {}
    for eta in (0.01, 0.001):
        run = toy.train(dataclasses.replace(options, learning_rate=eta, steps=int(1 / eta)), "exact")
        kappa = np.concatenate([[0], np.cumsum(eta * run.pull)])
        gamma, v = growth.closed_form(run.gamma[0], run.v[0], kappa)
        error[eta] = max(abs(gamma - run.gamma).max(), abs(v - run.v).max())
        held = run.gamma**2 - run.v**2
        assert np.allclose(held[1:], held[:-1] * (1 - eta**2 * run.pull**2), atol=1e-14)
    assert error[0.01] < 1e-2 and 5 < error[0.01] / error[0.001] < 20


def test_the_phase_field_is_the_motion_of_one_sample_with_statistics_held():
    for run in toy.portrait(ToyModel(), [0.5, 1.5], [100, 200, 300], steps=3, learning_rate=1e-6):
        i = int(np.flatnonzero(run.samples.outlier)[0])
        size = np.linalg.norm(run.samples.x[i])
        eta = 1e-6 / run.settings.batch_size  # the mean loss holds this sample's with weight 1/B
        dm, dr = growth.phase_field(run.margin[0, i], run.ratio[0], 1.0, run.sigma[0], size)
        assert np.isclose((run.margin[1, i] - run.margin[0, i]) / eta, dm, rtol=1e-3)
        assert np.isclose((run.ratio[1] - run.ratio[0]) / eta, dr, rtol=1e-3)
        assert np.sign(dr) == np.sign(run.margin[0, i])


def test_a_sample_on_the_wrong_side_shrinks_gamma_until_its_margin_has_turned():
    turned = 0
    for run in toy.portrait(ToyModel(), [1.0], range(0, 360, 30), "exact", 0.3, 150):
        m = run.margin[:-1, run.samples.outlier][:, 0]
        assert (np.sign(run.gamma[:-1] * np.diff(run.gamma)) == np.sign(m)).all()
        turned += m[0] < 0 < m[-1]
    assert turned >= 3


def test_doubled_first_weights_are_the_same_function_at_half_the_ratio(runs):
    twice, once = toy.doubled(ToyModel()), runs["exact"]
    assert np.allclose(twice.margin[0], once.margin[0], rtol=1e-12)
    assert np.isclose(2 * twice.ratio[0], once.ratio[0], rtol=1e-12)
    assert np.isclose(twice.scale_free[0], once.scale_free[0], rtol=1e-12)


def test_equal_fit_reads_every_arm_where_its_typical_samples_reach_the_level(runs):
    found = toy.at_equal_fit(ToyModel(steps=300), level=1.0, seeds=1)
    for arm, [[step, outliers]] in found.items():
        typical = np.median(runs[arm].split(runs[arm].margin)[1], axis=1)
        assert typical[int(step)] >= 1 and (typical[: int(step)] < 1).all()
        assert outliers == np.median(runs[arm].split(runs[arm].margin)[0], axis=1)[int(step)]
    assert all(np.isnan(rows).all() for rows in toy.at_equal_fit(ToyModel(steps=2), level=50.0, seeds=2).values())


def test_the_pull_on_gamma_splits_into_outliers_and_typical_samples():
    run = toy.train(ToyModel(steps=1), "exact")
    rows, state = run.batch[0], toy.draw(run.settings)[1]
    batch = Samples(run.samples.x[rows], run.samples.y[rows], run.samples.outlier[rows])
    view = growth.look(batch, state, "exact", run.settings.eps)
    push = batch.y * view.g * view.a_hat / len(rows)
    assert np.isclose(run.pull_outliers[0], push[batch.outlier].sum()) and np.isclose(run.pull[0], push.sum())
    assert np.isclose(run.gamma[1] - run.gamma[0], run.settings.learning_rate * run.pull[0])


def test_the_player_is_one_piece_of_html_and_the_same_every_time(runs):
    html = player(runs).html
    assert html == player(runs).html == player(toy.train_all(ToyModel())).html
    assert not re.search(r"https?:|src=|@import|url\(", html) and html.count('id="') == 1
    data = json.loads(re.search(r'<script type="application/json">(.*?)</script>', html)[1])
    assert data["steps"][0] == 0 and data["steps"][-1] == 300 and len(data["scenes"]) == 3
    for scenes, run in zip(data["scenes"], runs.values(), strict=True):
        for step, scene in zip(data["steps"], scenes, strict=True):
            assert scene["right"] == "".join("01"[int(m > 0)] for m in run.margin[step])
    assert html.count('fill="#ffffff" stroke') == sum(scenes[0]["right"].count("0") for scenes in data["scenes"])
    assert len(repr(player(runs))) < 60


def test_the_players_line_is_where_the_net_changes_its_answer(runs):
    reach = 10.0
    for run in runs.values():
        x1, y1, x2, y2 = _line(run, 50, reach)
        points = np.array([[(2 * x / SIDE - 1) * reach, (1 - 2 * y / SIDE) * reach] for x, y in ((x1, y1), (x2, y2))])
        a_hat = (points @ run.w[50] - run.mu[50]) / run.sigma[50]
        assert np.allclose(run.v[50] * (run.gamma[50] * a_hat + run.beta[50]) + run.b[50], 0, atol=0.02)


def test_at_equal_function_bn_with_statistics_held_is_a_learning_rate():
    assert toy.equal_function_gap(ToyModel()) < 1e-11


def test_arms_share_samples_batches_and_start_and_a_seed_fixes_everything(runs):
    again = toy.train(ToyModel(), "exact")
    for name in ("margin", "w", "gamma", "alone", "growth_own"):
        assert np.array_equal(getattr(again, name), getattr(runs["exact"], name))
    for arm in ARMS:
        assert np.array_equal(runs[arm].batch, again.batch) and np.array_equal(runs[arm].w[0], again.w[0])
    assert not np.array_equal(toy.train(ToyModel(seed=1, steps=2), "exact").w[0], again.w[0])
    assert (runs["none"].ratio == 1).all() and len(set(runs["fixed"].sigma)) == 1


def test_a_ratio_of_growths_is_no_number_where_it_would_be_rounding():
    ratio = growth.over(np.array([1.0, 2.0, 3.0]), np.array([2.0, 0.0, 1e-12]))
    assert ratio[0] == 0.5 and np.isnan(ratio[1:]).all()


@pytest.mark.parametrize(
    "change",
    [{"eps": 0.0}, {"batch_size": 2}, {"distance": 1000.0}, {"scale": 100.0}, {"direction": 0.0}, {"steps": 1}],
    ids=str,
)
def test_figures_tables_and_numbers_exist_for_unusual_parameters_too(change):
    options = ToyModel(**{"steps": 20, "repeats": 1} | change)
    runs = toy.train_all(options)
    figures = [plots.margins(runs), plots.measured_over_predicted(runs), plots.readings(runs, toy.doubled(options))]
    figures += [plots.phases(toy.portrait(options), toy.centred(options)), plots.same_factor(options)]
    assert all(figure.png().startswith(b"\x89PNG") for figure in figures)
    fit = toy.at_equal_fit(options, 1.0, options.repeats)
    assert len(tables.equal_fit_rows(fit)) == 3 and all(tables.equal_fit_values(fit).values())
    assert all(tables.toy_values(runs, toy.equal_function_gap(options)).values())


def test_what_the_pages_say_in_words_is_what_the_toy_model_does(runs):
    """book/theory.md and where_the_theory_stops.md: should one of these turn, the words must be written anew."""
    run = runs["exact"]
    pull = run.settings.learning_rate * run.v[:-1] * np.array([run.pull_outliers, run.pull])
    turned = np.flatnonzero(np.median(run.split(run.margin)[0], axis=1) > 0)[0]
    (before, _), (after, after_all) = pull[:, :turned].sum(1), pull[:, turned:].sum(1)
    number = run.samples.outlier.mean()
    assert before < 0 < after and after / after_all > number  # "after the turn a larger share than theirs"
    whole, all_of_it = pull.sum(1)
    assert 0 < whole / all_of_it < number  # "over the whole training a smaller one"
    assert np.isclose(all_of_it, run.gamma[-1] - run.gamma[0])
    fit = {arm: rows[:, 1] for arm, rows in toy.at_equal_fit(ToyModel(), 1.0, ToyModel().repeats).items()}
    assert (fit["exact"] > fit["none"]).mean() > 0.7  # "exact BN is in fact ahead on the outliers at equal fit"
    assert fit["fixed"].mean() < fit["none"].mean()  # "held statistics bring no such lead"
    across = toy.at_equal_fit(ToyModel(direction=90.0), 1.0, 5)
    assert 0 < (across["exact"] > across["none"])[:, 1].mean() < 1  # "ahead by turns"


def test_the_quoted_numbers_of_equal_fit_are_those_of_the_table():
    fit = {"exact": np.array([[3, 0.5], [5, 1.5]]), "fixed": np.full((2, 2), np.nan), "none": np.array([[2, 0.7]] * 2)}
    values, rows = tables.equal_fit_values(fit), tables.equal_fit_rows(fit)
    assert values["toy-fit-exact"] == rows[0]["outliers' median margin then"] == "1.00 (0.50 to 1.50)"
    assert rows[0]["step"] == "4 (3 to 5)" and values["toy-fit-fixed"] == "not reached"
    assert values["toy-fit-ahead"] == "1 of 2"


def test_the_quoted_numbers_of_margin_growth_are_the_table_and_the_figure():
    options = growth.MarginGrowth(draws=3)
    values, row = tables.margin_values(options), tables.damping_rows(options)[1]
    assert row == {"angle to w": "45°"} | {f"B = {size}": values[f"mg-far-{size}"] for size in (8, 32, 128)}
    highest = growth.elongated(options)[1].max(0)
    assert int(values["mg-narrow"]) == round(highest[0]) > 100 and int(values["mg-origin"]) == round(highest[2])
    assert all(figure.png() for figure in (plots.damping(options), plots.neither_bound(options)))
    with pytest.raises(InputError, match="batch_size must be from 3"):
        growth.MarginGrowth(batch_size=1)
    with pytest.raises(InputError, match=r"eps must be from 0\.0"):
        growth.MarginGrowth(eps=-1.0)


def test_samples_lie_where_the_parameters_say():
    samples, _ = toy.draw(ToyModel(distance=9.0, direction=90.0, outliers=40))
    far = samples.x[samples.outlier] * samples.y[samples.outlier][:, None]
    assert np.allclose(far.mean(0), [0, 9], atol=0.3) and samples.outlier.sum() == 40
    assert samples.y.sum() == 0 and samples.x.shape == (160, 2)


def test_split_tells_outliers_from_typical_samples(runs):
    run = runs["exact"]
    outliers, typical = run.split(run.margin)
    assert outliers.shape == (301, 8) and typical.shape == (301, 120)
    assert sum(len(part) for part in run.split(run.alone)) == run.alone.size


@pytest.mark.parametrize(
    "change, message",
    [
        ({"batch_size": 1}, r"batch_size must be 2 or larger, not 1 \(one sample has no variance"),
        ({"batch_size": 129}, "batch_size 129 is more than the 128 samples; take 128 or fewer"),
        ({"eps": -1e-9}, "eps must be from 0.0 to 10000.0, not -1e-09"),
        ({"learning_rate": 0.0}, "learning_rate must be from 1e-12 .* must be positive"),
        ({"learning_rate": -1}, "learning_rate must be from 1e-12"),
        ({"learning_rate": float("nan")}, "learning_rate must be a finite number"),
        ({"distance": float("inf")}, "distance must be a finite number"),
        ({"direction": 181}, "direction must be from 0.0 to 180.0"),
        ({"steps": 0}, "steps must be from 1"),
        ({"steps": 1.5}, "steps must be a whole number"),
        ({"seed": -1}, "seed must be 0 or larger"),
        ({"outliers": 0}, "outliers must be from 1"),
        ({"trained": ("w", "sigma")}, "unknown trained 'sigma'; choose from w, gamma, beta, v, b"),
        ({"learn_from": "some"}, "unknown learn_from 'some'; choose from all, outliers"),
    ],
)
def test_bad_parameters_say_what_is_allowed(change, message):
    with pytest.raises(InputError, match=message) as error:
        ToyModel(**change)
    assert "\n" not in str(error.value)


def test_a_wrong_arm_and_a_training_that_blows_up_are_named():
    with pytest.raises(InputError, match="unknown arm 'bn'; choose from exact, fixed, none"):
        toy.train(ToyModel(steps=1), "bn")
    with pytest.raises(InputError, match="give held"):
        growth.look(*toy.draw(ToyModel()), "fixed", 0.0)
    with pytest.raises(Diverged, match="take a smaller learning_rate"), np.errstate(all="ignore"):
        toy.train(ToyModel(learning_rate=1000, distance=1e4, scale=1e6, steps=400), "fixed")
    still = Samples(np.ones((4, 2)), np.ones(4), np.zeros(4, dtype=bool))
    with pytest.raises(Diverged, match="take eps > 0"):
        growth.look(still, State(np.ones(2)), "exact", 0.0)
