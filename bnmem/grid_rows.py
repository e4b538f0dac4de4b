"""The grid: every cell that the scorecard reads, one row each, and the computations that a row stands for.

Sizes are the same for both arms, each arm trains at its own best learning rate, chosen on a validation split of
unused training images (grid_trials.py). One training yields forced memorization, gradient norms and gamma/sigma.
"""

from dataclasses import dataclass, field, replace

from bnmem.exp_membership_inference import MembershipInference
from bnmem.exp_regularization import Regularization
from bnmem.grid_trials import TRAINED
from bnmem.jobs import Job
from bnmem.records import Record
from bnmem.settings import Settings, setting
from bnmem.sweep import Sweep
from bnmem.training import SEARCH, Search

NAME = "grid"
DATASETS = ("mnist", "fashion_mnist", "cifar10", "cifar100")
ARMS = ("batch", "none")

LENET = {"arch": "lenet", "n_train": 5000, "n_val": 1000, "n_test": 2000}
DEEP = {"n_train": 3000, "n_val": 500, "n_test": 1000, "epochs": 20, "checkpoints": (0, 2, 6, 12, 20)}
LENET_SEARCH = {"n_train": 3000, "n_val": 1000, "n_test": 100, "epochs": 10, "lrs": (0.01, 0.02, 0.05, 0.1, 0.2)}
DEEP_SEARCH = {"n_train": 3000, "n_val": 500, "n_test": 100, "epochs": 8, "lrs": (0.02, 0.05, 0.1, 0.2)}
LENET_POOL = {"arch": "lenet", "scored": (4, 6, 8, 10, 12, 16, 20), "queries": (128,)}
DEEP_POOL = {"pool": 3000, "n_test": 1000, "scored": (4, 8, 12, 16, 20), "queries": (128,)}
TINY = {"n_train": 400, "n_val": 100, "n_test": 200, "batch_size": 32, "epochs": 4, "probe": 128}
TINY_SEARCH = {"n_train": 400, "n_val": 100, "n_test": 100, "batch_size": 32, "epochs": 2, "lrs": (0.02, 0.05)}


@dataclass(frozen=True)
class Trainings(Sweep):
    """A row of trainings: both arms under seeds 0 .. seeds - 1, each at its own best learning rate."""

    seeds: int = setting(3, "number of seeds", low=1)

    def job(self, norm: str, lr: float, seed: int) -> Job:
        same = {name: getattr(self, name) for name in Sweep.__dataclass_fields__}
        return Job(NAME, TRAINED, Sweep(**same | {"norm": norm, "lr": lr, "seed": seed}))


@dataclass(frozen=True)
class Row:
    """One row: its tier (0 is the smoke test's), its settings, and what the learning rates are searched with."""

    tier: int
    settings: Settings
    search: tuple

    @property
    def what(self) -> str:
        return {Trainings: "trainings", MembershipInference: "lira", Regularization: "regularization"}[
            type(self.settings)
        ]

    @property
    def name(self) -> str:
        """What --only matches, such as trainings/cifar10/lenet/flip-0.05."""
        s = self.settings
        rates = ",".join(f"{rate:g}" for rate in s.rates) if self.what == "lira" else f"{s.rate:g}"
        he = "-he" if s.init == "he" else ""
        return f"{self.what}/{s.dataset}/{s.arch}{he}/{s.corruption}-{rates}"

    def searches(self) -> dict[str, Job]:
        """arm -> the search for its learning rate; rows of one data set and architecture share it. A row of
        regularization has none: its arms train at one learning rate."""
        s = self.settings
        if self.what == "regularization":
            return {}
        same = dict(self.search) | {"dataset": s.dataset, "arch": s.arch, "init": s.init, "seeds": 1}
        return {norm: Job(NAME, SEARCH, Search(**same, norm=norm)) for norm in ARMS}

    def trainings(self, best: dict[str, float]) -> dict[tuple[str, int], Job]:
        """(arm, seed) -> training, once the learning rates are known."""
        return {(norm, seed): self.settings.job(norm, best[norm], seed)
                for norm in ARMS for seed in range(self.settings.seeds)}  # fmt: skip

    def attack(self, best: dict[str, float]) -> MembershipInference:
        """The settings of the row's shadow models, once the learning rates are known."""
        return replace(self.settings, lr=best["batch"], lr_against=best["none"])


@dataclass(frozen=True)
class Cells:
    """One row's records: searches by arm; and by name what the row computes: trainings (arm, seed), arms of shadow
    models (rate, arm), or mitigated trainings (point, seed) and attacks (point,). best: arm -> the learning rate it
    trained at; abandoned: records at better ones on validation, at which a training diverged."""

    row: Row
    searches: dict[str, Record]
    runs: dict[tuple, Record]
    best: dict[str, float] = field(default_factory=dict)
    abandoned: list[Record] = field(default_factory=list)


def _trainings(tier: int, sizes: dict, search: dict, seeds: int, **what) -> Row:
    ood = "sibling" if tier else "digits"
    return Row(tier, Trainings(**sizes, ood=ood, seeds=seeds, **what), tuple(search.items()))


def _regularization(tier: int, **what) -> Row:
    return Row(tier, Regularization.of("grid", what), ())


def _lira(tier: int, sizes: dict, search: dict, rates: tuple, **what) -> Row:
    settings = MembershipInference(**sizes, rates=rates, also=("none",), ood="sibling" if tier else "digits", **what)
    return Row(tier, settings, tuple(search.items()))


ROWS = (
    # Smoke: one of each.
    _trainings(0, {"arch": "lenet", "checkpoints": (0, 1, 2, 4), **TINY}, TINY_SEARCH, 2, dataset="fashion_mnist",
               corruption="flip", rate=0.1),
    # Tier 1: LeNet everywhere; the paper's named example; attacks.
    *(_trainings(1, LENET, LENET_SEARCH, 3, dataset=dataset, corruption=corruption, rate=rate)
      for dataset in DATASETS
      for corruption, rate in (("flip", 0.05), ("ood", 0.05), ("flip", 0.01), ("flip", 0.1))),
    _trainings(1, DEEP | {"n_train": 5000}, DEEP_SEARCH, 3, arch="resnet8", dataset="cifar10", corruption="flip",
               rate=0.05),
    *(_lira(1, LENET_POOL, LENET_SEARCH, (0.0, 0.01, 0.05), dataset=dataset) for dataset in DATASETS),
    *(_regularization(1, dataset=dataset, attack=dataset in ("fashion_mnist", "cifar10")) for dataset in DATASETS),
    # Tier 2: two deeper nets everywhere.
    *(_trainings(2, DEEP, DEEP_SEARCH, 2, arch=arch, dataset=dataset, corruption=corruption, rate=0.05)
      for arch in ("resnet8", "densenet")
      for dataset in DATASETS
      for corruption in ("flip", "ood")),
    *(_lira(2, DEEP_POOL, DEEP_SEARCH, (0.0, 0.05), arch="resnet8", dataset=dataset)
      for dataset in ("fashion_mnist", "cifar10")),
    _regularization(2, dataset="cifar10", arch="resnet8", n_train=3000, n_val=500, n_test=1000, epochs=20, seeds=2),
    # Tier 3: as far as time allows.
    _trainings(3, DEEP, DEEP_SEARCH, 2, arch="resnet20", dataset="cifar10", corruption="flip", rate=0.05),
    *(_trainings(3, DEEP, DEEP_SEARCH, 3, arch=arch, dataset="cifar10", corruption=corruption, rate=0.05)
      for arch in ("resnet8", "densenet")
      for corruption in ("flip", "ood")),
    *(_trainings(3, LENET | {"init": "he"}, LENET_SEARCH, 3, dataset=dataset, corruption="flip", rate=0.05)
      for dataset in DATASETS),
    _lira(3, DEEP_POOL, DEEP_SEARCH, (0.0, 0.05), arch="densenet", dataset="cifar10"),
)  # fmt: skip
