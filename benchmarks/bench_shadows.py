"""Two workers against one, training shadow models: python benchmarks/bench_shadows.py prints the ratio.

The same models of the laptop profile (LeNet with BN, half of 4,000 images, 20 epochs), from nothing in a scratch cache,
with one worker and with two, in turns; starting workers counts. Limit: 1.6 times; --check makes missing it an error.
"""

import argparse
import sys
import time

import numpy as np

from bnmem import shadow_cache, shadows
from bnmem.shadows import Shadows

RATIO = 1.6


def seconds(s: Shadows, workers: int) -> float:
    """Wall time of training all models of the arm."""
    with shadow_cache.scratch():
        start = time.perf_counter()
        shadows.fill([s], workers=workers, progress=False)
        return time.perf_counter() - start


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--check", action="store_true", help="exit 1 below the limit")
    args = parser.parse_args()
    arm = Shadows(models=args.models)
    seconds(Shadows(models=6, epochs=1, scored=(1,)), 2)  # warm the disk cache and the workers' imports
    rows = [(seconds(arm, 1), seconds(arm, 2)) for _ in range(args.repeats)]
    for one, two in rows:
        print(f"{args.models} models: one worker {one:.1f} s, two workers {two:.1f} s, {one / two:.2f}x")
    ratio = float(np.median([one / two for one, two in rows]))
    print(f"median {ratio:.2f}x, limit {RATIO}x")
    sys.exit(1 if args.check and ratio < RATIO else 0)
