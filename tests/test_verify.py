"""verify: recomputing tells right from wrong, here and on another machine."""

import copy

import pytest

from bnmem import exp_forced_memorization as exp
from bnmem import jobs, records, verify
from bnmem.errors import InputError

from .test_forced_memorization import TINY


@pytest.fixture
def result():
    return exp.run(exp.ForcedMemorization.of("smoke", TINY), workers=1, progress=False)


def restore(record, **change):
    """Store the record again with changes, as another machine or a mistake might have."""
    new = records.Record(**{**vars(record), **copy.deepcopy(change), "fresh": False})
    records.save(new)
    return new


def training(result):
    return result.runs["same", "flip", "batch"][0]


def test_on_the_same_machine_a_record_must_be_equal_bit_by_bit(result):
    record = training(result)
    assert verify.recompute(record).holds
    numbers = copy.deepcopy(record.numbers)
    numbers["loss"]["test"][-1] *= 1 + 1e-15
    outcome = verify.recompute(restore(record, numbers=numbers))
    assert not outcome.holds and "NOT equal" in outcome.how


def test_elsewhere_three_deviations_over_seeds_decide(result):
    record = training(result)
    other = record.provenance | {"processor": "another"}
    near = verify.recompute(restore(record, provenance=other))
    assert near.holds and "0.0 standard deviations" in near.how and "another processor" in near.how
    numbers = copy.deepcopy(record.numbers)
    numbers["accuracy"]["test"][-1] += 10
    far = verify.recompute(restore(record, provenance=other, numbers=numbers))
    assert not far.holds


def test_a_search_must_choose_the_same_rate_elsewhere(result):
    record = result.searches["batch"]
    other = record.provenance | {"processor": "another"}
    assert verify.recompute(restore(record, provenance=other)).holds
    wrong = next(lr for lr in record.numbers["lrs"] if lr != record.numbers["best"])
    assert not verify.recompute(restore(record, provenance=other, numbers=record.numbers | {"best": wrong})).holds


def test_a_record_of_other_images_does_not_hold(result):
    record = training(result)
    moved = records.Record(**{**vars(record), "key": "0" * 16})
    assert not verify.recompute(moved).holds


def test_verified_code_is_noted_only_when_all_its_records_hold(result):
    good, bad = result.runs["same", "flip", "batch"]
    numbers = copy.deepcopy(bad.numbers)
    numbers["loss"]["test"][-1] += 1
    old = [restore(good, code="1" * 16), restore(bad, code="1" * 16, numbers=numbers)]
    outcomes = [verify.recompute(record) for record in old]
    assert [o.holds for o in outcomes] == [True, False]
    assert verify.note_code(outcomes) == [] and jobs.check_code(exp.KINDS, old)
    assert len(verify.note_code(outcomes[:1])) == 1 and not jobs.check_code(exp.KINDS, old)


def test_records_are_picked_by_prefix_at_random_or_cheap(result):
    key = training(result).key
    assert [r.key for r in verify.pick([key[:8]], 0)] == [key]
    assert len(verify.pick([], 3)) == 3
    with pytest.raises(InputError, match="0 records begin with"):
        verify.pick(["zzz"], 0)


def test_nothing_to_verify_is_no_success(result):
    with pytest.raises(InputError, match="no smoke or laptop profile is complete"):
        verify.pick([], 0)
    with pytest.raises(InputError, match="--sample must be 1 or more"):
        verify.pick([], -3)


def test_without_records_the_way_out_is_named():
    with pytest.raises(InputError, match="python -m bnmem run"):
        verify.pick([], 0)


def test_by_default_one_laptop_and_one_smoke_training_are_picked(committed):
    picked = verify.pick([], 0)
    assert sorted(r.settings.get("n_train", 5000) for r in picked if r.experiment == exp.NAME) == [400, 5000]
    assert all(r.kind == "training" for r in picked if r.experiment == exp.NAME)
    assert {r.experiment for r in picked} == set(verify.EXPERIMENTS)
    assert all(r.provenance["seconds"] <= 60 * verify.MINUTES and r.kind != "search" for r in picked)


def test_verdicts_are_compared_with_the_new_record_in_its_place(committed):
    record = training(exp.run(exp.ForcedMemorization.of("laptop"), only_stored=True))
    assert verify._verdicts_agree(record, record)
    numbers = copy.deepcopy(record.numbers)
    numbers["accuracy"]["corrupted"] = [0.0] * len(numbers["epoch"])
    assert not verify._verdicts_agree(record, records.Record(**{**vars(record), "numbers": numbers}))
