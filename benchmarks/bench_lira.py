"""How long LiRA takes, and how much memory: python benchmarks/bench_lira.py prints the table.

256 models x 50,000 samples, every model the target once, its pair left out; every mode and variance, and masks that
are no pairs. Each row runs in a process of its own; element-wise NumPy uses one thread. Peak memory is that of the
whole process: Python, SciPy, the inputs and the result. The last column compares with a loop over targets and samples
that does the same with NumPy's mean and var, timed on a slice and scaled. Limits: 5 s, 2 GB, 50 times the loop;
--check makes exceeding one an error.
"""

import argparse
import multiprocessing
import resource
import sys
import time

import numpy as np

from bnmem import lira

SECONDS, GIGABYTES, RATIO = 5.0, 2.0, 50.0
CASES = [(mode, variance, "complementary") for mode in lira.MODES for variance in lira.VARIANCES]
CASES.append(("online", "shrunk", "equal-counts"))


def made_up(models: int, samples: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores with a planted shift of one standard deviation, and complementary masks."""
    rng = np.random.default_rng(0)
    first = rng.random((models // 2, samples)) < 0.5
    masks = np.stack([first, ~first], axis=1).reshape(models, samples)
    phi = rng.standard_normal((models, samples))
    phi += masks
    return phi, masks


def measure(case: tuple, models: int, samples: int) -> tuple[float, float]:
    """Seconds of one call and peak gigabytes of this process, which must be a fresh one."""
    phi, masks = made_up(models, samples)
    mode, variance, pairing = case
    start = time.perf_counter()
    lira.score(phi, masks, mode, variance, pairing=pairing)
    seconds = time.perf_counter() - start
    unit = 1 if sys.platform == "darwin" else 1024
    return seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9


def loop(phi: np.ndarray, masks: np.ndarray, targets, mode: str, variance: str, nu0: float = 4.0) -> np.ndarray:
    """The same attack as one would write it first: target by target, sample by sample."""
    out = np.empty((len(targets), phi.shape[1]))
    for row, t in enumerate(targets):
        keep = np.arange(len(phi)) // 2 != t // 2
        sides = []
        for i in range(phi.shape[1]):
            chosen = masks[keep, i]
            values = phi[keep, i]
            sides.append([(v.mean(), v.var(ddof=1), v.size) for v in (values[chosen], values[~chosen])])
        pooled = [sum(s[k][1] * (s[k][2] - 1) for s in sides) / sum(s[k][2] - 1 for s in sides) for k in range(2)]
        for i, side in enumerate(sides):
            logs = []
            for k, (mean, s2, n) in enumerate(side):
                if variance == "pooled":
                    s2 = pooled[k]
                elif variance == "shrunk":
                    s2 = (nu0 * pooled[k] + (n - 1) * s2) / (nu0 + n - 1)
                z2 = (phi[t, i] - mean) ** 2 / s2
                if variance == "shrunk":
                    nu = nu0 + n - 1
                    logs.append(-0.5 * (nu + 1) * np.log1p(z2 / (nu * (1 + 1 / n))) - 0.5 * np.log(s2))
                else:
                    logs.append(-0.5 * z2 - 0.5 * np.log(s2))
            out[row, i] = logs[0] - logs[1] if mode == "online" else (phi[t, i] - side[1][0]) / np.sqrt(s2)
    return out


def loop_seconds(case: tuple, models: int, samples: int, targets: int = 2, slice_: int = 1000) -> float:
    """The loop's time for all targets and samples, from a few of both; its result is checked against ``lira.score``."""
    slice_, mode, variance = min(slice_, samples), case[0], case[1]
    phi, masks = made_up(models, slice_)
    start = time.perf_counter()
    result = loop(phi, masks, range(targets), mode, variance)
    seconds = time.perf_counter() - start
    np.testing.assert_allclose(result, lira.score(phi, masks, mode, variance)[:targets], rtol=1e-6, atol=1e-8)
    return seconds * models / targets * samples / slice_


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=int, default=256)
    parser.add_argument("--samples", type=int, default=50_000)
    parser.add_argument("--check", action="store_true", help="exit with 1 if a limit is exceeded")
    args = parser.parse_args()
    print(f"{args.models} models x {args.samples} samples, all targets, one thread")
    print(f"{'mode':8} {'variance':12} {'masks':14} {'seconds':>8} {'peak GB':>8} {'loop, s':>8} {'ratio':>6}")
    good = True
    for case in CASES:
        with multiprocessing.get_context("spawn").Pool(1) as fresh:
            seconds, peak = fresh.apply(measure, (case, args.models, args.samples))
        scaled = loop_seconds(case, args.models, args.samples)
        good &= seconds < SECONDS and peak < GIGABYTES and scaled / seconds >= RATIO
        print(
            f"{case[0]:8} {case[1]:12} {case[2]:14} {seconds:8.2f} {peak:8.2f} {scaled:8.0f} {scaled / seconds:5.0f}x",
            flush=True,
        )
    print("within the limits" if good else f"a limit is exceeded: {SECONDS} s, {GIGABYTES} GB, {RATIO:.0f}x")
    return 0 if good or not args.check else 1


if __name__ == "__main__":
    sys.exit(main())
