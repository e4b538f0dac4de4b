"""A net from the name of its architecture and its weights; number of classes and input channels follow from these."""

import difflib
from dataclasses import dataclass

import torch
import torchvision
from torch import nn

from bnmem import models
from bnmem.checkpoint import some
from bnmem.errors import InputError

_ASKED = 1999  # classes of the net that is only looked at: no layer has so many outputs by chance
_COUNTER = "num_batches_tracked"  # not in files of old versions
_PYTHON = "or build the net in Python and call bnmem.audit.audit(net)"


@dataclass(frozen=True)
class Net:
    """model: in eval mode, on the CPU, float32. family: torchvision or bnmem; channels: of its input images."""

    model: nn.Module
    family: str
    arch: str
    classes: int
    channels: int

    @property
    def name(self) -> str:
        return f"{self.family}:{self.arch}"


def build(arch: str, state: dict[str, torch.Tensor]) -> Net:
    """The net `arch` with the weights `state` (see `checkpoint.load_state`); nothing is downloaded.

    arch: "torchvision:NAME" with the name of a classification net of torchvision.models, or "bnmem:NAME", or NAME
    alone, with one of `bnmem.models.ARCHS`. The classes are the rows of the last layer in `state`, the channels the
    columns of its first convolution. The net shares its memory with `state`; the global random state is left as found.
    Raises InputError for an unknown name (with those that come close) and for weights that do not fit it.
    """
    family, name = _family(arch)
    looked_at = _made(family, name, _ASKED, 3, state)
    expected = looked_at.state_dict()
    heads = [key for key, t in expected.items() if t.ndim and t.shape[0] == _ASKED]
    first = next(key for key, t in expected.items() if t.ndim == 4)
    if missing := [key for key in (first, *heads) if key not in state or state[key].ndim != expected[key].ndim]:
        raise _unfit(f"{family}:{name}", missing, sorted(state.keys() - expected.keys()), [])
    classes, channels = state[heads[-1]].shape[0], state[first].shape[1]
    model = _made(family, name, classes, channels, state)
    expected, state = model.state_dict(), dict(state)
    for key, t in expected.items():
        if key.endswith(_COUNTER):
            state.setdefault(key, torch.zeros((), dtype=t.dtype))
    _check_fits(f"{family}:{name}", expected, state)
    expected.update(state)  # and keeps the version marks, without which MNASNet refuses
    model.load_state_dict(expected, assign=True)
    return Net(model.eval(), family, name, classes, channels)


def _family(arch: str) -> tuple[str, str]:
    family, colon, name = arch.partition(":")
    family, name = (family, name) if colon else ("bnmem", family)
    if family not in ("torchvision", "bnmem"):
        raise InputError(f"unknown family {family!r} in --arch {arch}; write torchvision:NAME or bnmem:NAME, {_PYTHON}")
    theirs = torchvision.models.list_models(module=torchvision.models)
    known = theirs if family == "torchvision" else list(models.ARCHS)
    if name in known:
        return family, name
    close = [f"{family}:{other}" for other in difflib.get_close_matches(name, known, 4)]
    if family == "bnmem":
        close = [*close, *(f"torchvision:{other}" for other in difflib.get_close_matches(name, theirs, 4))]
    listed = f"close to it are {some(close, 4)}" if close else f"there are {some([f'{family}:{n}' for n in known], 6)}"
    raise InputError(f"unknown architecture {arch!r}; {listed}; take one of those, {_PYTHON}")


def _made(family: str, name: str, classes: int, channels: int, state: dict) -> nn.Module:
    """The net without weights where that is possible, else with random ones."""

    def make():
        if family == "bnmem":  # LeNet's padding is not in its weights: grey images are 28 pixels wide, others 32
            return models.ARCHS[name](channels, 28 if channels == 1 else 32, classes)
        net = torchvision.models.get_model(name, weights=None, num_classes=classes, **_options(name, state))
        return net if channels == 3 else _with_channels(net, channels)

    with torch.random.fork_rng(devices=[]):
        try:
            with torch.device("meta"):
                return make()
        except NotImplementedError:  # RegNet computes its widths with tensors
            return make()


def _options(name: str, state: dict) -> dict:
    if name not in ("googlenet", "inception_v3"):
        return {}
    return {"init_weights": False, "aux_logits": any(key.startswith(("AuxLogits.", "aux1.")) for key in state)}


def _with_channels(net: nn.Module, channels: int) -> nn.Module:
    """The net with a first convolution for so many channels."""
    name, conv = next((name, layer) for name, layer in net.named_modules() if isinstance(layer, nn.Conv2d))
    options = {k: getattr(conv, k) for k in ("kernel_size", "stride", "padding", "dilation", "padding_mode")}
    net.set_submodule(name, nn.Conv2d(channels, conv.out_channels, bias=conv.bias is not None, **options))
    return net


def _check_fits(arch: str, expected: dict, state: dict) -> None:
    missing = [key for key in expected if key not in state]
    foreign = [key for key in state if key not in expected]
    shapes = [
        f"{key} is {list(state[key].shape)} and not {list(t.shape)}"
        for key, t in expected.items()
        if key in state and state[key].shape != t.shape
    ]
    if missing or foreign or shapes:
        raise _unfit(arch, missing, foreign, shapes)


def _unfit(arch: str, missing: list[str], foreign: list[str], shapes: list[str]) -> InputError:
    what = [f"{len(missing)} missing ({some(missing)})"] * bool(missing)
    what += [f"{len(foreign)} unexpected ({some(foreign)})"] * bool(foreign)
    what += [f"{len(shapes)} of another shape ({some(shapes, 2)})"] * bool(shapes)
    return InputError(
        f"the weights do not fit {arch}: {', '.join(what)}; name the --arch they were made with, {_PYTHON}"
    )
