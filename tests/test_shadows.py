"""Shadow models: paired arms, workers and clusters that change no number, a killed run that goes on."""

import os
import signal
import subprocess
import sys
import time
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch

from bnmem import canaries, exp_query_mode, records, shadow_cache, shadow_summary, shadows, train
from bnmem.errors import Diverged, InputError
from bnmem.shadows import Shadows

from .test_project import STANDARD, reach

TINY = {"pool": 80, "n_test": 40, "batch_size": 16, "epochs": 2, "scored": (1, 2), "queries": (16, 40), "models": 6}
FLIPS = {"corruption": "flip", "rate": 0.05}
COLUMNS = ("phi_1", "phi_2", "correct_2", "test", "phi_batch_16", "phi_batch_40", "moved")
SCRIPT = """
from bnmem import shadows
if __name__ == "__main__":
    shadows.fill([shadows.Shadows(**{tiny})], workers=2)
"""


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    with train.one_thread():
        yield


def fill(s, **options):
    shadows.fill([s], **{"workers": 1, "progress": False} | options)
    return [shadows.column(s, name) for name in COLUMNS]


def same(a, b):
    return all(np.array_equal(x, y, equal_nan=True) for x, y in zip(a, b, strict=True))


def cached():
    return sorted(path for path in shadow_cache.folder().glob("*/*.npz") if not path.name.startswith("."))


def elsewhere(monkeypatch, path):
    monkeypatch.setenv("BNMEM_CACHE", str(path))


def test_order_and_number_of_workers_never_change_a_number(monkeypatch, tmp_path):
    s = Shadows(**TINY, **FLIPS)
    one = fill(s)
    assert len({column.tobytes() for column in one[0]}) == 6  # models differ
    elsewhere(monkeypatch, tmp_path / "two")
    assert same(one, fill(s, workers=2))


def test_dask_gives_identical_numbers_on_two_processes(monkeypatch, tmp_path):
    """A real scheduler and two worker processes, all on the loopback interface."""
    distributed = pytest.importorskip("distributed", reason="dask[distributed] is not installed: an optional extra")
    s = Shadows(**TINY, **FLIPS)
    here = fill(s)
    elsewhere(monkeypatch, tmp_path / "cluster")
    options = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": None}
    with distributed.LocalCluster(**options, host="127.0.0.1") as cluster:
        monkeypatch.setenv("BNMEM_SCHEDULER", cluster.scheduler_address)
        assert same(here, fill(s))
    assert len(cached()) == 6


def test_a_scheduler_without_dask_names_the_way_out(monkeypatch):
    monkeypatch.setenv("BNMEM_SCHEDULER", "tcp://127.0.0.1:1")
    monkeypatch.setitem(sys.modules, "dask.distributed", None)
    with pytest.raises(InputError, match=r"pip install 'dask\[distributed\]'"):
        fill(Shadows(**TINY))


def test_sigkill_in_the_middle_loses_nothing_and_the_resumed_run_ends_at_the_same_numbers(monkeypatch, tmp_path):
    script, slow = tmp_path / "run.py", TINY | {"pool": 300, "epochs": 4, "scored": (2, 4), "models": 8}
    script.write_text(SCRIPT.format(tiny=slow))
    running = subprocess.Popen([sys.executable, str(script)], start_new_session=True)
    deadline = time.time() + 120
    while len(cached()) < 2 and time.time() < deadline:
        time.sleep(0.02)
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    before = {path: path.read_bytes() for path in cached()}
    assert 2 <= len(before) < 8, "the kill must come in the middle"
    s = Shadows(**slow)
    trained = []
    monkeypatch.setattr(shadows, "train_one", lambda s, m, do=shadows.train_one: trained.append(m) or do(s, m))
    shadows.fill([s], workers=1, progress=False)
    assert len(trained) == 8 - len(before) and all(path.read_bytes() == raw for path, raw in before.items())
    resumed = shadows.column(s, "phi_4")
    elsewhere(monkeypatch, tmp_path / "undisturbed")
    shadows.fill([s], workers=1, progress=False)
    assert np.array_equal(resumed, shadows.column(s, "phi_4"))


def test_more_models_never_change_the_first_ones():
    fill(Shadows(**TINY))
    before = {path: path.stat().st_mtime_ns for path in cached()}
    more = Shadows(**TINY | {"models": 8})
    fill(more)
    assert len(cached()) == 8 and all(path.stat().st_mtime_ns == at for path, at in before.items())
    assert np.array_equal(shadows.masks_of(more)[:6], shadows.masks_of(Shadows(**TINY)))


def test_fresh_trains_anew_and_a_damaged_file_is_trained_again():
    s = Shadows(**TINY)
    want = fill(s)
    raw = cached()[3].read_bytes()
    cached()[3].write_bytes(raw[:100] + bytes([raw[100] ^ 1]) + raw[101:])
    with pytest.raises(InputError, match="the scores of model 3 are gone"):
        shadows.column(s, "phi_1")
    assert same(want, fill(s))
    before = [path.stat().st_mtime_ns for path in cached()]
    assert same(want, fill(s, fresh=True))
    assert all(path.stat().st_mtime_ns > at for path, at in zip(cached(), before, strict=True))


def test_the_cache_is_keyed_by_settings_data_and_code():
    s = Shadows(**TINY, **FLIPS)
    others = [replace(s, norm="none"), replace(s, lr=0.03), replace(s, rate=0.1), replace(s, seed=1)]
    folders = {next(shadows._places(other)).parent for other in [s, *others]}
    assert len(folders) == 5
    assert shadow_cache.place("key", "code one") != shadow_cache.place("key", "code two")


def test_memory_is_flat_in_the_number_of_models(monkeypatch):
    """Scores of a finished model go to the cache, never to a list: 40 models need no more than 6."""
    monkeypatch.setattr(shadows, "_work", lambda i, s, m: (i, {"scores": np.full(200_000, float(m))}))
    monkeypatch.setattr(records, "code_hash", lambda _: "code")

    def peak(models, seed):
        tracemalloc.start()
        shadows.fill([Shadows(**TINY | {"models": models, "seed": seed})], workers=1, progress=False)
        top = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return top

    assert peak(40, 1) < 1.3 * peak(6, 0)


def test_arms_share_the_mask_the_initial_weights_and_the_order_of_batches(monkeypatch):
    seen = []

    def look(net, x, y, *, seed, **_):
        weights = [p for name, p in net.state_dict().items() if name.endswith("weight") and "norm" not in name]
        seen.append((seed, x.clone(), y.clone(), [w.clone() for w in weights]))
        raise Diverged("seen enough")

    monkeypatch.setattr(train, "fit", look)
    for norm in ("batch", "none", "affine"):
        for m in (0, 1):
            with pytest.raises(Diverged):
                shadows.train_one(Shadows(**TINY, **FLIPS, norm=norm), m)
    for m in (0, 1):
        first = seen[m]
        for other in seen[m + 2 :: 2]:
            assert first[0] == other[0] and torch.equal(first[1], other[1]) and torch.equal(first[2], other[2])
            assert all(torch.equal(a, b) for a, b in zip(first[3], other[3], strict=True))
    assert seen[0][0] != seen[1][0] and len(seen[0][1]) + len(seen[1][1]) == 80  # complementary halves


def test_masks_are_stratified_by_trained_class_and_outliers():
    s = Shadows(**TINY | {"pool": 400}, **FLIPS)
    _, bad = shadows.pool(s)
    inside = shadows.masks_of(s)
    assert (inside.sum(axis=0) == 3).all() and (inside[0::2] != inside[1::2]).all()
    assert (np.abs(inside[:, bad.corrupted].sum(axis=1) - 10) <= 1).all()
    assert set(shadows.groups(bad)) == {"clean", "flip"} and bad.corrupted.sum() == 20


def test_eval_scores_do_not_change_when_the_query_batch_is_permuted_or_split(monkeypatch):
    moved = fill(Shadows(**TINY))[-1]
    assert (moved[:, 0] == 0).all() and (moved[:, 1] > 0).all()  # running: exactly; batch statistics: they do
    net = shadows.models.make("lenet", "batch", (28, 28), 10, 0)
    x = torch.randn(50, 28, 28, 1)
    whole = train.logits(net, x)
    monkeypatch.setattr(train, "EVAL_CHUNK", 7)
    assert np.abs(train.logits(net, x) - whole).max() < 1e-5


def test_batch_statistics_leave_the_net_alone_and_a_lone_query_joins_the_batch_before():
    net = shadows.models.make("lenet", "batch", (28, 28), 10, 0).eval()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    x, order = torch.randn(33, 28, 28, 1), np.arange(33)[::-1].copy()
    z = shadows.batch_logits(net, x, order, 16)
    assert z.shape == (33, 10) and not net.training
    assert all(torch.equal(value, net.state_dict()[name]) for name, value in before.items())
    with torch.no_grad():
        last = net.train()(train.batch_of(x, torch.arange(16, -1, -1))).numpy()  # 16 and the lone one: rows 16 .. 0
    assert np.array_equal(z[16::-1], last)


def test_an_arm_without_batch_normalisation_has_no_batch_statistics():
    s = Shadows(**TINY, norm="none")
    shadows.fill([s], workers=1, progress=False)
    assert np.isnan(shadows.column(s, "moved")[:, 1]).all()
    with pytest.raises(KeyError):
        shadows.column(s, "phi_batch_16")


@pytest.mark.parametrize(
    "change, message",
    [
        ({"models": 7}, "models must be even and 6 or more, not 7"),
        ({"models": 4}, "models must be even and 6 or more, not 4"),
        ({"corruption": "flip", "rate": 0.01}, "fewer than 4 outliers; raise rate or pool"),
        ({"scored": (1,)}, r"scored must rise to 2 \(epochs\)"),
        ({"scored": (2, 1)}, "scored must rise"),
        ({"epochs": 40, "scored": (31, 40)}, "within"),
    ],
)
def test_bad_input_is_refused_before_anything_is_trained(change, message):
    with pytest.raises(InputError, match=message):
        shadows.fill([Shadows(**TINY | change)], workers=1)
    assert not cached()


def test_a_diverged_training_is_named_and_those_before_it_stay():
    good, bad = Shadows(**TINY), Shadows(**TINY, norm="none", lr=1e12)
    with pytest.raises(Diverged, match=r"epoch 1, batch .*model 0, norm none, lr 1e\+12"):
        shadows.fill([good, bad], workers=1, progress=False)
    assert len(cached()) == 6


def test_a_cache_that_cannot_be_written_names_the_way_out(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    elsewhere(monkeypatch, tmp_path / "file")
    with pytest.raises(InputError, match="set BNMEM_CACHE to a folder that can be written"):
        fill(Shadows(**TINY))


def test_code_that_changes_under_a_run_is_refused(monkeypatch):
    hashes = iter(["before", "before", "after"])
    monkeypatch.setattr(records, "code_hash", lambda _: next(hashes))
    with pytest.raises(InputError, match="changed while"):
        shadows.fill([Shadows(**TINY)], workers=1, progress=False)


@pytest.mark.parametrize(
    "name, code",
    [
        ("shadows", shadows.CODE),
        ("shadow_summary", shadow_summary.SHADOWS.code),
        ("canaries", canaries.AUDIT.code),
    ],
)
def test_code_hashes_cover_all_that_can_change_the_numbers(name, code):
    assert set(code) == (reach(name) | {name}) - STANDARD
    assert set(exp_query_mode.QUERIES.code) >= set(shadow_summary.SHADOWS.code) | {"exp_query_mode"}
