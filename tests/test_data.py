"""Data: balanced subsets, equal from every source; flips never keep a true label; damaged files are refused."""

import hashlib
import importlib.util
import urllib.error
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bnmem import data, sources
from bnmem.errors import InputError

from .conftest import ROOT

PACKAGE = Path("/usr/share/datasets/fashion-mnist")


def test_embedded_set_is_small_and_class_balanced():
    dataset = data.load("fashion_mnist", 5000, 1000, 2000)
    assert dataset.source == "embedded"
    assert (ROOT / "bnmem/embedded/fashion_mnist.npz").stat().st_size <= 4e6
    assert "MIT License" in (ROOT / "bnmem/embedded/NOTICE").read_text()
    for split, each in ((dataset.train, 500), (dataset.val, 100), (dataset.test, 200)):
        assert np.bincount(split.labels).tolist() == [each] * 10
    assert len(np.intersect1d(dataset.train.index, dataset.val.index)) == 0


@pytest.mark.skipif(not PACKAGE.is_dir(), reason="Debian's package dataset-fashion-mnist is not installed")
def test_embedded_set_is_what_its_script_makes_from_debians_package():
    spec = importlib.util.spec_from_file_location("embed", ROOT / "tools/embed_fashion_mnist.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made, shipped = module.build(), sources.embedded("fashion_mnist.npz")
    assert set(made) == set(shipped)
    assert all(np.array_equal(made[name], shipped[name]) for name in made)


def test_the_full_set_gives_the_same_selection_as_the_embedded_one(real_data, monkeypatch):
    embedded = data.load("fashion_mnist", 300, 100, 200)
    arrays = sources.read_npz(real_data / "fashion_mnist.npz", "fashion_mnist")
    monkeypatch.setattr(sources, "find", lambda *_: ("folder", arrays))
    full = data.load("fashion_mnist", 300, 100, 200)
    for split in ("train", "val", "test"):
        a, b = getattr(embedded, split), getattr(full, split)
        assert np.array_equal(a.index, b.index)
        assert data.fingerprint(a.images, a.labels) == data.fingerprint(b.images, b.labels)


@pytest.mark.parametrize("name", sources.SETS)
def test_every_real_set_loads_from_a_folder(name, real_data):
    info = sources.SETS[name]
    dataset = data.load(name, 1000, 200, 500)
    assert dataset.train.images.shape == (1000, *info.shape) and dataset.train.images.dtype == np.uint8
    assert np.bincount(dataset.train.labels, minlength=info.classes).tolist() == [1000 // info.classes] * info.classes
    sibling = data.load(info.ood, 50, 0, 0).train.images
    assert sibling.shape == (50, *info.shape) and np.array_equal(data.ood_images(name, "sibling", 50), sibling)
    mean = dataset.train.images.reshape(-1, info.shape[2] if len(info.shape) == 3 else 1).mean(0) / 255
    assert np.allclose(mean, info.mean, atol=0.02)  # the channel statistics are this set's


def test_a_partial_source_refuses_more_than_it_can_give(real_data):
    with pytest.raises(InputError, match="not all of the 20,000 asked for"):
        data.load("cifar10", 20_000)


@pytest.mark.parametrize("asked", [(60_000, 1, 10), (-1, 0, 10), (10, 0, 10_001)])
def test_more_than_the_official_files_hold_is_refused(asked):
    with pytest.raises(InputError, match="60,000 training and 10,000 test images"):
        data.load("fashion_mnist", *asked)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(n=st.integers(1, 300), rate=st.floats(0, 0.5), classes=st.integers(2, 100), seed=st.integers(0, 2**31))
def test_flips_never_keep_the_true_label(n, rate, classes, seed):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, n)
    before = labels.copy()
    flipped, rows = data.flip(labels, rate, classes, rng)
    assert len(rows) == round(rate * n) == len(np.unique(rows))
    assert (flipped[rows] != labels[rows]).all() and flipped.min() >= 0 and flipped.max() < classes
    others = np.setdiff1d(np.arange(n), rows)
    assert np.array_equal(flipped[others], labels[others]) and np.array_equal(labels, before)


def test_flips_are_uniform_over_the_other_classes():
    flipped, rows = data.flip(np.zeros(40_000, int), 0.5, 10, np.random.default_rng(0))
    counts = np.bincount(flipped[rows], minlength=10)
    assert counts[0] == 0
    expected = 20_000 / 9
    assert (abs(counts[1:] - expected) < 5 * np.sqrt(expected)).all()


def test_ood_replaces_whole_images_once_each_with_random_labels():
    dataset = data.load("fashion_mnist", 2000, 100, 100)
    bad = data.corrupt(dataset, "ood", 0.05, seed=1)
    assert len(bad.ood) == 100 and bad.corrupted.sum() == 100 and not len(bad.flipped)
    digits = sources.digits()
    rows = [np.flatnonzero((digits == image).all((1, 2)))[0] for image in bad.images[bad.ood]]
    assert len(set(rows)) == 100  # each a digit, none twice
    clean = np.flatnonzero(~bad.corrupted)
    assert np.array_equal(bad.images[clean], dataset.train.images[clean])
    assert (bad.true_labels[bad.ood] == -1).all() and len(np.unique(bad.labels[bad.ood])) == 10


def test_corruption_is_set_by_its_seed():
    dataset = data.load("fashion_mnist", 500, 100, 100)
    a, b, c = (data.corrupt(dataset, "flip", 0.1, seed) for seed in (3, 3, 4))
    assert np.array_equal(a.labels, b.labels) and not np.array_equal(a.labels, c.labels)


@pytest.mark.parametrize("rate", [-0.01, 0.51, float("nan"), "0.1", None, True])
def test_a_rate_outside_0_to_one_half_is_refused(rate):
    with pytest.raises(InputError, match=r"fraction from 0 to 0\.5"):
        data.corrupt(data.load("fashion_mnist", 100, 0, 10), "flip", rate, 0)


def test_more_ood_images_than_the_source_holds_is_refused():
    with pytest.raises(InputError, match="3,000 OOD images are needed and digits holds 1,797"):
        data.corrupt(data.load("fashion_mnist", 6000, 0, 10), "ood", 0.5, 0)


def test_digits_do_not_fit_colour_images():
    with pytest.raises(InputError, match="ood='sibling'"):
        data.ood_images("cifar10", "digits", 10)


def good_arrays(n=20):
    rng = np.random.default_rng(0)
    arrays = {f"{s}_images": rng.integers(0, 256, (n, 28, 28), np.uint8) for s in ("train", "test")}
    return arrays | {f"{s}_labels": rng.integers(0, 10, n).astype(np.uint8) for s in ("train", "test")}


DAMAGE = {
    "no images": (lambda a: a.pop("train_images"), "lacks train_images"),
    "float images": (lambda a: a.update(train_images=a["train_images"] / 255.0), r"float64; give bytes 0 to 255"),
    "wrong shape": (lambda a: a.update(test_images=a["test_images"][:, :27]), r"not \[n, 28, 28\]"),
    "label 10": (lambda a: a["train_labels"].__setitem__(0, 10), "must be 0 to 9"),
    "float labels": (lambda a: a.update(test_labels=a["test_labels"] * 1.0), "one an image"),
    "short labels": (lambda a: a.update(test_labels=a["test_labels"][:-1]), "one an image"),
    "index twice": (lambda a: a.update(train_index=np.zeros(20, int)), "each once"),
    "index too large": (lambda a: a.update(train_index=np.arange(20) + 59_990), "must be 0 to 59999"),
    "objects": (lambda a: a.update(train_labels=np.array([None] * 20)), "cannot be read"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_bad_npz_is_refused_with_its_name(damage, tmp_path, monkeypatch):
    arrays = good_arrays()
    change, message = DAMAGE[damage]
    change(arrays)
    np.savez_compressed(tmp_path / "mnist.npz", **arrays)
    monkeypatch.setenv("BNMEM_DATA", str(tmp_path))
    with pytest.raises(InputError, match=message) as error:
        data.load("mnist", 10, 0, 10)
    assert "mnist.npz" in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("keep", [0, 10, 2000, -20])
def test_a_truncated_npz_is_refused_with_its_name(keep, tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "mnist.npz", **good_arrays())
    raw = (tmp_path / "mnist.npz").read_bytes()
    (tmp_path / "mnist.npz").write_bytes(raw[:keep])
    monkeypatch.setenv("BNMEM_DATA", str(tmp_path))
    with pytest.raises(InputError, match=r"mnist\.npz cannot be read"):
        data.load("mnist", 10, 0, 10)


def test_a_flipped_byte_in_an_npz_is_refused(tmp_path):
    np.savez_compressed(tmp_path / "mnist.npz", **good_arrays())
    raw = bytearray((tmp_path / "mnist.npz").read_bytes())
    raw[len(raw) // 2] ^= 255
    (tmp_path / "mnist.npz").write_bytes(raw)
    with pytest.raises(InputError, match="cannot be read"):
        sources.read_npz(tmp_path / "mnist.npz", "mnist")


def test_no_network_and_no_copy_says_where_to_put_one(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise urllib.error.URLError("no route to host")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(InputError, match=r"set BNMEM_DATA to a folder that holds cifar10\.npz") as error:
        data.load("cifar10", 100)
    assert "\n" not in str(error.value)


def test_a_tampered_download_is_never_unpickled(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise urllib.error.URLError("no route to host")

    fired = tmp_path / "fired"
    monkeypatch.setattr("urllib.request.urlopen", refuse)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    batches = tmp_path / "bnmem" / "cifar-10-batches-py"
    batches.mkdir(parents=True)
    evil = f"cbuiltins\nopen\n(V{fired}\nVw\ntR.".encode()  # opens a file when unpickled
    for name in ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"):
        (batches / name).write_bytes(evil)
    with pytest.raises(InputError):
        data.load("cifar10", 100)
    assert not fired.exists()


def test_unknown_names_list_the_known_ones():
    with pytest.raises(InputError, match="mnist, fashion_mnist, cifar10, cifar100"):
        data.load("svhn")
    with pytest.raises(InputError, match="none, flip, ood"):
        data.corrupt(data.load("fashion_mnist", 100, 0, 10), "noise", 0.1, 0)
    with pytest.raises(InputError, match="digits, sibling"):
        data.ood_images("mnist", "letters", 3)


def test_the_fingerprint_sees_every_byte_and_the_shape():
    a = np.zeros((4, 2), np.uint8)
    b = a.copy()
    b[3, 1] = 1
    marks = {data.fingerprint(x) for x in (a, b, a.reshape(2, 4), a.astype(np.int64))}
    assert len(marks) == 4
    assert data.fingerprint(a) == hashlib.sha256(b"|u1(4, 2)" + bytes(8)).hexdigest()
