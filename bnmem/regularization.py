"""The arms of the regularization experiment: its settings, what each arm changes, and the records that come of it."""

from dataclasses import dataclass, field, fields, replace

from bnmem.dp import PRIVATE, DPTraining
from bnmem.jobs import Job
from bnmem.mitigation import MITIGATED, Mitigated
from bnmem.records import Record
from bnmem.settings import setting
from bnmem.training import Common

NAME = "regularization"
TOO_STRONG = {"penalty_weight": 10.0, "penalty_bound": 0.1, "penalty_through": "gamma"}
PARTNERS = ("none", "group", "affine")


@dataclass(frozen=True)
class Regularization(Common):
    """The experiment's parameters; every one can be set through papermill."""

    corruption: str = setting("flip", "kind of corruption", ("flip", "ood"))
    lr: float = setting(0.02, "learning rate of all arms", low=1e-8)
    epochs: int = setting(30, "epochs", low=1)
    seeds: int = setting(3, "number of seeds", low=1, high=100)
    weights: tuple = setting((0.01, 0.1, 1.0), "weights of the penalty", low=1e-9)
    bounds: tuple = setting((0.25, 0.5, 1.0), "bounds of the penalty", low=1e-6)
    weight_decays: tuple = setting((0.001, 0.005), "weight decays to compare with", low=1e-9)
    dropouts: tuple = setting((0.2, 0.5), "dropout probabilities to compare with", low=0.01, high=0.95)
    attack: bool = setting(True, "also attack the chosen arms with LiRA")
    pool: int = setting(4000, "samples of the attack's pool", low=20)
    models: int = setting(16, "shadow models an arm, in complementary pairs", low=6)
    attack_epochs: int = setting(20, "epochs of the shadow models", low=1)
    scored: tuple = setting((2, 4, 6, 8, 10, 12, 14, 16, 18, 20), "epochs after which the pool is scored", low=0)
    private: bool = setting(False, "also train with DP-SGD where it has no records (needs Opacus)")
    noise: tuple = setting((0.5, 1.0, 2.0), "noise multipliers of DP-SGD", low=0.1)
    private_lr: float = setting(0.1, "learning rate of DP-SGD", low=1e-8)

    @classmethod
    def profiles(cls) -> dict[str, dict]:
        return {
            "smoke": {
                "n_train": 400,
                "n_val": 100,
                "n_test": 200,
                "batch_size": 32,
                "epochs": 4,
                "seeds": 2,
                "weights": (0.1,),
                "bounds": (0.5,),
                "weight_decays": (0.005,),
                "dropouts": (0.5,),
                "pool": 400,
                "models": 6,
                "attack_epochs": 4,
                "scored": (1, 2, 4),
            },
            "laptop": {},
            "grid": {
                "ood": "sibling",
                "lr": 0.05,
                "epochs": 25,
                "weights": (0.1, 1.0),
                "bounds": (0.25, 0.5),
                "weight_decays": (0.005,),
                "dropouts": (0.5,),
                "scored": (4, 8, 12, 16, 20),
                "attack": False,
            },
            "paper": {
                "n_train": 50_000,
                "n_val": 5_000,
                "n_test": 10_000,
                "ood": "sibling",
                "epochs": 100,
                "pool": 50_000,
                "attack_epochs": 100,
                "scored": (2, 4, 10, 20, 50, 100),
            },
        }


@dataclass(frozen=True)
class Point:
    """One arm: its name, its family, and the training settings in which it differs from BN alone."""

    name: str
    family: str
    changes: tuple = ()


def points(s: Regularization) -> list[Point]:
    """All arms, BN alone first. The sweep acts through gamma; the other two ways are tried at its middle."""
    made = [Point("BN", "BN"), *(Point(norm, "norm", (("norm", norm),)) for norm in PARTNERS)]
    made += [_penalty(weight, bound) for weight in s.weights for bound in s.bounds]
    made += [middle(s, through) for through in ("sigma", "both")]
    made.append(Point("too strong", "too strong", tuple(TOO_STRONG.items())))
    made += [Point(f"weight decay {wd:g}", "weight decay", (("weight_decay", wd),)) for wd in s.weight_decays]
    return made + [Point(f"dropout {p:g}", "dropout", (("dropout", p),)) for p in s.dropouts]


def middle(s: Regularization, through: str = "gamma") -> Point:
    """The penalty in the middle of the sweep."""
    return _penalty(s.weights[len(s.weights) // 2], s.bounds[len(s.bounds) // 2], through)


def _penalty(weight: float, bound: float, through: str = "gamma") -> Point:
    changes = {"penalty_weight": weight, "penalty_bound": bound, "penalty_through": through}
    family = "penalty" if through == "gamma" else f"penalty through {through}"
    return Point(f"{family} {weight:g}, bound {bound:g}", family, tuple(changes.items()))


@dataclass(frozen=True)
class Result:
    """All records of one run: point name -> one record a seed, point name -> arm of shadow models, noise multiplier of
    DP-SGD -> one record a seed (empty where there are none), and the attacked arms in which a model diverged."""

    settings: Regularization
    runs: dict[str, list[Record]]
    attacks: dict[str, Record]
    notes: list[str]
    private: dict[float, list[Record]] = field(default_factory=dict)
    unstable: dict[str, Record] = field(default_factory=dict)

    @property
    def records(self) -> list[Record]:
        trained = [record for rows in (*self.runs.values(), *self.private.values()) for record in rows]
        return [*trained, *self.attacks.values(), *self.unstable.values()]

    def with_record(self, new: Record) -> "Result":
        """The same result with `new` in the place of the record of its key."""
        runs, private = (
            {name: [new if r.key == new.key else r for r in rows] for name, rows in found.items()}
            for found in (self.runs, self.private)
        )
        attacks, unstable = (
            {name: new if r.key == new.key else r for name, r in found.items()}
            for found in (self.attacks, self.unstable)
        )
        return replace(self, runs=runs, attacks=attacks, private=private, unstable=unstable)


def trainings(s: Regularization) -> dict[str, list[Job]]:
    """point name -> one training a seed."""
    same = _same(s)
    return {
        point.name: [
            Job(NAME, MITIGATED, Mitigated(**same | dict(point.changes) | {"seed": i})) for i in range(s.seeds)
        ]
        for point in points(s)
    }


def private_trainings(s: Regularization) -> dict[float, list[Job]]:
    """Noise multiplier -> one training with DP-SGD a seed, of the net with GroupNorm and plain SGD."""
    same = _same(s) | {"norm": "group", "lr": s.private_lr, "optimizer": "sgd"}
    return {
        noise: [Job(NAME, PRIVATE, DPTraining(**same, noise_multiplier=noise, seed=i)) for i in range(s.seeds)]
        for noise in s.noise
    }


def _same(s: Regularization) -> dict:
    same = {f.name: getattr(s, f.name) for f in fields(Common)}
    return same | {"corruption": s.corruption, "lr": s.lr, "epochs": s.epochs}
