"""The recipes of CONTRIBUTING.md, followed to the letter in a copy of the package; and what the documents promise."""

import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import yaml

from bnmem import verify

from .conftest import ROOT
from .test_book import toc_files

TEXT = (ROOT / "CONTRIBUTING.md").read_text()


def recipe(title):
    """The Python of the section "Add ..." of CONTRIBUTING.md."""
    section = re.search(rf"## {title}\n(.*?)(?=\n## |\Z)", TEXT, re.S)[1]
    return "".join(re.findall(r"```python\n(.*?)```", section, re.S))


@pytest.fixture
def changed(tmp_path):
    """Runs Python in a copy of the package, after `add` = (file, code) was appended to it."""
    shutil.copytree(ROOT / "bnmem", tmp_path / "bnmem", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "data").mkdir()

    def run(*arguments, add):
        path = tmp_path / "bnmem" / add[0]
        path.write_text(f"{path.read_text()}\n\n{add[1]}")
        variables = os.environ | {"PYTHONPATH": str(tmp_path), "BNMEM_DATA": str(tmp_path / "data")}
        command = [sys.executable, *arguments]
        return subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True)

    return run


TRY = """
import torch
from bnmem import exp_forced_memorization, models, norms
for norm in norms.NORMS:
    for shape in ((28, 28), (32, 32, 3)):
        model = models.make("tiny", norm, shape, 10, seed=0)
        channels = shape[2] if len(shape) == 3 else 1
        model(torch.rand(4, channels, *shape[:2])).sum().backward()
print(exp_forced_memorization.ForcedMemorization.of("smoke", {"arch": "tiny"}).arch)
"""


def test_the_recipe_for_an_architecture_makes_every_arm_of_it_and_a_setting(changed):
    done = changed("-c", TRY, add=("models.py", recipe("Add an architecture")))
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == "tiny\n"


def test_the_recipe_for_a_data_set_makes_it_known_and_checked(changed, tmp_path):
    arrays = {}
    for split, n in (("train", 60_000), ("test", 10_000)):
        arrays[f"{split}_images"] = np.zeros((n, 28, 28), np.uint8)
        arrays[f"{split}_labels"] = np.arange(n) % 10
    np.savez(tmp_path / "data" / "kmnist.npz", **arrays)
    done = changed("-m", "bnmem", "data", "kmnist", add=("sources.py", recipe("Add a data set")))
    assert done.returncode == 0, done.stderr[-2000:]
    assert "kmnist: BNMEM_DATA" in done.stdout


@pytest.mark.parametrize("name", [name for name in verify.EXPERIMENTS if name != "grid"])
def test_every_experiment_follows_the_recipe_for_one(name):
    module = verify.EXPERIMENTS[name]
    assert module.__name__ == f"bnmem.exp_{name}" and {"smoke", "laptop"} <= set(module.SETTINGS.profiles())
    assert module.KINDS and callable(module.run) and callable(module.statuses)
    assert (ROOT / "notebooks" / f"{name}.py").is_file() and f"notebooks/{name}" in toc_files()
    form = yaml.safe_load((ROOT / ".github/workflows/rerun.yml").read_text())
    assert f"- {name}\n" in (ROOT / ".github/workflows/rerun.yml").read_text() and form["jobs"]


def test_the_citation_names_the_paper_and_versions_agree():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    paper = citation["references"][0]
    assert paper["title"] == "Batch Normalization Amplifies Memorization and Privacy Risks"
    assert paper["identifiers"][0]["value"] == "arXiv:2605.24420" and len(paper["authors"]) == 3
    project = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.M)[1]
    assert citation["version"] == project
    assert f'"{project}"' in (ROOT / "bnmem" / "__init__.py").read_text()
    assert f"## {project}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_standing_documents_are_there_and_the_readme_says_what_it_must():
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "LICENSE", "CITATION.cff"):
        assert (ROOT / name).is_file()
    licence = (ROOT / "LICENSE").read_text()
    assert licence.startswith("MIT License") and "creativecommons.org/licenses/by/4.0" in licence
    readme = (ROOT / "README.md").read_text()
    for word in ("make book", "make test", "GB", "minutes", "papermill", "## Limits", "CITATION.cff", "CC BY 4.0"):
        assert word in readme, word
    assert re.search(r"!\[.{40,}\]\(book/_static/result.png\)", readme)
