"""The command line: what it prints, and that bad input is one line and an exit code."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bnmem.__main__ import main

SMALL = ["--set", "n_train=80", "--set", "n_val=20", "--set", "n_test=20", "--set", "epochs=1", "--set", "seeds=1"]
RUN = ["run", "forced-memorization", "--profile", "smoke", *SMALL, "--workers", "1"]


def test_run_then_verify_then_list(capsys):
    assert main(RUN) == 0
    out = capsys.readouterr().out
    assert "records in" in out and "claim: C1" in out
    assert main(["verify", "--list"]) == 0
    keys = [line.split()[0].split("/")[1] for line in capsys.readouterr().out.splitlines()]
    assert main(["verify", keys[0]]) == 0
    out = capsys.readouterr().out
    assert "tolerance: equal bit by bit" in out and "1 of 1 records hold" in out


def test_verify_fails_with_exit_code_1(capsys, results):
    from bnmem import records

    assert main(RUN) == 0
    record = next(r for r in map(records.load, records.stored()) if r.kind == "training")
    record.numbers["loss"]["test"][0] += 1
    records.save(record)
    assert main(["verify", record.key]) == 1
    assert "0 of 1 records hold" in capsys.readouterr().out


def test_data_names_the_source_and_the_fingerprint(capsys):
    assert main(["data"]) == 0
    assert (
        "fashion_mnist: embedded; the first 6,000 + 2,000 images have fingerprint 61099b9ebbf41435"
        in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    "argv, message",
    [
        (["run", "forced"], "choose one of forced-memorization"),
        ([*RUN[:2], "--profile", "big"], "smoke, laptop, grid, paper"),
        ([*RUN, "--set", "nrom=group"], "did you mean norm?"),
        ([*RUN, "--set", "norm=grp"], "batch, none, affine, group"),
        ([*RUN, "--set", "rate=0.9"], "from 0.0 to 0.5"),
        ([*RUN, "--set", "rate"], "NAME=VALUE"),
        ([*RUN[:-1], "0"], "--workers must be 1 or more"),
        ([*RUN, "--set", "lr=1e9"], "lower lr"),
        (["verify", "abc"], "no records in"),
        (["data", "svhn"], "mnist, fashion_mnist"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_exit_code_2(argv, message, capsys):
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert message in captured.err and captured.err.count("\n") == 1 and captured.err.startswith("bnmem: ")


def test_the_module_runs_as_a_program():
    done = subprocess.run([sys.executable, "-m", "bnmem", "data", "svhn"], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("bnmem: unknown data set")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_run_takes_its_workers_along_and_says_how_to_go_on(number):
    """Also in the background, where a shell has its jobs ignore SIGINT."""
    command = [sys.executable, "-m", "bnmem", "run", "forced-memorization", "--set", "epochs=500", "--workers", "2"]
    running = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)
    )
    deadline = time.time() + 120
    while len(workers := _workers(running.pid)) < 2 and running.poll() is None and time.time() < deadline:
        time.sleep(0.1)
    assert len(workers) == 2
    running.send_signal(number)
    assert "run the same command to go on" in running.communicate(timeout=120)[1] and running.returncode == 130
    deadline = time.time() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in workers) and time.time() < deadline:
        time.sleep(0.1)
    assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]


def _workers(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [int(child) for child in children if "LokyProcess" in Path(f"/proc/{child}/cmdline").read_text()]
    except FileNotFoundError:
        return []
