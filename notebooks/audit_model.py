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
# # Audit your own model
#
# A trained net and, where you have it, the data it was trained on: this notebook shows how large $\gamma/\sigma$ is in each
# of its batch normalization (BN) layers, which samples pull hardest on its weights, and what that does *not* tell.
#
# Without a checkpoint of yours it trains a small ResNet-8 on Fashion-MNIST with some wrong labels, saves its weights, and
# audits the file. To audit yours, set `checkpoint` and `arch` below, and `data` if you can. The command does the same:
# `python -m bnmem audit CHECKPOINT --arch torchvision:resnet18 --data FOLDER`.

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

from bnmem import exp_audit_model as exp
from bnmem import notebook, report_audit
from bnmem import plots_audit as plots
from bnmem.digits import significant

before = set(dir())

# %% [markdown]
# ## Parameters
#
# With `checkpoint`, only `arch`, `data`, `limit` and `size` count and nothing is trained or stored. Weights alone are
# loaded: a file that holds more than weights is refused and never opened.

# %% tags=["parameters"]
profile = "laptop"  # smoke or laptop: how much the small net is trained
fresh = False  # compute anew even where a record exists
checkpoint = None  # your file of weights: torch.save(model.state_dict(), ...)
arch = None  # torchvision:resnet18 and the like; bnmem:lenet, resnet8, resnet20, densenet, resnet18 or densenet121
data = None  # a folder with one folder of images a class, or npz with images and labels
limit = None  # samples at most
size = None  # images are scaled and cut to so many pixels a side
rate = None  # wrong labels in the training set of the small net, 0 to 0.5
epochs = None  # its epochs
seed = None

# %% tags=["hide-input"]
given = notebook.parameters(globals(), before, exp.AuditModel)
result = exp.run(notebook.settings_of(given, exp.AuditModel), fresh=given["fresh"])
audit = result.audit
notebook.notes(result.notes)
notebook.say(f"The net: {audit.name}. " + (f"{result.record.line}." if result.record else ""))

# %% [markdown]
# ## What was found

# %% tags=["hide-input"]
notebook.say("\n".join(f"- {line}" for line in (*report_audit.findings(audit), *audit.notes)))

# %% [markdown]
# ## $\gamma/\sigma$, layer by layer

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-audit-ratio", "caption": "The factor gamma/sigma of each BN layer, input on top: mean over channels and their middle 90 %. Circles by the running statistics of the net, diamonds by the statistics of a few hundred samples. The dotted line is 1."}, "image": {"alt": "One row for each batch normalization layer with the mean of gamma over sigma and the range of the middle ninety percent of its channels, once by running statistics and once by the statistics of the samples."}}
plots.ratio(audit) if audit.ratio else None

# %% tags=["hide-input"]
notebook.table(plots.ratio_rows(audit), empty="The net has no batch normalization layer.")

# %% [markdown]
# "Scale-free" is the mean of $|\gamma|\,\lVert w\rVert/\sigma$, with $w$ the weights that feed the channel; "-" where no
# single layer does. A convolution before BN may be scaled by any factor without a change of the outputs, and the ratio
# changes by it; the scale-free column does not. It says how steeply a channel's output follows its input. But it is no
# property of the net either: multiply $\gamma$ and $\beta$ by $c$, divide the next weights by $c$, and it changes while no
# answer does. So neither column tells which of two nets memorizes more.
#
# ## Who pulls on the weights

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-audit-influence", "caption": "Left: gradient norms of all audited samples (definition eval), samples with a right answer in blue, those where the net contradicts the label in orange. Right: the same norms against the margin of the given label, the log-odds of its probability; the ten largest are ringed."}, "image": {"alt": "Left, two histograms of the logarithm of gradient norms, for samples with right and with wrong answers. Right, a scatter plot of the logarithm of the norm against the margin, with the ten largest norms ringed."}}
plots.influence(audit) if audit.samples else None

# %% tags=["hide-input"]
notebook.table(plots.sample_rows(audit, classes=result.classes) if audit.samples else [], empty="No data were given.")

# %% tags=["hide-input"] mystnb={"figure": {"name": "fig-audit-gallery", "caption": "Samples of the small net's training set with the largest gradient norms, above, and with the smallest, below. Over each image its label and, with a question mark, the net's answer where it differs; under it the norm."}, "image": {"alt": "Two rows of ten Fashion-MNIST images: above, the samples with the largest gradient norms, with their labels and the net's answers; below, those with the smallest norms."}}
plots.gallery(audit, exp.images(result), result.classes) if result.record else None

# %% tags=["hide-input"]
if result.record:
    hits, n, share = exp.found_noisy(result)
    wrong, right = exp.median_norms(result)
    notebook.say(
        f"{n} of the {len(audit.samples.norm):,} audited samples carry a wrong label on purpose. Their median norm is "
        f"{significant(wrong)}, that of the others {significant(right)}. Among the {n} largest norms are {hits} of them; "
        f"chance would find about {share * n:.0f}. The rest are samples that the net has not fitted for other reasons."
    )

# %% tags=["remove-cell"]
if result.record:
    notebook.glue(**exp.glue_values(result))

# %% [markdown]
# ## What this cannot know

# %% tags=["hide-input"]
notebook.say("\n".join(f"- {line}" for line in report_audit.LIMITS))

# %% [markdown]
# ## What to do next

# %% tags=["hide-input"]
notebook.say("\n".join(f"- {line}" for line in report_audit.NEXT))

# %% [markdown]
# Read on: [how to audit your checkpoint](../book/howto_audit.md), [LiRA on your own logits](../book/howto_lira.md). The
# record lies in `results/audit_model/`, the code is `bnmem/audit.py`, `bnmem/checkpoint.py`, `bnmem/rebuild.py` and
# `bnmem/images.py`, the tests are `tests/test_audit_model.py`.
