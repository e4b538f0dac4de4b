"""Shadow models: many nets trained on halves of one pool, their scores out, the nets themselves dropped.

Model m of every arm has the same half of the pool, the same initial weights where the nets have them in common, and the
same order of batches. Models go through joblib, one single-thread worker a core; with BNMEM_SCHEDULER set to the
address of a dask scheduler they go there. Neither changes a number.
"""

import contextlib
import copy
import os
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import joblib
import numpy as np
import torch
from tqdm import tqdm

from bnmem import data, masks, models, norms, records, scores, seeds, shadow_cache, train, training
from bnmem.errors import Diverged, InputError
from bnmem.settings import Settings, setting
from bnmem.sources import SETS
from bnmem.training import Mitigation

CODE = (*training.CODE, "masks", "scores", "shadow_cache", "shadows")
FROZEN_SAMPLES = 1000  # of a model's own half: the constants of frozen normalisation
STRIDE = 10_000  # model m has the streams of seed STRIDE * seed + m
_ONE_TRAINING = threading.Lock()  # a process trains one model at a time: torch's threads and random state are its own


@dataclass(frozen=True)
class Pool(Settings):
    """What all trainings on one pool share."""

    dataset: str = setting("fashion_mnist", "data set", SETS)
    pool: int = setting(4000, "samples of the pool", low=20)
    n_test: int = setting(2000, "test images", low=1)
    arch: str = setting("lenet", "architecture", models.ARCHS)
    init: str = setting("torch", "initialisation", models.INITS)
    ood: str = setting("digits", "source of out-of-distribution images", data.OOD_SOURCES)
    optimizer: str = setting("sgd", "optimiser", train.OPTIMIZERS)
    momentum: float = setting(0.9, "momentum of SGD", low=0.0, high=0.999)
    weight_decay: float = setting(0.0, "weight decay", low=0.0)
    batch_size: int = setting(128, "batch size", low=2)
    lr: float = setting(0.02, "learning rate", low=1e-8)
    epochs: int = setting(20, "epochs", low=1)
    seed: int = setting(0, "seed of all streams", low=0)


@dataclass(frozen=True)
class Shadows(Pool, Mitigation):
    """Everything that determines one arm of shadow models."""

    norm: str = setting("batch", "normalisation", norms.NORMS)
    corruption: str = setting("none", "how samples of the pool are made atypical", data.CORRUPTIONS)
    rate: float = setting(0.0, "atypical fraction of the pool", low=0.0, high=0.5)
    models: int = setting(16, "shadow models, in complementary pairs", low=1, high=STRIDE)
    scored: tuple = setting((2, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 20), "epochs after which the pool is scored", low=0)
    queries: tuple = setting((32, 128, 512), "batch sizes of the query with batch statistics", low=2)


def check(s: Shadows) -> None:
    """Raises InputError where LiRA could not be read from such models."""
    if s.models % 2 or s.models < 6:
        raise InputError(
            f"models must be even and 6 or more, not {s.models}; LiRA leaves a pair out and needs two more"
        )
    if s.corruption != "none" and round(s.rate * s.pool) < 4:
        raise InputError(f"rate {s.rate} of {s.pool} makes fewer than 4 outliers; raise rate or pool")
    known = train.evaluation_epochs(s.epochs)
    if list(s.scored) != sorted(set(s.scored) & set(known)) or s.scored[-1] != s.epochs:
        raise InputError(f"scored must rise to {s.epochs} (epochs) within {known}, not {list(s.scored)}")


@lru_cache(maxsize=2)
def _pool(dataset: str, n: int, n_test: int, corruption: str, rate: float, seed: int, ood: str):
    selection = data.load(dataset, n, 0, n_test)
    return selection, data.corrupt(selection, corruption, rate, seed, ood)


def pool(s: Shadows) -> tuple[data.Dataset, data.Corrupted]:
    """The selection of images and the pool, corrupted where the settings say so."""
    return _pool(s.dataset, s.pool, s.n_test, s.corruption, s.rate, s.seed, s.ood)


def fingerprint(s: Shadows) -> str:
    selection, bad = pool(s)
    return data.fingerprint(bad.images, bad.labels, selection.test.images, selection.test.labels)


def groups(bad: data.Corrupted) -> np.ndarray:
    """ "clean", "flip" or "ood" for every sample of the pool, strings [N]."""
    kind = np.full(len(bad.labels), "clean")
    kind[bad.flipped], kind[bad.ood] = "flip", "ood"
    return kind


def masks_of(s: Shadows) -> np.ndarray:
    """Who trains on what: booleans [models, N], the same for every arm, more models never change earlier rows."""
    _, bad = pool(s)
    return masks.paired(bad.labels, groups(bad), pairs=s.models // 2, seed=seeds.rng(s.seed, "mask"))


def train_one(s: Shadows, m: int) -> dict[str, np.ndarray]:
    """Train model m on its half and score the whole pool.

    Returns phi_E float32 [N] and correct_E bool [N] (running statistics) after each epoch E of `scored`; test float64,
    the test accuracy then; phi_batch_B float32 [N] after the last epoch with the statistics of query batches of B, in
    one fixed order of the pool, where the net has batch normalisation; moved float64 [2], the largest change of phi
    when the pool is queried in another order, with running and with batch statistics (NaN without them); seconds.
    """
    start = time.perf_counter()
    selection, bad = pool(s)
    inside = np.flatnonzero(masks_of(replace(s, models=2 * (m // 2 + 1)))[m])
    where, info = train.device(), selection.info
    net = training.net(s, info.shape, info.classes, STRIDE * s.seed + m, where)
    x, x_test = (train.to_images(images, info, where) for images in (bad.images, selection.test.images))
    rows = torch.from_numpy(inside).to(where)
    norms.measure_frozen(net, train.batch_of(x, rows[:FROZEN_SAMPLES]))
    out, test = {}, []

    def measure(epoch, net):
        if epoch in s.scored:
            z = train.logits(net, x)
            out[f"phi_{epoch}"] = _phi(z, bad.labels, f"epoch {epoch}, model {m}")
            out[f"correct_{epoch}"] = scores.correct(z, bad.labels)
            test.append(scores.correct(train.logits(net, x_test), selection.test.labels).mean())

    with training.penalty(s, net) as term:
        train.fit(
            net, x[rows], torch.from_numpy(bad.labels[inside]).to(where), epochs=s.epochs, lr=s.lr,
            batch_size=s.batch_size, optimizer=s.optimizer, momentum=s.momentum, weight_decay=s.weight_decay,
            seed=STRIDE * s.seed + m, penalty=term, at_epoch=measure,
            label=f"model {m}, norm {s.norm}, lr {s.lr:g}",
        )  # fmt: skip
    out |= _queries(s, net, x, bad.labels, out[f"phi_{s.epochs}"])
    return out | {"test": np.array(test), "seconds": np.array(time.perf_counter() - start)}


def _queries(s: Shadows, net, x: torch.Tensor, labels: np.ndarray, phi: np.ndarray) -> dict[str, np.ndarray]:
    """The same net asked again: in another order, and with the statistics of the query batch."""
    rng = seeds.rng(s.seed, "noise")
    order, other = rng.permutation(len(x)), rng.permutation(len(x))
    moved = np.full(2, np.nan)
    again = np.empty_like(phi)
    again[other] = _phi(train.logits(net, x[torch.from_numpy(other).to(x.device)]), labels[other], "another order")
    moved[0] = np.abs(again - phi).max()
    out = {}
    if any(isinstance(layer, torch.nn.BatchNorm2d) for layer in net.modules()):
        for size in s.queries:
            out[f"phi_batch_{size}"] = _phi(batch_logits(net, x, order, size), labels, f"query batches of {size}")
        again = _phi(batch_logits(net, x, other, s.queries[-1]), labels, "query batches in another order")
        moved[1] = np.abs(again - out[f"phi_batch_{s.queries[-1]}"]).max()
    return out | {"moved": moved}


@torch.no_grad()
def batch_logits(net: torch.nn.Module, x: torch.Tensor, order: np.ndarray, size: int) -> np.ndarray:
    """Logits with the statistics of the query batch (train mode), float32 [n, classes] in x's order.

    Batches are `size` consecutive images of x[order]; a lone last one joins the batch before. The net is left as it is.
    """
    net = copy.deepcopy(net).train()
    rows = torch.from_numpy(order).to(x.device)
    parts = list(rows.split(size))
    if len(parts) > 1 and len(parts[-1]) == 1:
        parts[-2:] = [torch.cat(parts[-2:])]
    asked = torch.cat([net(train.batch_of(x, part)) for part in parts]).float().cpu().numpy()
    out = np.empty_like(asked)
    out[order] = asked
    return out


def _phi(z: np.ndarray, labels: np.ndarray, where: str) -> np.ndarray:
    if not np.isfinite(z).all():
        raise Diverged(f"logits are not finite ({where}); lower lr")
    return scores.phi(z, labels).astype(np.float32)


def _places(s: Shadows) -> Iterator[Path]:
    """The cache file of every model. The number of models is no part of the name: more of them keep the first ones."""
    alone = replace(s, models=Shadows.models)
    home = shadow_cache.place(records.key("shadows", alone, fingerprint(s)), records.code_hash(CODE))
    return (home / f"{m:05d}.npz" for m in range(s.models))


def fill(arms: Sequence[Shadows], *, fresh: bool = False, workers: int | None = None, progress: bool = True) -> None:
    """Train the missing models (all, when `fresh`) of all arms, each stored as it finishes.

    workers: None takes one a core, one in all where a GPU is used; with BNMEM_SCHEDULER the cluster decides. Memory
    does not grow with the number of models. Raises InputError where the settings or the scheduler cannot be used, and
    Diverged when a training does: the models finished before it stay.
    """
    for s in arms:
        check(s)
    every = [(s, m, path) for s in dict.fromkeys(arms) for m, path in enumerate(_places(s))]
    todo = [row for row in every if fresh or shadow_cache.load(row[2]) is None]
    if not todo:
        return
    code = records.code_hash(CODE)
    with _parallel(len(todo), workers) as parallel:
        made = parallel(joblib.delayed(_work)(i, s, m) for i, (s, m, _) in enumerate(todo))
        for i, arrays in tqdm(made, "shadow models", len(todo), unit="model", disable=train.quiet(progress)):
            if records.code_hash(CODE) != code:
                raise InputError("bnmem's files changed while it was computing; run again with the new code")
            shadow_cache.save(todo[i][2], arrays)


def _work(i: int, s: Shadows, m: int) -> tuple[int, dict[str, np.ndarray]]:
    with _ONE_TRAINING, train.one_thread():
        return i, train_one(s, m)


def column(s: Shadows, name: str) -> np.ndarray:
    """One array of every model, stacked [models, ...]; `fill` must have run. Raises KeyError where they have none."""
    rows = []
    for m, path in enumerate(_places(s)):
        arrays = shadow_cache.load(path)
        if arrays is None:
            raise InputError(f"the scores of model {m} are gone ({path}); run again")
        rows.append(arrays[name])
    return np.stack(rows)


@contextlib.contextmanager
def _parallel(tasks: int, workers: int | None) -> Iterator[joblib.Parallel]:
    """Where models are trained: a dask cluster, loky's processes, or this process for a single worker."""
    options = {"batch_size": 1, "return_as": "generator_unordered"}
    address = os.environ.get("BNMEM_SCHEDULER")
    if not address:
        workers = min(tasks, workers or (1 if torch.cuda.is_available() else joblib.cpu_count()))
        yield joblib.Parallel(workers, backend="loky" if workers > 1 else "sequential", **options)
        return
    try:
        from dask.distributed import Client
    except ImportError as error:
        raise InputError("BNMEM_SCHEDULER is set and dask is not installed; pip install 'dask[distributed]'") from error
    try:
        client = Client(address, set_as_default=False, timeout=30)
    except (OSError, ValueError) as error:
        raise InputError(f"no dask scheduler at BNMEM_SCHEDULER={address} ({error}); start one or unset it") from error
    with client, joblib.parallel_config("dask", client=client):
        yield joblib.Parallel(n_jobs=-1, **options)
