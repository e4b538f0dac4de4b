"""What the arms of the regularization experiment are measured by: accuracies, the control at equal fit, attacks."""

from dataclasses import dataclass

import numpy as np

from bnmem import exp_membership_inference as attacks
from bnmem.fit import at_equal_fit
from bnmem.records import Record
from bnmem.regularization import Result, middle, points
from bnmem.sources import SETS
from bnmem.stats import Interval, value_at

DESTROYED = 0.5  # of BN's accuracy on clean training images: an arm that stays below has not trained
UTILITY = 0.01  # arms are of equal utility when their test accuracies differ by no more
PARTS = {"gamma": "mean |γ|", "sigma": "mean σ", "weight_norm": "mean ‖w‖"}
READ = ("corrupted", "clean", "val", "test")


def accuracy(result: Result, name: str, group: str) -> np.ndarray:
    """Accuracy of one group at the last epoch, float64 [seeds]; NaN where the training diverged."""
    return _last(result.runs[name], group)


def _last(rows: list[Record], group: str) -> np.ndarray:
    return np.array([np.nan if "diverged" in r.numbers else r.numbers["accuracy"][group][-1] for r in rows])


def destroyed(result: Result, name: str) -> bool:
    """Whether the arm has not trained: diverged under a seed, or left clean images unfitted (see DESTROYED)."""
    return _destroyed(result, accuracy(result, name, "clean"))


def _destroyed(result: Result, clean: np.ndarray) -> bool:
    return not (clean.mean() >= DESTROYED * accuracy(result, "BN", "clean").mean())


def by_validation(result: Result) -> list[str]:
    """The penalties that have trained, the highest mean validation accuracy first; the corrupted set plays no part."""
    trained = [p.name for p in points(result.settings) if p.family == "penalty" and not destroyed(result, p.name)]
    return sorted(trained, key=lambda name: -accuracy(result, name, "val").mean())


def chosen(result: Result) -> str | None:
    """The first of `by_validation`, or None where no penalty has trained."""
    return next(iter(by_validation(result)), None)


def attacked_penalty(result: Result) -> str | None:
    """The first of them under which every shadow model has trained, or None."""
    return next((name for name in by_validation(result) if name in result.attacks), None)


def early_stopping(result: Result) -> dict[str, np.ndarray]:
    """BN alone, read at the epoch with the best validation accuracy: group -> accuracy [seeds]."""
    out = {}
    for group in READ:
        rows = [r.numbers["accuracy"] for r in result.runs["BN"]]
        out[group] = np.array([row[group][int(np.argmax(row["val"]))] for row in rows])
    return out


@dataclass(frozen=True)
class Arm:
    """An arm as the figures and tables show it. accuracy: group of READ -> [seeds] at its last epoch (NaN where it
    diverged); epsilon: what DP-SGD has spent by then, the mean over seeds; None elsewhere."""

    name: str
    family: str
    accuracy: dict[str, np.ndarray]
    destroyed: bool
    epsilon: float | None = None


def private_name(noise: float) -> str:
    return f"DP-SGD, noise {noise:g}"


def arms(result: Result) -> list[Arm]:
    """Every arm, BN first: those of `points`, BN with early stopping, and DP-SGD where there are records."""
    found = [
        Arm(p.name, p.family, {g: accuracy(result, p.name, g) for g in READ}, destroyed(result, p.name))
        for p in points(result.settings)
    ]
    found.insert(1, Arm("BN, early stopping", "early stopping", early_stopping(result), False))
    for noise, rows in result.private.items():
        read = {g: _last(rows, g) for g in READ}
        spent = float(np.mean([r.numbers["epsilon"][-1] for r in rows if "epsilon" in r.numbers] or [np.nan]))
        found.append(Arm(private_name(noise), "DP-SGD", read, _destroyed(result, read["clean"]), spent))
    return found


def acting(result: Result) -> dict[str, str]:
    """How the penalty acts -> the point that shows it: BN alone, and the middle of the sweep through all three ways."""
    ways = {"through γ": "gamma", "through σ": "sigma", "through both": "both"}
    return {"BN alone": "BN"} | {way: middle(result.settings, through).name for way, through in ways.items()}


def acts(result: Result) -> dict[str, dict[str, dict[str, tuple[float, float]]]]:
    """way of `acting` -> BN layer -> PARTS -> (at the start, at the end), means over seeds and channels, NaN where
    unknown; a way whose training diverged under a seed is left out."""
    out = {}
    for way, name in acting(result).items():
        ends = [r.numbers.get("layers") for r in result.runs[name]]
        if None not in ends:
            out[way] = {
                layer: {part: tuple(_mean(ends, end, layer, part) for end in ("start", "end")) for part in PARTS}
                for layer in ends[0]["start"]
            }
    return out


def ratios(ends: dict[str, tuple[float, float]]) -> tuple[np.ndarray, np.ndarray]:
    """From one layer's entry of `acts`: mean |gamma| over mean sigma, and that times the mean weight norm, which does
    not depend on the scale of the weights (NaN where they are unknown); both at (start, end)."""
    gamma, sigma, weight_norm = (np.array(ends[part]) for part in PARTS)
    return gamma / sigma, gamma * weight_norm / sigma


def _mean(rows: list[dict], end: str, layer: str, part: str) -> float:
    values = [row[end][layer][part] for row in rows]
    return float("nan") if None in values else float(np.mean(values))


def chance(result: Result) -> float:
    """The accuracy of random guessing."""
    return 1 / SETS[result.settings.dataset].classes


def excess(result: Result, values: np.ndarray) -> np.ndarray:
    """Accuracy on corrupted samples above that of random guessing, and at least 0."""
    return np.maximum(values - chance(result), 0.0)


@dataclass(frozen=True)
class EqualFit:
    """BN and another arm where their accuracy on clean training images first reaches `level`: group -> accuracies
    [seeds] of BN and of the arm."""

    level: float
    ours: dict[str, np.ndarray]
    theirs: dict[str, np.ndarray]


def equal_fit(result: Result, name: str) -> EqualFit | None:
    """The control, at the highest level that both arms reach under every seed (see fit.py); None where there is none.
    DP-SGD's arms have the names of `private_name`."""
    private = {private_name(noise): rows for noise, rows in result.private.items()}
    both = [result.runs["BN"], (result.runs | private)[name]]
    if any("diverged" in r.numbers for rows in both for r in rows):
        return None
    groups = ("corrupted", "test")

    def read(record, epoch):
        return [value_at(record.numbers["epoch"], record.numbers["accuracy"][group], epoch) for group in groups]

    found = at_equal_fit(both, read)
    if found is None:
        return None
    level, values = found
    return EqualFit(level, *({group: arm[:, i] for i, group in enumerate(groups)} for arm in values))


def of_equal_utility(result: Result, penalty: str | None) -> list[str]:
    """The claim's alternatives, no normalisation and this penalty, whose mean test accuracy is at most UTILITY below
    BN's."""
    ours = accuracy(result, "BN", "test").mean()
    names = [name for name in ("none", penalty) if name and not destroyed(result, name)]
    return [name for name in names if accuracy(result, name, "test").mean() >= ours - UTILITY]


def attacked(result: Result, name: str) -> attacks.Result:
    """BN and another arm as a result of the membership experiment: its measures then apply."""
    s = result.settings
    settings = attacks.MembershipInference(rates=(s.rate,), corruption=s.corruption, scored=s.scored, models=s.models)
    return attacks.Result(settings, {(s.rate, "batch"): result.attacks["BN"], (s.rate, name): result.attacks[name]},
                          {}, {}, [])  # fmt: skip


def auc_saved(result: Result, name: str, reading: str = "equal epochs", group: str = "outliers") -> Interval | None:
    """AUC over outliers, BN minus another arm, paired over pairs of shadow models; None where it cannot be read."""
    rate = result.settings.rate
    if not {"BN", name} <= result.attacks.keys():
        return None
    both = attacked(result, name)
    if reading == "equal fit":
        control = attacks.equal_fit(both, rate, name)
        gap = control and control.gap[group]
    else:
        gap = attacks.difference(both, rate, group, name)
    return gap and Interval(gap.mean, gap.low, gap.high, result.settings.models // 2)


@dataclass(frozen=True)
class Attacked:
    """An arm of shadow models at one epoch: AUC over outliers [models], test accuracy [models], and the epoch."""

    name: str
    auc: np.ndarray
    test: np.ndarray
    epoch: int


def attacked_arms(result: Result) -> list[Attacked]:
    """The attacked arms at their last epoch, and BN stopped early: at the scored epoch with the highest accuracy on
    clean images that were not trained on."""
    found, scored = [], result.settings.scored
    for name, record in result.attacks.items():
        auc, test = np.array(record.numbers["auc"]["outliers"]), np.array(record.numbers["accuracy"]["test"])
        found.append(Attacked(name, auc[-1], test[-1], scored[-1]))
        if name == "BN":
            best = int(np.mean(record.numbers["accuracy"]["out_clean"], axis=1).argmax())
            found.append(Attacked("BN, early stopping", auc[best], test[best], scored[best]))
    return found
