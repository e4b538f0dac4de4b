"""Records: whole or not there, checked on load, found by what they were computed from."""

import json
import os
import stat

import numpy as np
import pytest

from bnmem import jobs, records
from bnmem.errors import InputError
from bnmem.training import TRAINING, Training

from .conftest import ROOT

TINY = {"n_train": 40, "n_val": 10, "n_test": 10, "batch_size": 20, "epochs": 1}


def job(**change):
    return jobs.Job("trial", TRAINING, Training(**TINY | change))


def stored(**change):
    return jobs.run([job(**change)])[0]


def test_a_record_holds_settings_numbers_code_and_provenance(results):
    record = stored(seed=3)
    body = json.loads((results / "trial" / f"{record.key}.json").read_bytes())
    assert body["settings"] == TINY | {"seed": 3} and len(body["data"]) == 64
    assert body["code"] == records.code_hash(TRAINING.code)
    assert set(body["provenance"]) == {
        "commit", "dirty", "python", "libraries", "processor", "device", "threads", "start", "seconds",
    }  # fmt: skip
    assert body["provenance"]["libraries"]["torch"] and body["provenance"]["threads"] == 1
    assert body["numbers"]["epoch"] == [0, 1]


def test_a_second_run_reads_and_fresh_computes():
    first = stored()
    assert first.fresh and first.line.endswith("computed")
    again = stored()
    assert not again.fresh and again.numbers == first.numbers
    assert again.line == f"record {first.key}, {again.provenance['start'][:10]}, torch {records_torch()}"
    fresh = jobs.run([job()], fresh=True)[0]
    assert fresh.fresh and fresh.numbers == first.numbers


def records_torch():
    import torch

    return torch.__version__.split("+")[0]


def test_arrays_survive_and_leave_no_temporary_file(results):
    record = stored()
    arrays = {"phi": np.arange(6.0).reshape(2, 3), "empty": np.zeros((0, 2), np.int64)}
    path = records.save(records.Record(**{**vars(record), "arrays": arrays}))
    again = records.load(path)
    assert all(np.array_equal(again.arrays[n], arrays[n]) and again.arrays[n].dtype == arrays[n].dtype for n in arrays)
    assert not [p for p in results.rglob("*") if p.name.startswith(".tmp")]


@pytest.mark.parametrize("damage", ["truncate", "number", "setting", "empty", "list", "moved", "npz", "npz gone"])
def test_a_damaged_or_foreign_record_is_refused_with_its_name(damage, results):
    record = stored()
    path = records.save(records.Record(**{**vars(record), "arrays": {"a": np.ones(3)}}))
    text = path.read_text()
    if damage == "truncate":
        path.write_text(text[: len(text) // 2])
    elif damage == "number":
        path.write_text(text.replace('"n_train": 40', '"n_train": 41'))
    elif damage == "setting":
        path.write_text(text.replace('"dirty"', '"clean"'))
    elif damage == "empty":
        path.write_text("")
    elif damage == "list":
        path.write_text("[1, 2]")
    elif damage == "moved":
        (results / "other").mkdir()
        path = path.rename(results / "other" / path.name)
    elif damage == "npz":
        raw = bytearray(path.with_suffix(".npz").read_bytes())
        raw[len(raw) // 2] ^= 1
        path.with_suffix(".npz").write_bytes(raw)
    else:
        path.with_suffix(".npz").unlink()
    with pytest.raises(InputError, match=f"{path.stem}.*(damaged|by hand)") as error:
        records.load(path)
    assert "\n" not in str(error.value)
    if damage != "moved":
        with pytest.raises(InputError, match="damaged"):
            jobs.run([job()])


def test_an_intact_record_under_another_ones_name_is_refused(results):
    a, b = stored(seed=0), stored(seed=1)
    (results / "trial" / f"{a.key}.json").write_bytes((results / "trial" / f"{b.key}.json").read_bytes())
    with pytest.raises(InputError, match=f"{a.key}.*under a wrong name"):
        jobs.run([job(seed=0)])


@pytest.mark.parametrize("text", ["null", "3", "[1]", '[{"old": 1, "new": []}]', "[[]]"])
def test_a_foreign_ledger_is_refused(text, results):
    results.mkdir()
    (results / "verified.json").write_text(text)
    with pytest.raises(InputError, match=r"verified\.json is damaged"):
        records.verified()


def test_numbers_that_are_not_finite_are_never_stored(results):
    record = stored()
    with pytest.raises(ValueError):
        records.save(records.Record(**{**vars(record), "numbers": {"loss": float("nan")}, "key": "cd" * 8}))
    assert not (results / "trial" / f"{'cd' * 8}.json").exists()


@pytest.mark.skipif(os.name != "posix", reason="permissions")
def test_an_unwritable_folder_is_one_clear_line(results, monkeypatch):
    blocked = results.parent / "file"
    blocked.write_text("")
    monkeypatch.setenv("BNMEM_RESULTS", str(blocked / "results"))
    with pytest.raises(InputError, match=r"cannot write records to .*BNMEM_RESULTS") as error:
        stored()
    assert "\n" not in str(error.value)
    if os.geteuid():
        results.mkdir()
        results.chmod(stat.S_IRUSR | stat.S_IXUSR)
        monkeypatch.setenv("BNMEM_RESULTS", str(results))
        with pytest.raises(InputError, match="cannot write"):
            stored()


def test_an_unwritable_folder_is_found_out_before_anything_is_computed(results, monkeypatch):
    (results.parent / "file").write_text("")
    monkeypatch.setenv("BNMEM_RESULTS", str(results.parent / "file"))
    monkeypatch.setattr(jobs.Job, "compute", lambda *_: pytest.fail("computed"))
    with pytest.raises(InputError, match="cannot write"):
        stored()


def test_what_a_killed_write_leaves_behind_is_no_record(results):
    record = stored()
    (results / "trial" / f".tmp-1-{record.key}.json.part").write_text("{")
    assert [path.stem for path in records.stored()] == [record.key]


def test_the_key_depends_on_settings_kind_and_data_and_not_on_new_fields():
    keys = {
        records.key("training", Training(), "d1"),
        records.key("training", Training(), "d2"),
        records.key("search", Training(), "d1"),
        records.key("training", Training(lr=0.3), "d1"),
    }
    assert len(keys) == 4
    # A pinned key: should it ever change, every committed record is orphaned.
    assert records.key("training", Training(lr=0.3), "d") == "923297edc3664a66"


def test_comments_and_docstrings_do_not_change_the_code_hash():
    plain = 'def f(x):\n    y = "#no comment"\n    return x\n'
    dressed = '"""Doc\n\nmore"""\n\ndef f(x):  # why\n    """Says."""\n\n    y = "#no comment"\n    return x\n'
    assert records.bare_source(dressed) == records.bare_source(plain)
    assert records.bare_source(plain.replace("return x", "return -x")) != records.bare_source(plain)


def test_the_folder_is_the_environments_else_here_else_the_installed_copy(tmp_path, monkeypatch):
    monkeypatch.delenv("BNMEM_RESULTS")
    monkeypatch.chdir(tmp_path)
    assert records.folder() == ROOT / "results"
    (tmp_path / "results").mkdir()
    assert records.folder().resolve() == tmp_path / "results"


def test_verified_code_is_followed_through_the_ledger(results):
    results.mkdir()
    records.add_verified("a", "b", ["k"], "equal")
    records.add_verified("b", "c", ["k"], "equal")
    records.add_verified("x", "y", ["k"], "equal")
    assert records.verified() == {"a": {"a", "b", "c"}, "b": {"b", "c"}, "x": {"x", "y"}}
    (results / "verified.json").write_text("[")
    with pytest.raises(InputError, match=r"verified\.json is damaged"):
        records.verified()


def test_old_code_is_noted_until_it_is_verified(results):
    record = stored()
    old = records.Record(**{**vars(record), "code": "0" * 16, "fresh": False})
    assert len(jobs.check_code([TRAINING], [old])) == 1
    records.add_verified("0" * 16, record.code, [record.key], "equal")
    assert jobs.check_code([TRAINING], [old]) == []


def committed_records():
    return sorted((ROOT / "results").glob("*/*.json"))


def test_there_are_committed_records():
    assert len(committed_records()) >= 40


def test_every_committed_record_is_whole_current_and_computed_by_committed_code(committed):
    from bnmem.verify import EXPERIMENTS

    for path in committed_records():
        record = records.load(path)
        assert record.provenance["dirty"] is False, path
        kinds = EXPERIMENTS[record.experiment].KINDS
        assert jobs.check_code(kinds, [record]) == [], f"{path}: verify or recompute it"


def test_no_orphan_files_among_the_records():
    known = {p.with_suffix("") for p in committed_records()}
    for path in (ROOT / "results").rglob("*"):
        if path.is_file() and path.name not in ("verified.json", "README.md"):
            assert path.with_suffix("") in known, path
