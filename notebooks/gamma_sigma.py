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
# # gamma/sigma in trained nets
#
# **Claim C8.** *Measured in trained nets with batch normalization (BN), $\gamma/\sigma$ is above 1 in most layers.*
#
# In the single-channel model BN multiplies a sample's margin growth by $(\gamma/\sigma)^2$. So the claim looks like the
# missing piece: it would say that in real nets this factor amplifies rather than damps.
#
# What the theory says about reading it: $\gamma/\sigma$ is not a property of the function that a net computes. Weights
# before a BN layer that are half as large give the same outputs and twice the ratio. So the number depends on how the
# weights were *initialized*, and an untrained net has one too. We put the value at initialization beside every trained
# value, for two initializations, and next to the ratio the reading that does not depend on the length of the weights,
# $|\gamma|\,\lVert w \rVert / \sigma$ with $w$ those that feed the channel. We call it *scale-free*. It says how steeply
# the channel's output follows its input. It is no property of the whole net either: with $\gamma$ and $\beta$ twice as large
# and the next weights half as large it doubles, and no output changes.

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

from bnmem import exp_gamma_sigma as exp
from bnmem import notebook
from bnmem import plots_gamma_sigma as plots
from bnmem import tables_gamma_sigma as tables

before = set(dir())

# %% [markdown]
# ## Parameters
#
# `profile` sets everything; each other parameter changes one thing and `None` leaves the profile's value. With
# `fresh = True` nothing is read from records.

# %% tags=["parameters"]
profile = "laptop"  # smoke, laptop, grid or paper
fresh = False  # compute anew even where a record exists
dataset = None  # mnist, fashion_mnist, cifar10 or cifar100
archs = None  # a list of: lenet, resnet8, resnet20, densenet, resnet18, densenet121
inits = None  # a list of: torch, he
corruption = None  # flip or ood
rate = None  # corrupted fraction, 0 to 0.5
lr = None  # learning rate of all nets
decay = None  # weight decay of one more arm of the first net; 0 leaves it out
seeds = None  # number of seeds

# %% [markdown]
# ## Run
#
# LeNet trains on more images than the two deeper nets, to keep the whole within minutes. At checkpoints we note $\gamma$
# and $\sigma$ of every channel, $\sigma$ over one batch of 1,000 training images. At the end we *rewind* each layer: its
# convolution, $\gamma$ and $\beta$ go back to their values at initialization, all others stay, BN's statistics are measured
# anew, and we count which training samples are forgotten.

# %% tags=["hide-input"]
given = notebook.parameters(globals(), before, exp.GammaSigma)
settings = notebook.settings_of(given, exp.GammaSigma)
result = exp.run(settings, fresh=given["fresh"])
notebook.notes(result.notes)
notebook.say(f"{len(result.records)} trainings; the first: {result.records[0].line}.")

# %% [markdown]
# ## Layer by layer, before and after training

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-ratio-layers", "caption": "Mean of gamma/sigma over the channels of each BN layer, before training (hollow) and after it (filled), means over seeds. The dotted line is 1. How far right a dot lies is decided by the initialization more than by training."}, "image": {"alt": "Dumbbell plot with one line for each batch normalization layer of three nets and two initializations: the mean of gamma over sigma before and after training on a log axis, with a dotted line at 1."}}
plots.layers(result)

# %% [markdown]
# Every layer in numbers, for the initialization of the verdict. BN layers whose input joins several convolutions have no
# single $w$, so no scale-free reading ("-").

# %% tags=["hide-input"]
notebook.table(tables.layer_rows(result))

# %% [markdown]
# ## Channels

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-ratio-channels", "caption": "gamma/sigma of single channels in each BN layer, all seeds together, first initialization: median (dot) and the range from the 5th to the 95th percentile (bar), before training in grey and after it in color."}, "image": {"alt": "For each batch normalization layer of three nets, two vertical bars on a log axis: the range of gamma over sigma across channels before training and after it, with the median as a dot."}}
plots.channels(result)

# %% [markdown]
# ## Over the epochs, and free of scale

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-ratio-epochs", "caption": "Top: gamma/sigma over the epochs, mean over the layers of each net. Bottom: the scale-free reading, over the layers that one convolution feeds. Thick lines are means over seeds, thin ones seeds; dashed: the same net with weight decay. The dotted line is 1."}, "image": {"alt": "Six line plots over epochs, three nets in columns: the mean of gamma over sigma in the top row and the scale-free reading in the bottom row, for two initializations and, in the first net, one arm with weight decay."}}
plots.epochs(result)

# %% tags=["hide-input"]
notebook.table(tables.reading_rows(result))

# %% [markdown]
# "Before" and "after" are means over layers, "factor" is one divided by the other, with its 95 % interval over seeds;
# "above 1" counts layers. $\sigma$ is taken over training images except in the third reading. The running $\sigma$ of an
# untrained net is 1 whatever its activations, so there the factor starts after the first epoch.
#
# ## Do layers with a large ratio memorize more?
#
# What is lost when one layer goes back to its initialization, for the initialization of the verdict. "Forgotten" is the share
# of the samples fitted before that the net no longer fits then. Where no single convolution feeds the layer, $\gamma$ and
# $\beta$ alone were rewound. "Too few fitted": the net fits so few corrupted samples that there is nothing to forget.

# %% tags=["hide-input"]
notebook.table(tables.rewinding_rows(result))

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-ratio-memory", "caption": "Each dot is one layer of one seed's net: gamma/sigma after training, and how strongly the layer memorizes, which is the share of fitted corrupted samples that is forgotten when it is rewound to its initialization minus the share of fitted clean samples. Nets that fit too few corrupted samples are left out."}, "image": {"alt": "Scatter plots for three nets: mean gamma over sigma of a layer after training on the horizontal axis, and the forgotten share of corrupted minus clean samples after rewinding that layer on the vertical axis, colored by initialization."}}
plots.memory(result)

# %% tags=["hide-input"]
notebook.table(tables.correlation_rows(result))

# %% [markdown]
# Spearman's rank correlation over the layers of a net, mean and 95 % interval over seeds. It is not computed for nets of fewer
# than five such layers, or where a net fits fewer than ten corrupted samples: then there is next to nothing to forget.
#
# ## Found, against the paper

# %% tags=["hide-input"]
notebook.table(tables.verdict_rows(result))

# %% [markdown]
# The rules judge nets from torch's default initialization. An interval without width means that all seeds agree on the number
# of layers above 1.

# %% tags=["hide-input", "hide-output"]
notebook.table(tables.record_rows(result))

# %% tags=["remove-cell"]
notebook.glue(**tables.glue_values(result))

# %% [markdown]
# ## What would change our mind
#
# - A net whose ratio starts below 1 and is carried above it by training, from the same weights and with the scale-free
#   reading rising as well.
# - A rank correlation between ratio and memorization whose interval lies above zero in several nets.
# - Longer training, or other data: try `dataset = "cifar10"`, `profile = "grid"`.
#
# Read on: [the chapter](../book/gamma_sigma.md), and [the statement on scale](../book/theory.md). The numbers come from
# `results/gamma_sigma/`, the code is `bnmem/exp_gamma_sigma.py`, `bnmem/layers.py` and `bnmem/ratio.py`, the tests are
# `tests/test_gamma_sigma.py` and `tests/test_ratio.py`.
