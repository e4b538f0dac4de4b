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
# # A toy model to play with
#
# **Claims C6 and C7.** *Batch normalization (BN) multiplies an outlier's margin growth by $(\gamma/\sigma)^2$; outliers
# drive $\gamma$ up, which raises the factor again.*
#
# Here the single channel of the theorems is trained by gradient descent on two classes and a few outliers, in the plane,
# in three arms from the same weights: BN with the statistics of the batch (*exact*), BN with its first statistics held
# (*held*, the paper's setting), and no BN.
#
# What the theory predicts: measured growth over predicted growth is 1 to rounding without BN and with held statistics; for
# exact BN it tends to 1 as the step shrinks. The held form misjudges exact BN. Outliers on the wrong side first shrink
# $\gamma$.

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

from bnmem import notebook, toy
from bnmem import plots_theory as plots
from bnmem import tables_theory as tables
from bnmem.player import player

before = set(dir())

# %% [markdown]
# ## Parameters
#
# `None` leaves the default. Lengths are in standard deviations of a class. Wrong names and values stop with a list of the
# right ones.

# %% tags=["parameters"]
profile = "laptop"  # smoke makes fewer steps
distance = None  # of the outliers from the origin
direction = None  # angle of the outliers from their own class, in degrees: 0 beyond it, 180 in the other class
eps = None  # added to the batch variance, 0 or more
learning_rate = None  # step size, more than 0
batch_size = None  # 2 or more
steps = None  # gradient steps
seed = None  # of the samples, the first weights and the batches
scale = None  # size of the first weights
repeats = None  # seeds of the comparison at equal fit

# %% [markdown]
# ## Run

# %% tags=["hide-input"]
given = notebook.parameters(globals(), before, toy.ToyModel)
settings = notebook.settings_of(given, toy.ToyModel)
runs = toy.train_all(settings)
values = tables.toy_values(runs, toy.equal_function_gap(settings))

# %% [markdown]
# ## Play
#
# Step through the three trainings. The black and the light samples are the two labels; the line is where the net changes
# its answer.

# %% tags=["hide-input"]
player(runs)

# %% [markdown]
# ## Who is fitted when?

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-toy-margins", "caption": "Margins over steps in the three arms. Thin lines are samples (not all of them), thick ones medians of all outliers and all typical samples. Outliers start on the wrong side."}, "image": {"alt": "Three line plots of margins over steps. The median outlier starts below zero and crosses it within some tens of steps in every arm; the median typical sample is above it throughout."}}
plots.margins(runs)

# %% [markdown]
# Over steps, the arms differ. But they also fit the typical samples at different speeds. So here is the control: the
# outliers' median margin at the moment when the typical samples' median margin reaches 1. Mean and range over seeds.

# %% tags=["hide-input"]
fit = toy.at_equal_fit(settings, 1.0, settings.repeats)
values |= tables.equal_fit_values(fit)
notebook.table(tables.equal_fit_rows(fit))

# %% [markdown]
# ## Is the growth what the theorems say?
#
# At every step, each sample of the batch makes a trial step alone, on $w$ alone. Its growth is divided by what the theorem
# says.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-toy-growth", "caption": "Growth of the margin in one step on the sample alone, measured over predicted, for all samples and steps. Dots are medians, bars reach from the 5th to the 95th percentile; logarithmic. The first two rows are 1 to rounding. The small step is a thousandth of the learning rate."}, "image": {"alt": "Dot plot with five rows. Without BN, with held statistics, and with exact BN at a small step all ratios are one. At the full step exact BN spreads somewhat; divided by the fixed form it lies far below one for typical samples."}}
plots.measured_over_predicted(runs)

# %% tags=["hide-input"]
notebook.say(
    f"""
Without BN the largest difference between measured and predicted growth is below {values["toy-none-off"]}, with
held statistics below {values["toy-fixed-off"]}: rounding. With exact BN and a small step, 95 % of all ratios are within
{values["toy-exact-off"]} of 1. The *fixed* form misses exact BN: the median outlier grows {values["toy-outlier-over-fixed"]}
times, the median typical sample {values["toy-typical-over-fixed"]} times as much as it says.

At equal function, BN with held statistics and a plain net with a learning rate larger by $(\\gamma/\\sigma)^2$ never part:
over the whole training of $w$ their margins differ by less than {values["toy-gap"]}.
"""
)

# %% [markdown]
# ## The ratio and the reading that is scale-free
#
# The dotted arm starts from weights $w$ twice as long, and computes the same function at the start.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-toy-readings", "caption": "Left: $\\gamma/\\sigma$. Middle: the scale-free reading $|\\gamma| \\|w\\|/\\sigma$. Right: the length of $w$, which gradient steps of exact BN do not shrink. Doubling the first weights halves the ratio and leaves the scale-free reading."}, "image": {"alt": "Three line plots over steps: gamma over sigma, its scale-free version and the length of w, for exact BN, for held statistics and for exact BN from doubled weights. The doubled run starts at half the ratio but at the same scale-free reading."}}
plots.readings(runs, toy.doubled(settings))

# %% [markdown]
# ## Two phases
#
# Left, one outlier trains $w$ and $\gamma$ alone, with held statistics, from several starts. Then its margin and
# $\gamma/\sigma$ determine their own motion, and the arrows are the flow of the theorem. Right, $\gamma$ and $v$ of a training of
# $w$, $\gamma$ and $v$ on all samples, and their closed form.

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-toy-phases", "caption": "Left: phase portrait of the margin and $|\\gamma|/\\sigma$ with the flow of the theorem (grey) and trainings (from the dots). On the wrong side (orange) $|\\gamma|$ shrinks, on the right side (blue) it grows. Right: $\\gamma$ and $v$ as trained, and in closed form."}, "image": {"alt": "Left, a phase portrait: from starts on the left curves fall until they reach the vertical line at margin zero, then rise; one family reaches zero there. Right, two rising curves that coincide with dotted closed-form curves."}}
plots.phases(toy.portrait(settings), toy.centred(settings))

# %% [markdown]
# ## Found, against the paper

# %% tags=["hide-input"]
notebook.say(
    f"""
- **C6** is exact where it claims to be, and says little about exact BN.
- **At equal fit**, when the typical samples' median margin reaches 1, the outliers' median margin is {values["toy-fit-exact"]} with
  exact BN, {values["toy-fit-fixed"]} with statistics held, {values["toy-fit-none"]} without BN (mean and range over seeds). The
  ranges overlap; seed by seed, exact BN is ahead of no BN in {values["toy-fit-ahead"]}. The factor of C6 belongs to the held
  statistics, so a lead of exact BN alone comes from what these leave out.
- **C7** starts in reverse. In the exact arm $\\gamma/\\sigma$ goes from {values["toy-ratio-start"]} to its lowest value,
  {values["toy-ratio-low"]}, at step {values["toy-ratio-low-step"]}, and ends at {values["toy-ratio-end"]}. The step from which half of
  the outliers are right: {values["toy-turned"]}. Before it, outliers move $\\gamma$ by {values["toy-outliers-before"]} and typical
  samples by {values["toy-typical-before"]}; after it, by {values["toy-outliers-after"]} and {values["toy-typical-after"]}. Over
  the whole training the outliers, {values["toy-outlier-count"]} samples, give {values["toy-outliers-all"]} of the {values["toy-gamma-all"]}
  by which $\\gamma$ grows.
- **Batch mates matter.** The outliers' own steps raise their margins by {values["toy-own"]} in all (first order, summed);
  with what their batch mates do, {values["toy-total"]} is left.
"""
)

# %% tags=["remove-cell"]
notebook.glue(**values)

# %% [markdown]
# What BN buys shows in the table at equal fit: how soon each arm fits the typical samples. This is a toy. Two dimensions
# and one channel show a mechanism, not its size in a real net.
#
# ## What would change our mind
#
# - A growth that differs from its theorem by more than rounding where the theorem is exact.
# - The comparison at equal fit depends on where the outliers lie and on the seed. With `direction = 90` exact BN and no BN are
#   ahead by turns, from seed to seed. A setting in which no BN is clearly ahead would say that exact BN does not favor outliers.
#
# Read on: [the theorem page](../book/theory.md), [the derivation](margin_growth.ipynb),
# [where the theory stops](../book/where_the_theory_stops.md). The code is `bnmem/toy.py` and `bnmem/growth.py`, the tests
# are `tests/test_toy.py`.
