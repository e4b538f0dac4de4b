"""One number a model and a sample: the score phi that LiRA models, and two simpler attacks to compare it with.

Everything here takes arrays and returns NumPy float64 arrays; larger always means "more like a member".
"""

import numpy as np
from scipy.special import log_expit, logsumexp

from bnmem import masks as _masks
from bnmem.errors import InputError

BLOCK = 65_536
LIMIT = 1e100


def phi(logits, labels) -> np.ndarray:
    """phi = z_y - logsumexp over j != y of z_j: the log-odds of the trained label, from logits.

    A softmax in float32 rounds to one near phi = 16, and log p - log(1 - p) loses every difference beyond; this never
    forms a probability. Log-probabilities are fine as logits (a shift of all z_j changes nothing), probabilities are
    not.

    Parameters: ``logits`` reals [..., K], K >= 2, in any float or integer type; ``labels`` integers in 0..K-1, either
    of the same leading shape or [N] for logits [M, N, K] and [M, N, Q, K]: for flipped samples the label that was
    trained.
    Returns: float64 [...]. The inputs are not modified, and memory beyond the result does not grow with them.
    Raises: InputError on NaN or infinity, wrong types or shapes, labels out of range, or if every row looks like
    probabilities.
    Source: the logit scaling of Carlini et al. 2022, in its stable form.
    """
    rows, flat, shape = _check_logits(logits, labels)
    out = np.empty(len(rows))
    only_probabilities = len(rows) > 0
    for start in range(0, len(rows), BLOCK):
        z = rows[start : start + BLOCK].astype(np.float64)
        if not np.isfinite(z).all():
            bad = start + int((~np.isfinite(z)).any(axis=1).argmax())
            at = [int(k) for k in np.unravel_index(bad, shape)]
            raise InputError(
                f"logits at {at} are NaN or infinite: find the model that diverged, or clip probabilities before log"
            )
        only_probabilities &= bool((z >= 0).all() and (np.abs(z.sum(axis=1) - 1) < 1e-3).all())
        own = flat[start : start + BLOCK, None]
        z -= np.take_along_axis(z, own, axis=1)
        np.put_along_axis(z, own, -np.inf, axis=1)
        out[start : start + BLOCK] = -logsumexp(z, axis=1)
    if only_probabilities:
        raise InputError(
            "logits look like probabilities (rows >= 0 that sum to one): pass logits, or np.log of the probabilities"
        )
    return out.reshape(shape)


def correct(logits, labels) -> np.ndarray:
    """Whether the label's logit is the largest: booleans [...]; a tie goes to the first class; else as in ``phi``."""
    rows, flat, shape = _check_logits(logits, labels)
    if not np.isfinite(rows).all():
        raise InputError("logits hold NaN or infinity: find the model that diverged, or clip probabilities before log")
    return (rows.argmax(axis=1) == flat).reshape(shape)


def _check_logits(logits, labels) -> tuple[np.ndarray, np.ndarray, tuple]:
    """Logits as rows [R, K], labels as [R], and the leading shape."""
    logits, labels = np.asarray(logits), np.asarray(labels)
    if logits.dtype.kind not in "fiu":
        raise InputError(f"logits must be real numbers, not {logits.dtype}: pass a float array")
    if logits.ndim < 2 or logits.shape[-1] < 2:
        raise InputError(
            f"logits must have shape [..., K] with K >= 2, not {list(logits.shape)}: "
            "for a binary decision function d pass np.stack([0 * d, d], -1)"
        )
    if labels.dtype.kind not in "iu":
        raise InputError(f"labels must be integers, not {labels.dtype}: pass class indices")
    shape, k = logits.shape[:-1], logits.shape[-1]
    if labels.shape != shape:
        if len(shape) not in (2, 3) or labels.shape != shape[1:2]:
            raise InputError(
                f"labels {list(labels.shape)} do not fit logits {list(logits.shape)}: "
                "pass [N] for [N, K], [M, N, K] or [M, N, Q, K]"
            )
        labels = np.broadcast_to(labels.reshape(-1, *[1] * (len(shape) - 2)), shape)
    if labels.size and not (labels.min() >= 0 and labels.max() < k):
        raise InputError(f"labels go from {labels.min()} to {labels.max()}, logits have {k} classes: use 0..{k - 1}")
    return logits.reshape(-1, k), labels.reshape(-1), shape


def check_phi(values, *, ndim=(2,)) -> np.ndarray:
    """Scores as float64 with one of the numbers of axes in ``ndim``, finite and below 1e100; InputError otherwise."""
    values = np.asarray(values)
    if values.dtype.kind not in "fiu" or values.ndim not in ndim or not values.size:
        shapes = " or ".join({2: "[M, N]", 3: "[M, N, Q]"}[k] for k in ndim)
        raise InputError(
            f"phi must be real numbers of shape {shapes}, not {values.dtype} {list(values.shape)}: use scores.phi"
        )
    values = values.astype(np.float64, copy=False)
    if not (values.min() >= -LIMIT and values.max() <= LIMIT):
        at = [int(k) for k in np.argwhere(~(np.abs(values) <= LIMIT))[0]]
        raise InputError(f"phi at {at} is NaN, infinite or beyond 1e100: find the model that diverged")
    return values


def loss_threshold(phi) -> np.ndarray:
    """Minus the cross-entropy of the trained label, log p_y = log expit(phi): one global threshold on the loss.

    Parameters: ``phi`` reals [M, N].
    Returns: float64 [M, N] in nats, at most 0, larger = member.
    Raises: InputError on NaN, infinity or wrong shape.
    Source: Yeom et al. 2018, adversary 2 (threshold on the loss).
    """
    return log_expit(check_phi(phi))


def rmia(phi, masks, *, pairing: str = "complementary") -> np.ndarray:
    """RMIA's ratio in log space, row t: log p(x | theta_t) minus the log of the mean of p(x | theta) over references.

    The references are the other models, target t's pair left out, so equally many have seen x and have not. RMIA
    scores x by the share of population points z with ratio(x) / ratio(z) >= gamma; for one target that share never
    decreases in ratio(x), whatever gamma is, so the ROC of a target is the ratio's own. Read it per target: ratios of
    different targets are on different scales. Sums run forward and backward over pairs, never as total minus own,
    which would cancel.

    Parameters: ``phi`` reals [M, N]; ``masks`` booleans [M, N]; ``pairing`` as in ``masks.split``.
    Returns: float64 [M, N], log-ratio in nats, larger = member.
    Raises: InputError as ``masks.split``, NaN, wrong shapes.
    Source: Zarifzadeh, Liu and Shokri 2024, the relative ratio in its online form: p(x) is the mean over IN and OUT
    models.
    """
    log_p = log_expit(check_phi(phi))
    masks = _masks.check(masks)
    if masks.shape != log_p.shape:
        raise InputError(f"masks {list(masks.shape)} do not fit phi {list(log_p.shape)}: one entry a model and sample")
    sides = _masks.split(log_p, masks, pairing, needed=1)
    pair = np.logaddexp(sides.inside, sides.outside)
    pair[sides.padding()] = -np.inf
    # before[p] and after[p]: log-sums over the pairs before and after p
    before, after = np.full_like(pair, -np.inf), np.full_like(pair, -np.inf)
    for p in range(1, len(pair)):
        np.logaddexp(before[p - 1], pair[p - 1], out=before[p])
        np.logaddexp(after[-p], pair[-p], out=after[-p - 1])
    rest = np.logaddexp(before, after, out=before)
    references = np.log(2.0 * (sides.pairs - 1))
    return np.stack([log_p[t] - sides.left_out(rest, t) + references for t in range(len(log_p))])
