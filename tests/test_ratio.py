"""gamma/sigma for anyone's model: against plain NumPy and finite differences, and the model left as found."""

import copy
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from bnmem import feeders, models, norms
from bnmem.errors import InputError
from bnmem.ratio import THROUGH, GammaSigmaPenalty, gamma_over_sigma, rows

SHAPES = {1: (5, 3, 7), 2: (5, 3, 6, 6), 3: (4, 3, 4, 4, 4)}
CONV = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
BN = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def net(d=2, **options):
    """Convolution, BN, ReLU, convolution, BN with gammas of their own, some of them negative."""
    layers = [CONV[d](3, 4, 3, padding=1), BN[d](4, **options), nn.ReLU(), CONV[d](4, 5, 3, padding=1, bias=False)]
    model = nn.Sequential(*layers, BN[d](5, **options))
    for layer in (model[1], model[4]):
        if layer.affine:
            nn.init.normal_(layer.weight)
    return model


def seen_by(model, batches, training):
    """What reaches each BN layer in training mode (or with running statistics), float64 NumPy, by name and batch."""
    model, seen = copy.deepcopy(model).train(training), {}
    for name, layer in feeders.batch_norms(model):
        layer.register_forward_pre_hook(lambda _, x, name=name: seen.setdefault(name, []).append(x[0].detach().numpy()))
    for x in batches:
        model(x)
    return seen


def everything(model):
    """All that a measurement could leave behind: tensors, modes, gradients, hooks, attributes of BN layers."""
    tensors = {name: value.clone() for name, value in model.state_dict().items()}
    grads = {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}
    asked = {name: p.requires_grad for name, p in model.named_parameters()}
    modes = {name: m.training for name, m in model.named_modules()}
    bn = {name: (m.momentum, m.track_running_stats) for name, m in feeders.batch_norms(model)}
    return tensors, grads, asked, modes, hooks(model), bn


def hooks(model):
    return sum(len(m._forward_pre_hooks) + len(m._forward_hooks) + len(m._backward_hooks) for m in model.modules())


def same(a, b):
    return all(
        all(x[k] is y[k] or (torch.is_tensor(x[k]) and torch.equal(x[k], y[k])) or x[k] == y[k] for k in x)
        if isinstance(x, dict) and x.keys() == y.keys() else x == y
        for x, y in zip(a, b, strict=True)
    )  # fmt: skip


# ---- the measurement


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("count", [1, 3])
def test_by_batches_it_is_what_numpy_finds_in_the_activations(d, count):
    model = net(d).double()
    batches = [torch.randn(SHAPES[d], dtype=torch.float64) * (k + 1) + k for k in range(count)]
    seen = seen_by(model, batches, training=True)
    found = gamma_over_sigma(model, batches)
    assert [layer.name for layer in found] == ["1", "4"]
    for layer, bn in zip(found, (model[1], model[4]), strict=True):
        axes = tuple(i for i in range(d + 2) if i != 1)
        variance = np.mean([x.var(axis=axes, ddof=1) for x in seen[layer.name]], axis=0)
        sigma, gamma = np.sqrt(variance + bn.eps), bn.weight.detach().numpy()
        np.testing.assert_allclose(layer.sigma, sigma, rtol=1e-10)
        np.testing.assert_allclose(layer.ratio, np.abs(gamma) / sigma, rtol=1e-10)
        feeder = model[int(layer.name) - 1].weight.detach().numpy()
        norm = np.sqrt((feeder.reshape(len(feeder), -1) ** 2).sum(1))
        assert layer.fed_by == str(int(layer.name) - 1)
        np.testing.assert_allclose(layer.weight_norm, norm, rtol=1e-10)
        np.testing.assert_allclose(layer.scale_free, np.abs(gamma) * norm / sigma, rtol=1e-10)


def test_linear_layers_feed_batch_norm_1d_on_rows():
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).double()
    x = torch.randn(9, 6, dtype=torch.float64)
    (layer,) = gamma_over_sigma(model, x)
    a = model[0](x).detach().numpy()
    np.testing.assert_allclose(layer.sigma, np.sqrt(a.var(0, ddof=1) + 1e-5), rtol=1e-10)
    assert layer.fed_by == "0" and gamma_over_sigma(model)[0].fed_by == "0"


def test_a_generator_of_batches_gives_what_their_list_gives():
    model, batches = net(), [torch.randn(SHAPES[2]) for _ in range(3)]
    a, b = gamma_over_sigma(model, (x for x in batches)), gamma_over_sigma(model, batches)
    assert all(np.array_equal(x.sigma, y.sigma) and x.fed_by == y.fed_by for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("training", [True, False])
def test_running_statistics_are_read_as_they_are(training):
    model = net()
    for _ in range(4):
        model(torch.randn(SHAPES[2]))
    for layer, bn in zip(gamma_over_sigma(model.train(training)), (model[1], model[4]), strict=True):
        np.testing.assert_allclose(layer.sigma, np.sqrt(bn.running_var.double().numpy() + bn.eps), rtol=1e-12)
        assert layer.note == ""


def test_rescaled_weights_change_the_ratio_and_leave_the_scale_free_reading():
    """Theorem 9 of the theory chapter (thm-scale): gamma/sigma is no property of the function."""
    model, x = net().double(), torch.randn(SHAPES[2], dtype=torch.float64)
    for bn in (model[1], model[4]):
        bn.eps = 1e-18  # torch takes no 0
    before, out = gamma_over_sigma(model, x), model(x)
    with torch.no_grad():
        model[0].weight *= 3
        model[0].bias *= 3
    after = gamma_over_sigma(model, x)
    torch.testing.assert_close(model(x), out)
    np.testing.assert_allclose(after[0].ratio, before[0].ratio / 3)
    np.testing.assert_allclose(after[0].scale_free, before[0].scale_free)
    np.testing.assert_allclose(after[1].ratio, before[1].ratio)


@pytest.mark.parametrize("taken_out", [True, False])
def test_the_scale_free_reading_is_the_channels_and_no_property_of_the_net(taken_out):
    """Larger gamma and beta, and smaller next weights or the next BN alone: the same outputs, another reading."""
    model, x = net().double(), torch.randn(SHAPES[2], dtype=torch.float64)
    for bn in (model[1], model[4]):
        bn.eps = 1e-18
    before, out = gamma_over_sigma(model, x), model(x)
    with torch.no_grad():
        model[1].weight *= 3
        model[1].bias *= 3
        if taken_out:
            model[3].weight /= 3
    after = gamma_over_sigma(model, x)
    torch.testing.assert_close(model(x), out)
    np.testing.assert_allclose(after[0].scale_free, 3 * before[0].scale_free)
    np.testing.assert_allclose(after[1].scale_free, before[1].scale_free / 3)


def test_layers_without_gamma_count_it_as_one_and_say_so():
    model, x = net(affine=False), torch.randn(SHAPES[2])
    for layer in gamma_over_sigma(model, x):
        assert np.array_equal(layer.gamma, np.ones(len(layer.gamma))) and "no gamma" in layer.note
        np.testing.assert_array_equal(layer.ratio, 1 / layer.sigma)


def test_layers_without_running_statistics_are_unknown_until_batches_are_passed():
    model, x = net(track_running_stats=False).double(), torch.randn(SHAPES[2], dtype=torch.float64)
    unknown = gamma_over_sigma(model)
    assert all(np.isnan(layer.sigma).all() and "pass batches" in layer.note for layer in unknown)
    assert all(row["mean"] == row["above 1"] == "unknown" for row in rows(unknown))
    found = gamma_over_sigma(model, x)
    for name, values in seen_by(model, [x], training=True).items():
        layer = next(layer for layer in found if layer.name == name)
        np.testing.assert_allclose(layer.sigma, np.sqrt(values[0].var((0, 2, 3), ddof=1) + 1e-5), rtol=1e-10)
    assert not any(layer.note for layer in found) and model[1].running_var is None


def test_statistics_never_updated_are_named():
    assert all("never updated" in layer.note for layer in gamma_over_sigma(net()))


def test_frozen_layers_keep_their_constants_and_dropout_is_off():
    x = torch.randn(8, 1, 28, 28)
    model = models.make("lenet", "frozen", (28, 28), 10, 0, dropout=0.9)
    norms.measure_frozen(model, x)
    (a, b), (c, d) = gamma_over_sigma(model), gamma_over_sigma(model, 2 * x)
    assert np.array_equal(a.sigma, c.sigma) and np.array_equal(b.sigma, d.sigma)


def test_a_model_without_batch_normalisation_gives_nothing():
    assert gamma_over_sigma(nn.Linear(2, 2)) == gamma_over_sigma(nn.Linear(2, 2), torch.randn(3, 2)) == []


@pytest.mark.parametrize("batches", [[], torch.randn(1, 3, 6, 6), [torch.randn(4, 3, 6, 6), "x"], [np.zeros((4, 3))]])
def test_what_are_no_batches_is_refused(batches):
    with pytest.raises(InputError, match="two samples or more"):
        gamma_over_sigma(net(), batches)


@pytest.mark.parametrize("batches", [None, 1, 3])
@pytest.mark.parametrize("training", [True, False])
def test_the_model_and_the_random_state_are_left_as_found(batches, training):
    model = nn.Sequential(net(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(180, 2)).train(training)
    model[0][1].eval()
    model[3].bias.requires_grad_(False)
    model(torch.randn(SHAPES[2])).sum().backward()
    before, state = everything(model), torch.get_rng_state()
    gamma_over_sigma(model, None if batches is None else [torch.ones(SHAPES[2]).cumsum(3)] * batches)
    assert torch.equal(torch.get_rng_state(), state) and same(everything(model), before)


@pytest.mark.parametrize(
    "arch, known, all_of_them", [("resnet18", 20, 20), ("mobilenet_v2", 52, 52), ("densenet121", 59, 121)]
)
def test_torchvision_models_are_traced(arch, known, all_of_them):
    """Every BN that one convolution feeds: all of ResNet's and MobileNet's; DenseNet's others see joined inputs."""
    import torchvision

    model = getattr(torchvision.models, arch)(num_classes=3)
    found = gamma_over_sigma(model, torch.randn(2, 3, 32, 32))
    fed = [layer for layer in found if layer.fed_by]
    assert (len(fed), len(found)) == (known, all_of_them)
    for layer in fed:
        feeder = model.get_submodule(layer.fed_by)
        assert feeder.weight.shape[0] == len(layer.gamma)
        np.testing.assert_allclose(layer.weight_norm, feeder.weight.detach().double().flatten(1).norm(dim=1))
    if arch == "resnet18":
        assert dict((x.name, x.fed_by) for x in found)["layer2.0.downsample.1"] == "layer2.0.downsample.0"
        assert all(layer.fed_by == layer.name.replace("bn", "conv") for layer in found if "bn" in layer.name)


def test_the_tracer_is_not_fooled_by_what_lies_between_or_by_order():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.other, self.conv = nn.BatchNorm2d(3), nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 3, padding=1)
            self.after, self.unused = nn.BatchNorm2d(3), nn.BatchNorm2d(3)

        def forward(self, x):
            return self.after(torch.relu(self.other(self.norm(self.conv(x)))))

    found = {layer.name: layer.fed_by for layer in gamma_over_sigma(Odd(), torch.randn(4, 3, 5, 5))}
    assert found == {"norm": "conv", "after": None, "unused": None}  # after a ReLU no weights scale what comes in


def test_half_precision_and_bfloat16_are_measured():
    for dtype in (torch.float16, torch.bfloat16):
        model, x = net(), torch.randn(16, 3, 6, 6)
        exact = gamma_over_sigma(model, x)
        for a, b in zip(gamma_over_sigma(model.to(dtype), x.to(dtype)), exact, strict=True):
            np.testing.assert_allclose(a.ratio, b.ratio, rtol=0.05)


def test_the_table_has_the_layers_numbers_as_text():
    model, x = net(), torch.randn(SHAPES[2])
    found = gamma_over_sigma(model, x)
    for row, layer in zip(rows(found), found, strict=True):
        assert row["layer"] == layer.name and row["channels"] == str(len(layer.gamma))
        assert row["mean"] == f"{layer.ratio.mean():.3g}" and row["median"] == f"{np.median(layer.ratio):.3g}"
        assert row["above 1"] == f"{(layer.ratio > 1).mean():.0%}"
        assert row["scale-free mean"] == f"{layer.scale_free.mean():.3g}" and row["fed by"] == layer.fed_by
        assert all(isinstance(cell, str) for cell in row.values())


# ---- the penalty


def by_hand(model, x, bound, weight):
    """The formula, from the activations, in NumPy."""
    total = 0.0
    for name, (values,) in seen_by(model, [x], training=True).items():
        layer = model.get_submodule(name)
        sigma = np.sqrt(values.var(tuple(i for i in range(values.ndim) if i != 1)) + layer.eps)
        gamma = np.ones(len(sigma)) if layer.weight is None else layer.weight.detach().numpy()
        total += (np.maximum(0, np.abs(gamma) / sigma - bound) ** 2).mean()
    return weight * total


def penalty_of(model, x, through, bound=0.3, weight=0.7):
    with GammaSigmaPenalty(model, bound, weight, through) as penalty:
        model(x)
        return penalty()


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("through", THROUGH)
@pytest.mark.parametrize("affine", [True, False])
def test_its_value_is_the_formula_in_every_mode(d, through, affine):
    if not affine and through == "gamma":
        return
    model, x = net(d, affine=affine).double(), 2 * torch.randn(SHAPES[d], dtype=torch.float64)
    assert penalty_of(model, x, through).item() == pytest.approx(by_hand(model, x, 0.3, 0.7), rel=1e-10)


@pytest.mark.parametrize("through", THROUGH)
def test_its_gradient_is_that_of_finite_differences(through):
    """Where one factor is held constant in the gradient, the difference is taken with that factor held as well."""
    model, x = net().double(), torch.randn(SHAPES[2], dtype=torch.float64)
    held = copy.deepcopy(model)  # the point at which a factor is held
    parameters = dict(model.named_parameters())
    term = penalty_of(model, x, through)
    grads = dict(zip(parameters, torch.autograd.grad(term, parameters.values(), allow_unused=True), strict=True))

    def value(moved):
        sigmas = seen_by(held if through == "gamma" else moved, [x], training=True)
        gammas = held if through == "sigma" else moved
        total = 0.0
        for name, (values,) in sigmas.items():
            sigma = np.sqrt(values.var((0, 2, 3)) + 1e-5)
            total += (
                np.maximum(0, np.abs(gammas.get_submodule(name).weight.detach().numpy()) / sigma - 0.3) ** 2
            ).mean()
        return 0.7 * total

    checked = 0
    for name, p in parameters.items():
        for i in np.linspace(0, p.numel() - 1, 5).astype(int):
            two = []
            for step in (1e-6, -1e-6):
                moved = copy.deepcopy(model)
                moved.get_parameter(name).data.view(-1)[i] += step
                two.append(value(moved))
            slope = (two[0] - two[1]) / 2e-6
            got = 0.0 if grads[name] is None else grads[name].view(-1)[i].item()
            assert got == pytest.approx(slope, rel=1e-5, abs=1e-8), (name, i)
            checked += abs(slope) > 1e-6
    assert checked > 5


def test_each_mode_moves_only_what_it_says():
    model, x = net().double(), torch.randn(SHAPES[2], dtype=torch.float64)
    moved = {}
    for through in THROUGH:
        model.zero_grad(set_to_none=True)
        penalty_of(model, x, through).backward()
        moved[through] = {n for n, p in model.named_parameters() if p.grad is not None and p.grad.abs().max() > 1e-12}
    assert moved["gamma"] == {"1.weight", "4.weight"}
    assert "0.weight" in moved["sigma"] and "3.weight" in moved["sigma"] and "4.weight" not in moved["sigma"]
    assert moved["both"] == moved["gamma"] | moved["sigma"]


def test_below_the_bound_nothing_is_added():
    model, x = net().double(), torch.randn(SHAPES[2], dtype=torch.float64)
    term = penalty_of(model, x, "both", bound=1e6)
    term.backward()
    assert term.item() == 0 and all(p.grad is None or not p.grad.any() for p in model.parameters())


@pytest.mark.parametrize("through", THROUGH)
def test_under_accumulation_micro_batches_add_up(through):
    """Four small batches, a call after each: value and gradient are the sums of four separate passes."""
    model = net().double()
    parts = [torch.randn(SHAPES[2], dtype=torch.float64) for _ in range(4)]
    expected = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for x in parts:
        fresh = copy.deepcopy(model)
        (fresh(x).square().mean() / 4 + penalty_of(fresh, x, through) / 4).backward()
        for name, p in fresh.named_parameters():
            expected[name] += p.grad
    with GammaSigmaPenalty(model, 0.3, 0.7, through) as penalty:
        values = []
        for x in parts:
            loss = model(x).square().mean() / 4
            term = penalty()
            values.append(term.item())
            (loss + term / 4).backward()
    assert values == pytest.approx([by_hand(model, x, 0.3, 0.7) for x in parts])
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.grad, expected[name])


def test_hooks_are_gone_after_closing_and_after_an_exception():
    model, x = net(), torch.randn(SHAPES[2])
    count = hooks(model)
    with GammaSigmaPenalty(model, 0.5, 1.0) as penalty:
        assert hooks(model) > count
        model(x)
        penalty()
    assert hooks(model) == count
    with pytest.raises(ZeroDivisionError), GammaSigmaPenalty(model, 0.5, 1.0):
        model(x)
        raise ZeroDivisionError
    assert hooks(model) == count
    model(x)
    with pytest.raises(InputError, match="closed; make a new one"):
        penalty()
    penalty.close()
    plain = GammaSigmaPenalty(model, 0.5, 1.0)
    plain.close()
    plain.close()
    assert hooks(model) == count


def test_a_pass_that_fails_leaves_the_penalty_usable():
    model, x = net(), torch.randn(SHAPES[2])
    with GammaSigmaPenalty(model, 0.3, 0.7) as penalty:
        with pytest.raises(RuntimeError):
            model(torch.randn(2, 4, 6, 6))
        model(x)
        assert penalty().item() == pytest.approx(by_hand(model, x, 0.3, 0.7), rel=1e-5)


def test_a_layer_used_twice_in_one_pass_is_refused():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)

        def forward(self, x):
            return self.norm(self.conv(self.norm(self.conv(x))))

    model = Twice()
    with GammaSigmaPenalty(model, 0.5, 1.0), pytest.raises(InputError, match="norm is used twice in one forward pass"):
        model(torch.randn(SHAPES[2]))
    assert hooks(model) == 0
    model(torch.randn(SHAPES[2]))


def test_passes_and_calls_must_alternate():
    model, x = net(), torch.randn(SHAPES[2])
    with GammaSigmaPenalty(model, 0.5, 1.0) as penalty:
        with pytest.raises(InputError, match="no forward pass"):
            penalty()
        model(x)
        with pytest.raises(InputError, match="two forward passes"):
            model(x)
        penalty()
        with pytest.raises(InputError, match="no forward pass"):
            penalty()


def test_evaluation_between_steps_does_no_harm():
    model, x = net(), torch.randn(SHAPES[2])
    with GammaSigmaPenalty(model, 0.3, 0.7) as penalty:
        for _ in range(2):
            model.eval()
            model(x)
            model.train()
            with torch.no_grad():
                model(2 * x)
            model(x)
            assert penalty().item() == pytest.approx(by_hand(model, x, 0.3, 0.7), rel=1e-5)


def test_layers_in_eval_mode_are_left_out():
    model, x = net().double(), torch.randn(SHAPES[2], dtype=torch.float64)
    model[1].eval()
    values = model[3](torch.relu(model[1](model[0](x)))).detach().numpy()
    sigma = np.sqrt(values.var((0, 2, 3)) + 1e-5)
    expected = 0.7 * (np.maximum(0, np.abs(model[4].weight.detach().numpy()) / sigma - 0.3) ** 2).mean()
    assert penalty_of(model, x, "both").item() == pytest.approx(expected)
    model.eval()
    with GammaSigmaPenalty(model, 0.3, 0.7) as penalty:
        model(x)
        with pytest.raises(InputError, match="no forward pass in training mode"):
            penalty()


@pytest.mark.parametrize(
    "change, message",
    [
        ({"bound": 0.0}, "bound must be larger than 0"),
        ({"bound": -1.0}, "bound must be larger than 0"),
        ({"bound": float("nan")}, "bound must be larger than 0"),
        ({"bound": float("inf")}, "bound must be larger than 0"),
        ({"weight": -0.1}, "weight must be 0 or larger"),
        ({"weight": float("nan")}, "weight must be 0 or larger"),
        ({"weight": float("inf")}, "weight must be 0 or larger"),
        ({"through": "beta"}, "unknown through 'beta'; choose one of gamma, sigma, both"),
        ({"model": nn.Linear(2, 2)}, "Linear has no batch normalisation layer"),
        ({"model": net(affine=False)}, "no batch normalisation layer has a gamma that trains; choose through='sigma'"),
    ],
)
def test_what_limits_nothing_is_refused_and_leaves_no_hooks(change, message):
    given = {"model": net(), "bound": 0.5, "weight": 1.0} | change
    with pytest.raises(InputError, match=message):
        GammaSigmaPenalty(**given)
    assert hooks(given["model"]) == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_gives_a_finite_penalty_near_the_exact_one(dtype):
    model, x = net(), 100 * torch.randn(16, 3, 6, 6)  # variances of 1e4 would overflow float16 where they are summed
    exact = by_hand(copy.deepcopy(model), x, 1e-4, 1.0)
    term = penalty_of(model.to(dtype), x.to(dtype), "both", 1e-4, 1.0)
    term.backward()
    assert term.item() == pytest.approx(exact, rel=0.1)
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_autocast_gives_the_penalty_too():
    model, x = net(), torch.randn(16, 3, 6, 6)
    with torch.autocast("cpu", torch.bfloat16):
        term = penalty_of(model, x, "both")
    assert term.item() == pytest.approx(by_hand(model, x, 0.3, 0.7), rel=0.05)


def test_nested_models_are_found_and_a_part_may_be_penalised_alone():
    outer = nn.Sequential(net(), nn.ReLU(), nn.Sequential(nn.Conv2d(5, 2, 1), nn.BatchNorm2d(2))).double()
    x = torch.randn(SHAPES[2], dtype=torch.float64)
    assert penalty_of(outer, x, "both").item() == pytest.approx(by_hand(outer, x, 0.3, 0.7))
    with GammaSigmaPenalty(outer[0], 0.3, 0.7) as penalty:
        outer(x)
        assert penalty().item() == pytest.approx(by_hand(outer[0], x, 0.3, 0.7))


class Checkpointed(nn.Module):
    """The same net with its first part computed again in backward."""

    def __init__(self, inner, reentrant=False):
        super().__init__()
        self.inner, self.run = inner, partial(checkpoint, use_reentrant=reentrant)

    def forward(self, x):
        return self.inner[4](self.run(self.inner[:4], x))


@pytest.mark.parametrize("through", THROUGH)
def test_under_checkpointing_value_and_gradient_are_the_same(through):
    model, x = net().double(), torch.randn(SHAPES[2], dtype=torch.float64)
    other = Checkpointed(copy.deepcopy(model))
    results = []
    for m in (model, other):
        with GammaSigmaPenalty(m, 0.3, 0.7, through) as penalty:
            loss = m(x).square().mean()
            term = penalty()
            (loss + term).backward()
        results.append((term.item(), [p.grad for p in m.parameters()]))
        assert hooks(m) == 0
    assert results[0][0] == pytest.approx(results[1][0])
    for a, b in zip(results[0][1], results[1][1], strict=True):
        torch.testing.assert_close(a, b)


def test_reentrant_checkpointing_is_refused():
    """There is no graph inside such a block: the penalty would be a number without a gradient."""
    model = Checkpointed(net(), reentrant=True)
    with GammaSigmaPenalty(model, 0.3, 0.7), pytest.raises(InputError, match="use_reentrant"):
        model(torch.randn(SHAPES[2], requires_grad=True))


def test_training_under_the_penalty_pulls_the_ratio_down():
    model, x = net(), torch.randn(64, 3, 6, 6)
    nn.init.constant_(model[1].weight, 2.0)
    nn.init.constant_(model[4].weight, 2.0)
    before = [layer.ratio.max() for layer in gamma_over_sigma(model, x)]
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    with GammaSigmaPenalty(model, 0.5, 1.0) as penalty:
        for _ in range(300):
            opt.zero_grad()
            model(x)
            penalty().backward()
            opt.step()
    after = [layer.ratio.max() for layer in gamma_over_sigma(model, x)]
    assert min(before) > 2 and max(after) < 0.55


def test_the_penalty_leaves_the_model_and_its_outputs_as_they_are():
    model, x = net(), torch.randn(SHAPES[2])
    twin = copy.deepcopy(model)
    before, state = everything(model), torch.get_rng_state()
    penalty = GammaSigmaPenalty(model, 0.3, 0.7)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(model(x), twin(x))
    penalty()
    penalty.close()
    assert same(everything(model)[1:], before[1:])
    assert same((model.state_dict(),), (twin.state_dict(),))  # nothing but the running statistics, as in any pass


def test_a_measurement_between_steps_of_a_penalised_training_disturbs_neither():
    model, x = net(), torch.randn(SHAPES[2])
    plain = gamma_over_sigma(copy.deepcopy(model), x)
    with GammaSigmaPenalty(model, 0.3, 0.7) as penalty:
        for _ in range(2):
            measured = gamma_over_sigma(model, x)
            model(x)
            assert penalty().item() == pytest.approx(by_hand(net_like(model), x, 0.3, 0.7), rel=1e-5)
    assert all(np.array_equal(a.sigma, b.sigma) for a, b in zip(measured, plain, strict=True))


def test_a_measurement_between_pass_and_call_disturbs_neither():
    model, x = net(), torch.randn(SHAPES[2])
    with GammaSigmaPenalty(model, 0.3, 0.7) as penalty:
        model(x)
        gamma_over_sigma(model, x)
        assert penalty().item() == pytest.approx(by_hand(net_like(model), x, 0.3, 0.7), rel=1e-5)


def net_like(model):
    """A copy without hooks."""
    new = net()
    new.load_state_dict(model.state_dict())
    return new


def test_a_deep_copy_made_under_the_penalty_works_and_does_not_feed_it():
    model, x = net(), torch.randn(SHAPES[2])
    with GammaSigmaPenalty(model, 0.3, 0.7) as penalty:
        twin = copy.deepcopy(model)
        model(x)
        value = penalty().item()
        twin.eval()(3 * x)
        with pytest.raises(InputError, match="no forward pass"):
            penalty()
        model(x)
        assert penalty().item() == pytest.approx(value, rel=1e-5)
    F.relu(twin(x))


def test_a_model_without_parameters_is_measured_too():
    (layer,) = gamma_over_sigma(nn.BatchNorm2d(3, affine=False, track_running_stats=False), torch.randn(SHAPES[2]))
    assert np.isfinite(layer.ratio).all() and layer.note


def test_gammas_that_do_not_train_cannot_be_limited_through_gamma():
    model = net()
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.weight.requires_grad_(False)
    with pytest.raises(InputError, match="gamma that trains"):
        GammaSigmaPenalty(model, 0.5, 0.1)
    GammaSigmaPenalty(model, 0.5, 0.1, "sigma").close()


@pytest.mark.parametrize("change", [{"bound": "0.5"}, {"bound": None}, {"weight": "much"}])
def test_what_is_no_number_is_no_bound_and_no_weight(change):
    with pytest.raises(InputError, match=next(iter(change))):
        GammaSigmaPenalty(net(), **{"bound": 0.5, "weight": 0.1} | change)


def test_feeders_are_found_in_inference_mode():
    model, x = net(), torch.randn(SHAPES[2])
    with torch.inference_mode():
        inside = [layer.fed_by for layer in gamma_over_sigma(model, torch.randn(SHAPES[2]))]
    assert inside == [layer.fed_by for layer in gamma_over_sigma(model, x)] and any(inside)
