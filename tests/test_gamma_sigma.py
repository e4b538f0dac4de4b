"""Claim C8: the measures on made-up layers with known answers, then the experiment itself at its smallest."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from bnmem import exp_gamma_sigma as exp
from bnmem import feeders, jobs, layers, models, rules, train, training
from bnmem import plots_gamma_sigma as plots
from bnmem import tables_gamma_sigma as tables
from bnmem.errors import InputError
from bnmem.exp_gamma_sigma import GammaSigma, Result
from bnmem.layers import Layers
from bnmem.records import Record


def record(before, after, forgotten=None, fitted=20, fed=None, norm=1.0, key="k"):
    """A record of layers of two channels each: mean ratios before and after, sigma 2, the channels 10 % apart."""
    n = len(before)
    spread = np.tile([0.9, 1.1], n)
    ratio = np.array([np.repeat(before, 2) * spread, np.repeat(after, 2) * spread])
    fed = fed or ["conv"] * n
    weight = np.where(np.repeat([f is not None for f in fed], 2), norm, np.nan)
    corrupted, clean = forgotten or (np.zeros(n), np.zeros(n))
    arrays = {"gamma": -2 * ratio, "sigma": np.full((2, 2 * n), 2.0), "running_sigma": np.full((2, 2 * n), 4.0)}
    arrays |= {"weight_norm": np.tile(weight, (2, 1)), "forgotten_corrupted": np.tile(corrupted, (2, 1))}
    arrays |= {"forgotten_clean": np.tile(clean, (2, 1))}
    numbers = {"layers": [f"norm{i}" for i in range(n)], "channels": [2] * n, "fed_by": fed}
    numbers["fitted"] = {"corrupted": [fitted, 40], "clean": [300, 300]}
    settings = {"checkpoints": [0, 5]}
    arrays = {name: np.asarray(values, np.float32) for name, values in arrays.items()}
    return Record("gamma_sigma", "layers", key, settings, "", "", numbers, arrays, {})


def test_readings_are_what_their_names_say():
    r = record([1, 2], [2, 4], norm=3.0)
    assert exp.by_layer(r) == pytest.approx(np.array([[1, 2], [2, 4]]))
    assert exp.by_layer(r, "scale_free") == pytest.approx(np.array([[3, 6], [6, 12]]))
    assert (
        exp.by_layer(r, "running")[:, 1] == pytest.approx([1, 2]) and np.isnan(exp.by_layer(r, "running")[:, 0]).all()
    )
    assert exp.channels(r)["norm1"] == pytest.approx(np.array([[1.8, 2.2], [3.6, 4.4]]))


def test_the_two_metrics_have_their_known_values():
    rows = [record([1, 1, 2, 0.5], [2, 2, 4, 0.5]), record([1, 1, 1, 1], [0.5, 2, 0.5, 1.0])]
    found = exp.effects(rows)
    assert found["share_above_one"].mean == pytest.approx(((3 / 4 - 1 / 2) + (1 / 4 - 1 / 2)) / 2)
    assert found["log2_ratio_change"].mean == pytest.approx((np.log2(8.5 / 4.5) + 0) / 2, abs=1e-6)
    assert exp.share_before(rows) == pytest.approx(0.125)


def test_seeds_that_agree_give_a_share_without_width():
    i = exp.effects([record([2, 2], [3, 3])] * 3)["share_above_one"]
    assert (i.mean, i.low, i.high) == (0.5, 0.5, 0.5)


def test_layers_without_one_feeding_convolution_have_no_scale_free_reading_and_no_memory():
    r = record([1, 1], [2, 2], ([0.5, 0.9], [0.1, 0.1]), fed=["conv", None])
    assert np.isnan(exp.by_layer(r, "scale_free")[1]).all() and np.isfinite(exp.by_layer(r)).all()
    assert exp.memorizing(r)[0] == pytest.approx(0.4) and np.isnan(exp.memorizing(r)[1])
    assert exp.effects([r], "scale_free")["share_above_one"].mean == pytest.approx(0.5)


def test_rank_correlation_over_layers():
    ratios, lost = [1, 2, 3, 4, 5], [0.1, 0.2, 0.3, 0.4, 0.9]
    up, down = record(ratios, ratios, (lost, np.zeros(5))), record(ratios, ratios[::-1], (lost, np.zeros(5)))
    assert exp.correlation([up, up]).mean == pytest.approx(1)
    assert exp.correlation([up, down]).mean == pytest.approx(0)
    assert exp.correlation([record(ratios[:4], ratios[:4], (lost[:4], np.zeros(4)))]) is None  # too few layers
    assert exp.correlation([record(ratios, ratios, (lost, np.zeros(5)), fitted=exp.ENOUGH_FITTED - 1)]) is None
    assert exp.correlation([record(ratios, ratios, (np.zeros(5), np.zeros(5)))]) is None  # no ranks


def test_only_torchs_initialization_gives_the_cells_of_the_verdict():
    s = GammaSigma(archs=("lenet",), seeds=2)
    a, b, c = record([2, 2], [1, 3]), record([1, 1], [4, 4], key="b"), record([1, 1], [9, 9], key="c")
    r = Result(
        s, {("lenet", "torch", 0.0): [a, a], ("lenet", "he", 0.0): [b, b], ("lenet", "torch", 0.005): [c, c]}, []
    )
    found = {cell.metric: cell.effect for cell in exp.cells(r)["C8"]}
    assert found == pytest.approx({"share_above_one": 0.0, "log2_ratio_change": 0.0}, abs=1e-6)
    assert [cell.effect for cell in exp.cells(r, "he")["C8"]] == pytest.approx([0.5, 2.0], abs=1e-6)
    assert exp.statuses(r) == ["fails", "fails"]
    assert rules.verdict("C8", exp.cells(r)["C8"]) == rules.NOT
    new = replace(b, key="k")
    assert exp.statuses(r.with_record(new)) == ["holds", "holds"]


TINY = {
    "archs": ("lenet", "resnet8"), "inits": ("torch",), "n_train": 120, "n_deep": 60, "n_val": 10, "n_test": 10,
    "epochs": 2, "epochs_deep": 2, "seeds": 1, "rate": 0.2, "rewind_clean": 20, "batch_size": 32, "checkpoints": (0, 1),
    "early": 1,
}  # fmt: skip


def test_the_experiment_runs_from_nothing_and_draws_everything():
    r = exp.run(GammaSigma.of("smoke", TINY), workers=1, progress=False)
    assert list(r.runs) == [("lenet", "torch", 0.0), ("resnet8", "torch", 0.0), ("lenet", "torch", 0.005)]
    for figure in (plots.layers(r), plots.channels(r), plots.epochs(r), plots.memory(r)):
        assert figure.png()
    for table in (
        tables.verdict_rows,
        tables.reading_rows,
        tables.layer_rows,
        tables.rewinding_rows,
        tables.correlation_rows,
        tables.record_rows,
    ):
        rows = table(r)
        assert rows and all(set(row) == set(rows[0]) for row in rows)
        assert all(isinstance(cell, str) for row in rows for cell in row.values())
    assert len(tables.layer_rows(r)) == 2 + 9 and tables.glue_values(r)["gs-verdict"]
    again = exp.run(GammaSigma.of("smoke", TINY), only_stored=True)
    assert exp.statuses(again) == exp.statuses(r) and not again.notes
    assert tables.layer_rows(again) == tables.layer_rows(r)  # names keep their order through the files


KIND = {
    "n_train": 120, "n_val": 10, "n_test": 10, "epochs": 2, "batch_size": 32, "rate": 0.2, "corruption": "flip",
}  # fmt: skip


def trained(**change):
    """A training by hand: its curves, the net at each epoch, images and labels."""
    seen, s = {}, training.Training(**KIND | change)

    def keep(epoch, model, x, bad):
        seen[epoch] = copy.deepcopy(model)
        seen["x"], seen["bad"] = x, bad

    return training.compute(s, also=keep)[0], seen


def test_a_record_holds_gamma_and_sigma_of_the_net_it_trained():
    numbers, arrays = layers.compute(Layers(**KIND, checkpoints=(0, 1, 2), rewind=(0, 1)))
    curves, seen = trained()
    for name in ("accuracy", "loss", "ratio", "epoch"):
        assert numbers[name] == curves[name]  # measuring does not change the training
    x = train.batch_of(seen["x"], slice(None))
    for epoch in range(3):
        net = seen[epoch]
        a = net.conv1(x).detach().double().numpy()
        assert arrays["gamma"][epoch][:6] == pytest.approx(net.norm1.weight.detach().numpy())
        assert arrays["sigma"][epoch][:6] == pytest.approx(np.sqrt(a.var((0, 2, 3), ddof=1) + 1e-5), rel=1e-4)
        running = torch.cat([net.norm1.running_var, net.norm2.running_var]).numpy()
        assert arrays["running_sigma"][epoch] == pytest.approx(np.sqrt(running + 1e-5), rel=1e-5)
        weights = net.conv2.weight.detach().flatten(1).norm(dim=1).numpy()
        assert arrays["weight_norm"][epoch][6:] == pytest.approx(weights, rel=1e-5)
    assert numbers["layers"] == ["norm1", "norm2"] and numbers["channels"] == [6, 16]
    assert numbers["fed_by"] == ["conv1", "conv2"]


def test_rewinding_is_what_a_loop_by_hand_finds():
    numbers, arrays = layers.compute(Layers(**KIND, checkpoints=(0, 1, 2), rewind=(0, 1), rewind_clean=30))
    _, seen = trained()
    x, bad = train.batch_of(seen["x"], slice(None)), seen["bad"]
    rows = np.r_[np.flatnonzero(bad.corrupted), np.flatnonzero(~bad.corrupted)[:30]]

    def right(net):
        net = copy.deepcopy(net)
        for bn in (net.norm1, net.norm2):
            bn.momentum = 1.0
        with torch.no_grad():
            net.train()(x)  # all of these images are one batch
            return (net.eval()(x).argmax(1).numpy() == bad.labels)[rows]

    before, corrupted = right(seen[2]), bad.corrupted[rows]
    assert numbers["fitted"] == {
        "corrupted": [int(before[corrupted].sum()), int(corrupted.sum())],
        "clean": [int(before[~corrupted].sum()), 30],
    }
    for i, epoch in enumerate((0, 1)):
        for j, (conv, norm) in enumerate((("conv1", "norm1"), ("conv2", "norm2"))):
            net = copy.deepcopy(seen[2])
            for part in (conv, norm):
                getattr(net, part).load_state_dict(getattr(seen[epoch], part).state_dict())
            after = right(net)
            for group, of in (("corrupted", corrupted), ("clean", ~corrupted)):
                assert arrays[f"forgotten_{group}"][i, j] == pytest.approx((~after[of & before]).mean())
                assert arrays[f"drop_{group}"][i, j] == pytest.approx(before[of].mean() - after[of].mean(), abs=1e-6)


def test_rewinding_touches_one_layer_and_no_name_that_only_begins_alike():
    model, early = (models.make("resnet8", "batch", (28, 28), 10, seed) for seed in (0, 1))
    new = layers.rewound(model, early.state_dict(), ("stages.1.norm1", "stages.1.conv1"))
    moved = {n for n, p in new.named_parameters() if not torch.equal(p, model.get_parameter(n))}
    assert moved == {"stages.1.conv1.weight"}  # gamma and beta of two fresh nets are equal
    assert torch.equal(new.stages[1].conv1.weight, early.stages[1].conv1.weight)
    assert layers.rewound(model, early.state_dict(), ("norm",)).conv.weight.equal(model.conv.weight)


def test_a_net_rewound_nowhere_forgets_nothing_and_none_fitted_is_not_zero():
    _, seen = trained()
    bad = seen["bad"]
    memory = layers.Memory(seen[2], seen["x"], bad.labels, bad.corrupted, 30)
    found = memory.loss_by(copy.deepcopy(seen[2]))
    assert {v for v in found.values() if not np.isnan(v)} == {0.0}
    nothing = layers.Memory(seen[2], seen["x"], np.full(len(bad.labels), 99), bad.corrupted, 30)
    assert np.isnan(nothing.loss_by(copy.deepcopy(seen[0]))["forgotten_corrupted"])


def test_statistics_measured_anew_are_those_of_the_batch():
    model, x = models.make("lenet", "batch", (28, 28), 10, 0), torch.randn(50, 1, 28, 28)
    measured = layers.measure_statistics(model, x)
    a = model.conv1(x).detach()
    torch.testing.assert_close(measured.norm1.running_var, a.var((0, 2, 3)))
    torch.testing.assert_close(measured.norm1.running_mean, a.mean((0, 2, 3)))
    assert not any(layer.training for _, layer in feeders.batch_norms(measured))


@pytest.mark.parametrize(
    "change, message",
    [
        ({"rate": 0.001}, "corrupts none"),
        ({"checkpoints": (1, 2)}, "checkpoints must hold 0 and early"),
        ({"early": 3}, "checkpoints must hold 0 and early"),
        ({"epochs_deep": 1}, "early must lie before the last epoch"),
    ],
)
def test_settings_that_measure_nothing_are_refused(change, message, results):
    with pytest.raises(InputError, match=message):
        exp.run(GammaSigma.of("smoke", TINY | change), workers=1)
    assert not list(results.glob("*/*.json"))


@pytest.mark.parametrize(
    "change, message",
    [
        ({"checkpoints": (0, 1)}, "checkpoints must rise from 0 to 2"),
        ({"checkpoints": (1, 2)}, "checkpoints must rise from 0 to 2"),
        ({"checkpoints": (0, 2, 3)}, "checkpoints must rise from 0 to 2"),
        ({"checkpoints": (2,)}, "checkpoints must rise from 0 to 2"),
        ({"checkpoints": (0, 2), "rewind": (1,)}, "rewind must name checkpoints before the last"),
        ({"checkpoints": (0, 1, 2), "rewind": (2,)}, "rewind must name checkpoints before the last"),
        ({"checkpoints": (0, 1, 2), "rewind": (0, 0)}, "each once"),
        ({"checkpoints": (0, 1, 2), "rewind": (0,), "norm": "none"}, "those of norm batch, not none"),
    ],
)
def test_a_record_that_would_measure_nothing_is_refused(change, message):
    with pytest.raises(InputError, match=message):
        layers.compute(Layers(**KIND | change))


def test_each_net_has_its_own_size_and_all_profiles_are_plannable():
    for profile in GammaSigma.profiles():
        s = GammaSigma.of(profile)
        for arch in s.archs:
            one = exp.job_of(s, arch, "torch", 0.0, 0).settings
            layers.check(one)
            deep = arch != "lenet"
            assert (one.n_train, one.epochs) == ((s.n_deep, s.epochs_deep) if deep else (s.n_train, s.epochs))


def test_the_code_hash_covers_all_that_can_change_the_numbers():
    from .test_project import STANDARD, reach

    assert set(layers.CODE) == (reach("layers") | {"layers"}) - STANDARD
    assert jobs.check_code([layers.LAYERS], []) == []


def test_what_the_chapter_says_in_words_is_what_the_records_say(committed):
    """book/gamma_sigma.md: should a recomputed record turn one of these, the words must be written anew."""
    r = exp.run(GammaSigma.of("laptop"), only_stored=True)
    nets = ("lenet", "resnet8", "densenet")
    found = {arm: exp.effects(r.of(*arm)) for arm in r.plain}
    after = {arch: found[arch, "torch"]["share_above_one"].mean for arch in nets}
    assert after["lenet"] == 0 and after["resnet8"] > 0 and after["densenet"] > 0  # "most layers, except LeNet"
    assert all(exp.share_before(r.of(arch, "torch")) == 1 for arch in nets)  # "before training every layer"
    assert all(found[arch, "torch"]["log2_ratio_change"].mean < 0 for arch in nets)  # "training brings the ratio down"
    ends = [np.mean([exp.by_layer(x).mean(axis=0)[[0, -1]] for x in r.of(arch, "he")], axis=0) for arch in nets]
    assert all(list(end) == sorted(end) for end in np.transpose(ends))  # LeNet lowest, DenseNet highest, both times
    assert np.max(ends) < 1.5  # a different story from torch's: "how long the first weights were"
    statuses = dict(
        zip(((c.where.split(" / ")[1], c.metric) for c in exp.cells(r)["C8"]), exp.statuses(r), strict=True)
    )
    assert [statuses[arch, "share_above_one"] for arch in nets] == ["fails", "holds", "holds"]
    assert [statuses[arch, "log2_ratio_change"] for arch in nets] == ["fails"] * 3

    for arm, rows in ((arm, r.of(*arm)) for arm in r.plain):
        assert all(np.abs(x.arrays["gamma"][-1]).mean() > np.abs(x.arrays["gamma"][0]).mean() for x in rows)
        change = found[arm]["log2_ratio_change"]  # "the ratio falls in every row; in one the interval reaches 1"
        assert change.mean < 0 and (change.high > 0) == (arm == ("lenet", "he"))
        free = np.mean([np.nanmean(exp.by_layer(x, "scale_free"), axis=0) for x in rows], axis=0)
        low = free.argmin()
        if arm[0] == "densenet":
            assert free[-1] / free[low] < 1.02 and free[-1] < free[0]  # "falls a little and stays there"
        else:
            assert 0 < low < len(free) / 2 and free[-1] / free[low] > 1.1  # "raises it again"
            assert arm[0] != "lenet" or free[-1] > free[0]  # "ends above its start"

    plain, decayed = r.of("lenet", "torch"), r.of("lenet", "torch", r.settings.decay)
    assert exp.effects(decayed)["log2_ratio_change"].mean > found["lenet", "torch"]["log2_ratio_change"].mean
    fitted = [np.mean([x.numbers["fitted"]["corrupted"][0] for x in rows]) for rows in (plain, decayed)]
    sigma = [np.mean([x.arrays["sigma"][-1].mean() for x in rows]) for rows in (plain, decayed)]
    assert fitted[1] < fitted[0] / 2 and sigma[1] < sigma[0]  # "a larger ratio, less memorization; it shortens sigma"
    free = [np.mean([exp.by_layer(x, "scale_free")[:, -1] for x in rows]) for rows in (plain, decayed)]
    assert free[1] > free[0]  # "the scale-free reading goes the same way"

    for init in ("torch", "he"):
        rows = r.of("resnet8", init)
        for reading in ("ratio", "scale_free"):
            i = exp.correlation(rows, reading)
            assert i.low < 0 < i.high  # "all these intervals contain zero"
        kept = np.mean([exp.memorizing(x) for x in rows], axis=0)
        main = np.array(["skip" not in name for name in rows[0].numbers["layers"]])
        assert (
            kept[main].min() > 0.1 and abs(kept[-1]) < 0.05
        )  # "on the main path; the last skip connection holds none"
    ratio = np.mean([exp.by_layer(x)[:, -1] for x in r.of("resnet8", "torch")], axis=0)
    assert ratio[-1] >= np.sort(ratio)[-2]  # "its ratio is among the largest"
    fitted = [
        np.mean([np.divide(*x.numbers["fitted"]["corrupted"]) for x in r.of("densenet", i)]) for i in ("torch", "he")
    ]
    assert max(fitted) < 0.15 and not any(exp.correlation(r.of("densenet", i)) for i in ("torch", "he"))
