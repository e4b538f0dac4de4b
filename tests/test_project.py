"""What holds the project together: layers, pins, addresses, the tools' own promises."""

import ast
import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from bnmem import records, training

from .conftest import ROOT
from .test_book import tool

MODULES = sorted((ROOT / "bnmem").glob("*.py"))
UNTESTED = {"dp": ["opacus"]}  # optional extras that the test environment leaves out; their tests skip visibly
STANDARD = {"errors", "settings", "records", "jobs"}  # infrastructure: cannot change a number


def imports(path):
    """The bnmem modules that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "bnmem":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("bnmem."):
            found.add(node.module.split(".")[1])
    return found


GRAPH = {path.stem: imports(path) & {p.stem for p in MODULES} for path in MODULES}


def reach(name):
    """Everything that a module imports, directly or not."""
    seen, todo = set(), [name]
    while todo:
        for other in GRAPH[todo.pop()] - seen:
            seen.add(other)
            todo.append(other)
    return seen


def test_imports_make_no_circle():
    assert not [name for name in GRAPH if name in reach(name)]


def test_lower_files_never_import_higher_ones():
    order = ["errors", "seeds", "sources", "data", "models", "train", "training", "verify", "__main__"]
    for i, name in enumerate(order):
        assert not reach(name) & set(order[i + 1 :]), name


def test_the_code_hash_of_a_training_covers_all_that_can_change_its_numbers():
    assert set(training.CODE) == (reach("training") | {"training"}) - STANDARD


@pytest.mark.parametrize("path", MODULES, ids=[p.stem for p in MODULES])
def test_a_module_is_one_idea(path):
    assert len(path.read_text().splitlines()) <= 300
    assert ast.get_docstring(ast.parse(path.read_text()))


def test_importing_asks_no_network_and_writes_nothing(tmp_path):
    names = ", ".join(p.stem for p in MODULES if not p.stem.startswith("__") and p.stem != "notebook")
    code = "import socket\ndef no(*a, **k): raise AssertionError('network')\nsocket.socket.connect = no\n"
    code += f"from bnmem import {names}"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.iterdir())


def test_no_pickle_is_read_from_files():
    for path in [*MODULES, *(ROOT / "tools").glob("*.py")]:
        text = path.read_text()
        assert not re.search(r"pickle\.load|allow_pickle=True|joblib\.load|weights_only=False", text), path
        assert "torch.load(" not in text or "weights_only=True" in text


def test_every_dependency_is_pinned_once_and_covers_the_package():
    pins = [line for line in (ROOT / "requirements.txt").read_text().splitlines() if line and not line.startswith("#")]
    names = [line.split("==")[0].lower().replace("_", "-") for line in pins]
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+==[^\s=]+", line) for line in pins) and len(set(names)) == len(names)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert set(extras) >= set(UNTESTED)
    ranges = [*project["dependencies"], *(line for name in set(extras) - set(UNTESTED) for line in extras[name])]
    needed = {re.match(r"[A-Za-z0-9_-]+", line)[0].lower().replace("_", "-") for line in ranges}
    assert needed and needed <= set(names)
    # what is outside is outside on purpose, by name
    assert {name: [re.match(r"[\w-]+", line)[0] for line in extras[name]] for name in UNTESTED} == UNTESTED
    assert not {package for packages in UNTESTED.values() for package in packages} & set(names)


def test_address_and_ref_agree_everywhere():
    stamp = tool("stamp")
    address, ref = stamp.current()
    for path, patterns in stamp.places().items():
        for row in stamp.found(path, patterns):
            assert row in ({"a": address}, {"r": ref}, {"a": address, "r": ref}), path


def test_stamping_changes_every_place_and_back(tmp_path):
    stamp = tool("stamp")
    for path in stamp.places():
        target = tmp_path / path.relative_to(ROOT)
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(path.read_bytes())
    before = {p: p.read_bytes() for p in stamp.places(tmp_path)}
    assert len(stamp.stamp("Some-One/book.mem", "v1.0", tmp_path)) == len(before)
    assert stamp.current(tmp_path) == ("Some-One/book.mem", "v1.0")
    assert not [p for p in before if b"owner-not-set" in p.read_bytes() and p.suffix != ".toml"]
    stamp.stamp("-owner-not-set-/bnmem", "main", tmp_path)
    assert {p: p.read_bytes() for p in before} == before
    for bad in (("a b/c", "main"), ("-x/y", "main"), ("a/b", "-rf"), ("a/b", "x; rm"), ("a/..", "main")):
        with pytest.raises(ValueError):
            stamp.stamp(*bad, tmp_path)


def test_an_old_python_or_a_full_disk_stops_early_with_the_way_out():
    preflight = tool("preflight")
    assert "this is 3.9; name another one" in preflight.problem((3, 9), 1e12)
    assert "2.0 GB are free here" in preflight.problem((3, 11), 2e9)
    assert preflight.problem((3, 11), 1e11) is None
    ast.parse((ROOT / "tools/preflight.py").read_text(), feature_version=(3, 6))


def test_make_stops_early_with_an_old_python(tmp_path):
    fake = tmp_path / "python3.11"
    fake.write_text("#!/bin/sh\necho 'bnmem: Python 3.11 or newer is needed and this is 3.8' >&2\nexit 1\n")
    fake.chmod(0o755)
    for name in ("Makefile", "requirements.txt", "pyproject.toml"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/preflight.py").write_bytes((ROOT / "tools/preflight.py").read_bytes())
    done = subprocess.run(["make", "book", f"PYTHON={fake}"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode != 0 and "Python 3.11 or newer" in done.stderr
    assert not (tmp_path / ".venv").exists()


def test_the_records_travel_with_the_installed_package():
    text = (ROOT / "pyproject.toml").read_text()
    assert '"bnmem.results" = "results"' in text and '"**/*.json"' in text
    assert records.PACKAGE == ROOT / "bnmem"
    assert importlib.util.find_spec("bnmem").origin == str(ROOT / "bnmem" / "__init__.py")


def test_links_between_documents_exist():
    for path in [*ROOT.glob("*.md"), *(ROOT / "book").glob("*.md"), *(ROOT / "notebooks").glob("*.py")]:
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", path.read_text()):
            assert (path.parent / target).exists(), (path.name, target)


def test_files_named_in_prose_exist():
    for path in [*ROOT.glob("*.md"), *(ROOT / "book").glob("*.md"), *(ROOT / "notebooks").glob("*.py")]:
        for target in re.findall(
            r"`((?:bnmem|tests|tools|results|notebooks|book|benchmarks)/[\w./-]+)`", path.read_text()
        ):
            if not re.search("NAME|KEY|EXPERIMENT", target):
                assert (ROOT / Path(target)).exists(), (path.name, target)
