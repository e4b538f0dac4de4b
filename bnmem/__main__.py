"""The command line: python -m bnmem run | verify | audit | data."""

import argparse
import json
import os
import signal
import sys
from pathlib import Path

from bnmem import (
    audit_file,
    data,
    exp_audit_model,
    exp_grid,
    plots_gradients,
    plots_query,
    records,
    report_audit,
    sources,
    tables_gamma_sigma,
    tables_grid,
    tables_membership,
    tables_memorization,
    tables_regularization,
    verify,
)
from bnmem.errors import Diverged, InputError
from bnmem.settings import PROFILES

TABLES = {
    "forced_memorization": tables_memorization,
    "gradient_norms": plots_gradients,
    "membership_inference": tables_membership,
    "query_mode": plots_query,
    "gamma_sigma": tables_gamma_sigma,
    "regularization": tables_regularization,
    "audit_model": exp_audit_model,
}

# glibc hands large blocks back to the system and faults them in again at every step of a training. That took a third to
# a half of the time where it was measured (benchmarks/bench_allocator.py). Workers started with these keep the blocks;
# no number changes.
KEEP_BLOCKS = {
    "MALLOC_MMAP_THRESHOLD_": "4000000000",
    "MALLOC_TRIM_THRESHOLD_": "8000000000",
    "MALLOC_TOP_PAD_": "268435456",
}


def main(argv: list[str] | None = None) -> int:
    """Run one command; 0 when it did what was asked, 1 when a check failed, 2 when the input cannot be used."""
    parser = argparse.ArgumentParser(prog="python -m bnmem", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)

    run = commands.add_parser("run", help="compute an experiment's missing records and print its tables")
    run.add_argument("experiment", help=", ".join(name.replace("_", "-") for name in verify.EXPERIMENTS))
    run.add_argument("--profile", default="laptop", help=f"{', '.join(PROFILES)} (default: laptop)")
    run.add_argument("--fresh", action="store_true", help="compute anew and replace the records")
    run.add_argument("--workers", type=int, metavar="N", help="trainings at a time (default: one a core)")
    run.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="change one setting; repeatable")
    grid = run.add_argument_group("for the grid")
    grid.add_argument("--list", action="store_true", help="list the rows and stop")
    grid.add_argument("--dry-run", action="store_true", help="say what is missing and how long it would take")
    grid.add_argument("--only", metavar="PATTERN", help="rows whose name fits, such as 'trainings/cifar10/*'")
    grid.add_argument("--tier", type=int, action="append", metavar="N", help="1, 2 or 3; repeatable (default: 1 and 2)")
    run.set_defaults(action=_run)

    check = commands.add_parser("verify", help="recompute stored records and compare")
    check.add_argument(
        "keys", nargs="*", metavar="KEY", help="records (a key or its beginning); default: two cheap ones"
    )
    check.add_argument(
        "--sample", type=int, default=0, metavar="N", help="recompute N random records of the cheaper half"
    )
    check.add_argument("--list", action="store_true", help="list the records and stop")
    check.set_defaults(action=_verify)

    look = commands.add_parser("audit", help="look at your own trained net: gamma/sigma, and who pulls on its weights")
    look.add_argument("checkpoint", metavar="CHECKPOINT", help="file of weights: torch.save(model.state_dict(), ...)")
    look.add_argument("--arch", required=True, help="torchvision:resnet18, any other of theirs, or bnmem:resnet8")
    look.add_argument("--data", metavar="PATH", help="folder with a folder of images a class, or npz (images, labels)")
    look.add_argument("--out", metavar="FOLDER", help="where to write (default: ./audit-NAME, NAME the checkpoint's)")
    look.add_argument("--limit", type=int, default=2000, metavar="N", help="images at most (default: 2000)")
    look.add_argument("--size", type=int, metavar="S", help="scale and cut images to S x S (default: the first one's)")
    look.add_argument("--batch", type=int, default=64, metavar="N", help="images a pass (default: 64)")
    look.add_argument("--mean", type=float, nargs="+", metavar="X", help="normalization, one number a channel")
    look.add_argument("--std", type=float, nargs="+", metavar="X", help="normalization, one number a channel")
    look.set_defaults(action=_audit)

    sets = commands.add_parser("data", help="say where each data set comes from; load and check it")
    sets.add_argument(
        "names", nargs="*", metavar="NAME", help=f"{', '.join(sources.SETS)} (default: what needs no download)"
    )
    sets.set_defaults(action=_data)

    args = parser.parse_args(argv)
    # A shell's background job ignores Ctrl-C's signal, and a batch system sends SIGTERM: both stop the workers too.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    os.environ.update({name: value for name, value in KEEP_BLOCKS.items() if name not in os.environ})
    try:
        return args.action(args)
    except (InputError, Diverged) as error:
        print(f"bnmem: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("bnmem: stopped; what was finished is stored, run the same command to go on", file=sys.stderr)
        return 130


def _run(args) -> int:
    name = args.experiment.replace("-", "_")
    if name not in verify.EXPERIMENTS:
        known = ", ".join(known.replace("_", "-") for known in verify.EXPERIMENTS)
        raise InputError(f"unknown experiment {args.experiment!r}; choose one of {known}")
    if args.workers is not None and args.workers < 1:
        raise InputError(f"--workers must be 1 or more, not {args.workers}")
    if name == "grid":
        return _run_grid(args)
    if args.list or args.dry_run or args.only or args.tier:
        raise InputError("--list, --dry-run, --only and --tier are for: run grid")
    module = verify.EXPERIMENTS[name]
    settings = module.SETTINGS.of(args.profile, dict(_assignment(text) for text in args.set))
    result = module.run(settings, fresh=args.fresh, workers=args.workers)
    for note in result.notes:
        print(f"note: {note}")
    print(f"{len(result.records)} records in {records.folder() / name}")
    for row in TABLES[name].verdict_rows(result):
        print("  ".join(f"{key}: {value}" for key, value in row.items()))
    return 0


def _run_grid(args) -> int:
    look = args.list or args.dry_run
    tiers = tuple(args.tier or ((0,) if args.profile == "smoke" else (1, 2, 3) if look else (1, 2)))
    settings = exp_grid.Grid(tiers=tiers, only=args.only or "*")
    if look:
        for line in tables_grid.plan_lines(settings, details=args.list):
            print(line)
        return 0
    result = exp_grid.run(settings, fresh=args.fresh, workers=args.workers)
    for note in result.notes:
        print(f"note: {note}")
    print(f"{len(result.rows)} rows, {len(result.records)} records in {records.folder()}")
    return 0


def _verify(args) -> int:
    if args.list:
        for path in records.stored():
            record = records.load(path)
            print(f"{record.experiment}/{record.key}  {record.provenance['seconds']:7.1f} s  {record.settings}")
        return 0
    chosen = verify.pick(args.keys, args.sample)
    print("tolerance: equal bit by bit on the same processor model, threads and versions; elsewhere within")
    print(f"{verify.DEVIATIONS:g} standard deviations over seeds, and the same verdicts")
    outcomes = []
    for record in chosen:
        print(f"{record.experiment}/{record.key} ({record.provenance['seconds']:.0f} s when stored) ...", flush=True)
        outcomes.append(verify.recompute(record, progress=True))
        print(f"  {'holds' if outcomes[-1].holds else 'FAILS'}: {outcomes[-1].how}")
    for old, new, keys in verify.note_code(outcomes):
        print(f"noted in verified.json: code {new} gives the numbers of code {old} ({len(keys)} records recomputed)")
    held = sum(o.holds for o in outcomes)
    print(f"{held} of {len(outcomes)} records hold")
    return 0 if held == len(outcomes) else 1


def _audit(args) -> int:
    folder = report_audit.free(args.out or f"audit-{Path(args.checkpoint).stem}")
    options = {name: getattr(args, name) for name in ("limit", "size", "batch", "mean", "std")}
    made = audit_file.audit_file(args.checkpoint, args.arch, args.data, **options, progress=True)
    print(report_audit.text(made.audit, made.classes, made.notes))
    for path in report_audit.save(made.audit, folder, made.classes, made.notes):
        print(f"written: {path}")
    return 0


def _data(args) -> int:
    for name in args.names or sources.at_hand():
        dataset = data.load(name, n_train=6000, n_test=2000)
        mark = data.fingerprint(dataset.train.images, dataset.train.labels, dataset.test.images, dataset.test.labels)
        print(f"{name}: {dataset.source}; the first 6,000 + 2,000 images have fingerprint {mark[:16]}")
    return 0


def _assignment(text: str) -> tuple[str, object]:
    """ "lr=0.1" -> ("lr", 0.1), with the value read as JSON where it is JSON and as a word elsewhere."""
    name, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"--set takes NAME=VALUE, not {text!r}")
    try:
        return name.strip().replace("-", "_"), json.loads(value)
    except (ValueError, RecursionError):
        return name.strip().replace("-", "_"), value


if __name__ == "__main__":
    sys.exit(main())
