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
# # Forced memorization: flipped labels and foreign images
#
# **Claims C1 and C2.** *With batch normalization (BN), a net memorizes corrupted training samples faster, and more of
# them, than the same net without it.*
#
# We give 5 % of the training images a wrong label, or replace them by images from another world with random labels.
# Nothing in such an image leads to its label. If the net answers with that label all the same, it has memorized the
# sample, and its accuracy on these samples measures memorization and nothing else.
#
# What the theory predicts: in the single-channel model BN multiplies the growth of *every* sample's margin by
# $(\gamma/\sigma)^2$. The factor carries no index of the sample. So theory alone suggests that BN fits *everything*
# sooner; it does not predict that BN favors the corrupted samples. The control at equal fit, below, tells the two apart.

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

from bnmem import exp_forced_memorization as exp
from bnmem import notebook
from bnmem import plots_memorization as plots
from bnmem import tables_memorization as tables

before = set(dir())

# %% [markdown]
# ## Parameters
#
# `profile` sets everything; each other parameter changes one thing and `None` leaves the profile's value. `smoke`
# computes in seconds, `laptop` is what this page shows. With `fresh = True` nothing is read from records. Wrong names and values
# stop with a list of the right ones.

# %% tags=["parameters"]
profile = "laptop"  # smoke, laptop, grid or paper
fresh = False  # compute anew even where a record exists
dataset = None  # mnist, fashion_mnist, cifar10 or cifar100
arch = None  # lenet, resnet8, resnet20, densenet, resnet18 or densenet121
norm = None  # under study: batch, none, affine, group, layer, instance or frozen
against = None  # the one it is compared with
rate = None  # corrupted fraction, 0 to 0.5
lr = None  # learning rate of the comparison at the same settings
epochs = None  # epoch at which the arms are compared
seeds = None  # number of seeds

# %% [markdown]
# ## Run
#
# Both arms start from the same weights and see the same batches. Each arm is trained twice: once with the same learning
# rate as the other arm, once with its own best one, chosen on held-out training images of *uncorrupted* runs.

# %% tags=["hide-input"]
given = notebook.parameters(globals(), before, exp.ForcedMemorization)
settings = notebook.settings_of(given, exp.ForcedMemorization)
result = exp.run(settings, fresh=given["fresh"])
notebook.notes(result.notes)
notebook.say(f"{len(result.records)} trainings and searches; the first: {result.records[0].line}.")

# %% [markdown]
# ## Which arm memorizes sooner?

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-memorization-curves", "caption": "Accuracy (top) and loss (bottom) on the corrupted training samples over epochs. Thin lines are seeds, thick lines their mean; the vertical line marks the epoch of comparison, the horizontal one half of the samples."}, "image": {"alt": "Line plots of accuracy and loss on corrupted samples over epochs, for flipped labels and for out-of-distribution images, one line for the net with batch normalization and one for the net without."}}
plots.curves(result)

# %% [markdown]
# ## How much, at equal epochs?

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-memorization-finals", "caption": "Accuracy on the corrupted samples at the epoch of comparison. Every seed is a dot, bars are means; above, the paired difference with its 95 % t interval."}, "image": {"alt": "Dot plot of corrupted accuracy for both arms, at the same learning rate and at each arm's best, for flipped labels and out-of-distribution images."}}
plots.finals(result)

# %% tags=["hide-input"]
notebook.table(tables.face_value_rows(result))

# %% [markdown]
# Brackets are 95 % intervals over seeds, paired. `>` marks a run that had not memorized half of the corrupted samples
# when it stopped; it enters the speed-up with that epoch, so the speed-up is then a lower bound. A speed-up of 1 means half
# the epochs.
#
# How sure is the choice of each arm's best learning rate? The search reads the accuracy on held-out training images:

# %% tags=["hide-input"]
notebook.table(tables.search_rows(result))

# %% [markdown]
# Bold is the rate that was taken. Over a wide range the accuracies lie within three points of one another, and each is
# the mean of two runs: another draw might have taken another rate. "Each at its best" means this choice, not a rate that
# is known to be best.
#
# ## The control: equal fit
#
# BN fits the clean images sooner as well. So compare the arms where they fit the clean images *equally well*: at the
# first moment when both have the same accuracy on the clean part of the training set.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-memorization-equal-fit", "caption": "The control. Each dot is one evaluation of one run: accuracy on the corrupted samples against accuracy on the clean training images. If batch normalization favored the corrupted samples, its dots would lie above the others. The vertical line is the level at which the table compares."}, "image": {"alt": "Scatter plot of corrupted accuracy against clean-training accuracy for both arms; the two clouds of dots largely follow one curve."}}
plots.equal_fit(result)

# %% tags=["hide-input"]
notebook.table(tables.equal_fit_rows(result), empty="The arms have no level of clean-training accuracy in common.")

# %% [markdown]
# ## What BN bought in exchange

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-memorization-bought", "caption": "Accuracy on clean training images and on test images over epochs (flipped labels, same learning rate), and the mean gamma/sigma of each normalization layer, with sigma taken over training images."}, "image": {"alt": "Three line plots: clean-training accuracy, test accuracy, and gamma over sigma of each batch normalization layer over epochs."}}
plots.bought(result)

# %% tags=["hide-input"]
notebook.table(tables.bought_rows(result))

# %% [markdown]
# Test accuracy is read at the epoch with the best accuracy on the held-out training images.
#
# ## Found, against the paper
#
# The verdicts follow the rules in `bnmem/rules.py`, which were fixed before the first record was made: a cell *holds*
# when its whole interval lies above zero and the effect reaches the least one that counts.

# %% tags=["hide-input"]
notebook.table(tables.verdict_rows(result))

# %% tags=["hide-input", "hide-output"]
notebook.table(tables.record_rows(result))

# %% tags=["remove-cell"]
notebook.glue(**tables.glue_values(result))

# %% [markdown]
# ## What would change our mind
#
# - A data set or a net where the BN arm memorizes no sooner at equal epochs would break C1 as the paper states it.
# - A net where the BN arm lies clearly *above* the other arm at equal fit would show that BN favors corrupted samples
#   beyond fitting everything sooner. Try `arch = "resnet8"`, another `rate`, or a data set of your own.
# - Three seeds give wide intervals. `seeds = 10` narrows them.
#
# Read on: [the chapter](../book/forced_memorization.md) says how to read this result. The numbers come from
# `results/forced_memorization/`, the code is `bnmem/exp_forced_memorization.py`, its tests are
# `tests/test_forced_memorization.py`.
