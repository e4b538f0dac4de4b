# ---
# jupyter:
#   jupytext:
#     cell_metadata_filter: all
#     formats: py:percent,ipynb
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # The scorecard: every claim, every cell
#
# **Claims C1 to C10.** One table, generated from the records by rules that were fixed before the first of them was made.
# A cell is one data set and net. It *holds* when its 95 % interval lies above zero and its effect reaches the margin, *fails*
# when the whole interval lies below the margin, and is *open* otherwise. A claim is `reproduced` when every cell of every
# metric holds, `partly` when some do, `not reproduced` when none does.
#
# Every claim is read twice: after the same number of epochs, as the paper states it, and at equal fit, where both arms have
# the same accuracy on clean training images. The verdict is the first reading's.

# %% tags=["setup", "hide-input"]
# Set-up. In Colab this fetches the project, records included; elsewhere bnmem is installed already.
import importlib.util
import subprocess
import sys

REPOSITORY, REF = "-owner-not-set-/bnmem", "main"
if importlib.util.find_spec("bnmem") is None:
    if REPOSITORY.startswith("-"):
        raise SystemExit("This copy has no public address yet: clone the project and run the notebook from there.")
    source = f"https://github.com/{REPOSITORY}"
    subprocess.run(["git", "clone", "--quiet", "--depth", "1", "--branch", REF, source, "bnmem-source"], check=True)
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "./bnmem-source"], check=True)

from bnmem import notebook, scorecard
from bnmem import plots_scorecard as plots
from bnmem.exp_grid import Grid

before = set(dir())

# %% [markdown]
# ## Parameters
#
# `laptop` reads all records there are; `smoke` computes a tiny grid first, so that CI proves that the code still works. The
# grid itself takes hours: `python -m bnmem run grid` computes what is missing of it.

# %% tags=["parameters"]
profile = "laptop"  # smoke or laptop
fresh = False  # with smoke: compute anew even where a record exists
tiers = None  # tiers of the grid's rows, such as [1, 2]
only = None  # pattern of the grid's rows, such as "*/cifar10/*"

# %% [markdown]
# ## Run

# %% tags=["hide-input"]
given = notebook.parameters(globals(), before, Grid)
settings = notebook.settings_of(given, Grid)
card = scorecard.collect(settings, given["profile"], fresh=given["fresh"])
notebook.notes(card.notes)
small = " (the small grid was computed where it was missing)" if given["profile"] == "smoke" else ""
notebook.say(f"{len(card.used)} records{small}.")

# %% [markdown]
# ## The scorecard

# %% tags=["hide-input"]
notebook.table(plots.scorecard_rows(card))

# %% [markdown]
# ## Forced memorization, C1 and C2
#
# In each figure a row is a cell. Filled marks: after equal epochs. Hollow marks below them: at equal fit. Blue circles hold,
# grey diamonds are open, orange squares fail, grey crosses fail since neither arm memorized half. The dashed line is the margin,
# the dotted one zero; an arrow head says that the interval goes on.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-scorecard-C1", "caption": "C1, flipped labels: effect with 95 % interval of every cell, after equal epochs (filled) and at equal fit (hollow). Left, accuracy on the corrupted samples; right, how much sooner half of them are memorized."}, "image": {"alt": "Forest plot of claim C1: one row for each data set and net with flipped labels, effect of batch normalization with its interval after equal epochs and at equal fit."}}
plots.forest(card, ("C1",))

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-scorecard-C2", "caption": "C2, out-of-distribution images: the same."}, "image": {"alt": "Forest plot of claim C2: one row for each data set and net with out-of-distribution images, effect of batch normalization with its interval after equal epochs and at equal fit."}}
plots.forest(card, ("C2",))

# %% [markdown]
# ## Gradient norms, C3

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-scorecard-C3", "caption": "C3, gradient norms (definition eval, log2 of ratios of medians): noisy over clean samples in the net with BN, and noisy samples with BN over without."}, "image": {"alt": "Forest plot of claim C3: one row a cell, log2 ratios of median gradient norms with intervals."}}
plots.forest(card, ("C3",))

# %% [markdown]
# ## Membership inference, C4 and C5

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-scorecard-C4-C5", "caption": "C4 and C5, AUC of LiRA, BN minus no norm, paired over pairs of shadow models; filled after equal epochs, hollow at equal fit."}, "image": {"alt": "Forest plot of claims C4 and C5: differences of attack AUC with intervals for each data set and net."}}
plots.forest(card, ("C4", "C5"))

# %% [markdown]
# ## gamma/sigma, the penalty and the trade-off, C8 to C10

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-scorecard-C8", "caption": "C8, gamma/sigma in the net with BN: share of layers with a mean above 1 after training (minus one half), and what training does to the mean."}, "image": {"alt": "Forest plot of claim C8: share of layers above one and the change of the mean ratio for each data set and net."}}
plots.forest(card, ("C8",))

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-scorecard-C9-C10", "caption": "C9 and C10: what the penalty removes and keeps, and what the best alternative of equal utility saves."}, "image": {"alt": "Forest plot of claims C9 and C10: effects of the penalty and of the alternatives with intervals."}}
plots.forest(card, ("C9", "C10"))

# %% [markdown]
# ## Every cell in numbers

# %% tags=["hide-input", "hide-output"]
for claim in card.cells:
    notebook.say(f"**{claim}**")
    notebook.table(plots.cell_rows(card, claim), empty="A theorem, or nothing measured yet.")

# %% tags=["remove-cell"]
notebook.glue(**plots.glue_values(card))

# %% [markdown]
# ## What would change our mind
#
# - A data set or net on which a claim holds at equal fit: run the grid with another row (`bnmem/grid_rows.py`).
# - An error in a rule: they are in `bnmem/rules.py`, and a test checks that they are older than every record.
#
# Read on: [the scorecard in words](../book/scorecard.md). The numbers come from `results/`, the code is `bnmem/scorecard.py`,
# `bnmem/exp_grid.py` and `bnmem/grid_rows.py`, the tests are `tests/test_grid.py` and `tests/test_scorecard.py`.
