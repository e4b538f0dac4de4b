"""LiRA, the likelihood-ratio membership attack, on arrays: scores of M models in, evidence of membership out.

Every model is the target once; the other models are its shadow models, without the partner of its pair. That partner
has to go. Drop only the target, and a sample that the target trained on has one IN model fewer than one it did not:
the counts tell membership, and data without any signal give an AUC of about 0.44 at 8 models and 0.49 at 16
(per-example variance). Drop nothing, and the target sits inside its own reference: 0.79 and 0.68. With the pair left
out, every sample keeps M/2 - 1 IN and M/2 - 1 OUT models whatever the target's membership, and no signal gives 0.5.

n below is that number, M/2 - 1.
Source: Carlini et al. 2022, Algorithm 1 and its offline variant; for priors on the variance with few shadow models see
also Brännvall 2026 (arXiv:2603.11799).
"""

from collections.abc import Mapping

import numpy as np

from bnmem import masks as _masks
from bnmem.errors import InputError
from bnmem.scores import check_phi

MODES = ("online", "offline")
VARIANCES = ("per-example", "pooled", "shrunk")
RULES = ("mean-llr", "mean-phi")
STD_FLOOR = 1e-6
# below this share of the full sum of squares the difference has lost four digits: the sum is then taken afresh
CANCELLED = 1e-4


def score(
    phi,
    masks,
    mode: str = "online",
    variance: str = "shrunk",
    *,
    pairing: str = "complementary",
    rule: str = "mean-llr",
    nu0: float = 4.0,
    std_floor: float = STD_FLOOR,
) -> np.ndarray:
    """Score every sample for membership in every model's training set, that model's pair left out.

    ``mode``: ``online`` = log-density of phi under the sample's IN models minus that under its OUT models;
    ``offline`` = z = (phi - mu_out) / s_out, one-sided, the IN models unused. (Never its CDF: that saturates at 1.)

    ``variance``, IN and OUT apart, each from the n models that stay: ``per-example`` = s2, the sample's own;
    ``pooled`` = one for all samples, squared residuals from each sample's own mean over sum(n_i - 1);
    ``shrunk`` = (nu0 pooled + (n - 1) s2) / (nu0 + n - 1), and for ``online`` the Student-t predictive density with
    nu0 + n - 1 degrees of freedom and squared scale (1 + 1/n) times that. Per-example needs many models (64 and more);
    pooled is right if all samples vary alike; shrunk is a safe choice anywhere, hence the default.

    ``pairing``: ``complementary`` expects rows 2k, 2k+1 to be complements; ``equal-counts`` takes any masks and lets
    equally many IN and OUT models enter for every target and sample (``masks.split``). On complementary masks the two
    agree.

    ``rule`` for several queries a sample (phi [M, N, Q], the same Q augmentations for all models): ``mean-llr``
    averages the queries' scores, ``mean-phi`` scores the queries' average phi. At one query they agree.

    ``std_floor``, in units of phi: no standard deviation counts as smaller. It acts where models agree to the last
    digit, as saturated scores do, and keeps the result finite; samples whose phi is constant tie exactly.

    Parameters: ``phi`` reals [M, N] or [M, N, Q], from ``scores.phi``; ``masks`` booleans [M, N], True = trained on
    it.
    Returns: float64 [M, N]; row t has model t as target; larger = member. The inputs are not modified.
    Raises: InputError: unknown option, odd M, masks not complementary, fewer than 3 IN or OUT models for a sample, NaN
    or infinity, shapes that do not fit.
    """
    for name, value, valid in (("mode", mode, MODES), ("variance", variance, VARIANCES), ("rule", rule, RULES)):
        if value not in valid:
            raise InputError(f"unknown {name} {value!r}: use one of {', '.join(valid)}")
    for name, value in (("nu0", nu0), ("std_floor", std_floor)):
        if not (np.isscalar(value) and np.isfinite(value) and value > 0):
            raise InputError(f"{name} must be a finite number > 0, not {value!r}: leave it at its default")
    phi, masks = check_phi(phi, ndim=(2, 3)), _masks.check(masks)
    if masks.shape != phi.shape[:2]:
        raise InputError(f"masks {list(masks.shape)} do not fit phi {list(phi.shape)}: one entry a model and sample")
    if phi.ndim == 3 and rule == "mean-phi":
        phi = phi.mean(axis=2)
    queries = phi[..., None] if phi.ndim == 2 else phi
    total = np.zeros(masks.shape)
    for q in range(queries.shape[2]):
        _add_query(total, queries[..., q], masks, mode, variance, pairing, nu0, std_floor)
    total /= queries.shape[2]
    return total


def _add_query(total, phi, masks, mode, variance, pairing, nu0, std_floor) -> None:
    """Add one query's scores to ``total`` [M, N]. One pass over targets, all samples at once."""
    phi = phi - phi[0]  # a shift of a sample's scores changes nothing, and makes constant ones exactly zero
    sides = _masks.split(phi, masks, pairing)
    padding = None if pairing == "complementary" else sides.padding()
    outside = _Side(sides.outside, sides.pairs, padding)
    inside = _Side(sides.inside, sides.pairs, padding) if mode == "online" else None
    n = sides.pairs - 1
    for t, x in enumerate(phi):
        mean, std = outside.without(sides, t, variance, nu0, std_floor)
        if mode == "offline":
            total[t] += (x - mean) / std
            continue
        total[t] -= _log_density(x, mean, std, n, variance, nu0)
        mean, std = inside.without(sides, t, variance, nu0, std_floor)
        total[t] += _log_density(x, mean, std, n, variance, nu0)


class _Side:
    """The IN or the OUT models of every sample: centred once, then any one of them taken out in O(N)."""

    def __init__(self, values: np.ndarray, pairs: np.ndarray, padding: np.ndarray | None):
        self.pairs, self.padding = pairs, padding
        self.mean = values.sum(axis=0) / pairs
        values -= self.mean
        if padding is not None:
            values[padding] = 0
        self.residuals = values
        self.squares = np.einsum("pn,pn->n", values, values)

    def without(self, sides, t, variance, nu0, std_floor) -> tuple[np.ndarray, np.ndarray]:
        """Mean [N] and standard deviation [N] of the models that stay when target t's pair goes."""
        n = self.pairs - 1
        gone = sides.left_out(self.residuals, t)
        mean = self.mean - gone / n
        squares = self.squares - gone**2 * (self.pairs / n)
        lost = np.flatnonzero(squares < CANCELLED * self.squares)
        if lost.size:
            squares[lost] = self._afresh(lost, np.broadcast_to(sides.dropped[t], self.pairs.shape)[lost])
        if variance != "per-example":
            pooled = squares.sum() / (n - 1).sum()
        if variance == "per-example":
            s2 = squares / (n - 1)
        elif variance == "pooled":
            s2 = np.full(squares.shape, pooled)
        else:
            s2 = (nu0 * pooled + squares) / (nu0 + n - 1)
        return mean, np.sqrt(np.maximum(s2, std_floor**2))

    def _afresh(self, columns: np.ndarray, dropped: np.ndarray) -> np.ndarray:
        """Sums of squares of a few columns in two passes, where the gone value was nearly all of the sum."""
        gone = np.arange(len(self.residuals))[:, None] == dropped
        stay = ~gone if self.padding is None else ~(gone | self.padding[:, columns])
        left = np.where(stay, self.residuals[:, columns], 0)
        left = np.where(stay, left - left.sum(axis=0) / stay.sum(axis=0), 0)
        return (left**2).sum(axis=0)


def _log_density(x, mean, std, n, variance, nu0) -> np.ndarray:
    """Log-density up to terms of n alone: IN and OUT have the same n, so those cancel in the difference."""
    z2 = ((x - mean) / std) ** 2
    if variance != "shrunk":
        return -0.5 * z2 - np.log(std)
    nu = nu0 + n - 1
    return -0.5 * (nu + 1) * np.log1p(z2 / (nu * (1 + 1 / n))) - np.log(std)


def risk_table(phi, masks, correct=None, columns: Mapping | None = None, *, std_floor: float = STD_FLOOR) -> dict:
    """Who is exposed: one row a sample, from all M models (nothing left out: this describes, it does not attack).

    d_prime = (mu_in - mu_out) / sqrt((s2_in + s2_out) / 2), with the unbiased s2 of phi. memorization = mean correct
    IN - mean correct OUT, and memorization_se = sqrt(s2_in / n_in + s2_out / n_out) with the unbiased s2 of
    ``correct``. That error is 0 where all models agree on both sides; it does not make the value certain.

    Parameters: ``phi`` reals [M, N]; ``masks`` booleans [M, N], complementary or not, at least 2 models on each side
    of every sample; ``correct`` booleans [M, N], from ``scores.correct`` on the trained labels, or None; ``columns``
    arrays [N] to join, by name, such as gradient norms or clean / flip / OOD; ``std_floor`` as in ``score``.
    Returns: a dict of arrays [N]: sample, n_in, n_out, mu_in, mu_out, d_prime, with ``correct`` also memorization and
    memorization_se, then ``columns``.
    Raises: InputError on wrong shapes, too few models, a column name that is taken.
    Source: d' of signal detection; memorization as estimated from random subsets by Feldman and Zhang 2020.
    """
    phi, masks = check_phi(phi), _masks.check(masks)
    if masks.shape != phi.shape:
        raise InputError(f"masks {list(masks.shape)} do not fit phi {list(phi.shape)}: one entry a model and sample")
    n_in, n_out = masks.sum(axis=0), (~masks).sum(axis=0)
    few = np.minimum(n_in, n_out)
    if few.min() < 2:
        i = int(few.argmin())
        raise InputError(
            f"sample {i} is IN for {n_in[i]} and OUT for {n_out[i]} models: train more, at least 2 on each side"
        )
    mu_in, s2_in = _mean_and_variance(phi, masks)
    mu_out, s2_out = _mean_and_variance(phi, ~masks)
    spread = np.sqrt(np.maximum((s2_in + s2_out) / 2, std_floor**2))
    table = {"sample": np.arange(phi.shape[1]), "n_in": n_in, "n_out": n_out, "mu_in": mu_in, "mu_out": mu_out}
    table["d_prime"] = (mu_in - mu_out) / spread
    if correct is not None:
        correct = np.asarray(correct)
        if correct.shape != phi.shape or correct.dtype != np.bool_:
            raise InputError(
                f"correct must be booleans {list(phi.shape)}, not {correct.dtype} {list(correct.shape)}: "
                "use scores.correct"
            )
        p_in, v_in = _mean_and_variance(correct.astype(np.float64), masks)
        p_out, v_out = _mean_and_variance(correct.astype(np.float64), ~masks)
        table["memorization"] = p_in - p_out
        table["memorization_se"] = np.sqrt(v_in / n_in + v_out / n_out)
    for name, column in (columns or {}).items():
        column = np.asarray(column)
        if name in table or column.shape != phi.shape[1:]:
            raise InputError(
                f"column {name!r} is taken or has shape {list(column.shape)}: rename it, or pass {list(phi.shape[1:])}"
            )
        table[name] = column
    return table


def _mean_and_variance(values: np.ndarray, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Over the chosen models of every sample: mean [N] and unbiased variance [N], in two passes."""
    mean = values.mean(axis=0, where=chosen)
    return mean, values.var(axis=0, ddof=1, where=chosen)
