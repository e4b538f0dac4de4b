"""Per-sample gradient norms of a net with batch normalisation, by four definitions.

| name | the gradient of sample i | these sum to |
|---|---|---|
| eval | running statistics: the deployed net | the gradient of the eval-mode loss |
| frozen | this batch's mean and variance as constants: the theorem's setting | the gradient with statistics held |
| loss | true d loss_i / d theta in train mode, through the shared statistics | the batch gradient |
| param | of the whole batch's loss, with respect to sample i's private copy of theta | the batch gradient |

The loss is cross-entropy, *summed* over samples. Its gradient at the logits is formed in float64 without cancellation
and carried in units of a power of two for each sample, so well-fitted samples (margins up to about 700) keep their
digits in float32; `param`, where samples mix, has one unit for the batch.

`eval`, `frozen` and `param` take one forward and one backward pass that forms no weight gradient; each layer's rule
(`bnmem.grads_layers`) turns its input and output gradient into norms and drops both. `loss` takes one backward pass
for each sample.
"""

from contextlib import contextmanager
from numbers import Integral

import numpy as np
import torch
from torch import nn

from bnmem.errors import InputError
from bnmem.grads_layers import rules_of
from bnmem.grads_linear import norm

DEFINITIONS = ("eval", "frozen", "loss", "param")
MOST, NUMBERS = 128, 150_000  # in eval by default: samples a pass, and numbers of x in them


def norms(
    model: nn.Module,
    x: torch.Tensor,
    y: torch.Tensor,
    bn: str = "eval",
    per_layer: bool = False,
    chunk: int | None = None,
) -> np.ndarray | dict[str, np.ndarray]:
    """The l2 norm of every sample's gradient of its cross-entropy with respect to the trainable parameters.

    model: logits [n, classes] from x; on x's device, in any mode: what is not a normalisation layer runs in eval mode
    (so dropout is off) in all four definitions. Its parameters belong to Conv2d, Linear, BatchNorm, GroupNorm,
    LayerNorm, InstanceNorm, PReLU, Affine2d or FrozenNorm2d layers, each called on inputs whose first axis is the
    sample, any number of times; one parameter may sit in several layers. Parameters with requires_grad=False are left
    out of the norm. Batch statistics are those of BatchNorm layers (FrozenNorm2d keeps its constants in every
    definition); normalisation by hand inside a forward counts as part of the net.
    x: [n, ...], the parameters' dtype, any memory format. y: int64 [n], 0 <= y < classes.
    bn: the definition (see the module). In `frozen`, `loss` and `param` all of x is one batch, n >= 2.
    per_layer: norms by layer (weight and bias together), under the layer's name in model.named_modules(); a parameter
    of several layers counts in the first.
    chunk: a bound on memory that changes no number beyond rounding. eval: samples a pass (default: 150,000 numbers of
    x, but 8 to 128 samples). loss: backward passes vectorised into one (default 1, which is also the fastest on a CPU).
    frozen, param: no effect, since the batch must be whole; memory is about that of a training step.

    Returns float64 [n], or {layer name: float64 [n]}, of which it is the root of the sum of squares; in units of loss
    over units of parameter. Model, buffers, modes, gradients, hooks and global random state are left as found, also
    after an exception; the user's forward hooks run.
    Raises InputError for anything else than the above: a layer without a rule, a parameter used outside its layer's
    forward, a layer whose input does not begin with the n samples, a batch of one where statistics are the batch's,
    labels, devices, dtypes, NaN or infinity in x or in the logits.
    """
    model = getattr(model, "_orig_mod", model)  # what torch.compile wraps
    made, owners = _measured(model, x, y, bn, chunk)
    layers = {}
    for name, row in zip(owners.values(), made.cpu().numpy(), strict=True):
        layers[name] = layers.get(name, 0.0) + row**2
    return {name: np.sqrt(s) for name, s in layers.items()} if per_layer else np.sqrt(sum(layers.values()))


def _measured(model, x, y, bn, chunk=None, whole=False):
    """Norms float64 [parameters, n] and {parameter: layer name} in the same order.

    If `whole`, a list of per-sample gradients [n, *shape] instead of the norms.
    """
    _check_arguments(model, x, y, bn, chunk)
    layers = dict(model.named_modules())
    owners, rules = rules_of(layers, x, bn)
    with _as_found(layers.values(), rules, x.device) as patch:
        x = x.clone() if x.is_inference() else x.detach()
        if bn == "loss":
            return _by_sample(patch, model, x, y, owners, chunk or 1, whole), owners
        step = len(x) if bn != "eval" else chunk or min(MOST, max(8, NUMBERS // x[0].numel()))
        one = _Pass(patch, model, bn, owners, whole)
        parts = [one(a.contiguous(), b) for a, b in zip(x.split(step), y.split(step), strict=True)]
    return ([torch.cat(p) for p in zip(*parts, strict=True)] if whole else torch.cat(parts, 1)), owners


class _Root(torch.autograd.Function):
    """The start of the graph: a layer's output that requires gradients although nothing before it does."""

    @staticmethod
    def forward(ctx, token, run):
        return run()

    @staticmethod
    def backward(ctx, g):
        return None, None


class _Pass:
    """One forward and one backward pass of the summed loss; parameters are detached: no weight gradient is formed."""

    def __init__(self, patch, model, bn, owners, whole):
        self.model, self.bn, self.owners, self.whole = model, bn, owners, whole
        patch(self.call)

    def __call__(self, x, y):
        self.n, self.uses, self.norms, self.sums = len(x), dict.fromkeys(self.owners, 0), {}, {}
        self.token = torch.zeros((), device=x.device, requires_grad=True)
        logits = _logits(self.model, x, y, self.owners)
        seeds, unit = _seeds(logits, y, together=self.bn == "param")
        if logits.requires_grad:
            torch.autograd.grad(logits, self.token, seeds, allow_unused=True)
        if self.whole:
            made = [self.sums.get(p, p.new_zeros(self.n, *p.shape)) for p in self.owners]
            return [g * unit.to(g).view(-1, *(1,) * (g.dim() - 1)) for g in made]
        self.norms |= {p: norm(g) for p, g in self.sums.items()}
        never = x.new_zeros(self.n)
        return torch.stack([self.norms.get(p, never) for p in self.owners]).cpu().double() * unit

    def call(self, name, layer, made, x):
        """What stands in for layer.forward(x)."""
        _check_first_axis(name, layer, x, self.n)
        rule, wanted = made(layer, self.bn), {}
        for which, p in layer._parameters.items():
            if p in self.owners:
                wanted[which] = p
                self.uses[p] += 1
        args = [None if p is None else p.detach().contiguous() for p in _both(layer)]
        if not wanted:
            return rule.run(x, *args)
        out = rule.run(x, *args) if x.requires_grad else _Root.apply(self.token, lambda: rule.run(x, *args))
        if out.requires_grad:  # not so under a no_grad in the model's forward: then the gradient is zero
            held, version = [x.detach()], x._version
            out.register_hook(lambda g: self.contract(name, rule, wanted, held, version, g))
        return out

    @torch.no_grad()
    def contract(self, name, rule, wanted, held, version, g):
        x = held.pop()
        if x._version != version:
            raise InputError(f"the input of layer {name!r} is changed in place after use; make that step out of place")
        several = {which for which, p in wanted.items() if self.whole or self.uses[p] > 1}
        if several:
            for which, made in rule.grads(x, g, several).items():
                self.sums[wanted[which]] = self.sums.get(wanted[which], 0) + made
        if len(several) < len(wanted):
            for which, made in rule.norms(x, g, wanted.keys() - several).items():
                self.norms[wanted[which]] = made


def _by_sample(patch, model, x, y, owners, chunk, whole):
    """Definition loss: a backward pass for each sample through one graph, `chunk` of them vectorised."""
    leaves = {p: p.detach().requires_grad_() for p in owners}

    def call(name, layer, made, x):
        _check_first_axis(name, layer, x, len(y))
        return made(layer, "loss").run(x, *(leaves.get(p, p) for p in _both(layer)))

    patch(call)
    logits = _logits(model, x, y, owners)
    seeds, unit = _seeds(logits, y)
    parts, options = [], {"retain_graph": True, "allow_unused": True}
    for rows in torch.arange(len(y), device=x.device).split(chunk):
        seed = seeds.new_zeros(len(rows), *seeds.shape)
        seed[torch.arange(len(rows), device=x.device), rows] = seeds[rows]
        made = [None] * len(owners)
        if logits.requires_grad and chunk > 1:
            made = torch.autograd.grad(logits, list(leaves.values()), seed, is_grads_batched=True, **options)
        elif logits.requires_grad:
            made = torch.autograd.grad(logits, list(leaves.values()), seed[0], **options)
            made = [None if g is None else g[None] for g in made]
        made = [p.new_zeros(len(rows), *p.shape) if g is None else g for p, g in zip(owners, made, strict=True)]
        parts.append(made if whole else torch.stack([norm(g) for g in made]).cpu().double())
    if whole:
        return [torch.cat(g) * unit.to(g[0]).view(-1, *(1,) * (g[0].dim() - 1)) for g in zip(*parts, strict=True)]
    return torch.cat(parts, 1) * unit


def _seeds(logits, y, together=False):
    """Gradient of the summed cross-entropy at the logits [n, classes]: p_j for j != y, and minus their sum at y.

    Formed in float64 on the CPU (not every device has it), returned like the logits in units of the second value,
    powers of two float64 [n] (one for all if `together`).
    """
    y, p = y.cpu(), logits.detach().cpu().double().softmax(1)
    p = p.scatter(1, y[:, None], 0.0)
    p = p.scatter(1, y[:, None], -p.sum(1, keepdim=True))
    size = p.abs().amax(1)
    unit = torch.exp2(torch.frexp(size.amax().expand(len(p)) if together else size)[1].double())
    return (p / unit[:, None]).to(logits), unit


def _logits(model, x, y, owners):
    """The model's output, once it is sure that no trainable parameter reached it past the layers' rules."""
    logits = model(x)
    if not isinstance(logits, torch.Tensor) or logits.dim() != 2 or len(logits) != len(x):
        raise InputError("the model must return logits [n, classes]; wrap it so that it does")
    if not _finite(logits):
        raise InputError("the model's logits have NaN or infinity: it has diverged; use an earlier checkpoint")
    if int(y.max()) >= logits.shape[1]:
        raise InputError(f"label {int(y.max())} in y, but the model has {logits.shape[1]} classes: labels start at 0")
    todo, seen = [logits.grad_fn], {None}
    while todo:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            if getattr(node, "variable", None) in owners:
                raise InputError(
                    f"a parameter of layer {owners[node.variable]!r} is used outside that layer's forward; call the "
                    "layer itself, or freeze the parameter with requires_grad_(False)"
                )
            todo += [following for following, _ in node.next_functions]
    return logits


def _finite(t):
    """Whether no element is NaN or infinite; a sum tells it at once unless it overflows."""
    return bool(t.detach().sum().isfinite()) or bool(t.isfinite().all())


def _both(layer):
    return getattr(layer, "weight", None), getattr(layer, "bias", None)


@contextmanager
def _as_found(layers, rules, device):
    """Eval mode, a random state apart, gradients on, autocast and inference mode off; all undone at the end.

    Yields patch(call): replaces every ruled layer's forward by call(name, layer, rule, x), undone at the end too.
    """
    modes = [(layer, layer.training) for layer in layers]

    def patch(call):
        for name, layer, made in rules:
            vars(layer)["forward"] = lambda input, *, args=(name, layer, made): call(*args, input)

    try:
        for layer, _ in modes:
            vars(layer)["training"] = False
        with (
            torch.random.fork_rng([device] if device.type == "cuda" else []),
            torch.inference_mode(False),
            torch.enable_grad(),
            torch.autocast(device.type, enabled=False),
        ):
            yield patch
    finally:
        for layer, mode in modes:
            vars(layer)["training"] = mode
        for _, layer, _ in rules:
            vars(layer).pop("forward", None)


def _check_arguments(model, x, y, bn, chunk):
    if bn not in DEFINITIONS:
        raise InputError(f"unknown definition bn={bn!r}; choose one of {', '.join(DEFINITIONS)}")
    if not isinstance(model, nn.Module):
        raise InputError(f"model must be a torch.nn.Module, not {type(model).__name__}; pass the net itself")
    for value, name in ((x, "x"), (y, "y")):
        if not isinstance(value, torch.Tensor):
            raise InputError(f"{name} must be a torch tensor, not {type(value).__name__}; use torch.as_tensor")
    if chunk is not None and (not isinstance(chunk, Integral) or chunk < 1):
        raise InputError(f"chunk must be a whole number of at least 1, or None for the default, not {chunk!r}")
    if y.dtype != torch.int64 or y.dim() != 1:
        raise InputError(f"y must be int64 of shape [n], not {y.dtype} of shape {tuple(y.shape)}; use y.long()")
    if x.dim() < 2 or len(x) != len(y):
        raise InputError(f"x {tuple(x.shape)} and y {tuple(y.shape)} must hold the same n samples along the first axis")
    if len(x) == 0:
        raise InputError("the batch is empty; pass at least one sample")
    if len(x) == 1 and bn != "eval":
        raise InputError(f"a batch of one has no batch statistics; pass two samples or more, or bn='eval', not {bn!r}")
    if y.device != x.device:
        raise InputError(f"x is on {x.device} but y on {y.device}; move one with .to()")
    if int(y.min()) < 0:
        raise InputError(f"label {int(y.min())} in y: labels must lie in 0 ... classes - 1; drop ignored samples")
    if not all(map(_finite, x.split(1024))):
        raise InputError("x has NaN or infinity; clean the inputs first")


def _check_first_axis(name, layer, x, n):
    if x.dim() < 2 or len(x) != n:
        raise InputError(
            f"layer {name!r} ({type(layer).__name__}) got an input of shape {tuple(x.shape)} where its first axis must "
            f"be the {n} samples; keep the batch axis first and unmerged"
        )
