"""Settings refuse what they cannot use, with one line that lists what they can."""

import pytest

from bnmem.errors import InputError
from bnmem.exp_forced_memorization import ForcedMemorization
from bnmem.settings import PROFILES
from bnmem.training import Training

BAD = [
    ({"norm": "batchnorm"}, "choose from batch, none, affine, group, layer, instance, frozen"),
    ({"dataset": "imagenet"}, "choose from mnist, fashion_mnist, cifar10, cifar100"),
    ({"arch": "vgg"}, "choose from lenet, resnet8"),
    ({"rate": 0.6}, "from 0.0 to 0.5"),
    ({"rate": -0.1}, "from 0.0 to 0.5"),
    ({"rate": float("nan")}, "must be a finite number"),
    ({"lr": float("inf")}, "must be a finite number"),
    ({"lr": 1e300}, "must be a finite number"),
    ({"lr": 10**400}, "must be a finite number"),
    ({"lrs": (10**400,)}, "a list of one or more"),
    ({"epochs": 10**30}, "must be at most 10,000,000"),
    ({"lrs": (0.1, float("inf"))}, "must be a finite number"),
    ({"rate": "0.1"}, "must be a number"),
    ({"rate": True}, "must be a number"),
    ({"seeds": 2.0}, "must be a whole number"),
    ({"seeds": 0}, "from 1 to 100"),
    ({"epochs": "ten"}, "must be a whole number"),
    ({"lrs": ()}, "a list of one or more"),
    ({"lrs": (0.1, "x")}, "a list of one or more"),
    ({"corruptions": ("flip", "noise")}, "choose from flip, ood"),
    ({"nrom": "group"}, "did you mean norm?"),
    ({"zzz": 1}, "the parameters are against, arch, batch_size"),
]


@pytest.mark.parametrize("given, message", BAD, ids=[next(iter(given)) + str(i) for i, (given, _) in enumerate(BAD)])
def test_a_wrong_setting_is_one_line_that_lists_the_right_ones(given, message):
    with pytest.raises(InputError) as error:
        ForcedMemorization.of("smoke", given)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_an_unknown_profile_lists_the_profiles():
    with pytest.raises(InputError, match="smoke, laptop, grid, paper"):
        ForcedMemorization.of("huge")


@pytest.mark.parametrize("profile", PROFILES)
def test_every_profile_is_valid(profile):
    assert isinstance(ForcedMemorization.of(profile), ForcedMemorization)


def test_none_leaves_the_profiles_value_and_a_whole_number_will_do_for_a_fraction():
    s = ForcedMemorization.of("smoke", {"rate": 0, "seeds": None})
    assert s.rate == 0.0 and isinstance(s.rate, float)
    assert s.seeds == ForcedMemorization.of("smoke").seeds


def test_only_fields_that_differ_from_their_default_make_the_key():
    assert Training().changed() == {}
    assert Training(lr=0.5, norm="none").changed() == {"norm": "none", "lr": 0.5}
