"""The audit of anybody's checkpoint: what it reads, what it must never run, and that its numbers are right."""

import copy
import csv
import os
import pickle
import re

import nbformat
import numpy as np
import papermill
import pytest
import torch
import torchvision
from PIL import Image
from torch import nn
from torch.nn import functional as F

from bnmem import audit_file, audited, checkpoint, images, rebuild, report_audit
from bnmem.__main__ import main
from bnmem.audit import audit
from bnmem.errors import InputError
from bnmem.ratio import GammaSigmaPenalty

from .conftest import ROOT
from .test_book import tool
from .test_project import STANDARD, reach

CLASSES = 4
notebooks = tool("notebooks")


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def used(net, size=40):
    """The net after a few batches, so that its running statistics are some."""
    torch.manual_seed(1)
    net.train()
    with torch.no_grad():
        for _ in range(3):
            net(1.5 * torch.randn(8, 3, size, size))
    return net


@pytest.fixture(scope="module")
def resnet():
    torch.manual_seed(0)
    return used(torchvision.models.resnet18(weights=None, num_classes=CLASSES))


@pytest.fixture
def saved(tmp_path, resnet, monkeypatch):
    """The path of the state dict of torchvision's ResNet-18, in the current folder."""
    monkeypatch.chdir(tmp_path)
    torch.save(resnet.state_dict(), "net.pt")
    return "net.pt"


@pytest.fixture
def folder(tmp_path):
    """A folder of class folders with 14 images in all."""
    rng = np.random.default_rng(0)
    for label, n in enumerate((5, 4, 4, 1)):
        (tmp_path / f"data/class{label}").mkdir(parents=True)
        for i in range(n):
            pixels = rng.integers(0, 256, (40, 40, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / f"data/class{label}/{i}.png")
    return tmp_path / "data"


def command(*words):
    return main(["audit", *map(str, words)])


def refused(capsys, *words):
    """The one line of a command that must not succeed."""
    assert command(*words) == 2
    out = capsys.readouterr()
    lines = out.err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("bnmem: ") and not out.out
    return lines[0]


def table(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_the_command_reads_gamma_over_sigma_of_a_torchvision_net(saved, resnet, capsys):
    assert command(saved, "--arch", "torchvision:resnet18") == 0
    out = capsys.readouterr().out
    layers = {name: m for name, m in resnet.named_modules() if isinstance(m, nn.BatchNorm2d)}
    rows = table("audit-net/ratio.csv")
    assert [row["layer"] for row in rows] == list(layers) and len(layers) == 20
    above = 0
    for row, layer in zip(rows, layers.values(), strict=True):
        ratio = layer.weight.detach().abs() / torch.sqrt(layer.running_var + layer.eps)
        assert float(row["mean"]) == pytest.approx(float(ratio.mean()), rel=1e-5)
        above += ratio.mean() > 1
    assert f"{above} of 20 batch normalization layers have a mean gamma/sigma above 1" in out
    assert "No number here is evidence of membership" in out and "shadow models" in out and "What to do next" in out
    assert sorted(os.listdir("audit-net")) == ["ratio.csv", "ratio.png", "report.md"]
    assert Image.open("audit-net/ratio.png").size[0] > 1000
    assert out.startswith((report := open("audit-net/report.md").read())[:200]) and "| layer4.1.bn2 " in report


def test_norms_in_the_table_are_those_of_a_batch_of_one(saved, folder, resnet, capsys):
    assert command(saved, "--arch", "torchvision:resnet18", "--data", folder, "--out", "o", "--batch", 4) == 0
    rows = table("o/samples.csv")
    names = sorted(f"class{label}/{i}.png" for label, n in enumerate((5, 4, 4, 1)) for i in range(n))
    assert sorted(row["sample"] for row in rows) == names
    net = torchvision.models.resnet18(weights=None, num_classes=CLASSES).eval().double()
    net.load_state_dict(torch.load(saved, weights_only=True))
    mean, std = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    for row in rows:
        pixels = torch.from_numpy(np.asarray(Image.open(folder / row["sample"])).astype(np.float64) / 255)
        x = ((pixels - torch.tensor(mean).double()) / torch.tensor(std).double()).permute(2, 0, 1)[None]
        net.zero_grad()
        z = net(x)
        loss = F.cross_entropy(z, torch.tensor([int(row["label"])]))
        loss.backward()
        norm = sum(float(p.grad.square().sum()) for p in net.parameters()) ** 0.5
        assert row["sample"].startswith(f"class{row['label']}/") and int(row["predicted"]) == int(z.argmax())
        assert float(row["norm"]) == pytest.approx(norm, rel=1e-4)
        assert float(row["loss"]) == pytest.approx(loss.item(), rel=1e-4)
    norms = [float(row["norm"]) for row in rows]
    assert norms == sorted(norms, reverse=True) and [int(row["rank"]) for row in rows] == list(range(1, 15))
    out = capsys.readouterr().out
    assert rows[0]["sample"] in out and "ImageNet's" in out and "0 = class0, 1 = class1" in out


def test_the_same_again_gives_the_same_bytes_and_nothing_is_overwritten(saved, folder, capsys):
    for name in ("a", "b"):
        assert command(saved, "--arch", "torchvision:resnet18", "--data", folder, "--limit", 6, "--out", name) == 0
    for name in os.listdir("a"):
        assert open(f"a/{name}", "rb").read() == open(f"b/{name}", "rb").read(), name
    capsys.readouterr()
    assert "exists already and is not empty" in refused(capsys, saved, "--arch", "torchvision:resnet18", "--out", "a")
    assert "exists already" in refused(capsys, saved, "--arch", "torchvision:resnet18", "--out", saved)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: {f"module.{k}": v for k, v in state.items()},
        lambda state: {"epoch": 3, "state_dict": {f"_orig_mod.module.{k}": v for k, v in state.items()}},
        lambda state: {"model_state_dict": state, "optimizer": {"lr": 0.1}},
        lambda state: {f"model.{k}": v for k, v in state.items()},
        lambda state: {"n_averaged": torch.tensor(3), **{f"module.{k}": v for k, v in state.items()}},
        lambda state: {k: v for k, v in state.items() if "num_batches_tracked" not in k},
    ],
)
def test_wrapped_and_prefixed_weights_are_understood(wrap, tmp_path, resnet):
    torch.save(wrap(resnet.state_dict()), tmp_path / "net.pt")
    net = rebuild.build("torchvision:resnet18", checkpoint.load_state(tmp_path / "net.pt")).model
    x = torch.randn(2, 3, 40, 40)
    assert torch.equal(net(x), resnet.eval()(x))


def test_half_precision_becomes_single_and_classes_and_channels_follow_from_the_weights(tmp_path):
    net = torchvision.models.densenet121(weights=None, num_classes=7)
    net.features.conv0 = nn.Conv2d(1, 64, 7, 2, 3, bias=False)
    torch.save(net.half().state_dict(), tmp_path / "net.pt")
    before = torch.random.get_rng_state()
    found = rebuild.build("torchvision:densenet121", checkpoint.load_state(tmp_path / "net.pt"))
    assert torch.equal(before, torch.random.get_rng_state())
    assert (found.classes, found.channels) == (7, 1) and found.model.classifier.weight.dtype == torch.float32
    x = torch.randn(2, 1, 64, 64)
    assert torch.equal(found.model(x), net.float().eval()(x))


@pytest.mark.parametrize("name", ["inception_v3", "mnasnet0_5", "regnet_x_400mf", "efficientnet_b0", "googlenet"])
def test_nets_with_peculiarities_are_rebuilt(name):
    options = {"init_weights": False} if name in ("inception_v3", "googlenet") else {}
    net = torchvision.models.get_model(name, weights=None, num_classes=5, **options).eval()
    found = rebuild.build(f"torchvision:{name}", net.state_dict())
    x = torch.randn(1, 3, 96, 96)
    with torch.no_grad():
        assert found.classes == 5 and torch.equal(found.model(x), net(x))
    assert not [p for p in found.model.parameters() if p.is_meta or not p.requires_grad]


class Marker:
    """Unpickling it makes a file."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("how", ["torch", "legacy", "pickle", "inside"])
def test_code_in_a_checkpoint_is_never_run(how, tmp_path, capsys, resnet):
    marker, path = Marker(tmp_path / "it-ran"), tmp_path / "evil.pt"
    if how == "pickle":
        path.write_bytes(pickle.dumps(marker))
    else:
        body = {"state_dict": resnet.state_dict(), "args": marker} if how == "inside" else marker
        torch.save(body, path, _use_new_zipfile_serialization=how != "legacy")
    line = refused(capsys, path, "--arch", "torchvision:resnet18", "--out", tmp_path / "o")
    assert "holds a pickled object" in line and "torch.save(model.state_dict(), PATH)" in line
    assert not (tmp_path / "it-ran").exists() and not (tmp_path / "o").exists()
    if how != "pickle":  # the marker works: whoever unpickles it, runs it
        torch.load(path, weights_only=False)
        assert (tmp_path / "it-ran").exists()


def changed(state, **values):
    return {**state, **values}


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda p, net: torch.save(net, p), r"pickled object \(torchvision.models.resnet.ResNet\), not only weights"),
        (lambda p, net: torch.jit.save(torch.jit.trace(net.eval(), torch.zeros(1, 3, 40, 40)), p), "TorchScript"),
        (lambda p, net: p.write_bytes(b""), "damaged or was not saved by torch"),
        (lambda p, net: p.write_text("weights"), "or was not saved by torch"),
        (lambda p, net: (torch.save(net.state_dict(), p), os.truncate(p, 10_000)), "damaged"),
        (lambda p, net: p.mkdir(), "is a folder; name the file"),
        (lambda p, net: None, "there is no file"),
        (lambda p, net: torch.save([1, 2], p), "holds a list and no weights"),
        (lambda p, net: torch.save({"epoch": 3}, p), "a dictionary with 'epoch' and no weights"),
        (
            lambda p, net: torch.save(changed(net.state_dict(), **{"bn1.weight": torch.full((64,), torch.nan)}), p),
            "bn1.weight has NaN or infinity",
        ),
        (
            lambda p, net: torch.save({k: v for k, v in net.state_dict().items() if k != "bn1.weight"}, p),
            r"do not fit torchvision:resnet18: 1 missing \(bn1.weight\); name the --arch",
        ),
        (
            lambda p, net: torch.save(changed(net.state_dict(), extra=torch.zeros(1)), p),
            r"1 unexpected \(extra\)",
        ),
        (
            lambda p, net: torch.save(changed(net.state_dict(), **{"conv1.weight": torch.zeros(64, 3, 3, 3)}), p),
            r"conv1.weight is \[64, 3, 3, 3\] and not \[64, 3, 7, 7\]",
        ),
        (
            lambda p, net: torch.save(torchvision.models.resnet34(num_classes=4).state_dict(), p),
            r"96 unexpected \(layer1.2.conv1.weight",
        ),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore")  # torch's own, on TorchScript
def test_bad_checkpoints_are_one_line(make, message, tmp_path, capsys, resnet):
    make(tmp_path / "net.pt", resnet)
    line = refused(capsys, tmp_path / "net.pt", "--arch", "torchvision:resnet18", "--out", tmp_path / "o")
    assert re.search(message, line), line
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    "arch, message",
    [
        ("torchvision:resnet19", "close to it are torchvision:resnet18"),
        ("vgg16", "torchvision:vgg16"),
        ("timm:resnet18", "unknown family 'timm'"),
        ("torchvision:resnet50", "do not fit torchvision:resnet50"),
        ("resnet8", "do not fit bnmem:resnet8"),
        ("bnmem:resnet18", "do not fit bnmem:resnet18"),
        ("torchvision:vit_b_16", "do not fit"),
    ],
)
def test_bad_architectures_are_one_line(arch, message, saved, capsys):
    assert message in refused(capsys, saved, "--arch", arch)


def test_a_net_without_batch_normalization_needs_data_and_then_gets_norms(tmp_path, folder, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    net = torchvision.models.squeezenet1_1(weights=None, num_classes=CLASSES)
    torch.save(net.state_dict(), "s.pt")
    line = refused(capsys, "s.pt", "--arch", "torchvision:squeezenet1_1")
    assert "no batch normalization layer, so there is no gamma/sigma to read; give data (--data)" in line
    words = ("--arch", "torchvision:squeezenet1_1", "--data", folder, "--limit", 5)
    assert command("s.pt", *words) == 0
    assert "there is no gamma/sigma to read" in capsys.readouterr().out
    assert len(table("audit-s/samples.csv")) == 5 and not os.path.exists("audit-s/ratio.csv")


def npz(path, **arrays):
    np.savez(path, **arrays)


PIXELS, LABELS = np.zeros((6, 40, 40), np.uint8), np.arange(6) % CLASSES


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda p: p.mkdir(), "no folder in it"),
        (lambda p: (p / "a").mkdir(parents=True), "no image"),
        (lambda p: (p.mkdir(), Image.new("L", (9, 9)).save(p / "x.png")), "1 images but no folder"),
        (lambda p: ((p / "a").mkdir(parents=True), Image.new("L", (9, 9)).save(p / "a/x.png")), "the net 4 classes"),
        (lambda p: None, "there is no folder or npz file"),
        (lambda p: p.write_text("no"), "no npz file"),
        (lambda p: npz(p, images=PIXELS), "needed are arrays images and labels"),
        (lambda p: npz(p, images=PIXELS / 255, labels=LABELS), "bytes 0 to 255"),
        (lambda p: npz(p, images=np.zeros((6, 3, 40, 40), np.uint8), labels=LABELS), "channels last"),
        (lambda p: npz(p, images=PIXELS, labels=LABELS + 2), "labels 2 to 5 and the net classes 0 to 3"),
        (lambda p: npz(p, images=PIXELS, labels=LABELS - 1), "labels -1 to 2"),
        (lambda p: npz(p, images=PIXELS, labels=LABELS[:5]), "for 6 images"),
        (lambda p: npz(p, images=PIXELS, labels=LABELS / 2), "give one integer each"),
        (lambda p: npz(p, images=PIXELS[:0], labels=LABELS[:0]), "holds no image"),
        (lambda p: npz(p, images=PIXELS.astype(object), labels=LABELS), "no npz file of plain arrays"),
        (lambda p: npz(p, images=np.zeros((2, 600, 600), np.uint8), labels=LABELS[:2]), "say --size"),
    ],
)  # fmt: skip
def test_bad_data_are_one_line(make, message, saved, tmp_path, capsys):
    make(tmp_path / "data.npz")
    assert message in refused(capsys, saved, "--arch", "torchvision:resnet18", "--data", tmp_path / "data.npz")
    assert not os.path.exists("audit-net")


@pytest.mark.parametrize("content", [b"", b"<html>", "cut"])
def test_an_unreadable_image_is_named(content, saved, folder, capsys):
    raw = (folder / "class0/0.png").read_bytes()[:400] if content == "cut" else content
    (folder / "class2/0.png").write_bytes(raw)
    line = refused(capsys, saved, "--arch", "torchvision:resnet18", "--data", folder)
    assert "class2/0.png cannot be read" in line and "repair or remove it" in line


@pytest.mark.parametrize(
    "words, message",
    [
        (("--limit", 0), "must be 1 or more"),
        (("--size", 0), "must be 1 or more"),
        (("--batch", 0), "batch must be 1 or more"),
        (("--mean", 0.5), "give both --mean and --std"),
        (("--mean", 0.5, "--std", 0.5), "3 numbers each"),
        (("--mean", 0, 0, 0, "--std", 1, 1, 0), "std above 0"),
    ],
)
def test_bad_options_are_one_line(words, message, saved, folder, capsys):
    assert message in refused(capsys, saved, "--arch", "torchvision:resnet18", "--data", folder, *words)


def test_what_is_no_image_is_left_out_visibly_and_odd_pixels_are_read(folder):
    (folder / "class1/.hidden.png").write_bytes(b"x")
    (folder / "class1/notes.txt").write_text("x")
    os.symlink(folder / "class0/0.png", folder / "class1/link.png")
    (folder / "class3/0.png").unlink()
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 65536, (30, 50), dtype=np.uint16)).save(folder / "class2/deep.png")
    Image.fromarray(rng.integers(0, 256, (30, 50, 4), dtype=np.uint8)).save(folder / "class2/alpha.png")
    Image.fromarray(rng.integers(0, 256, (30, 50), dtype=np.uint8)).save(folder / "class2/grey.png")
    found = images.find(folder, 3, CLASSES)
    assert any("ignored" in n and "class1/.hidden.png, class1/link.png, class1/notes.txt" in n for n in found.notes)
    assert any("without an image: class3" in n for n in found.notes)
    assert sorted(set(found.labels)) == [0, 1, 2] and len(found) == 16
    read = {name: found.read(i) for i, name in enumerate(found.names)}
    assert {pixels.shape for pixels in read.values()} == {(40, 40, 3)}
    assert (read["class2/grey.png"] == read["class2/grey.png"][..., :1]).all() and read["class2/deep.png"].std() > 20
    grey = images.find(folder, 1, CLASSES, size=28)
    mean, std = images.statistics(grey)
    x = torch.cat([x for x, _ in images.batches(grey, mean, std, 5)])
    assert x.shape == (16, 1, 28, 28) and abs(float(x.mean())) < 1e-5 and float(x.std()) == pytest.approx(1, abs=1e-3)


def test_the_choice_of_images_is_random_seeded_and_labelled_right(tmp_path):
    labels = np.random.default_rng(0).integers(0, CLASSES, 50)
    np.savez(
        tmp_path / "d.npz", train_images=np.arange(50, dtype=np.uint8)[:, None, None] + PIXELS[:1], train_labels=labels
    )
    found = images.find(tmp_path / "d.npz", 1, CLASSES, limit=20)
    at = np.array([int(re.search(r"\[(\d+)\]", name)[1]) for name in found.names])
    assert len(set(at)) == 20 and (np.diff(at) < 0).any() and (found.labels == labels[at]).all()
    assert [found.read(i)[0, 0, 0] for i in range(20)] == at.tolist()
    assert images.find(tmp_path / "d.npz", 1, CLASSES, limit=20).names == found.names
    assert images.find(tmp_path / "d.npz", 1, CLASSES, limit=20, seed=1).names != found.names


def loader(n=10, size=40, classes=CLASSES):
    generator = torch.Generator().manual_seed(3)
    return torch.randn(n, 3, size, size, generator=generator), torch.arange(n) % classes


def test_any_module_is_audited_and_left_as_it_was(resnet):
    x, y = loader()
    resnet.train()
    resnet.layer1.eval()
    resnet.zero_grad()
    before = {k: v.clone() for k, v in resnet.state_dict().items()}
    modes = [m.training for m in resnet.modules()]
    random = torch.random.get_rng_state()
    whole = audit(resnet, (x, y), batch=4)
    pairs = audit(nn.DataParallel(resnet), [(x[:3], y[:3]), (x[3:], y[3:])])
    np.testing.assert_allclose(whole.samples.norm, pairs.samples.norm, rtol=1e-4)
    assert all(torch.equal(before[k], v) for k, v in resnet.state_dict().items())
    assert modes == [m.training for m in resnet.modules()] and torch.equal(random, torch.random.get_rng_state())
    assert not [p for p in resnet.parameters() if p.grad is not None]
    assert not [m for m in resnet.modules() if m._forward_hooks or m._forward_pre_hooks]


class Odd(nn.Module):
    """A net that the fast norms refuse: a parameter of its own, used in forward."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.7))
        self.conv, self.norm, self.head = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, CLASSES)

    def forward(self, x):
        return self.head(self.scale * torch.relu(self.norm(self.conv(x))).mean((2, 3)))


def test_a_net_that_the_fast_norms_refuse_gets_one_backward_pass_a_sample():
    torch.manual_seed(0)
    net, (x, y) = used(Odd()), loader()
    made = audit(net, (x, y))
    assert any("One backward pass a sample" in note and "scale" in note for note in made.notes)
    net.eval()
    for i in range(len(y)):
        grads = torch.autograd.grad(F.cross_entropy(net(x[i : i + 1]), y[i : i + 1]), list(net.parameters()))
        assert made.samples.norm[i] == pytest.approx(float(sum(g.square().sum() for g in grads)) ** 0.5, rel=1e-4)


def test_the_slow_norms_equal_the_fast_ones_also_on_samples_that_are_fitted_well(resnet):
    from bnmem import grads, grads_any

    net, (x, y) = resnet.eval(), loader()
    net = rebuild.build("torchvision:resnet18", copy.deepcopy(net.state_dict())).model
    with torch.no_grad():
        net.double().fc.weight.mul_(300)
        x = x.double()
        y = net(x).argmax(1)
    fast = grads.norms(net, x, y)
    assert fast.min() < 1e-9
    np.testing.assert_allclose(grads_any.one_by_one(net, x, y), fast, rtol=1e-9)


@pytest.mark.parametrize(
    "net, batches, message",
    [
        (lambda: nn.Linear(3, 2), None, "no batch normalization layer"),
        (lambda: Odd().half(), None, "torch.float16; make them all float32"),
        (lambda: Odd().requires_grad_(False), None, "no trainable parameters"),
        (lambda: "net.pt", None, "must be a torch.nn.Module, not str"),
        (
            Odd,
            (torch.zeros(3, 3, 9, 9), torch.tensor([0, 1, 4])),
            "labels go from 0 to 4 and the net has classes 0 to 3",
        ),
        (Odd, (torch.zeros(3, 3, 9, 9), torch.tensor([0, 1])), "for 3 samples"),
        (Odd, (torch.zeros(3, 3, 9, 9), torch.zeros(3)), "give one integer each"),
        (Odd, (torch.zeros(3, 5, 9, 9), torch.zeros(3).long()), r"does not take inputs of shape \[5, 9, 9\]"),
        (Odd, (torch.full((3, 3, 9, 9), torch.nan), torch.zeros(3).long()), "logits are NaN or infinite"),
        (Odd, [], "no sample"),
        (Odd, [torch.zeros(3, 3, 9, 9)], "pairs"),
        (lambda: nn.Sequential(Odd(), nn.Softmax(1)), loader(), "look like probabilities"),
        (lambda: nn.Sequential(Odd(), nn.Flatten(0)), loader(), "must return logits"),
    ],
)
def test_bad_modules_and_batches(net, batches, message):
    with pytest.raises(InputError, match=message):
        audit(net(), batches)


def test_weights_that_are_not_finite_are_named():
    net = Odd()
    with torch.no_grad():
        net.norm.running_var[1] = torch.inf
    with pytest.raises(InputError, match=r"infinite: norm\.running_var"):
        audit(net)


def test_without_running_statistics_there_is_a_ratio_from_batches_and_no_norm():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False), nn.Flatten(), nn.LazyLinear(4)
    )
    x, y = loader(8, 9)
    net(x)
    made = audit(net, (x, y))
    assert made.samples is None and "no running statistics" in made.notes[0]
    assert np.isfinite(made.in_batches[0].ratio).all() and "0 of 0" in report_audit.findings(made)[0]


@pytest.mark.parametrize("bound, weight", [(0, 0.1), (-1, 0.1), (np.nan, 0.1), (0.5, -0.1)])
def test_the_penalty_that_the_report_recommends_refuses_bad_numbers(bound, weight, resnet):
    with pytest.raises(InputError, match="must be"):
        GammaSigmaPenalty(resnet, bound=bound, weight=weight)


def test_no_download_is_possible(saved, folder, monkeypatch):
    def refuse(*args, **options):
        raise AssertionError("network")

    monkeypatch.setattr("socket.socket.connect", refuse)
    monkeypatch.setattr("torch.hub.load_state_dict_from_url", refuse)
    assert audit_file.audit_file(saved, "torchvision:resnet18", folder, limit=2).audit.classes == CLASSES


def test_safetensors_are_read_or_the_package_is_named(tmp_path, resnet):
    path = tmp_path / "net.safetensors"
    try:
        from safetensors.torch import save_file
    except ImportError:
        path.write_bytes(b"x")
        with pytest.raises(InputError, match="needs the package safetensors"):
            checkpoint.load_state(path)
        return
    save_file(resnet.state_dict(), path)
    assert set(checkpoint.load_state(path)) == set(resnet.state_dict())


def test_the_records_code_covers_all_that_can_change_its_numbers():
    assert set(audited.CODE) == (reach("audited") | {"audited"}) - STANDARD


def test_a_record_gives_back_the_audit_that_made_it():
    torch.manual_seed(0)
    x, y = loader(8, 28)
    made = audit(used(rebuild_resnet8(), 28), (x, y), name="net")
    numbers, arrays = audited.pack(made)
    again = audited.unpack(numbers, arrays | {"rows": np.arange(8)})
    assert report_audit.text(again) == report_audit.text(made)
    assert (again.samples.order == made.samples.order).all()


def rebuild_resnet8():
    from bnmem import models

    return models.make("resnet8", "batch", (28, 28, 3), CLASSES, 0)


def test_the_how_to_page_runs_as_it_stands_and_shows_what_comes_out(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```(\w+)\n(.*?)```", (ROOT / "book/howto_audit.md").read_text(), re.S)
    assert [kind for kind, _ in blocks] == ["bash", "python", "bash", "text", "python", "python"]
    space = {}
    exec(blocks[1][1], space)
    words = blocks[2][1].split()
    assert words[:3] == [".venv/bin/python", "-m", "bnmem"] and main(words[3:]) == 0
    out = capsys.readouterr().out
    shape = [re.sub(r"[\d.]+", "#", line) for line in blocks[3][1].strip().splitlines()]  # training is chaotic
    assert [re.sub(r"[\d.]+", "#", line) for line in out.splitlines()[: len(shape)]] == shape
    exec(blocks[4][1], space)
    exec(blocks[5][1], space)
    assert "of 20 batch normalization layers" in capsys.readouterr().out and len(space["hardest"]) == 10
    assert all(path.exists() for path in space["files"])


def test_the_notebook_audits_a_checkpoint_through_papermill(saved, folder, tmp_path, results):
    source, done = notebooks.source_notebook(ROOT / "notebooks/audit_model.py"), tmp_path / "out.ipynb"
    nbformat.write(source, tmp_path / "in.ipynb")
    parameters = {"checkpoint": saved, "arch": "torchvision:resnet18", "data": str(folder), "limit": 6}
    papermill.execute_notebook(tmp_path / "in.ipynb", done, parameters, cwd=str(tmp_path), progress_bar=False)
    text = done.read_text()
    assert "torchvision:resnet18, 4 classes" in text and "layer4.1.bn2" in text and "class0/" in text
    assert text.count('"image/png": "') == 2 and not results.exists()


def test_the_experiment_trains_audits_and_reads_its_record(results):
    from bnmem import exp_audit_model as exp

    settings = exp.AuditModel.of("smoke")
    made = exp.run(settings, workers=1, progress=False)
    again = exp.run(settings, only_stored=True)
    assert made.record.fresh and not again.record.fresh and list((results / "audit_model").glob("*.json"))
    assert report_audit.text(made.audit) == report_audit.text(again.audit)
    assert len(again.audit.ratio) == 9 and len(again.audit.samples.norm) == settings.limit
    hits, n, share = exp.found_noisy(again)
    assert 0 <= hits <= n == again.record.arrays["noisy"].sum() and share == n / settings.limit
    assert exp.images(again).shape == (settings.limit, 28, 28) and exp.deviations(again.record, made.record) == 0
    with pytest.raises(InputError, match="belong to a checkpoint"):
        exp.run(exp.AuditModel.of("smoke", {"data": "x"}))
