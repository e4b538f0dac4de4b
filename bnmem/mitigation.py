"""One training with a mitigation as a record: curves, what became of gamma, sigma and the weights, or how it failed."""

from dataclasses import dataclass

from bnmem import train, training
from bnmem.errors import Diverged
from bnmem.jobs import Kind
from bnmem.ratio import gamma_over_sigma
from bnmem.training import RATIO_SAMPLES, Training

CODE = (*training.CODE, "mitigation")


@dataclass(frozen=True)
class Mitigated(Training):
    """A training. That it may fail is part of what is measured."""


def compute(s: Mitigated, progress: bool = False) -> tuple[dict, dict]:
    """Train as `training.compute` does. Its numbers and `layers`: "start" and "end" -> BN layer -> means over channels
    of `gamma` (absolute), `sigma` (over training images) and `weight_norm` (of what feeds the layer; None where no
    single layer does). A training that diverges gives `diverged`, the message, and nothing else.
    """
    layers = {}

    def also(epoch, model, x, bad):
        if epoch not in (0, s.epochs):
            return
        layers["end" if epoch else "start"] = {
            layer.name: {
                "gamma": float(abs(layer.gamma).mean()),
                "sigma": float(layer.sigma.mean()),
                "weight_norm": None if layer.weight_norm is None else float(layer.weight_norm.mean()),
            }
            for layer in gamma_over_sigma(model, train.batch_of(x, slice(RATIO_SAMPLES)))
        }

    try:
        curves, _ = training.compute(s, progress, also)
    except Diverged as error:
        return {"diverged": str(error)}, {}
    return curves | {"layers": layers}, {}


MITIGATED = Kind("mitigated", Mitigated, training.fingerprint, compute, CODE)
