"""The figures of gamma/sigma in trained nets."""

import numpy as np
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from bnmem import exp_gamma_sigma as exp
from bnmem.layers import Layers
from bnmem.plots import COLOURS, Figure, panels, style

INIT_COLOURS = {"torch": "#332288", "he": "#DDAA33"}
INIT_NAMES = {"torch": "torch's initialization", "he": "He initialization"}
ARCH_NAMES = {"lenet": "LeNet", "resnet8": "ResNet-8", "resnet20": "ResNet-20", "densenet": "thin DenseNet"}
SET_NAMES = {"mnist": "MNIST", "fashion_mnist": "Fashion-MNIST", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}


def layers(result: exp.Result) -> Figure:
    """The mean ratio of each BN layer before training (hollow) and after it (filled), means over seeds."""
    with style():
        figure, row = _columns(result, 5.2)
        for ax, arch in zip(row, archs(result), strict=True):
            names = result.of(arch, inits(result)[0])[0].numbers["layers"]
            for i, init in enumerate(inits(result)):
                values = np.mean([exp.by_layer(r) for r in result.of(arch, init)], axis=0)
                at, colour = np.arange(len(names)) + 0.3 * i - 0.15, INIT_COLOURS[init]
                ax.hlines(at, *np.sort(values[:, [0, -1]]).T, color=colour, lw=2)
                ax.plot(values[:, 0], at, "o", mfc="white", mec=colour, ms=6)
                ax.plot(values[:, -1], at, "o", color=colour, ms=6, label=INIT_NAMES[init])
            ax.axvline(1, color=COLOURS["grey"], ls=":", lw=1)
            ax.set(
                xscale="log",
                title=name_of(arch),
                xlabel="mean γ/σ (hollow: before)",
                yticks=range(len(names)),
                yticklabels=names,
            )
            ax.tick_params(axis="y", labelsize=8)
            ax.set_ylim(len(names) - 0.4, -0.6)
            _plain_ticks(ax.xaxis)
        _legend(figure, row[0])
    return figure


def channels(result: exp.Result) -> Figure:
    """γ/σ of single channels by layer, all seeds, first initialisation: 5 to 95 % and median, before and after."""
    init = inits(result)[0]
    with style():
        figure, row = _columns(result, 4.4)
        for ax, arch in zip(row, archs(result), strict=True):
            rows = [exp.channels(r) for r in result.of(arch, init)]
            for i, name in enumerate(rows[0]):
                for end, shift, colour in ((0, -0.17, COLOURS["grey"]), (-1, 0.17, INIT_COLOURS[init])):
                    values = np.concatenate([r[name][end] for r in rows])
                    low, middle, high = np.quantile(values, (0.05, 0.5, 0.95))
                    ax.vlines(i + shift, low, high, color=colour, lw=4, alpha=0.45)
                    label = ("after training" if end else "before") if i == 0 else None
                    ax.plot(i + shift, middle, "o", color=colour, ms=4, label=label)
            ax.axhline(1, color=COLOURS["grey"], ls=":", lw=1)
            ax.set(yscale="log", title=name_of(arch), xlabel="BN layer, first to last", xticks=range(len(rows[0])))
            ax.set_xticklabels([str(i + 1) for i in range(len(rows[0]))], fontsize=9)
            _plain_ticks(ax.yaxis)
        row[0].set_ylabel("γ/σ of a channel")
        _legend(figure, row[0])
    return figure


def epochs(result: exp.Result) -> Figure:
    """The mean over layers and seeds, ratio above and scale-free reading below, over the epochs; thin lines: seeds."""
    with style():
        figure, axes = panels(2, len(archs(result)), height=6.2, sharex="col")
        for line, reading in zip(axes, ("ratio", "scale_free"), strict=True):
            for ax, (i, arch) in zip(line, enumerate(archs(result)), strict=True):
                for (of, init, decay), rows in result.runs.items():
                    if of == arch:
                        more = decay != result.settings.weight_decay
                        look = {"color": INIT_COLOURS[init], "ls": "--" if more else "-"}
                        label = f"{INIT_NAMES[init]}{f', weight decay {decay:g}' if more else ''}"
                        curves = np.array([np.nanmean(exp.by_layer(r, reading), axis=0) for r in rows])
                        at = _checkpoints(rows[0])
                        ax.plot(at, curves.T, **look, lw=0.7, alpha=0.5)
                        ax.plot(at, curves.mean(axis=0), **look, marker="o", ms=3.5, label=label)
                ax.axhline(1, color=COLOURS["grey"], ls=":", lw=1)
                ax.set(yscale="log")
                _plain_ticks(ax.yaxis)
                if reading == "ratio":
                    ax.set_title(name_of(arch))
                else:
                    ax.set_xlabel("epoch")
                if i == 0:
                    ax.set_ylabel({"ratio": "mean γ/σ", "scale_free": "mean |γ| ‖w‖ / σ"}[reading])
        _legend(figure, axes[0][0])
    return figure


def memory(result: exp.Result) -> Figure:
    """Each layer's ratio after training against how strongly it memorizes; a dot is one layer of one seed's net.

    Only of arms in which every seed's net fits enough corrupted samples.
    """
    with style():
        figure, row = _columns(result, 4.2, sharey=True)
        for ax, arch in zip(row, archs(result), strict=True):
            for init in inits(result):
                rows = [(exp.by_layer(r)[:, -1], exp.memorizing(r)) for r in result.of(arch, init)]
                if all(np.isfinite(y).any() for _, y in rows):
                    x, y = np.concatenate(rows, axis=1)
                    ax.plot(x, y, "o", color=INIT_COLOURS[init], ms=6, alpha=0.75, mew=0, label=INIT_NAMES[init])
            if not ax.lines:
                ax.text(0.5, 0.4, "fits too few\ncorrupted samples", ha="center", transform=ax.transAxes)
                ax.set_xticks([])
            ax.axhline(0, color=COLOURS["grey"], ls=":", lw=1)
            ax.set(title=name_of(arch), xlabel="mean γ/σ after training", ylim=(-0.2, 0.9))
        row[0].set_ylabel("forgotten: corrupted minus clean")
        _legend(figure, row[0])
    return figure


def _checkpoints(record) -> list[int]:
    """The epochs that were measured by channel."""
    return list(record.settings.get("checkpoints", Layers.checkpoints))


def archs(result: exp.Result) -> list[str]:
    """The architectures of a result, in order."""
    return list(dict.fromkeys(arch for arch, _ in result.plain))


def inits(result: exp.Result) -> list[str]:
    """Its initialisations, in order."""
    return list(dict.fromkeys(init for _, init in result.plain))


def name_of(arch: str) -> str:
    """How figures and tables call an architecture."""
    return ARCH_NAMES.get(arch, arch)


def set_name(dataset: str) -> str:
    """How they call a data set."""
    return SET_NAMES.get(dataset, dataset)


def _columns(result: exp.Result, height: float, **options):
    figure, axes = panels(1, len(archs(result)), height=height, **options)
    return figure, axes[0]


def _legend(figure: Figure, ax) -> None:
    handles, labels = ax.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))


def _plain_ticks(axis) -> None:
    """Numbers such as 0.5 and 2 on a log axis, instead of powers of ten."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(NullFormatter())
