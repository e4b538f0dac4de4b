"""The trainer: batches, standardisation, equality with a plain loop, reproducibility, divergence."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from bnmem import data, models, seeds, train
from bnmem.errors import Diverged, InputError
from bnmem.sources import SETS


def small(n=96, norm="batch", seed=0):
    dataset = data.load("fashion_mnist", n, 0, 20)
    x = train.to_images(dataset.train.images, dataset.info, torch.device("cpu"))
    return models.make("lenet", norm, (28, 28), 10, seed), x, torch.from_numpy(dataset.train.labels)


@settings(deadline=None, derandomize=True, max_examples=200)
@given(n=st.integers(2, 300), size=st.integers(2, 64))
def test_batches_keep_every_sample_and_no_batch_is_a_lone_sample(n, size):
    rows = list(train.batches(n, size, np.random.default_rng(0)))
    assert sorted(torch.cat(rows).tolist()) == list(range(n))
    assert all(2 <= len(r) <= size + 1 for r in rows)
    assert sum(len(r) == size for r in rows) >= n // size - 1


def test_to_images_standardises_and_keeps_channels_last():
    info = SETS["cifar10"]
    images = np.random.default_rng(0).integers(0, 256, (5, 32, 32, 3), np.uint8)
    x = train.to_images(images, info, torch.device("cpu"))
    assert np.allclose(x.numpy(), (images / 255 - info.mean) / info.std, atol=1e-5)
    assert train.batch_of(x, torch.tensor([3, 1])).is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(train.batch_of(x, torch.tensor([3, 1]))[0, 2], x[3, :, :, 2])


def test_float_images_are_refused():
    with pytest.raises(InputError, match="uint8"):
        train.to_images(np.zeros((2, 28, 28)), SETS["mnist"], torch.device("cpu"))


def test_fit_equals_a_plain_loop_bit_by_bit():
    model, x, y = small()
    plain, _, _ = small()
    with train.one_thread():
        train.fit(model, x, y, epochs=2, lr=0.05, batch_size=32, weight_decay=1e-3, seed=7)
        opt = torch.optim.SGD(plain.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
        order = seeds.rng(7, "order")
        for _ in range(2):
            for start, rows in zip((0, 32, 64), np.split(order.permutation(96), 3), strict=True):
                assert start < 96
                opt.zero_grad()
                F.cross_entropy(plain(x[rows].permute(0, 3, 1, 2)), y[rows]).backward()
                opt.step()
    for (name, a), b in zip(model.state_dict().items(), plain.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


@pytest.mark.parametrize("optimizer", train.OPTIMIZERS)
def test_two_runs_of_one_seed_are_bit_identical_and_another_seed_is_not(optimizer):
    states = []
    for seed in (1, 1, 2):
        model, x, y = small()
        with train.one_thread():
            train.fit(model, x, y, epochs=1, lr=0.01, batch_size=32, optimizer=optimizer, seed=seed)
        states.append(model.conv1.weight.detach())
    assert torch.equal(states[0], states[1]) and not torch.equal(states[0], states[2])


def test_measuring_does_not_change_the_training():
    finals = []
    _, probe, _ = small()
    for at_epoch in (None, lambda epoch, model: train.logits(model, probe)):
        model, x, y = small()
        with train.one_thread():
            train.fit(model, x, y, epochs=2, lr=0.05, batch_size=32, at_epoch=at_epoch)
        assert model.training
        finals.append(model.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(finals[0].values(), finals[1].values(), strict=True))


def test_at_epoch_is_called_before_training_and_at_the_sparse_epochs():
    model, x, y = small(8)
    seen = []
    train.fit(model, x, y, epochs=13, lr=1e-3, batch_size=8, at_epoch=lambda epoch, _: seen.append(epoch))
    assert seen == [*range(11), 12, 13]


@given(st.integers(1, 400))
@settings(derandomize=True)
def test_evaluation_is_sparse_and_ends_at_the_last_epoch(epochs):
    measured = train.evaluation_epochs(epochs)
    assert measured[0] == 0 and measured[-1] == epochs and measured == sorted(set(measured))
    assert len(measured) <= 37 + max(0, epochs - 100) // 10 + 1


def test_logits_use_running_statistics_and_do_not_depend_on_how_they_are_chunked(monkeypatch):
    model, x, _ = small(50)
    model.norm1.running_mean.fill_(0.3)
    whole = train.logits(model, x)
    monkeypatch.setattr(train, "EVAL_CHUNK", 7)
    assert np.allclose(train.logits(model, x), whole, atol=1e-5) and model.training
    assert np.allclose(train.logits(model, x.flip(0))[::-1], whole, atol=1e-5)


def test_loss_is_computed_in_float64_where_float32_saturates():
    z = np.array([[40.0, 0.0], [0.0, 40.0]], np.float32)
    loss, correct = train.loss_and_correct(z, np.array([0, 0]))
    assert loss.dtype == np.float64 and correct.tolist() == [True, False]
    assert loss[0] == pytest.approx(np.exp(-40.0), rel=1e-12) and loss[1] == pytest.approx(40.0)


@pytest.mark.parametrize("lr, found", [(1e12, "nan|inf|e"), (30.0, "loss")])
def test_divergence_names_settings_epoch_and_batch(lr, found):
    model, x, y = small(norm="none")
    with pytest.raises(Diverged, match=r"loss .* at epoch \d+, batch \d of 3 \(my settings\); lower lr") as error:
        train.fit(model, x, y, epochs=20, lr=lr, batch_size=32, label="my settings")
    assert "\n" not in str(error.value)


def test_one_image_and_unknown_optimisers_are_refused():
    model, x, y = small(2)
    with pytest.raises(InputError, match="two or more images"):
        train.fit(model, x[:1], y[:1], epochs=1, lr=0.1)
    with pytest.raises(InputError, match="sgd, adam"):
        train.fit(model, x, y, epochs=1, lr=0.1, optimizer="lion")


def test_one_thread_restores_the_number_also_after_an_error():
    before = torch.get_num_threads()
    with pytest.raises(RuntimeError), train.one_thread():
        assert torch.get_num_threads() == 1
        raise RuntimeError
    assert torch.get_num_threads() == before


def test_streams_are_independent_and_known_by_purpose():
    assert len({seeds.torch_seed(0, purpose) for purpose in seeds.PURPOSES}) == len(seeds.PURPOSES)
    assert seeds.torch_seed(0, "init") == seeds.torch_seed(0, "init") != seeds.torch_seed(1, "init")
    with pytest.raises(InputError, match="init, order"):
        seeds.rng(0, "weather")
    with pytest.raises(InputError, match="0 or larger"):
        seeds.rng(-1, "init")
