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
# # Query mode: ask the same net in two ways
#
# **A measurement beside claims C4 and C5.** *A net with batch normalization (BN) has two ways of answering. How far does the
# choice move the result of a membership attack?* The attack is LiRA, the likelihood-ratio attack.
#
# Deployed, a BN net uses running averages of mean and variance: its answer for one image does not depend on what else is
# asked. In training mode it takes mean and variance from the query batch itself. Some published attack code queries nets
# in training mode. For a net without BN that makes no difference; for a net with BN it changes every answer. A comparison of
# the two that is made this way measures something else than what a user of the deployed net could see.
#
# What theory predicts: only that the answers differ. With batch statistics the answer for an image depends on its
# neighbors in the batch, which adds noise; on the other hand the net is asked in the very mode in which it was fitted.
# Which one wins must be measured.

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

from bnmem import exp_query_mode as exp
from bnmem import notebook
from bnmem import plots_query as plots

before = set(dir())

# %% [markdown]
# ## Parameters
#
# `profile` sets everything; each other parameter changes one thing and `None` leaves the profile's value. `smoke`
# computes in under a minute, `laptop` is what this page shows. With `fresh = True` nothing is read from records. Wrong names
# and values stop with a list of the right ones.

# %% tags=["parameters"]
profile = "laptop"  # smoke, laptop, grid or paper
fresh = False  # compute anew even where a record exists
dataset = None  # mnist, fashion_mnist, cifar10 or cifar100
arch = None  # lenet, resnet8, resnet20, densenet, resnet18 or densenet121
norm = None  # under study: batch, none, affine, group, layer, instance or frozen
against = None  # the one it is compared with
corruption = None  # flip or ood: how outliers are made
rate = None  # outlier fraction of the pool
models = None  # shadow models an arm, even, 6 or more
queries = None  # sizes of the query batches, as [32, 128, 512]
seed = None  # seed of all streams

# %% [markdown]
# ## Run
#
# The shadow models are those of [membership inference](membership_inference.ipynb). After the last epoch each net scored
# the whole pool with running statistics, and again with the statistics of query batches of several sizes. The composition of
# the query batches is one random order of the pool, the same for all nets; members and non-members are mixed in it.

# %% tags=["hide-input"]
given = notebook.parameters(globals(), before, exp.QueryMode)
settings = notebook.settings_of(given, exp.QueryMode)
result = exp.run(settings, fresh=given["fresh"])
notebook.notes(result.notes)
notebook.say(f"{len(result.records)} arms; the first: {result.records[0].line}.")

# %% [markdown]
# ## How far does it move the result?

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-query-mode", "caption": "Left: AUC of LiRA on the nets with BN, asked with running statistics and with those of query batches of growing size; each thin line is a pair of models, each bar a mean, the dashed line the mean of the nets without BN. Right: the difference between the two arms in each mode, with its 95 % t interval over pairs."}, "image": {"alt": "Left a dot plot of the AUC of nets with batch normalization for each way of asking, right the gap to nets without it, with intervals."}}
plots.modes(result)

# %% tags=["hide-input"]
notebook.table(plots.mode_rows(result))

# %% [markdown]
# *Shift* is the AUC in that mode minus the AUC with running statistics, same nets, paired over pairs of models.
#
# ## How sure are the nets?
#
# The share of samples to which a net gives more than half of its probability to the trained label:

# %% tags=["hide-input"]
notebook.table(plots.fit_rows(result))

# %% [markdown]
# ## Does the order of the questions matter?
#
# It must not, if a score is to belong to an image. The table shows the largest change of any score (in units of log-odds)
# over all nets and samples when the pool is asked in another order. With running statistics it has to be zero.

# %% tags=["hide-input"]
notebook.table(plots.order_rows(result))

# %% [markdown]
# ## Found
#
# No claim of the paper depends on this notebook. It says which of two measurements the other notebooks make: running
# statistics, always.

# %% tags=["hide-input"]
notebook.table(plots.verdict_rows(result), empty="This arm has one way of answering.")

# %% tags=["hide-input", "hide-output"]
notebook.table(plots.record_rows(result))

# %% tags=["remove-cell"]
notebook.glue(**plots.glue_values(result))

# %% [markdown]
# ## What would change our mind
#
# - A shift much larger or of the other sign in another net or data set: try `arch = "resnet8"`, where every layer has BN.
# - Batches of members only, or of non-members only, would leak membership through the statistics themselves. We mix them; an
#   attacker who knows who belongs together need not.
#
# Read on: [the chapter](../book/membership_inference.md). The numbers come from `results/query_mode/`, the code is
# `bnmem/exp_query_mode.py`, its tests are in `tests/test_membership_inference.py`.
