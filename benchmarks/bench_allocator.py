"""Training with and without the allocator settings of `run`: python benchmarks/bench_allocator.py prints the ratio.

Each repeat trains LeNet, ResNet-8 and DenseNet on embedded images in a process of its own, once as torch comes and
once with `bnmem.__main__.KEEP_BLOCKS`, in turns, one thread. What a record would hold must be equal bit by bit.
Limit: 1.15 times for the two deep nets; --check makes missing it an error.
"""

import argparse
import os
import subprocess
import sys

import numpy as np

from bnmem.__main__ import KEEP_BLOCKS

RATIO = 1.15
ONE = """
import hashlib, resource, sys, time
from bnmem import train, training
from bnmem.training import Training
s = Training(arch=sys.argv[1], n_train=1000, n_val=100, n_test=100, epochs=2, lr=0.05)
with train.one_thread():
    training.compute(s)
    start = time.perf_counter()
    numbers, arrays = training.compute(s)
    seconds = time.perf_counter() - start
values = repr(numbers).encode() + b"".join(a.tobytes() for _, a in sorted(arrays.items()))
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(seconds, peak, hashlib.sha256(values).hexdigest())
"""


def once(arch: str, keep: bool) -> tuple[float, float, str]:
    """Seconds and peak memory in MiB of one training, and a hash of its results."""
    plain = {name: value for name, value in os.environ.items() if name not in KEEP_BLOCKS}
    done = subprocess.run([sys.executable, "-c", ONE, arch], env=plain | (KEEP_BLOCKS if keep else {}),
                          stdout=subprocess.PIPE, text=True, check=True)  # fmt: skip
    seconds, peak, results = done.stdout.split()
    return float(seconds), float(peak), results


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--check", action="store_true", help="exit 1 below the limit")
    args = parser.parse_args()
    worst = np.inf
    for arch in ("lenet", "resnet8", "densenet"):
        rows = [(once(arch, False), once(arch, True)) for _ in range(args.repeats)]
        if len({results for row in rows for _, _, results in row}) != 1:
            sys.exit(f"{arch}: results differ")
        ratio = float(np.median([plain[0] / kept[0] for plain, kept in rows]))
        peaks = [np.median([row[i][1] for row in rows]) for i in (0, 1)]
        print(f"{arch}: {ratio:.2f}x, peak memory {peaks[0]:.0f} MiB plain, {peaks[1]:.0f} MiB kept, results equal")
        worst = min(worst, ratio) if arch != "lenet" else worst
    print(f"deep nets at least {worst:.2f}x, limit {RATIO}x")
    sys.exit(1 if args.check and worst < RATIO else 0)
