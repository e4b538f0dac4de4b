"""Running many: workers never change a number, a killed run goes on, a diverged training leaves no record."""

import os
import signal
import subprocess
import sys
import time

import pytest

from bnmem import jobs, records
from bnmem.errors import Diverged, InputError
from bnmem.training import SEARCH, TRAINING, Search, Training

from .test_records import TINY

SWEEP = """
import os
from bnmem import jobs
from bnmem.training import TRAINING, Training
tiny = {tiny}
if __name__ == "__main__":
    sweep = [jobs.Job("sweep", TRAINING, Training(**tiny, seed=seed)) for seed in range(6)]
    jobs.run(sweep, workers=2)
"""


def sweep(seeds=4, **change):
    return [jobs.Job("sweep", TRAINING, Training(**TINY | change, seed=seed)) for seed in range(seeds)]


def test_order_and_number_of_workers_never_change_a_number(monkeypatch, tmp_path):
    one = jobs.run(sweep(), workers=1)
    monkeypatch.setenv("BNMEM_RESULTS", str(tmp_path / "two"))
    two = jobs.run(sweep()[::-1], workers=2)[::-1]
    assert [r.numbers for r in one] == [r.numbers for r in two] and [r.key for r in one] == [r.key for r in two]
    assert len({str(r.numbers) for r in one}) == 4  # seeds differ


def test_sigkill_in_the_middle_loses_nothing_and_the_resumed_run_ends_at_the_same_numbers(
    results, tmp_path, monkeypatch
):
    script = tmp_path / "sweep.py"
    script.write_text(SWEEP.format(tiny={**TINY, "n_train": 800, "epochs": 5}))
    running = subprocess.Popen([sys.executable, str(script)], start_new_session=True)
    deadline = time.time() + 120
    while len(list(results.glob("sweep/*.json"))) < 2 and time.time() < deadline:
        time.sleep(0.02)
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    before = {p.name: p.read_bytes() for p in results.glob("sweep/*.json")}
    assert 2 <= len(before) < 6, "the kill must come in the middle"
    again = sweep(6, n_train=800, epochs=5)
    resumed = jobs.run(again, workers=2)
    assert sum(r.fresh for r in resumed) == 6 - len(before)
    assert all((results / "sweep" / name).read_bytes() == raw for name, raw in before.items())
    monkeypatch.setenv("BNMEM_RESULTS", str(tmp_path / "undisturbed"))
    assert [r.numbers for r in jobs.run(again, workers=1)] == [r.numbers for r in resumed]


def test_a_diverged_training_leaves_no_record_and_those_before_it_stay(results):
    good, bad = sweep(1), sweep(1, lr=1e12, norm="none")
    with pytest.raises(Diverged, match=r'norm="none".*lr=1000000000000\.0') as error:
        jobs.run([*good, *bad], workers=1)
    assert "epoch 1, batch" in str(error.value)
    assert [p.stem for p in results.glob("sweep/*")] == [good[0].key()]


def test_a_search_leaves_out_rates_that_diverge_and_says_so():
    settings = Search(**TINY, norm="none", lrs=(0.05, 1e12), seeds=1)
    numbers = jobs.run([jobs.Job("sweep", SEARCH, settings)])[0].numbers
    assert numbers["best"] == 0.05 and numbers["val_accuracy"][1] == [None]
    assert len(numbers["diverged"]) == 1 and "epoch 1" in numbers["diverged"][0]
    with pytest.raises(Diverged, match="no learning rate"):
        jobs.run([jobs.Job("sweep", SEARCH, Search(**TINY, norm="none", lrs=(1e12,), seeds=1))])


def test_only_stored_never_computes(results):
    with pytest.raises(LookupError, match="1 of 1"):
        jobs.run(sweep(1), only_stored=True)
    assert not results.exists()


def test_code_that_changes_under_a_run_is_refused(monkeypatch):
    hashes = iter(["before", "after"])
    monkeypatch.setattr(records, "code_hash", lambda _: next(hashes))
    with pytest.raises(InputError, match="changed while"):
        jobs.run(sweep(1), workers=1)
