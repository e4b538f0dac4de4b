"""Per-sample gradient norms: every definition, layer by layer, against autograd done slowly by other means."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torchvision.models import densenet121

from bnmem import grads
from bnmem.grads_linear import Conv2d
from tests.slow_grads import (
    NETS,
    assert_same,
    by_layer,
    case,
    derivatives,
    held,
    sample_losses,
    slowly,
    small_image,
    stacked,
    switched,
)


@pytest.mark.parametrize("bn", grads.DEFINITIONS)
@pytest.mark.parametrize("name", NETS)
def test_norms_equal_slow_autograd_layer_by_layer(name, bn):
    n = 3 if name == "resnet18" else 5
    assert_same(*case(name, n), bn, 1e-10, chunk=2 if bn in ("eval", "loss") else None)


def test_densenet121_equals_slow_autograd_in_every_definition():
    net, x, y = case(lambda: small_image(densenet121), n=6)
    for bn in grads.DEFINITIONS:
        assert_same(net, x, y, bn, 1e-10)


@pytest.mark.parametrize("bn", grads.DEFINITIONS)
@pytest.mark.parametrize("name", ["strides", "norms", "shared", "lenet", "resnet8", "resnet18"])
def test_float32_equals_float32_batch_of_one(name, bn):
    layout = torch.channels_last if name == "resnet8" else torch.contiguous_format
    net, x, y = case(name, 4, torch.float32, layout)
    expected = slowly(net, x, y, bn)
    total = np.sqrt(sum(e**2 for e in by_layer(expected).values()))
    np.testing.assert_allclose(grads.norms(net, x, y, bn), total, 1e-4)


@pytest.mark.parametrize("bn", ["eval", "frozen", "loss"])
def test_fitted_samples_keep_their_digits_in_float32(bn):
    """Against a loss that does not cancel: softplus of minus the margin, from float32 logits, in float64."""
    net, x, y = case("lenet", 6, torch.float32)
    with torch.no_grad():
        net.head[-1].weight *= 2000
    slow = held(net, x) if bn == "frozen" else switched(net, bn == "loss")
    y = slow(x).argmax(1)

    def losses(x, y):
        z, own = slow(x).double(), F.one_hot(y, 3).bool()
        return F.softplus(z.masked_fill(own, -torch.inf).logsumexp(1) - z[own])

    assert (losses(x, y) < 1e-15).any(), "this test needs fitted samples"
    if bn == "loss":
        expected = stacked(derivatives(loss, slow, keep=True) for loss in losses(x, y))
    else:
        expected = stacked(derivatives(losses(x[i : i + 1], y[i : i + 1])[0], slow) for i in range(6))
    np.testing.assert_allclose(
        grads.norms(net, x, y, bn), np.sqrt(sum(e**2 for e in by_layer(expected).values())), 2e-3, 1e-35
    )


@pytest.mark.parametrize("name", ["strides", "norms", "shared", "resnet8"])
def test_loss_and_param_sum_to_the_batch_gradient(name):
    net, x, y = case(name, 6)
    batch = switched(net, True)
    expected = derivatives(sample_losses(batch, x, y).sum(), batch)
    names = {p: name for name, p in net.named_parameters()}
    for bn in ("loss", "param"):
        made, owners = grads._measured(net, x, y, bn, whole=True)
        for p, g in zip(owners, made, strict=True):
            torch.testing.assert_close(g.sum(0), expected[names[p]], rtol=1e-10, atol=1e-11)


def test_definitions_differ_with_batch_norm_and_agree_without():
    for name, same in (("lenet", False), ("lenet-none", True)):
        net, x, y = case(name, 6)
        first, *others = (grads.norms(net, x, y, bn) for bn in grads.DEFINITIONS)
        for other in others:
            assert np.allclose(first, other, rtol=1e-10) == same


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_every_convolution_technique_equals_autograd(data):
    def pair(low, high):
        return data.draw(st.tuples(*[st.integers(low, high)] * 2))

    groups, kernel, stride, dilation = data.draw(st.integers(1, 3)), pair(1, 3), pair(1, 3), pair(1, 2)
    padding = data.draw(st.one_of(st.tuples(*[st.integers(0, 2)] * 2), st.just("same")))
    stride = (1, 1) if padding == "same" else stride
    mode = data.draw(st.sampled_from(["zeros", "reflect", "circular"]))
    layer = nn.Conv2d(2 * groups, groups, kernel, stride, padding, dilation, groups, padding_mode=mode).double()
    x = torch.randn(3, 2 * groups, *pair(5, 7), dtype=torch.float64)
    if data.draw(st.booleans()):
        x = x.contiguous(memory_format=torch.channels_last)
    out = layer(x)
    g = torch.randn_like(out)
    expected = torch.stack(
        [torch.autograd.grad((out[i] * g[i]).sum(), layer.weight, retain_graph=True)[0] for i in range(3)]
    )
    rule, size = Conv2d(layer, "eval"), expected.flatten(1).norm(dim=1)
    torch.testing.assert_close(rule.grads(x, g, {"weight"})["weight"], expected)
    for got in (rule.gram(x, g), rule.grouped(x, g).norm(dim=1), rule.norms(x, g, {"weight"})["weight"]):
        torch.testing.assert_close(got, size, rtol=1e-9, atol=1e-12)


def test_gram_is_not_trusted_where_it_cancels():
    x = 1 + 1e-4 * torch.randn(4, 8, 6, 6)
    g = torch.randn(4, 8, 6, 6)
    g -= g.mean((2, 3), keepdim=True)
    layer = nn.Conv2d(8, 8, 1)
    exact = torch.einsum("nohw,nihw->noi", g.double(), x.double()).flatten(1).norm(dim=1)
    torch.testing.assert_close(Conv2d(layer, "eval").gram(x, g).double(), exact, rtol=1e-2, atol=0)
    tokens = nn.Sequential(nn.Flatten(2), nn.Linear(36, 32), nn.Flatten(), nn.Linear(256, 3)).double()
    assert_same(tokens, x.double(), torch.tensor([0, 1, 2, 0]), "eval", 1e-10)


def test_layouts_and_chunks_change_nothing_but_rounding():
    net, x, y = case("resnet8", 7)
    last = torch.channels_last
    for bn in grads.DEFINITIONS:
        plain = grads.norms(net, x, y, bn)
        moved = grads.norms(copy.deepcopy(net).to(memory_format=last), x.to(memory_format=last), y, bn, chunk=3)
        np.testing.assert_allclose(moved, plain, 1e-10)


def test_eval_holds_one_chunk_at_a_time():
    net, x, y = case("lenet", 200, torch.float32)
    sizes = []
    net.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
    grads.norms(net, x, y, chunk=16)
    assert max(sizes) == 16 and sum(sizes) == 200
    sizes.clear()
    grads.norms(net, x, y)
    assert max(sizes) <= grads.MOST


def test_frozen_parameters_are_left_out():
    net, x, y = case("strides")
    for p in (net.body[0].weight, net.body[1].weight, net.body[3].weight, net.body[3].bias):
        p.requires_grad_(False)
    for bn in grads.DEFINITIONS:
        every = slowly(net.requires_grad_(True), x, y, bn)
        for p in (net.body[0].weight, net.body[1].weight, net.body[3].weight, net.body[3].bias):
            p.requires_grad_(False)
        trained = {name: every[name] for name, p in net.named_parameters() if p.requires_grad}
        got = grads.norms(net, x, y, bn, per_layer=True)
        assert got.keys() == by_layer(trained).keys() and "body.0" not in got
        for layer, norm in by_layer(trained).items():
            np.testing.assert_allclose(got[layer], norm, 1e-10, 1e-13)
