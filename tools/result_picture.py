"""Draw book/_static/result.png, the picture on the cover and in the README, from the laptop records.

python tools/result_picture.py          rewrites the file only where the picture differs
"""

import io
from pathlib import Path

import numpy as np
from PIL import Image

from bnmem import exp_forced_memorization as exp
from bnmem import plots_memorization as plots

TARGET = Path(__file__).resolve().parents[1] / "book" / "_static" / "result.png"
TOLERANCE = 2.0  # mean absolute difference of pixels, of 255


def draw() -> bytes:
    """The PNG; raises LookupError where the records are not there."""
    return plots.cover(exp.run(exp.ForcedMemorization.of("laptop"), only_stored=True)).png()


def differs(a: bytes, b: bytes) -> bool:
    x, y = (np.asarray(Image.open(io.BytesIO(raw)).convert("RGB"), float) for raw in (a, b))
    return x.shape != y.shape or abs(x - y).mean() > TOLERANCE


if __name__ == "__main__":
    new = draw()
    if not TARGET.exists() or differs(new, TARGET.read_bytes()):
        TARGET.write_bytes(new)
        print(f"rewrote {TARGET.name}")
