"""Claim C8: is gamma/sigma above 1 in most layers of trained nets, and is it training that brings it there?

Nets with batch normalisation, from torch's default initialisation and from He's, with a share of the labels flipped.
gamma/sigma of every channel before, during and after training; the scale-free reading |gamma| ||w|| / sigma beside it;
and how much of what the net has memorized hangs on each layer.
"""

from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import spearmanr

from bnmem import data, jobs, models, train
from bnmem.errors import InputError
from bnmem.jobs import Job
from bnmem.layers import LAYERS, Layers
from bnmem.records import Record
from bnmem.rules import RULES, Cell, cell_status
from bnmem.settings import Settings, setting
from bnmem.sources import SETS
from bnmem.stats import Interval, t_interval

NAME = "gamma_sigma"
KINDS = (LAYERS,)
CLAIMS = {"share_above_one": "C8", "log2_ratio_change": "C8"}
READINGS = ("ratio", "scale_free", "running")
ENOUGH_LAYERS = 5  # a rank correlation over fewer says nothing
ENOUGH_FITTED = 10  # corrupted samples that a net must fit before the share it forgets means something


@dataclass(frozen=True)
class GammaSigma(Settings):
    """The experiment's parameters; every one can be set through papermill."""

    dataset: str = setting("fashion_mnist", "data set", SETS)
    archs: tuple = setting(("lenet", "resnet8", "densenet"), "architectures", models.ARCHS)
    inits: tuple = setting(("torch", "he"), "initialisations; the verdict is on torch's", models.INITS)
    n_train: int = setting(5000, "training images of LeNet", low=2)
    n_deep: int = setting(1600, "training images of the deeper nets", low=2)
    n_val: int = setting(200, "validation images, training images kept aside", low=1)
    n_test: int = setting(500, "test images", low=1)
    corruption: str = setting("flip", "how training samples are made atypical", ("flip", "ood"))
    rate: float = setting(0.05, "corrupted fraction of the training set", low=0.0, high=0.5)
    ood: str = setting("digits", "source of out-of-distribution images", data.OOD_SOURCES)
    optimizer: str = setting("sgd", "optimiser", train.OPTIMIZERS)
    momentum: float = setting(0.9, "momentum of SGD", low=0.0, high=0.999)
    weight_decay: float = setting(0.0, "weight decay of all nets", low=0.0)
    decay: float = setting(0.005, "weight decay of one more arm, the first net's; 0 leaves it out", low=0.0)
    lr: float = setting(0.02, "learning rate", low=1e-8)
    batch_size: int = setting(128, "batch size of LeNet", low=2)
    batch_deep: int = setting(32, "batch size of the deeper nets", low=2)
    epochs: int = setting(30, "epochs of LeNet", low=1)
    epochs_deep: int = setting(20, "epochs of the deeper nets", low=1)
    checkpoints: tuple = setting((0, 1, 2, 4, 8, 14, 20), "epochs measured by channel; the last one always is", low=0)
    early: int = setting(2, "checkpoint to which layers are rewound, beside the initialisation", low=1)
    rewind_clean: int = setting(500, "clean training images that rewinding is measured on", low=1)
    seeds: int = setting(3, "number of seeds", low=1, high=100)

    @classmethod
    def profiles(cls) -> dict[str, dict]:
        full = {"n_train": 50_000, "n_deep": 50_000, "n_val": 5_000, "n_test": 10_000, "ood": "sibling"}
        small = {"n_train": 300, "n_deep": 120, "n_val": 20, "n_test": 50, "batch_size": 32, "rewind_clean": 60}
        return {
            "smoke": small | {"epochs": 4, "epochs_deep": 3, "rate": 0.1, "checkpoints": (0, 1), "early": 1,
                              "seeds": 2},
            "laptop": {},
            "grid": {"n_deep": 5000, "batch_deep": 128, "epochs": 60, "epochs_deep": 60, "ood": "sibling"},
            "paper": full | {"archs": ("lenet", "resnet18", "densenet121"), "batch_deep": 128, "epochs": 100,
                             "epochs_deep": 100},
        }  # fmt: skip


SETTINGS = GammaSigma


@dataclass(frozen=True)
class Result:
    """All records of one run: (architecture, initialisation, weight decay) -> one record a seed."""

    settings: GammaSigma
    runs: dict[tuple[str, str, float], list[Record]]
    notes: list[str]

    @property
    def records(self) -> list[Record]:
        return [record for rows in self.runs.values() for record in rows]

    @property
    def plain(self) -> list[tuple[str, str]]:
        """(architecture, initialisation) of the arms at the common weight decay, in order."""
        return [(arch, init) for arch, init, decay in self.runs if decay == self.settings.weight_decay]

    def of(self, arch: str, init: str, decay: float | None = None) -> list[Record]:
        return self.runs[arch, init, self.settings.weight_decay if decay is None else decay]

    def with_record(self, new: Record) -> "Result":
        """The same result with `new` in the place of the record of its key."""
        return replace(
            self, runs={arm: [new if r.key == new.key else r for r in rows] for arm, rows in self.runs.items()}
        )


def run(s: GammaSigma, **options) -> Result:
    """Read the experiment's records, computing what is missing; options go to `jobs.run`.

    Raises InputError when nothing would be corrupted or `early` is no checkpoint, and Diverged when a training does.
    """
    arms = {(arch, init, s.weight_decay): None for arch in s.archs for init in s.inits}
    if s.decay:
        arms[s.archs[0], s.inits[0], s.decay] = None
    sizes = [_size(s, arch) for arch in s.archs]
    if min(round(s.rate * size["n_train"]) for size in sizes) < 1:
        raise InputError(f"rate {s.rate} corrupts none of the images of a net; raise rate, n_train or n_deep")
    if 0 not in s.checkpoints or s.early not in s.checkpoints or s.early >= min(size["epochs"] for size in sizes):
        raise InputError(f"checkpoints must hold 0 and early ({s.early}), and early must lie before the last epoch")
    plan = [job_of(s, *arm, seed) for arm in arms for seed in range(s.seeds)]
    found = jobs.run(plan, **options)
    runs = {arm: found[i * s.seeds : (i + 1) * s.seeds] for i, arm in enumerate(arms)}
    return Result(s, runs, jobs.check_code(KINDS, found))


def job_of(s: GammaSigma, arch: str, init: str, decay: float, seed: int) -> Job:
    same = ("dataset", "n_val", "n_test", "corruption", "rate", "ood", "optimizer", "momentum", "lr", "rewind_clean")
    size = _size(s, arch)
    kept = tuple(e for e in train.evaluation_epochs(size["epochs"]) if e in (*s.checkpoints, size["epochs"]))
    settings = {name: getattr(s, name) for name in same} | size | {"checkpoints": kept, "rewind": (0, s.early)}
    return Job(NAME, LAYERS, Layers(**settings, arch=arch, init=init, weight_decay=decay, seed=seed))


def _size(s: GammaSigma, arch: str) -> dict[str, int]:
    if arch == "lenet":
        return {"n_train": s.n_train, "batch_size": s.batch_size, "epochs": s.epochs}
    return {"n_train": s.n_deep, "batch_size": s.batch_deep, "epochs": s.epochs_deep}


def channels(record: Record, reading: str = "ratio") -> dict[str, np.ndarray]:
    """layer -> one reading of every channel, float64 [checkpoints, channels]; NaN where the reading is not defined.

    ratio: |gamma|/sigma with sigma over training images; scale_free: that times ||w||; running: with the running
    sigma, which is 1 in an untrained net whatever its activations and so NaN there.
    """
    a = {name: record.arrays[name].astype(np.float64) for name in ("gamma", "sigma", "running_sigma", "weight_norm")}
    if reading == "running":
        values = np.abs(a["gamma"]) / a["running_sigma"]
        values[0] = np.nan
    else:
        values = np.abs(a["gamma"]) / a["sigma"] * (a["weight_norm"] if reading == "scale_free" else 1)
    ends = np.cumsum(record.numbers["channels"])[:-1]
    return dict(zip(record.numbers["layers"], np.split(values, ends, axis=1), strict=True))


def by_layer(record: Record, reading: str = "ratio") -> np.ndarray:
    """The mean over channels, float64 [layers, checkpoints]."""
    return np.array([values.mean(axis=1) for values in channels(record, reading).values()])


def effects(rows: list[Record], reading: str = "ratio") -> dict[str, Interval]:
    """The two metrics of claim C8 over seeds; layers without this reading are left out."""
    found = [by_layer(r, reading) for r in rows]
    found = [v[np.isfinite(v[:, -1])] for v in found]
    share = [np.mean(v[:, -1] > 1) - 0.5 for v in found]
    start = 1 if reading == "running" else 0
    change = [np.log2(v[:, -1].mean() / v[:, start].mean()) for v in found]
    return {"share_above_one": t_interval(share), "log2_ratio_change": t_interval(change)}


def share_before(rows: list[Record], reading: str = "ratio") -> float:
    """The share of layers whose mean is above 1 before training, mean over seeds."""
    found = [by_layer(r, reading)[:, 0] for r in rows]
    return float(np.mean([np.mean(v[np.isfinite(v)] > 1) for v in found]))


def memorizing(record: Record, early: int = 0) -> np.ndarray:
    """How strongly each layer memorizes, float64 [layers]: the share of the corrupted samples fitted before that is
    forgotten when the layer is rewound, minus the share of the clean ones. NaN where no single convolution feeds the
    layer (then gamma and beta alone were rewound), or where the net had fitted fewer than ENOUGH_FITTED of them.

    early: 0 rewinds to the initialisation (the definition, because it chooses nothing), 1 to the early checkpoint.
    """
    forgotten = {g: record.arrays[f"forgotten_{g}"].astype(np.float64)[early] for g in ("corrupted", "clean")}
    known = np.array([name is not None for name in record.numbers["fed_by"]])
    known &= record.numbers["fitted"]["corrupted"][0] >= ENOUGH_FITTED
    return np.where(known, forgotten["corrupted"] - forgotten["clean"], np.nan)


def correlation(rows: list[Record], reading: str = "ratio", early: int = 0) -> Interval | None:
    """Spearman's rank correlation, over the layers of a net, of a reading after training with `memorizing`; mean and
    interval over seeds. None for nets of fewer than ENOUGH_LAYERS such layers, or where a seed has no ranks."""
    values = []
    for r in rows:
        ratio, memory = by_layer(r, reading)[:, -1], memorizing(r, early)
        known = np.isfinite(ratio) & np.isfinite(memory)
        if known.sum() < ENOUGH_LAYERS or min(np.ptp(ratio[known]), np.ptp(memory[known])) == 0:
            return None
        values.append(spearmanr(ratio[known], memory[known]).statistic)
    return t_interval(values)


def cells(result: Result, init: str = "torch", reading: str = "ratio") -> dict[str, list[Cell]]:
    """The cells of the scorecard, one a metric and architecture: claim -> effects with intervals.

    The claim is judged with sigma over training images and torch's initialisation; other arguments are for comparison.
    """
    s = result.settings
    found = []
    for arch in (arch for arch, of in result.plain if of == init):
        where = f"{s.dataset} / {arch} / {100 * s.rate:g} % {s.corruption}, {init} initialization"
        for metric, i in effects(result.of(arch, init), reading).items():
            found.append(Cell(metric, where, i.mean, i.low, i.high))
    return {"C8": found}


def statuses(result: Result) -> list[str]:
    """ "holds", "fails" or "open" for every cell."""
    metrics = {metric.name: metric for metric in RULES["C8"].metrics}
    return [cell_status(cell, metrics[cell.metric]) for cell in cells(result)["C8"]]
