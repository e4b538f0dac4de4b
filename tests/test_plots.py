"""The look of the figures: every normalisation has one, and a figure is the same each time it is drawn."""

from bnmem import plots
from bnmem.norms import NORMS


def test_every_normalisation_has_a_look_of_its_own():
    for look in (plots.COLOURS, plots.MARKERS, plots.LINES, plots.LABELS):
        values = [str(look[norm]) for norm in NORMS]
        assert len(set(values)) == len(NORMS)


def test_a_metric_says_which_arms_were_compared():
    assert plots.named("BN minus none", ("batch", "none")) == "BN minus none"
    assert "BN is GroupNorm, none is BN" in plots.named("BN minus none", ("group", "batch"))


def test_a_figure_shows_itself_with_its_size_and_without_a_date():
    figure, axes = plots.panels(1, 2)
    axes[0][0].plot([0, 1])
    data, size = figure._repr_png_()
    assert data == figure.png() and size == {"width": 720, "height": 288}
    assert b"Software" not in data and b"Creation" not in data and repr(figure) == "<Figure with 2 panels>"


def test_the_callers_style_is_left_alone():
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    plots.panels(1, 1)[0].png()
    assert dict(mpl.rcParams) == before
