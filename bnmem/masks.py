"""Who trains on what: complementary halves of a pool, and the pair of models that an attack leaves out together.

A mask is one boolean row a model over the N samples of a pool: True where the model trains on the sample (IN), False
where it does not (OUT). Rows come in complementary pairs, A[2k+1] = 1 - A[2k], so every sample is IN in exactly M/2 of
M models.
"""

from typing import NamedTuple

import numpy as np

from bnmem.errors import InputError

PAIRINGS = ("complementary", "equal-counts")


def paired(classes, groups=None, *, pairs: int, seed) -> np.ndarray:
    """Draw complementary, stratified, append-only masks.

    Each half holds as many samples as the other of every (class, group) cell. The odd one out of a cell is matched at
    random with another odd one of its group, then with one of another group; the very last one, if any, tosses a coin.
    So the two halves differ by at most one sample in every cell, in every group and in all. Pair k draws from a stream
    of its own, the k-th child of ``seed``: asking for more pairs never changes the rows of the earlier ones.

    Parameters: ``classes`` integers [N], the labels that are trained on (a flipped sample counts under its flipped
    label); ``groups`` integers or strings [N], such as clean / flip / ood, or None for one group; ``pairs`` at least
    1; ``seed`` an integer >= 0, a ``numpy.random.SeedSequence`` or a Generator (its SeedSequence counts), read and not
    advanced.
    Returns: booleans [2 * pairs, N].
    Raises: InputError on wrong shapes, types or values.
    """
    classes, groups = _check_strata(classes, groups)
    if isinstance(pairs, bool) or not isinstance(pairs, int | np.integer) or pairs < 1:
        raise InputError(f"pairs must be an integer of at least 1, not {pairs!r}: two models share one pair")
    cell = groups * (classes.max() + 1) + classes
    half = np.stack([_half(_child(seed, k), (cell, groups, np.zeros_like(cell))) for k in range(pairs)])
    return np.stack([half, ~half], axis=1).reshape(2 * pairs, -1)


def _check_strata(classes, groups) -> tuple[np.ndarray, np.ndarray]:
    """Both as consecutive integers [N], so that they can be crossed."""
    classes = np.asarray(classes)
    if classes.ndim != 1 or classes.size < 2 or not np.issubdtype(classes.dtype, np.integer):
        raise InputError(
            f"classes must be integers of shape [N], N >= 2, not {classes.dtype} {list(classes.shape)}: pass the labels"
        )
    groups = np.zeros_like(classes) if groups is None else np.asarray(groups)
    if groups.shape != classes.shape or groups.dtype.kind not in "iubU":
        raise InputError(
            f"groups must be integers or strings of shape {list(classes.shape)}, not {groups.dtype} "
            f"{list(groups.shape)}: give every sample its group, or None"
        )
    return np.unique(classes, return_inverse=True)[1], np.unique(groups, return_inverse=True)[1]


def _child(seed, k: int) -> np.random.Generator:
    """The stream of ``SeedSequence.spawn``'s k-th child, without counting it as spawned."""
    if isinstance(seed, np.random.Generator):
        seed = seed.bit_generator.seed_seq
    if not isinstance(seed, np.random.SeedSequence):
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
            raise InputError(f"seed must be an integer >= 0, a SeedSequence or a Generator, not {seed!r}: name one")
        seed = np.random.SeedSequence(int(seed))
    child = np.random.SeedSequence(seed.entropy, spawn_key=(*seed.spawn_key, k), pool_size=seed.pool_size)
    return np.random.default_rng(child)


def _half(rng: np.random.Generator, levels) -> np.ndarray:
    """One half, booleans [N]: within every key of the first level two by two, what is left over at the next level."""
    inside = np.zeros(levels[0].size, dtype=bool)
    open_ = np.arange(inside.size)
    for key in levels:
        open_ = rng.permutation(open_)
        open_ = open_[np.argsort(key[open_], kind="stable")]
        _, start, size = np.unique(key[open_], return_index=True, return_counts=True)
        rank = np.arange(open_.size) - np.repeat(start, size)
        alone = (rank % 2 == 0) & (rank == np.repeat(size, size) - 1)
        inside[open_] = (rank % 2 == 0) & ~alone
        open_ = open_[alone]
    inside[open_] = rng.random(open_.size) < 0.5
    return inside


def check(masks) -> np.ndarray:
    """Masks as a boolean array [M, N]; InputError if they are anything else."""
    masks = np.asarray(masks)
    if masks.ndim != 2 or masks.dtype != np.bool_ or not masks.size:
        raise InputError(
            f"masks must be booleans of shape [M, N], not {masks.dtype} {list(masks.shape)}: "
            "True where model m trained on sample n"
        )
    return masks


class Sides(NamedTuple):
    """The scores of a pool seen from its samples: IN models here, OUT models there, matched two by two.

    ``inside`` and ``outside`` [P, N]: entry (p, i) is the IN (OUT) model of sample i's p-th pair, rows from
    ``pairs[i]`` on are zero padding; ``pairs`` integers [N]; ``dropped`` [M, N], or [M, 1] where it is the same for
    all samples: the pair that is left out when model t is the target.
    """

    inside: np.ndarray
    outside: np.ndarray
    pairs: np.ndarray
    dropped: np.ndarray

    def left_out(self, array: np.ndarray, t: int) -> np.ndarray:
        """The row [N] of an array [P, N] that belongs to target t's pair."""
        p = self.dropped[t]
        return array[p[0]] if p.size == 1 else array[p, np.arange(p.size)]

    def padding(self) -> np.ndarray:
        """Booleans [P, N]: True where there is no pair."""
        return np.arange(len(self.inside))[:, None] >= self.pairs


def split(values: np.ndarray, masks: np.ndarray, pairing: str = "complementary", *, needed: int = 2) -> Sides:
    """Match every sample's IN models with its OUT models, so that a target can be left out together with a partner.

    Leaving only the target out would tell its membership: a sample has one IN model fewer if the target is IN.

    ``complementary``: rows 2k and 2k+1 must be complements of each other and are left out together. ``equal-counts``,
    for masks that are no such pairs, M odd allowed: the j-th IN model of a sample is matched with its j-th OUT model;
    what is unmatched on the longer side is not used. A target drops its own pair; an unmatched target drops a pair
    too. So whoever the target is and on whichever side, exactly min(IN, OUT) - 1 models stay on both sides. On
    complementary masks both give the same.

    Parameters: ``values`` reals [M, N]; ``masks`` booleans [M, N]; ``needed`` models that must stay on each side.
    Returns: Sides.
    Raises: InputError: unknown pairing, odd M, no complements, too few models for some sample.
    """
    m, n = masks.shape
    if pairing not in PAIRINGS:
        raise InputError(f"unknown pairing {pairing!r}: use one of {', '.join(PAIRINGS)}")
    if pairing == "complementary":
        _check_complementary(masks)
    # one pair is left out: its two models count on neither side
    counts = np.minimum(masks.sum(axis=0), m - masks.sum(axis=0))
    if counts.min() <= needed:
        i = int(counts.argmin())
        raise InputError(
            f"sample {i} is IN for {masks[:, i].sum()} and OUT for {m - masks[:, i].sum()} of {m} models, which leaves "
            f"fewer than {needed} on a side once a pair is left out: train more, at least {needed + 1} on each side"
        )
    if pairing == "complementary":
        even, first, second = masks[0::2], values[0::2], values[1::2]
        dropped = np.arange(m)[:, None] // 2
        return Sides(np.where(even, first, second), np.where(even, second, first), counts, dropped)
    # the rank of model m among the models on its own side of sample n
    rank = np.where(masks, masks.cumsum(axis=0, dtype=np.int32), (~masks).cumsum(axis=0, dtype=np.int32)) - 1
    columns = np.broadcast_to(np.arange(n), masks.shape)
    sides = []
    for side in (masks, ~masks):
        used = side & (rank < counts)
        matched = np.zeros((counts.max(), n))
        matched[rank[used], columns[used]] = values[used]
        sides.append(matched)
    return Sides(*sides, counts, rank % counts)


def _check_complementary(masks: np.ndarray) -> None:
    m = len(masks)
    if m % 2:
        raise InputError(f"{m} models are no pairs: add or drop one, or pass pairing='equal-counts'")
    wrong = (masks[0::2] == masks[1::2]).any(axis=1)
    if wrong.any():
        k = 2 * int(wrong.argmax())
        raise InputError(
            f"masks of models {k} and {k + 1} are not complementary: order the models in pairs, "
            "or pass pairing='equal-counts'"
        )
