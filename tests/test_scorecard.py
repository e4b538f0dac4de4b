"""The scorecard on made-up cells, the page of it against the records, and the index from figures to records."""

import importlib.util
import re
from functools import partial

import pytest

from bnmem import exp_grid, records, scorecard, verify
from bnmem import plots_scorecard as plots
from bnmem.exp_grid import Grid
from bnmem.grid_cells import FACE, FIT
from bnmem.grid_rows import ROWS
from bnmem.rules import NOT, PARTLY, PROVED, REPRODUCED, RULES, UNMEASURED, Cell
from bnmem.scorecard import Scorecard

from .conftest import ROOT


def card(face=(), fit=(), claim="C1"):
    cells = {name: {FACE: [], FIT: []} for name in RULES}
    cells[claim] = {FACE: list(face), FIT: list(fit)}
    return Scorecard(cells, [], [])


def both(effect, half=0.01, where="mnist / lenet"):
    return [Cell(m.name, where, effect, effect - half, effect + half) for m in RULES["C1"].metrics]


def test_verdicts_follow_the_rules_cell_by_cell():
    assert card(both(0.5)).verdict("C1") == REPRODUCED
    assert card(both(0.5) + both(0.0)).verdict("C1") == PARTLY
    assert card(both(0.0)).verdict("C1") == NOT
    assert card(both(0.5)[:1]).verdict("C1") == UNMEASURED  # a metric without a cell
    assert card().verdict("C6") == PROVED


def test_equal_fit_counts_only_the_metrics_that_have_such_a_reading():
    one = [Cell("corrupted_accuracy", "mnist / lenet", 0.2, 0.1, 0.3)]
    assert card(both(0.0), one).verdict("C1", FIT) == REPRODUCED
    assert card(both(0.5), both(0.0)[:1]).verdict("C1", FIT) == NOT
    assert plots.counts(card(both(0.5) + both(0.1, 0.5) + both(-0.3)), "C1", FACE) == "2 / 2 / 2"


def test_a_forest_has_a_row_a_cell_and_a_column_a_metric():
    made = card(both(0.5) + both(0.1, where="cifar10 / resnet8 / 5 % ood"), both(0.0)[:1])
    figure = plots.forest(made, ("C1",))
    assert len(figure.axes) == 2
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels == ["MNIST / LeNet", "CIFAR-10 / ResNet-8 / 5 % OOD"]
    drawn = [line.get_xdata()[0] for line in figure.axes[0].lines if len(line.get_xdata()) == 1]
    assert sorted(drawn) == [0.0, 0.1, 0.5]  # every effect once, the hollow one included
    assert plots.forest(card(), ("C9",)).png()  # nothing measured is no crash


def test_every_claim_has_a_row_and_every_cell_a_line():
    rows = plots.scorecard_rows(card(both(0.5)))
    assert [row["claim"] for row in rows] == list(RULES) and len({tuple(row) for row in rows}) == 1
    lines = plots.cell_rows(card(both(0.5), both(0.1)[:1]), "C1")
    assert [line["effect"] for line in lines] == ["+0.50 [+0.49, +0.51]", "1.41 [1.40, 1.42]"]  # the second a factor
    assert [line["at equal fit"] for line in lines] == ["+0.10 [+0.09, +0.11]", ""]


def test_a_speed_up_that_neither_arm_gives_is_marked_as_such():
    """A cell that fails since nobody memorized half is not one in which BN was slower."""
    nobody = Cell("log2_epochs_to_half", "mnist / lenet", 0.0, 0.0, 0.0)
    slower = Cell("log2_epochs_to_half", "cifar10 / lenet", -0.5, -0.6, -0.4)
    made = card([nobody, slower])
    assert [line["status"] for line in plots.cell_rows(made, "C1")] == ["fails (neither got there)", "fails"]
    values = plots.glue_values(made)
    assert (
        values["sc-C1-unreached"] == "1" and values["sc-C1-cells"] == values["sc-C1-log2_epochs_to_half"] == "0 / 0 / 2"
    )
    markers = [line.get_marker() for line in plots.forest(made, ("C1",)).axes[0].lines if len(line.get_xdata()) == 1]
    assert markers == ["x", "s"]


def test_an_interval_that_leaves_the_panel_ends_in_an_arrow_head():
    def heads(low, high):
        wide = [Cell("corrupted_accuracy", "mnist / lenet", 0.2, low, high)]
        axis = plots.forest(card(wide), ("C1",)).axes[0]
        return [(line.get_marker(), line.get_xdata()[0] < 0) for line in axis.lines if line.get_gid() == "beyond"]

    assert heads(0.15, 0.25) == []
    assert heads(-5.0, 7.0) == [("<", True), (">", False)]
    assert heads(0.1, 7.0) == [(">", False)]


def test_prose_quotes_cells_that_are_there(committed):
    values = plots.glue_values(scorecard.collect(Grid.of("laptop")))
    for name in plots.QUOTED:
        assert values[f"sc-cell-{name}"].count("[") == 1 and " and " in values[f"sc-cell-{name}-rates"]


def test_the_scorecard_of_the_committed_records_leaves_no_claim_unmeasured(committed):
    made = scorecard.collect(Grid.of("laptop"))
    assert {claim: made.verdict(claim) for claim in RULES if made.verdict(claim) == UNMEASURED} == {}
    assert not made.notes


def test_at_its_own_best_learning_rate_lenet_ends_below_one_everywhere(committed):
    """book/gamma_sigma.md: "both of its layers end below 1, on all four data sets, with every kind of corruption"."""
    made = scorecard.collect(Grid(tiers=(1,), only="trainings/*/lenet/*"))
    grid = [c for c in made.of("C8") if c.metric == "share_above_one" and "images" in c.where and "lenet" in c.where]
    assert len(grid) == 16 and all(c.effect == -0.5 for c in grid)
    assert all(
        cells.best["batch"] > 0.02 for cells in exp_grid.stored(Grid(tiers=(1,), only="trainings/*/lenet/*")).rows
    )


def test_cells_of_one_metric_have_names_of_their_own(committed):
    made = scorecard.collect(Grid.of("laptop"))
    for claim, readings in made.cells.items():
        for reading, cells in readings.items():
            named = [(c.metric, c.where) for c in cells]
            assert len(set(named)) == len(named), (claim, reading)


def _index():
    spec = importlib.util.spec_from_file_location("results_index", ROOT / "tools" / "results_index.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_results_index_is_up_to_date():
    index = _index()
    assert index.PAGE.read_text(encoding="utf-8") == index.page(), "run: python tools/results_index.py"


def test_every_figure_and_number_leads_to_a_notebook_and_its_records(committed):
    index = _index()
    notebooks, pages = index.notebooks(), index.quoted()
    for page in (ROOT / "book").glob("*.md"):
        text = page.read_text(encoding="utf-8")
        assert text.count("{glue:") == len(index.GLUE.findall(text)), f"{page.name}: a glue of another form"
    assert set(pages) <= set(notebooks)
    for name, notebook in notebooks.items():
        source = (ROOT / "notebooks" / f"{name}.py").read_text(encoding="utf-8")
        assert len(notebook["figures"]) == source.count('"figure": {'), name
        for key in notebook["records"]:
            assert (committed / notebook["experiment"] / f"{key}.json").exists(), (name, key)
        if notebook["experiment"]:
            assert notebook["records"], f"{name} shows no record"


def test_every_record_is_one_that_the_book_or_a_smoke_profile_reads(committed):
    """An orphan is clutter: nobody could say what it is for."""
    read = set()
    for module in verify.EXPERIMENTS.values():
        for profile in ("smoke", "laptop") if module is not exp_grid else ():
            try:
                read |= {r.key for r in module.run(module.SETTINGS.of(profile), only_stored=True).records}
            except LookupError:
                continue
    store = exp_grid.Store()
    for row in ROWS:
        searches = row.searches()
        found = store.all(searches) or {}
        best, abandoned = exp_grid.settle(row, found, store.get)
        first = exp_grid.jobs_of(row, best) if found or not searches else {}
        work = [*searches.values(), *abandoned, *first.values()]
        if runs := store.all(first):
            exp_grid.attacks_of(row, runs, partial(exp_grid._note, work, store))
        read |= {r.key for job in work if (r := store.get(job))}
    assert not [str(path) for path in records.stored() if path.stem not in read]


@pytest.mark.parametrize("claim", [claim for claim in RULES])
def test_the_page_quotes_every_claim(claim):
    text = (ROOT / "book" / "scorecard.md").read_text(encoding="utf-8")
    assert re.search(rf"^\| {claim} \|.*sc-{claim}-verdict", text, re.M)
