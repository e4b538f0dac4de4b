"""Masks: complementary, stratified, append-only; and equal counts where halves are no pairs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bnmem import masks
from bnmem.errors import InputError

SAME_EVERY_TIME = settings(deadline=None, derandomize=True, max_examples=40)
pools = st.tuples(st.integers(2, 60), st.integers(1, 5), st.integers(1, 3), st.integers(0, 10**6))


def pool(n, classes, groups, seed):
    rng = np.random.default_rng(seed)
    return rng.integers(0, classes, n), rng.integers(0, groups, n)


@SAME_EVERY_TIME
@given(pools)
def test_pairs_are_complementary_and_every_sample_is_in_half_of_the_models(case):
    classes, groups = pool(*case)
    drawn = masks.paired(classes, groups, pairs=4, seed=case[3])
    assert drawn.shape == (8, classes.size) and drawn.dtype == np.bool_
    assert (drawn[1::2] == ~drawn[0::2]).all()
    assert (drawn.sum(axis=0) == 4).all()


@SAME_EVERY_TIME
@given(pools)
def test_halves_are_stratified_by_class_and_group(case):
    classes, groups = pool(*case)
    drawn = masks.paired(classes, groups, pairs=3, seed=case[3])
    for half in drawn:
        assert abs(2 * half.sum() - half.size) <= 1
        for g in np.unique(groups):
            assert abs(2 * half[groups == g].sum() - (groups == g).sum()) <= 1
            for c in np.unique(classes[groups == g]):
                cell = (groups == g) & (classes == c)
                assert abs(2 * half[cell].sum() - cell.sum()) <= 1


def test_adding_pairs_never_changes_earlier_rows():
    classes, groups = pool(101, 7, 3, 0)
    many = masks.paired(classes, groups, pairs=20, seed=5)
    for pairs in (1, 2, 13):
        assert np.array_equal(masks.paired(classes, groups, pairs=pairs, seed=5), many[: 2 * pairs])
    assert len({row.tobytes() for row in many}) == 40
    assert not np.array_equal(masks.paired(classes, groups, pairs=20, seed=6), many)


def test_each_pair_has_the_stream_that_spawn_would_give_and_the_seed_is_not_advanced():
    classes, groups = pool(50, 4, 2, 1)
    root = np.random.SeedSequence(9, spawn_key=(3,))
    drawn = masks.paired(classes, groups, pairs=3, seed=root)
    assert root.n_children_spawned == 0
    generator = np.random.default_rng(root)
    generator.random(5)
    for same in (root, generator):
        assert np.array_equal(drawn, masks.paired(classes, groups, pairs=3, seed=same))
    levels = (groups * 4 + classes, groups, 0 * groups)
    for k, child in enumerate(root.spawn(3)):
        assert np.array_equal(drawn[2 * k], masks._half(np.random.default_rng(child), levels))


def test_odd_leftovers_fall_on_either_side_at_random():
    classes = np.array([0] * 5 + [1] * 3 + [2])
    drawn = masks.paired(classes, np.array(list("aaaaabbba")), pairs=3000, seed=0)[0::2]
    assert np.abs(drawn.mean(axis=0) - 0.5).max() < 4 * 0.5 / np.sqrt(3000)
    # the two odd ones of group a are matched with each other, so that the group is split 3 : 3
    in_group_a = np.r_[0:5, 8]
    assert (drawn[:, in_group_a].sum(axis=1) == 3).all()
    # nothing else binds them: a fixed sample of class 0 and the single one of class 2 are nearly independent
    assert 0.4 < (drawn[:, 0] == drawn[:, 8]).mean() < 0.6


@pytest.mark.parametrize(
    "arguments, part",
    [
        (dict(classes=[0.0, 1.0]), "labels"),
        (dict(classes=[[0, 1]]), "labels"),
        (dict(classes=[0]), "N >= 2"),
        (dict(groups=[0]), "group"),
        (dict(groups=[0.5] * 4), "group"),
        (dict(pairs=0), "pairs"),
        (dict(pairs=2.0), "pairs"),
        (dict(pairs=True), "pairs"),
        (dict(seed=-1), "seed"),
        (dict(seed=None), "seed"),
    ],
)
def test_bad_pools_are_refused(arguments, part):
    arguments = dict(classes=[0, 1, 0, 1], groups=None, pairs=2, seed=0) | arguments
    with pytest.raises(InputError, match=part) as caught:
        masks.paired(arguments.pop("classes"), arguments.pop("groups"), **arguments)
    assert "\n" not in str(caught.value)


def pairs_of(m, n, seed=0):
    return masks.paired(np.arange(n) % 3, pairs=m // 2, seed=seed)


def test_odd_number_of_models_is_refused():
    with pytest.raises(InputError, match=r"7 models are no pairs.*equal-counts"):
        masks.split(np.zeros((7, 9)), pairs_of(8, 9)[:7])


def test_masks_that_are_not_complementary_are_refused_without_an_explicit_choice():
    drawn = pairs_of(8, 9)
    drawn[4, 2] = not drawn[4, 2]
    with pytest.raises(InputError, match=r"models 4 and 5 are not complementary.*equal-counts"):
        masks.split(np.zeros((8, 9)), drawn)
    masks.split(np.zeros((8, 9)), drawn, "equal-counts")


def test_too_few_models_of_a_kind_are_refused():
    with pytest.raises(InputError, match="sample 0 is IN for 2 and OUT for 2 of 4 models"):
        masks.split(np.zeros((4, 9)), pairs_of(4, 9))
    drawn = np.random.default_rng(0).random((20, 9)) < 0.5
    drawn[:, 6] = np.arange(20) < 2
    with pytest.raises(InputError, match="sample 6 is IN for 2 and OUT for 18 of 20 models"):
        masks.split(np.zeros((20, 9)), drawn, "equal-counts")


def test_unknown_pairing_and_wrong_mask_types_are_refused():
    with pytest.raises(InputError, match="complementary, equal-counts"):
        masks.split(np.zeros((8, 9)), pairs_of(8, 9), "none")
    for wrong in (pairs_of(8, 9).astype(int), np.ones(8, dtype=bool), np.ones((0, 3), dtype=bool)):
        with pytest.raises(InputError, match="booleans of shape"):
            masks.check(wrong)


@pytest.mark.parametrize("m", [11, 12])
def test_equal_counts_keep_equally_many_in_and_out_models_whatever_the_target(m):
    """The values are model numbers, so that one can see who stays."""
    rng = np.random.default_rng(m)
    drawn = rng.random((m, 200)) < rng.uniform(0.3, 0.7, 200)
    drawn[:, np.minimum(drawn.sum(axis=0), m - drawn.sum(axis=0)) < 3] = (np.arange(m) % 2 == 0)[:, None]
    numbers = np.broadcast_to(np.arange(m, dtype=float)[:, None], drawn.shape)
    sides = masks.split(numbers, drawn, "equal-counts")
    uneven = 0
    for i in range(200):
        n = min(drawn[:, i].sum(), (~drawn[:, i]).sum())
        assert sides.pairs[i] == n
        uneven += 2 * n < m
        inside, outside = sides.inside[:n, i], sides.outside[:n, i]
        assert len(set(inside)) == len(set(outside)) == n
        assert drawn[inside.astype(int), i].all() and not drawn[outside.astype(int), i].any()
        assert sides.padding()[:, i].sum() == len(sides.inside) - n
        for t in range(m):
            p = sides.dropped[t, i]
            assert 0 <= p < n
            assert t not in np.delete(inside, p) and t not in np.delete(outside, p)
            assert sides.left_out(sides.inside, t)[i] == inside[p]
    assert uneven > 100


def test_equal_counts_are_the_pairs_themselves_where_masks_are_complementary():
    drawn, values = pairs_of(10, 40), np.random.default_rng(0).normal(size=(10, 40))
    strict, loose = (masks.split(values, drawn, pairing) for pairing in masks.PAIRINGS)
    assert np.array_equal(strict.inside, loose.inside) and np.array_equal(strict.outside, loose.outside)
    assert np.array_equal(np.broadcast_to(strict.dropped, loose.dropped.shape), loose.dropped)
