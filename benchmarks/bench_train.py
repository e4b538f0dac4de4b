"""The trainer against the customary loop and against a bare step, side by side in one run; prints a table of ratios.

    python benchmarks/bench_train.py            about three minutes, on an otherwise idle machine

customary: torchvision's FashionMNIST dataset, ToTensor and Normalize, a DataLoader, the same net and optimiser, each
system at its best number of threads and workers. bare: forward, backward and optimiser step on batches that lie ready.
"""

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import FashionMNIST

from bnmem import data, jobs, models, seeds, train
from bnmem.training import TRAINING, Training

N, BATCH, LR = 5000, 128, 0.02
TARGETS = {"trainer / customary loop": 1.7, "two workers / one": 1.6, "step / bare step": 1.10}


def parts():
    dataset = data.load("fashion_mnist", N, 0, 10)
    x = train.to_images(dataset.train.images, dataset.info, torch.device("cpu"))
    return dataset, x, torch.from_numpy(dataset.train.labels)


def net():
    return models.make("lenet", "batch", (28, 28), 10, 0)


def customary_set(dataset) -> FashionMNIST:
    """torchvision's own dataset class, on the embedded images instead of a download."""
    made = FashionMNIST.__new__(FashionMNIST)
    made.data = torch.from_numpy(dataset.train.images)
    made.targets = torch.from_numpy(dataset.train.labels)
    made.transform = transforms.Compose(
        [transforms.ToTensor(), transforms.Normalize(dataset.info.mean, dataset.info.std)]
    )
    made.target_transform = None
    return made


def plain_epoch(batches, model, opt) -> float:
    """Seconds of the loop that everybody writes, over a DataLoader or over batches that lie ready."""
    start = time.perf_counter()
    model.train()
    for x, y in batches:
        opt.zero_grad()
        F.cross_entropy(model(x), y).backward()
        opt.step()
    return time.perf_counter() - start


def our_epoch(model, x, y) -> float:
    start = time.perf_counter()
    train.fit(model, x, y, epochs=1, lr=LR, batch_size=BATCH)
    return time.perf_counter() - start


def throughput(repeats: int) -> dict[str, float]:
    """Seconds an epoch of each system at each setting, medians of interleaved repeats."""
    dataset, x, y = parts()
    systems = {}
    for threads in (1, 2):
        ours = net().to(memory_format=torch.channels_last)
        systems[f"trainer, {threads} threads"] = (threads, lambda m=ours: our_epoch(m, x, y))
        for workers in (0, 1, 2):
            model = net()
            opt = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
            loader = DataLoader(
                customary_set(dataset), BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0
            )
            name = f"customary, {threads} threads, {workers} workers"
            systems[name] = (threads, lambda lo=loader, m=model, o=opt: plain_epoch(lo, m, o))
    times = {name: [] for name in systems}
    for repeat in range(repeats + 1):  # the first round warms up
        for name, (threads, epoch) in systems.items():
            torch.set_num_threads(threads)
            seconds = epoch()
            if repeat:
                times[name].append(seconds)
    return {name: statistics.median(values) for name, values in times.items()}


def step_ratio(repeats: int) -> float:
    """An epoch of the trainer over the same steps on batches that lie ready, one thread."""
    torch.set_num_threads(1)
    _, x, y = parts()
    a, b = (net().to(memory_format=torch.channels_last) for _ in range(2))
    opt = torch.optim.SGD(b.parameters(), lr=LR, momentum=0.9)
    ready = [(train.batch_of(x, rows), y[rows]) for rows in train.batches(N, BATCH, seeds.rng(0, "order"))]
    ratios = []
    for repeat in range(2 * repeats + 1):
        ours, bare = our_epoch(a, x, y), plain_epoch(ready, b, opt)
        if repeat:
            ratios.append(ours / bare)
    return statistics.median(ratios)


def workers_ratio(repeats: int, epochs: int = 20) -> float:
    """Two trainings with one worker over the same with two (both pools warm)."""
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(repeats):
            seconds = {}
            for workers in (1, 2):
                warm = [Training(n_train=200, epochs=1, seed=s) for s in (0, 1)]
                real = [Training(epochs=epochs, seed=s) for s in (0, 1)]
                run = f"{folder}/{repeat}-{workers}"
                jobs.run([jobs.Job(run, TRAINING, s) for s in warm], workers=workers, progress=False)
                start = time.perf_counter()
                jobs.run([jobs.Job(run, TRAINING, s) for s in real], workers=workers, progress=False)
                seconds[workers] = time.perf_counter() - start
            ratios.append(seconds[1] / seconds[2])
    return statistics.median(ratios)


def peak_memory() -> tuple[float, float]:
    """Peak resident memory in GB of a process that imports the trainer, and of one that also trains an epoch."""
    code = "import sys; sys.path.insert(0, 'benchmarks'); import bench_train as b; b.report_memory({})"
    values = []
    for work in (False, True):
        done = subprocess.run([sys.executable, "-c", code.format(work)], capture_output=True, text=True, check=True)
        values.append(float(done.stdout))
    return values[0], values[1]


def report_memory(work: bool) -> None:
    if work:
        _, x, y = parts()
        our_epoch(net(), x, y)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--check", action="store_true", help="exit with 1 when a target is missed")
    args = parser.parse_args()
    times = throughput(args.repeats)
    for name, seconds in times.items():
        print(f"{name:36s} {N / seconds:9,.0f} samples/s")
    best = {
        system: min(s for name, s in times.items() if name.startswith(system)) for system in ("trainer", "customary")
    }
    ratios = {
        "trainer / customary loop": best["customary"] / best["trainer"],
        "two workers / one": workers_ratio(min(args.repeats, 3)),
        "step / bare step": step_ratio(args.repeats),
    }
    missed = 0
    for name, ratio in ratios.items():
        target = TARGETS[name]
        good = ratio <= target if name.startswith("step") else ratio >= target
        missed += not good
        word = "at most" if name.startswith("step") else "at least"
        print(f"{name:36s} {ratio:9.2f}   target {word} {target:.2f}: {'met' if good else 'MISSED'}")
    idle, busy = peak_memory()
    print(f"peak memory: {busy:.2f} GB while training, of which {idle:.2f} GB are the imports")
    return 1 if args.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
