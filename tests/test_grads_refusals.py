"""Per-sample gradient norms: everything is left as found, and what cannot be right is refused in one line."""

import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bnmem import grads
from bnmem.errors import InputError
from tests.slow_grads import Strides, assert_same, case


def snapshot(net):
    state = {k: v.clone() for k, v in net.state_dict().items()}
    modes = [m.training for m in net.modules()]
    flags = [(p.requires_grad, p.grad is None or p.grad.clone()) for p in net.parameters()]
    hooks = [[len(v) for k, v in vars(m).items() if k.endswith("hooks")] for m in net.modules()]
    attributes = [sorted(vars(m)) for m in net.modules()]
    return state, modes, flags, hooks, attributes, torch.get_rng_state(), random.getstate(), np.random.get_state()[1]  # noqa: NPY002


def assert_equal(a, b):
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        a, b = list(a.values()), list(b.values())
    if isinstance(a, list | tuple):
        assert len(a) == len(b)
        for left, right in zip(a, b, strict=True):
            assert_equal(left, right)
    elif isinstance(a, torch.Tensor | np.ndarray):
        assert bool((a == b).all())
    else:
        assert a == b


def untidy():
    """A net in a state that nobody would choose: mixed modes, gradients, hooks, a frozen parameter, random layers."""
    net, x, y = case("norms")
    net.extra = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2)).double()
    net.train()
    net.batch.eval()
    net.first.weight.grad = torch.ones_like(net.first.weight)
    net.head.bias.requires_grad_(False)
    net.first.register_forward_hook(lambda *_: None)
    net.head.weight.register_hook(lambda g: g * 0)
    return net, x, y


@pytest.mark.parametrize("bn", grads.DEFINITIONS)
def test_everything_is_left_as_found(bn):
    net, x, y = untidy()
    inputs = x.clone()
    before = snapshot(net)
    first = grads.norms(net, x, y, bn)
    assert_equal(snapshot(net), before)
    with torch.inference_mode():
        np.testing.assert_array_equal(grads.norms(net, x, y, bn), first)
        np.testing.assert_array_equal(grads.norms(net, x.clone(), y.clone(), bn), first)
    with torch.no_grad(), torch.autocast("cpu"):
        np.testing.assert_array_equal(grads.norms(net, x, y, bn), first)
    assert_equal(snapshot(net), before)
    assert torch.equal(x, inputs)


@pytest.mark.parametrize("bn", grads.DEFINITIONS)
def test_everything_is_left_as_found_after_an_exception(bn):
    net, x, y = untidy()

    def fail(*_):
        torch.rand(3)
        raise RuntimeError("on purpose")

    hook = net.act.register_forward_hook(fail)
    before = snapshot(net)
    with pytest.raises(RuntimeError, match="on purpose"):
        grads.norms(net, x, y, bn)
    assert_equal(snapshot(net), before)
    hook.remove()
    before = snapshot(net)
    with pytest.raises(InputError):
        grads.norms(net, x, torch.full_like(y, 3), bn)
    assert_equal(snapshot(net), before)


def test_a_failure_in_the_backward_pass_is_cleaned_up_too():
    class Spoiler(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, x):
            h = self.one(x)
            out = self.two(h)
            with torch.no_grad():
                h += 1
            return out

    net, x, y = Spoiler(), torch.randn(4, 4), torch.tensor([0, 1, 2, 0])
    before = snapshot(net)
    with pytest.raises(InputError, match="'two' is changed in place"):
        grads.norms(net, x, y)
    assert_equal(snapshot(net), before)


def test_two_calls_are_bit_identical_and_dropout_is_off():
    net, x, y = case("strides", dtype=torch.float32)
    for bn in grads.DEFINITIONS:
        np.testing.assert_array_equal(grads.norms(net, x, y, bn), grads.norms(net.train(), x, y, bn))


def test_the_users_hooks_act_as_in_the_model():
    net, x, y = case("lenet")
    net.conv1.register_forward_hook(lambda _, args, out: 2 * out)
    net.conv2.register_forward_pre_hook(lambda _, args: (args[0] + 0.1,))
    for bn in ("eval", "loss"):
        assert_same(net, x, y, bn, 1e-10)


# What cannot be right is refused.


class Functional(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.a, self.b, self.kind = nn.Linear(4, 4), nn.Linear(4, 4), kind

    def forward(self, x):
        if self.kind == "tied":
            return F.linear(self.b(self.a(x)), self.a.weight)
        if self.kind == "merged":
            return self.b(self.a(x.repeat(2, 1)))[: len(x)]
        return F.linear(self.b(x), self.a.weight)


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.layer = nn.Parameter(torch.ones(4)), nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x) * self.scale


class Odd(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class Stubborn(nn.BatchNorm1d):
    def train(self, mode=True):
        return super().train(False)


def sequential(*layers):
    return nn.Sequential(*layers, nn.Linear(4, 4))


@pytest.mark.parametrize("bn", grads.DEFINITIONS)
@pytest.mark.parametrize(
    ("net", "message"),
    [
        (lambda: Functional("tied"), "layer 'a' is used outside"),
        (lambda: Functional("only"), "layer 'a' is used outside"),
        (lambda: Functional("merged"), "'a' .*first axis"),
        (lambda: Own(), r"no rule for layer '' \(Own\).*scale"),
        (lambda: sequential(Odd(4, 4)), r"no rule for layer '0' \(Odd\)"),
        (lambda: sequential(nn.Bilinear(4, 4, 4)), r"no rule for layer '0' \(Bilinear\)"),
        (lambda: sequential(nn.GRU(4, 4)), r"no rule for layer '0' \(GRU\)"),
        (lambda: sequential(nn.SyncBatchNorm(4)), "no rule for layer '0'"),
        (lambda: sequential(Stubborn(4)), "no rule for layer '0'"),
        (lambda: sequential(nn.LazyLinear(4)), "no rule for layer '0'"),
        (lambda: sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))), "no rule for layer '0"),
        (lambda: nn.Linear(4, 4).requires_grad_(False), "no trainable parameters"),
        (lambda: sequential().append(nn.Unflatten(1, (2, 2))), "logits"),
        (lambda: nn.Linear(4, 4).half(), "float16"),
        (lambda: nn.Linear(4, 4).to("meta"), "on meta"),
        (lambda: nn.Linear(4, 3), "label 3"),
    ],
)
def test_a_model_that_cannot_be_handled_is_refused_by_name(net, message, bn):
    with pytest.raises(InputError, match=message):
        grads.norms(net(), torch.randn(5, 4), torch.tensor([0, 1, 2, 3, 3]), bn)


@pytest.mark.parametrize("bn", grads.DEFINITIONS)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(y=torch.tensor([0.0, 1.0, 2.0])), "int64"),
        (dict(y=torch.tensor([0, 1, 2], dtype=torch.int32)), "int64"),
        (dict(y=torch.tensor([True, False, True])), "int64"),
        (dict(y=F.one_hot(torch.tensor([0, 1, 2]))), "int64"),
        (dict(y=torch.tensor([0, 1, 7])), "label 7 in y, but the model has 3 classes"),
        (dict(y=torch.tensor([0, 1, -100])), "label -100"),
        (dict(y=torch.tensor([0, 1])), "same n samples"),
        (dict(y=[0, 1, 2]), "torch tensor"),
        (dict(y=torch.empty(3, dtype=torch.int64, device="meta")), "meta"),
        (dict(x=np.zeros((3, 4))), "torch tensor"),
        (dict(x=torch.full((3, 4, 9, 8), torch.nan)), "NaN"),
        (dict(x=torch.full((3, 4, 9, 8), torch.inf)), "NaN or infinity"),
        (dict(x=torch.ones(3, 4, 9, 8, dtype=torch.uint8)), "uint8"),
        (dict(x=torch.ones(3, 4, 9, 8, dtype=torch.float64)), "float64"),
        (dict(x=torch.ones(0, 4, 9, 8), y=torch.ones(0, dtype=torch.int64)), "empty"),
        (dict(model=lambda x: x), "nn.Module"),
        (dict(bn="train"), "choose one of eval, frozen, loss, param"),
        (dict(bn=None), "choose one of"),
        (dict(chunk=0), "chunk"),
        (dict(chunk=2.5), "chunk"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(change, message, bn):
    given = dict(model=Strides(), x=torch.randn(3, 4, 9, 8), y=torch.tensor([0, 1, 2]), bn=bn) | change
    with pytest.raises(InputError, match=message) as caught:
        grads.norms(**given)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("bn", ["frozen", "loss", "param"])
@pytest.mark.parametrize("name", ["lenet", "lenet-none"])
def test_a_batch_of_one_is_refused_where_statistics_are_the_batchs(name, bn):
    net, x, y = case(name, 1)
    with pytest.raises(InputError, match="batch of one"):
        grads.norms(net, x, y, bn)
    assert grads.norms(net, x, y).shape == (1,)


def test_batch_norm_without_running_statistics_has_no_eval_definition():
    net = sequential(nn.BatchNorm1d(4, track_running_stats=False))
    x, y = torch.randn(5, 4), torch.tensor([0, 1, 2, 3, 3])
    with pytest.raises(InputError, match="'0' keeps no running statistics"):
        grads.norms(net, x, y)
    assert_same(net.double(), x.double(), y, "param", 1e-10)


def test_a_diverged_model_is_refused():
    net, x, y = case("lenet")
    with torch.no_grad():
        net.head[1].weight.fill_(torch.inf)
    with pytest.raises(InputError, match="diverged"):
        grads.norms(net, x, y)
