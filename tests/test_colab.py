"""Each notebook as a reader opens it in Colab: alone in an empty folder, nothing of the project installed.

This is the smoke run of every notebook too: papermill drives it, at smoke size, computing from nothing.
"""

import re
import subprocess
import sys
import tomllib

import nbformat
import pytest

from . import colab, published
from .conftest import ROOT
from .test_book import tool

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
names = tool("book_extension").parameter_names


@pytest.fixture
def machine(tmp_path):
    """(the Python of a fresh stand-in for Colab, the variables to run under)."""
    python = colab.environment(tmp_path / "colab")
    return python, colab.hermetic() | published.environment() | colab.kernel(tmp_path / "jupyter", python)


def run(notebook, folder, variables, *parameters):
    """papermill, in `folder`, with the stand-in's kernel."""
    command = [sys.executable, "-m", "papermill", notebook.name, "out.ipynb", "-k", "colab", *parameters]
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True)


def opened(name, tmp_path, source):
    """The notebook alone in an empty folder."""
    folder = tmp_path / "content"
    folder.mkdir()
    (folder / name).write_bytes((source / "notebooks" / name).read_bytes())
    return folder


def test_the_stand_in_has_what_the_package_needs_and_nothing_of_ours(machine):
    python, variables = machine
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert {colab.normal(re.split("[>=]", line)[0]) for line in needed} <= set(colab.SHIPPED)
    code = "import importlib.util as u; print([n for n in {} if u.find_spec(n)])"
    ours = ["bnmem", "papermill", "jupytext", "jupyter_book", "myst_nb", "pytest", "dask", "playwright", "yaml"]
    command = [python, "-c", code.format([*ours, "torch"])]
    done = subprocess.run(command, env=variables, cwd=python.parent, capture_output=True, text=True)
    assert done.stdout.strip() == "['torch']", done.stderr


@pytest.mark.parametrize("path", NOTEBOOKS, ids=[p.stem for p in NOTEBOOKS])
def test_it_runs_top_to_bottom_in_colab_at_smoke_size(path, machine, results, tmp_path):
    python, variables = machine
    folder = opened(path.name, tmp_path, published.repository())
    known = names(path.with_suffix(".py").read_text())
    wanted = {"profile": "smoke", "fresh": "True", "norm": "group"}
    parameters = [word for key, value in wanted.items() if key in known for word in ("-p", key, value)]
    done = run(path, folder, variables | {"BNMEM_RESULTS": str(results)}, *parameters)
    assert done.returncode == 0, done.stderr[-2000:]
    cells = [c for c in nbformat.read(folder / "out.ipynb", as_version=4).cells if c.cell_type == "code"]
    assert all(c.execution_count for c in cells if c.source.strip())
    text = (folder / "out.ipynb").read_text()
    assert "norm" not in known or "GroupNorm" in text
    if "fresh" in known:
        assert "computed" in text and list(results.glob("*/*.json"))
    assert list(python.parents[1].glob("lib/*/site-packages/bnmem/results/*/*.json"))  # the records came along


def test_an_unstamped_copy_says_in_one_line_what_to_do(machine, tmp_path):
    address, _ = tool("stamp").current()
    if not address.startswith("-"):
        pytest.skip("this tree is stamped")
    _, variables = machine
    folder = opened("query_mode.ipynb", tmp_path, ROOT)
    done = run(folder / "query_mode.ipynb", folder, variables)
    assert done.returncode != 0
    said = [line for line in done.stderr.splitlines() if "SystemExit: " in line]
    assert said and "clone the project and run the notebook from there" in said[0]
