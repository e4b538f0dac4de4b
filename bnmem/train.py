"""Training one net: tensors that live on the device, batches of indices, no DataLoader.

What differs between the arms of a comparison is the net; initial weights and the order of the batches are shared,
because each comes from a seeded stream of its own.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from tqdm import tqdm

from bnmem import seeds
from bnmem.errors import Diverged, InputError
from bnmem.sources import Info

OPTIMIZERS = ("sgd", "adam")
LOSS_LIMIT = 1e3  # a mean cross-entropy above this is no training any more
EVAL_CHUNK = 500


def device() -> torch.device:
    """A GPU where torch sees one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def to_images(images: np.ndarray, info: Info, where: torch.device) -> torch.Tensor:
    """uint8 [n, H, W(, 3)] -> float32 [n, H, W, C], standardised by the data set's channel statistics.

    Channels stay last in memory: `batch_of` hands them to the net as [n, C, H, W] without a copy.
    """
    if images.dtype != np.uint8:
        raise InputError(f"images are {images.dtype}; give bytes 0 to 255 (uint8)")
    x = torch.from_numpy(images).to(where)
    x = x[..., None] if x.ndim == 3 else x
    mean, std = (torch.tensor(v, device=where) for v in (info.mean, info.std))
    return (x.float() / 255 - mean) / std


def batch_of(x: torch.Tensor, rows) -> torch.Tensor:
    """Rows of [n, H, W, C] as a channels-last [b, C, H, W]."""
    return x[rows].permute(0, 3, 1, 2)


def batches(n: int, batch_size: int, rng: np.random.Generator) -> Iterator[torch.Tensor]:
    """One epoch of row indices in random order. The last batch is kept; a lone sample joins the batch before it."""
    order = torch.from_numpy(rng.permutation(n))
    starts = list(range(0, n, batch_size))
    if n % batch_size == 1 and len(starts) > 1:
        starts.pop()
    for i, start in enumerate(starts):
        yield order[start : starts[i + 1] if i + 1 < len(starts) else n]


def evaluation_epochs(epochs: int) -> list[int]:
    """Where the curves are measured: every epoch to 10, every second to 30, every fifth to 100, then every tenth."""
    steps = [*range(11), *range(12, 31, 2), *range(35, 101, 5), *range(110, epochs + 1, 10)]
    return [e for e in steps if e < epochs] + [epochs]


def fit(
    model: nn.Module,
    x: torch.Tensor,
    y: torch.Tensor,
    *,
    epochs: int,
    lr: float,
    batch_size: int = 128,
    optimizer: str = "sgd",
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    seed: int = 0,
    penalty: Callable[[], torch.Tensor] | None = None,
    at_epoch: Callable[[int, nn.Module], None] | None = None,
    label: str = "",
    progress: bool = False,
) -> None:
    """Minimise the mean cross-entropy at a constant learning rate, in place.

    x float32 [n, H, W, C] (see `to_images`), y int64 [n], both on the model's device. `penalty()` is added to the loss
    of each batch after its forward pass. Dropout has a stream of its own. `at_epoch(epoch, model)` is
    called before training and after each epoch of `evaluation_epochs`. `label` names the settings in the error.
    Raises Diverged after the first epoch with a batch loss that is not finite or above LOSS_LIMIT, and InputError for
    fewer than two samples or an unknown optimiser.
    """
    if len(x) < 2 or len(x) != len(y):
        raise InputError(f"training needs two or more images and as many labels, not {len(x)} and {len(y)}")
    if optimizer not in OPTIMIZERS:
        raise InputError(f"unknown optimizer {optimizer!r}; choose one of {', '.join(OPTIMIZERS)}")
    if optimizer == "sgd":
        opt = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum, weight_decay=weight_decay)
    else:
        opt = torch.optim.Adam(model.parameters(), lr=lr, weight_decay=weight_decay)
    rng = seeds.rng(seed, "order")
    measured = set(evaluation_epochs(epochs)) if at_epoch else set()
    if at_epoch:
        at_epoch(0, model)
    bar = tqdm(range(1, epochs + 1), desc=label or "training", unit="epoch", disable=quiet(progress), leave=False)
    for epoch in bar:
        model.train()
        with _dropout_stream(model, x.device, seed, epoch):
            losses = [
                step(model, opt, batch_of(x, rows), y[rows], penalty) for rows in batches(len(x), batch_size, rng)
            ]
        _stop_if_diverged(torch.stack(losses), epoch, label)
        if epoch in measured:
            at_epoch(epoch, model)


def step(model: nn.Module, opt: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor, penalty=None) -> torch.Tensor:
    """One optimiser step on one batch; the batch's mean loss (with the penalty), detached and still on the device."""
    opt.zero_grad(set_to_none=True)
    loss = F.cross_entropy(model(x), y)
    loss = loss + penalty() if penalty else loss
    loss.backward()
    opt.step()
    return loss.detach()


@contextlib.contextmanager
def _dropout_stream(model: nn.Module, where: torch.device, seed: int, epoch: int) -> Iterator[None]:
    """The global random state of an epoch's dropout, from (seed, epoch) alone; nothing where the net has none."""
    if not any(isinstance(layer, nn.Dropout) for layer in model.modules()):
        yield
        return
    with torch.random.fork_rng([where] if where.type == "cuda" else []):
        torch.manual_seed((seeds.torch_seed(seed, "dropout") + epoch) % 2**63)
        yield


@torch.no_grad()
def logits(model: nn.Module, x: torch.Tensor) -> np.ndarray:
    """Logits of the deployed net (eval mode, running statistics), float32 [n, classes]; the model's mode is kept."""
    was_training = model.training
    model.eval()
    out = [model(batch_of(x, slice(i, i + EVAL_CHUNK))) for i in range(0, len(x), EVAL_CHUNK)]
    model.train(was_training)
    return torch.cat(out).float().cpu().numpy()


def loss_and_correct(z: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cross-entropy (float64 [n]) and whether the label is the first largest logit (bool [n])."""
    z64 = torch.from_numpy(np.asarray(z, np.float64))
    loss = F.cross_entropy(z64, torch.from_numpy(labels), reduction="none").numpy()
    return loss, z.argmax(1) == labels


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """One torch thread inside, the old number after: numbers then do not depend on how many workers run."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def quiet(progress: bool) -> bool | None:
    """tqdm's `disable`: no bar unless wanted, with TQDM_DISABLE=1, or where no terminal or notebook would show it."""
    if not progress or os.environ.get("TQDM_DISABLE", "0") not in ("", "0"):
        return True
    ipython = sys.modules.get("IPython")
    return False if ipython and hasattr(ipython.get_ipython(), "kernel") else None


def _stop_if_diverged(losses: torch.Tensor, epoch: int, label: str) -> None:
    bad = ~(losses <= LOSS_LIMIT)
    if bad.any():
        batch = int(bad.nonzero()[0])
        where = f"epoch {epoch}, batch {batch + 1} of {len(losses)} ({label or 'settings not named'})"
        raise Diverged(f"loss {losses[batch].item():.3g} at {where}; lower lr")
