"""Per-sample gradient norms of any net by one backward pass a sample: slow, and nothing to refuse."""

import numpy as np
import torch
from torch import nn


def one_by_one(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> np.ndarray:
    """l2 norm of each sample's gradient, float64 [n], by one backward pass a sample: any layer, any forward.

    The model is in eval mode. As in `grads.norms`, the gradient at the logits is formed in float64 without
    cancellation and carried in its own unit.
    """
    owned = [p for p in model.parameters() if p.requires_grad]
    found = []
    for i in range(len(y)):
        with torch.enable_grad():
            z = model(x[i : i + 1])
        p = z.detach().cpu().double().softmax(1)[0]
        p[y[i]] = 0.0
        p[y[i]] = -p.sum()
        unit = float(p.abs().max()) or 1.0
        made = torch.autograd.grad(z, owned, (p / unit)[None].to(z), allow_unused=True)
        found.append(unit * sum(float(g.double().square().sum()) for g in made if g is not None) ** 0.5)
    return np.array(found, np.float64)
