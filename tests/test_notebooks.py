"""Notebooks: pairs equal, executed, made of the parts a reader expects. `test_colab.py` computes them from nothing."""

import ast
import re
import subprocess
import sys

import jupytext
import nbformat
import pytest

from bnmem.errors import InputError

from .conftest import ROOT

SOURCES = sorted((ROOT / "notebooks").glob("*.py"))
NAMES = [path.stem for path in SOURCES]
EXPERIMENTS = [
    "forced_memorization",
    "gradient_norms",
    "membership_inference",
    "query_mode",
    "gamma_sigma",
    "regularization",
    "scorecard",
]
notebooks = pytest.mark.parametrize("path", SOURCES, ids=NAMES)


def executed(path):
    return nbformat.read(path.with_suffix(".ipynb"), as_version=4)


def test_there_are_notebooks_and_each_has_both_files():
    assert NAMES and {p.stem for p in (ROOT / "notebooks").glob("*.ipynb")} == set(NAMES)


@notebooks
def test_the_pair_is_equal_in_cell_types_sources_and_metadata(path):
    source, run = jupytext.read(path), executed(path)
    assert len(source.cells) == len(run.cells)
    for a, b in zip(source.cells, run.cells, strict=True):
        assert (a.cell_type, a.source, dict(a.metadata)) == (b.cell_type, b.source, dict(b.metadata))


@notebooks
def test_the_percent_file_has_its_full_header(path):
    header = path.read_text().split("# %%")[0]
    for line in ("cell_metadata_filter: all", "formats: py:percent,ipynb", "format_name: percent", "name: python3"):
        assert line in header


@notebooks
def test_it_was_executed_in_order_without_an_error(path):
    cells = [c for c in executed(path).cells if c.cell_type == "code"]
    assert [c.execution_count for c in cells] == list(range(1, len(cells) + 1))
    outputs = [o for c in cells for o in c.outputs]
    assert outputs and not [o for o in outputs if o.output_type == "error"]
    assert not [o for o in outputs if o.get("name") == "stderr"]


@notebooks
def test_every_figure_has_a_caption_an_alt_text_and_is_shown(path):
    figures = [c for c in executed(path).cells if any("image/png" in o.get("data", {}) for o in c.get("outputs", []))]
    assert 1 <= len(figures) <= (6 if path.stem == "scorecard" else 4)  # the scorecard: one a group of claims
    for cell in figures:
        book = cell.metadata["mystnb"]
        assert len(book["image"]["alt"]) > 40 and len(book["figure"]["caption"]) > 40 and book["figure"]["name"]


@notebooks
def test_it_begins_with_one_title_and_has_plain_literals_as_parameters(path):
    cells = jupytext.read(path).cells
    assert re.match(r"# \S", cells[0].source)
    titles = [
        line for c in cells if c.cell_type == "markdown" for line in c.source.splitlines() if line.startswith("# ")
    ]
    assert len(titles) == 1
    tagged = [c for c in cells if "parameters" in c.metadata.get("tags", [])]
    assert len(tagged) == 1
    for statement in ast.parse(tagged[0].source).body:
        assert isinstance(statement, ast.Assign)
        ast.literal_eval(statement.value)


@notebooks
def test_markdown_renders_in_colab_without_myst_roles(path):
    for cell in jupytext.read(path).cells:
        if cell.cell_type == "markdown":
            assert not re.search(r"\{[a-z:]+\}`|^```\{|^:::", cell.source, re.M)


@notebooks
def test_nothing_of_the_machine_is_in_it(path):
    assert not re.search(r"/(work|home|root|tmp)/", path.with_suffix(".ipynb").read_text())
    assert "papermill" not in executed(path).metadata


@notebooks
def test_set_up_is_the_same_in_every_notebook(path):
    """From the comment to the last shared line; what is imported below differs."""

    def shared(p):
        cell = next(c for c in jupytext.read(p).cells if "setup" in c.metadata.get("tags", []))
        return cell.source.split("\n\nfrom ")[0]

    assert shared(path) == shared(SOURCES[0])
    assert path.stem not in EXPERIMENTS or "before = set(dir())" in path.read_text()


@notebooks
def test_set_up_never_replaces_the_libraries_of_a_live_kernel(path):
    installs = [line for line in path.read_text().splitlines() if '"install"' in line]
    assert installs and all('"--no-deps"' in line for line in installs)


def papermill(results, name, *parameters):
    command = [
        sys.executable,
        "-m",
        "papermill",
        str(ROOT / "notebooks" / f"{name}.ipynb"),
        str(results.parent / "out.ipynb"),
    ]
    return subprocess.run([*command, *parameters, "--cwd", str(results.parent)], capture_output=True, text=True)


@pytest.mark.parametrize(
    "parameters, message",
    [
        (
            ("-p", "nrom", "group"),
            r"unknown parameter 'nrom' \(did you mean norm\?\); the parameters are .*against.*seeds",
        ),
        (("-p", "norm", "grp"), "unknown norm 'grp'; choose from batch, none, affine, group, layer, instance, frozen"),
        (("-p", "epochs", "ten"), "epochs must be a whole number, not 'ten'"),
    ],
)
def test_papermill_with_a_wrong_parameter_fails_with_the_right_ones(parameters, message, results):
    done = papermill(results, "forced_memorization", "-p", "profile", "smoke", *parameters)
    assert done.returncode != 0 and re.search(message, done.stderr), done.stderr[-2000:]
    assert not results.exists()


@pytest.mark.parametrize("fresh", ["false", 0, None, [False]])
def test_fresh_is_true_or_false_and_nothing_else(fresh):
    from bnmem import notebook
    from bnmem.exp_forced_memorization import ForcedMemorization

    with pytest.raises(InputError, match="fresh must be True or False"):
        notebook.parameters({"profile": "smoke", "fresh": fresh}, {"*"}, ForcedMemorization)


def test_the_run_cell_can_be_run_again():
    from bnmem import notebook
    from bnmem.exp_forced_memorization import ForcedMemorization

    before = {"exp"}
    space = {"exp": 1, "profile": "smoke", "fresh": False, "norm": "group", "before": before, "_i": 0}
    given = notebook.parameters(space, before, ForcedMemorization)
    assert given == {"profile": "smoke", "fresh": False, "norm": "group"}
    space |= {"result": 1, "rate": 0.1}  # later cells add names; a parameter set by hand still counts
    assert notebook.parameters(space, before, ForcedMemorization)["rate"] == 0.1
    assert notebook.settings_of(given | {"seeds": None}, ForcedMemorization).norm == "group"
