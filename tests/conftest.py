"""What all tests share: records in a folder of the test's own, and no data folder unless a test asks for it."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
os.environ["TQDM_DISABLE"] = "1"
DATA = os.environ.pop("BNMEM_DATA", None) or ROOT.parent / "shared" / "data"


@pytest.fixture(autouse=True)
def results(tmp_path, monkeypatch):
    """An empty results folder, in force for this test and its subprocesses."""
    folder = tmp_path / "results"
    monkeypatch.setenv("BNMEM_RESULTS", str(folder))
    return folder


@pytest.fixture
def committed(monkeypatch):
    """The committed records instead."""
    monkeypatch.setenv("BNMEM_RESULTS", str(ROOT / "results"))
    return ROOT / "results"


@pytest.fixture
def real_data(monkeypatch):
    """The folder with the four real data sets, where there is one."""
    if not Path(DATA).is_dir():
        pytest.skip("no folder of npz files: set BNMEM_DATA to test with the four real data sets")
    monkeypatch.setenv("BNMEM_DATA", str(DATA))
    return Path(DATA)
