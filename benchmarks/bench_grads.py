"""Per-sample gradient norms against plain training passes and against the peers: time and peak memory, in one table.

    python benchmarks/bench_grads.py > benchmarks/bench_grads.md    # every net, definition and peer; some minutes
    python benchmarks/bench_grads.py --help

One thread. Before anything is timed, its norms are checked against bnmem's, and bnmem's against autograd's batch of
one (eval) or, for the train-mode definitions, the slow loop. Repetitions are interleaved: each runs every contestant
once, a ratio is taken within a repetition, and the table shows the median of the ratios. Times are processor time
of the process, so that other processes on the machine disturb less. Peers that are not installed are named and left
out: `pip install --no-deps -r benchmarks/requirements.txt`.
"""

import argparse
import copy
import ctypes
import platform
import subprocess
import sys
import time
import warnings

import numpy as np
import torch
import torch.nn.functional as F
from torch.func import functional_call, grad, vmap

from bnmem import grads, models

NETS = {"lenet": (28, 28), "resnet8": (32, 32, 3)}
PEERS = {"BackPACK": "backpack", "Opacus ghost": "opacus"}


def net_and_batch(name, norm, n):
    """A net with running statistics of its own, n images (noise) and labels; the same in every process."""
    torch.manual_seed(0)
    shape = NETS[name]
    model = models.make(name, norm, shape, 10, 0)
    x = torch.randn(n, shape[2] if len(shape) == 3 else 1, *shape[:2])
    y = torch.randint(0, 10, (n,))
    model.train()(torch.randn_like(x[:128]) + 0.1)
    return model, x, y


def plain(model, x, y, train):
    """One forward and backward pass of the summed loss."""
    F.cross_entropy(model.train(train)(x), y, reduction="sum").backward()
    model.zero_grad(set_to_none=True)


def with_vmap(model, x, y, chunk=None):
    model.eval()
    buffers = dict(model.named_buffers())

    def loss(parameters, image, label):
        return F.cross_entropy(functional_call(model, (parameters, buffers), (image[None],)), label[None])

    parameters = {k: p.detach() for k, p in model.named_parameters()}
    made = vmap(grad(loss), (None, 0, 0), chunk_size=chunk)(parameters, x, y)
    return sum(g.flatten(1).square().sum(1) for g in made.values()).sqrt()


def loop(model, x, y):
    """B backward passes through one train-mode graph: what the definition loss costs at least without new ideas."""
    losses = F.cross_entropy(model.train()(x), y, reduction="none")
    parameters = list(model.parameters())
    out = []
    for one in losses:
        made = torch.autograd.grad(one, parameters, retain_graph=True)
        out.append(sum(g.square().sum() for g in made).sqrt())
    return torch.stack(out)


def backpack_contestant(model, train):
    from backpack import backpack, extend
    from backpack.extensions import BatchL2Grad

    model = extend(copy.deepcopy(model).train(train))
    loss = extend(torch.nn.CrossEntropyLoss(reduction="sum"))

    def run(x, y):
        with backpack(BatchL2Grad()):
            loss(model(x), y).backward()
        out = sum(p.batch_l2 for p in model.parameters()).sqrt()
        model.zero_grad(set_to_none=True)
        return out

    return run


def opacus_contestant(model, train):
    from opacus.grad_sample import GradSampleModuleFastGradientClipping

    model = copy.deepcopy(model).train()  # its hooks are silent in eval mode
    model = GradSampleModuleFastGradientClipping(model, loss_reduction="sum", use_ghost_clipping=True)

    def run(x, y):
        F.cross_entropy(model(x), y, reduction="sum").backward()
        out = model.get_norm_sample().detach()
        model.zero_grad(set_to_none=True)
        return out

    return run


def contestants(model, bn, absent):
    """{name: run(x, y)} for one definition; the first is the baseline, the second is bnmem."""
    train = bn != "eval"
    model = copy.deepcopy(model)
    if bn == "loss":
        return {"loop of backward passes": lambda x, y: loop(model, x, y)} | ours(model, bn)
    made = {"plain forward + backward": lambda x, y: plain(model, x, y, train)} | ours(model, bn)
    if bn == "eval":
        made["vmap(grad)"] = lambda x, y: with_vmap(model, x, y)
        made["vmap(grad), chunks of 16"] = lambda x, y: with_vmap(model, x, y, 16)
    if bn != "frozen":
        for name, build in (("BackPACK", backpack_contestant), ("Opacus ghost", opacus_contestant)):
            if name not in absent:
                made[name] = lambda x, y, build=build: build(model, train)
    return made


def ours(model, bn):
    return {"bnmem": lambda x, y: torch.from_numpy(grads.norms(model, x, y, bn))}


def ready(made, x, y, bn, model):
    """The contestants that run and agree with bnmem, and {name: what happened to the others}."""
    runs, notes = {}, {}
    reference = made["bnmem"](x, y)
    check = slowly(model, x[:8], y[:8], bn)
    if check is not None:
        np.testing.assert_allclose(grads.norms(model, x[:8], y[:8], bn), check, rtol=1e-4)
    for name, run in made.items():
        try:
            if name in PEERS:
                run = run(x, y)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the norms are compared below
                norms = run(x, y)
        except Exception as error:  # a peer may refuse in any way it likes
            notes[name] = f"refuses ({type(error).__name__})"
            continue
        gap = 0.0 if norms is None else float((norms / reference - 1).abs().max())
        if gap > 1e-3:
            notes[name] = f"differs by {100 * gap:.2g} %, not timed"
            continue
        runs[name] = run
    return runs, notes


def slowly(model, x, y, bn):
    model = copy.deepcopy(model)
    if bn == "eval":
        model.eval()
        losses = [F.cross_entropy(model(x[i : i + 1]).double(), y[i : i + 1]) for i in range(len(x))]
    elif bn == "loss":
        losses = F.cross_entropy(model.train()(x).double(), y, reduction="none")
    else:
        return None
    made = [torch.autograd.grad(one, list(model.parameters()), retain_graph=True) for one in losses]
    return [float(torch.cat([g.flatten() for g in row]).norm()) for row in made]


def timed(runs, x, y, repeats):
    seconds = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            start = time.process_time()
            run(x, y)
            seconds[name].append(time.process_time() - start)
    return {name: np.array(s) for name, s in seconds.items()}


def peak(name, norm, bn, contestant, n):
    """MiB above what was resident before, in a process of its own; None where the kernel does not tell (not Linux)."""
    command = [sys.executable, __file__, "--peak", name, norm, bn, contestant, str(n)]
    done = subprocess.run(command, capture_output=True, text=True)
    return float(done.stdout) if done.returncode == 0 else None


def print_peak(name, norm, bn, contestant, n):
    def resident(field):
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) / 1024 for line in status if line.startswith(field))

    model, x, y = net_and_batch(name, norm, int(n))
    run = contestants(model, bn, ())[contestant]
    if contestant in PEERS:
        run = run(x, y)
    run(x[:2], y[:2])
    ctypes.CDLL(None).malloc_trim(0)  # else memory freed above would be used again and not be seen
    with open("/proc/self/clear_refs", "w") as clear:
        clear.write("5")
    before = resident("VmRSS")
    run(x, y)
    print(resident("VmHWM") - before)


def table(head, rows):
    """Markdown, padded so that the source can be read too."""
    widths = [max(len(str(line[i])) for line in (head, *rows)) for i in range(len(head))]
    lines = (head, ["-" * w for w in widths], *rows)
    return "\n".join("| " + " | ".join(f"{c:<{w}}" for c, w in zip(line, widths, strict=True)) + " |" for line in lines)


def summary(rows):
    """What bnmem costs, from rows of (net, definition, method, us, ratio, MiB) as texts: one sentence of Markdown."""
    ratios = sorted(float(ratio) for _, bn, method, _, ratio, _ in rows if method == "bnmem" and bn != "loss")
    return (
        f"In the definitions `eval`, `frozen` and `param` all norms of a batch take {ratios[0]:.2f} to "
        f"{ratios[-1]:.2f} times as long as one ordinary forward and backward pass."
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--nets", nargs="+", choices=NETS, default=list(NETS))
    parser.add_argument("--definitions", nargs="+", choices=grads.DEFINITIONS, default=list(grads.DEFINITIONS))
    parser.add_argument("--peak", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.peak:
        return print_peak(*options.peak)
    absent = []
    for name, package in PEERS.items():
        try:
            __import__(package)
        except ImportError as error:
            absent.append(name)
            message = f"{name} is left out ({error}): pip install --no-deps -r benchmarks/requirements.txt"
            print(message, file=sys.stderr)
    rows, peaks = [], []
    jobs = [(name, "batch", bn) for name in options.nets for bn in options.definitions]
    jobs += [(name, "none", "eval") for name in options.nets if "eval" in options.definitions]
    for name, norm, bn in jobs:
        print(f"{name}, {norm}, {bn} ...", file=sys.stderr, flush=True)
        model, x, y = net_and_batch(name, norm, options.batch)
        runs, notes = ready(contestants(model, bn, absent), x, y, bn, model)
        seconds = timed(runs, x, y, options.repeats if bn != "loss" else max(1, options.repeats // 5))
        base = next(iter(seconds.values()))
        title = name if norm == "batch" else f"{name}, no BN"
        for contestant, s in seconds.items():
            mib = peak(name, norm, bn, contestant, options.batch)
            cost, ratio = np.median(s) / options.batch * 1e6, np.median(s / base)
            rows.append((title, bn, contestant, f"{cost:.0f}", f"{ratio:.2f}", "–" if mib is None else f"{mib:.0f}"))
        rows += [(title, bn, contestant, note, "–", "–") for contestant, note in notes.items()]
    for name in options.nets if "eval" in options.definitions else ():
        for contestant in ("bnmem", "vmap(grad)"):
            mib = [peak(name, "batch", "eval", contestant, options.batch * k) for k in (1, 4, 8)]
            peaks.append((name, contestant, *("–" if m is None else f"{m:.0f}" for m in mib)))
    if any(bn != "loss" for _, bn, *_ in rows):
        print(summary(rows), end="\n\n<!-- table -->\n\n")
    machine = platform.processor() or platform.machine()
    print(f"torch {torch.__version__}, {machine}, one thread, batches of {options.batch}.\n")
    print(table(("net", "definition", "method", "µs / sample", "ratio", "peak MiB"), rows))
    if peaks:
        print("\nPeak memory in MiB, definition `eval`, by the number of samples:\n")
        print(table(("net", "method", *(f"{options.batch * k:,}" for k in (1, 4, 8))), peaks))


if __name__ == "__main__":
    main()
