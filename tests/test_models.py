"""Nets and norms: arms share their weights; each norm is what it says, on any module."""

import pytest
import torch
from torch import nn
from torchvision.models import densenet121, resnet18

from bnmem import models, norms
from bnmem.errors import InputError

SHAPES = {"grey": (28, 28), "colour": (32, 32, 3)}


def images(shape, n=4):
    channels = shape[2] if len(shape) == 3 else 1
    return torch.randn(n, channels, *shape[:2], generator=torch.Generator().manual_seed(0))


SMALL = ["lenet", "resnet8", "resnet20", "densenet"]


@pytest.mark.parametrize("norm", norms.NORMS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("arch", SMALL)
def test_every_net_takes_every_norm_and_shape(arch, shape, norm):
    model = models.make(arch, norm, shape, 10, seed=0)
    z = model(images(shape))
    assert z.shape == (4, 10) and z.isfinite().all()
    z.sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    assert any(type(m) is nn.BatchNorm2d for m in model.modules()) == (norm == "batch")


@pytest.mark.parametrize("arch", ["resnet18", "densenet121"])
def test_torchvisions_nets_have_the_stem_for_small_images(arch):
    model = models.make(arch, "batch", (28, 28), 7, seed=0).eval()
    stem = model.conv1 if arch == "resnet18" else model.features.conv0
    assert stem.kernel_size == (3, 3) and stem.stride == (1, 1) and stem.in_channels == 1
    assert model(images((28, 28))).shape == (4, 7)


def test_every_architecture_is_tested_here():
    assert [*SMALL, "resnet18", "densenet121"] == list(models.ARCHS)


@pytest.mark.parametrize("arch", SMALL)
def test_arms_share_their_initial_weights(arch):
    arms = {norm: dict(models.make(arch, norm, (28, 28), 10, seed=5).named_parameters()) for norm in norms.NORMS}
    for norm in norms.NORMS[1:]:
        shared = set(arms["batch"]) & set(arms[norm])
        assert {n for n in arms["batch"] if n.endswith("weight") and arms["batch"][n].ndim > 1} <= shared
        assert all(torch.equal(arms["batch"][name], arms[norm][name]) for name in shared)


def test_seeds_give_other_weights_and_the_global_state_is_left_alone():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    a, b, c = (models.make("lenet", "none", (28, 28), 10, seed) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(a.conv1.weight, b.conv1.weight) and torch.equal(a.conv1.bias, b.conv1.bias)
    assert not torch.equal(a.conv1.weight, c.conv1.weight) and not torch.equal(a.conv1.bias, c.conv1.bias)


def test_lenet_has_batch_norm_after_its_two_convolutions_only():
    model = models.make("lenet", "batch", (28, 28), 10, 0)
    assert [n for n, m in model.named_modules() if isinstance(m, nn.BatchNorm2d)] == ["norm1", "norm2"]
    assert model.conv1.bias is None and model.conv2.bias is None


@pytest.mark.parametrize("depth", [8, 20])
def test_resnets_have_six_n_plus_two_layers(depth):
    model = models.make(f"resnet{depth}", "batch", (32, 32, 3), 10, 0)
    convolutions = [m for n, m in model.named_modules() if isinstance(m, nn.Conv2d) and "skip" not in n]
    assert len(convolutions) + 1 == depth


def test_densenet_grows_by_eight_and_keeps_half_between_blocks():
    model = models.make("densenet", "batch", (32, 32, 3), 10, 0)
    widths = [m.num_features for m in model.features if isinstance(m, nn.BatchNorm2d)]
    assert widths == [32, 32, 32] and model.head.in_features == 32
    assert sum(isinstance(m, models.Dense) for m in model.features) == 6


def test_none_gives_convolutions_their_bias_back():
    model = models.make("resnet8", "none", (28, 28), 10, 0)
    assert all(m.bias is not None for m in model.modules() if isinstance(m, nn.Conv2d))


def test_affine_is_batch_norm_without_statistics():
    batch = models.make("lenet", "batch", (28, 28), 10, 0).eval()
    affine = norms.with_norm(batch, "affine")
    for layer in (batch.norm1, batch.norm2):  # statistics that do nothing
        layer.running_mean.zero_()
        layer.running_var.fill_(1 - layer.eps)
    x = images((28, 28))
    assert torch.allclose(batch(x), affine(x), atol=1e-6)


def test_group_takes_the_greatest_common_divisor_with_eight():
    net = norms.with_norm(nn.Sequential(nn.BatchNorm2d(12), nn.BatchNorm2d(7)), "group")
    assert [m.num_groups for m in net] == [4, 1]


@pytest.mark.parametrize("maker", [resnet18, densenet121])
@pytest.mark.parametrize("norm", ["none", "affine", "group"])
def test_torchvision_nets_can_be_switched_and_are_left_as_they_were(maker, norm):
    net = maker(num_classes=10).eval()
    count = sum(isinstance(m, nn.BatchNorm2d) for m in net.modules())
    switched = norms.with_norm(net, norm)
    assert not any(isinstance(m, nn.BatchNorm2d) for m in switched.modules())
    assert sum(isinstance(m, nn.BatchNorm2d) for m in net.modules()) == count
    assert switched(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_parameters_of_a_trained_layer_are_taken_over():
    layer = nn.BatchNorm2d(8)
    layer.weight.data.fill_(3.0)
    layer.bias.data.fill_(-1.0)
    for norm in ("affine", "group"):
        new = norms.with_norm(nn.Sequential(layer), norm)[0]
        assert (new.weight == 3).all() and (new.bias == -1).all()


def test_layer_and_instance_are_torchs_own():
    x = images((32, 32, 3))
    net = nn.Sequential(nn.BatchNorm2d(3))
    assert torch.allclose(norms.with_norm(net, "layer")(x), nn.functional.layer_norm(x, x.shape[1:]), atol=1e-5)
    assert torch.allclose(norms.with_norm(net, "instance")(x), nn.functional.instance_norm(x), atol=1e-5)


def test_frozen_keeps_the_statistics_of_the_first_measurement_for_ever():
    batch = models.make("lenet", "batch", (28, 28), 10, 0)
    frozen = norms.with_norm(batch, "frozen")
    x = images((28, 28), 64)
    norms.measure_frozen(frozen, x)
    # measured layer after layer: the same outputs as batch statistics give, up to n / (n - 1) in the variance
    assert torch.allclose(frozen(x), batch.train()(x), atol=1e-2)
    before = {name: value.clone() for name, value in frozen.named_buffers()}
    frozen.train()(3 * x + 1).sum().backward()
    assert all(torch.equal(before[name], value) for name, value in frozen.named_buffers())
    assert frozen.norm1.weight.grad is not None and not frozen.norm1.training


def test_measuring_leaves_other_nets_alone():
    batch = models.make("lenet", "batch", (28, 28), 10, 0)
    norms.measure_frozen(batch, images((28, 28)))
    assert (batch.norm1.running_mean == 0).all() and batch.norm1.num_batches_tracked == 0


def test_he_initialisation_has_its_variance():
    model = models.make("resnet8", "batch", (32, 32, 3), 10, 0, init="he")
    weight = model.stages[2].conv2.weight
    assert weight.var().item() == pytest.approx(2 / weight[0].numel(), rel=0.05)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"arch": "vgg"}, "lenet, resnet8"),
        ({"norm": "layerr"}, "batch, none, affine, group"),
        ({"init": "zero"}, "torch, he"),
        ({"shape": (64, 64, 3)}, "28x28 or 32x32"),
    ],
)
def test_unknown_choices_list_the_known_ones(change, message):
    given = {"arch": "lenet", "norm": "batch", "shape": (28, 28), "classes": 10, "seed": 0} | change
    with pytest.raises(InputError, match=message):
        models.make(**given)


def test_a_net_without_batch_norm_cannot_be_switched():
    with pytest.raises(InputError, match="no BatchNorm2d"):
        norms.with_norm(nn.Linear(2, 2), "none")
