from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_partition import PARTITIONS

import fedjax_drag as fd
from fedjax_drag.data import from_arrays, hold_out, load, partition
from fedjax_drag.data.malicious import choose_malicious
from fedjax_drag.experiment.build import build, registry
from fedjax_drag.experiment.build.experiment import load_experiment
from fedjax_drag.simulation.program.federation import choose_root


def numbered(labels, users=None):
    """A data set whose training input i is the number i, and whose test inputs are negative."""
    labels = np.asarray(labels)
    x = np.arange(len(labels), dtype=np.float32)[:, None]
    return from_arrays(x, labels, -1 - x, labels, mean=(0.0,), std=(1.0,), users=users)


def contents(x):
    return set(np.asarray(x).reshape(-1).astype(int).tolist())


@st.composite
def asked(draw):
    labels = draw(st.lists(st.integers(0, 6), min_size=20, max_size=300))
    fraction = st.floats(0.01, 0.95) | st.integers(1, len(labels) - 1)
    return np.array([*labels, 0, 0]), draw(fraction), draw(st.integers(0, 2**32))


@given(asked())
@example((np.array([0] * 20 + [1] * 3 + [2, 3]), 15, 0))
@settings(max_examples=60, deadline=None)
def test_every_training_example_is_on_one_side_and_classes_keep_their_shares(case):
    labels, fraction, seed = case
    fed = numbered(labels)
    split = hold_out(fed, fraction, seed)
    train, validation = contents(split.train.x), contents(split.validation.x)
    assert not train & validation
    assert train | validation == contents(fed.train.x)
    for part in (split.train, split.validation):
        np.testing.assert_array_equal(part.y, labels[part.x[:, 0].astype(int)])
        assert (np.diff(part.x[:, 0]) > 0).all(), "in their order"
    assert split.test is fed.test
    number = fraction if isinstance(fraction, int) else round(fraction * len(labels))
    held, had = (np.bincount(part.y, minlength=fed.num_classes) for part in (split.validation, fed.train))
    assert (abs(held * len(labels) - had * max(number, 1)) < len(labels)).all()
    assert (had - held)[had > 0].min() >= 1
    spare = (had > 1).all()
    assert held.sum() == max(number, 1) or not spare or fraction > 0.5


def test_digits_by_fraction_and_by_number():
    whole, split = load("digits"), load("digits", validation_fraction=0.1)
    np.testing.assert_array_equal(split.test.x, whole.test.x)
    np.testing.assert_array_equal(split.validation.x, load("digits", validation_fraction=144).validation.x)
    assert len(split.validation.y) == 144
    np.testing.assert_allclose(np.bincount(split.validation.y), 0.1 * np.bincount(whole.train.y), atol=0.99)
    other = load("digits", validation_fraction=0.1, validation_seed=1)
    assert not np.array_equal(other.validation.x, split.validation.x)
    assert "1,298 + 355 examples uint8[8, 8, 1], 144 for validation" in repr(split)
    assert "validation examples" in split._repr_html_()
    assert load("digits").validation is None
    assert "validation" not in repr(whole)
    assert (split.mean, split.std) == (whole.mean, whole.std)


def test_users_stay_beside_their_examples():
    users = np.repeat(np.arange(30), 7)
    split = hold_out(numbered(np.tile(np.arange(7), 30), users), 0.4)
    np.testing.assert_array_equal(split.users, users[split.train.x[:, 0].astype(int)])
    by_user = partition.natural(split)
    for row, count in zip(by_user.rows, by_user.counts, strict=True):
        assert len(set(split.users[row[:count]])) == 1


ROOT_SOURCES: tuple[Literal["benign", "all"], ...] = ("benign", "all")


@pytest.mark.parametrize("kind", [*PARTITIONS, "natural"])
@pytest.mark.parametrize("seed", [0, 1])
def test_no_validation_example_is_a_client_s_or_the_server_s(kind, seed):
    labels = np.tile(np.arange(5), 60)
    fed = hold_out(numbered(labels, users=np.repeat(np.arange(60), 5)), 0.1)
    split = partition.natural(fed, seed=seed) if kind == "natural" else PARTITIONS[kind](fed, 6, seed=seed)
    np.testing.assert_array_equal(split.validation.x, hold_out(numbered(labels), 0.1).validation.x)
    validation, all_rows = contents(split.validation.x), contents(split.train.x[np.unique(split.rows)])
    assert len(validation) == 30
    assert not validation & all_rows
    malicious = choose_malicious(split.num_clients, 2, seed)
    for source in ROOT_SOURCES:
        root = choose_root(split, malicious, 50, 0.2, source, seed)
        assert len(root) == 50
        assert not validation & contents(split.train.x[root])


@pytest.mark.parametrize(
    ("fraction", "message"),
    [
        (0.0, r"validation_fraction=0.0: must be in \(0, 1\)"),
        (1.0, r"validation_fraction=1.0: must be in \(0, 1\)"),
        (np.nan, r"validation_fraction=nan: must be in \(0, 1\)"),
        (0, r"validation_fraction=0: must be .* \[1, 299\]"),
        (300, r"validation_fraction=300: must be .* \[1, 299\]"),
        (0.9999, "validation_fraction=0.9999: all 300 training examples; must leave one, so be at most 299 of them"),
        (True, "validation_fraction=True: must be a number"),
        ("a tenth", "validation_fraction='a tenth': must be a number"),
    ],
)
def test_wrong_fractions_are_refused(fraction, message):
    with pytest.raises(ValueError, match=message):
        hold_out(numbered(np.tile(np.arange(5), 60)), fraction)


def test_wrong_states_are_refused():
    fed = numbered(np.tile(np.arange(5), 60))
    with pytest.raises(ValueError, match="arrays: already split among clients; hold_out must come before"):
        hold_out(partition.iid(fed, 6), 0.1)
    with pytest.raises(ValueError, match="arrays: already has a validation split of 30 examples"):
        hold_out(hold_out(fed, 0.1), 0.1)
    with pytest.raises(ValueError, match="validation_seed=-1: must be"):
        hold_out(fed, 0.1, -1)
    with pytest.raises(ValueError, match="every class has one training example, which it keeps"):
        hold_out(numbered(np.arange(9)), 0.3)
    with pytest.raises(ValueError, match=r"validation: inputs uint8\[N, 1\] beside float32\[N, 1\] of train"):
        replace(fed, validation=fd.types.Batch(np.zeros((3, 1), np.uint8), np.zeros(3, np.int32)))
    with pytest.raises(ValueError, match=r"validation: labels from 0 to 5: must be in \[0, 4\]"):
        replace(fed, validation=fd.types.Batch(np.zeros((6, 1), np.float32), np.arange(6, dtype=np.int32)))


@pytest.mark.thorough
def test_the_split_is_the_same_under_every_rule_and_method():
    common = {"data": {"name": "digits", "validation_fraction": 0.1}, "partition": {"name": "iid", "num_clients": 40}}
    needed = {"centered_clipping": {"radius": 1.0}, "norm_clipping": {"max_norm": 1.0}, "crfl": {"clip": 1.0}}
    needed |= {"robust_lr": {"threshold": 4}, "deepsight": {"head": "Dense_1"}}
    around = ("nnm", "bucketing", "clipping", "arc", "rescaled_mean", "foundationfl", "fldetector", "hierarchical")
    rules = [name for name in registry.TABLES["aggregator"] if name not in around]
    names = [{"aggregator": {"name": name} | needed.get(name, {})} for name in rules]
    layers = {name: {"layers": "Dense_1"} for name in ("fedper", "fedrep", "lg_fedavg")}
    layers["fedrep"]["head_steps"] = 1
    layers["decentralised"] = {"graph": "ring"}
    names += [{"algorithm": {"name": name} | layers.get(name, {})} for name in registry.TABLES["algorithm"]]
    expected = hold_out(load("digits"), 0.1)
    for name in names:
        config = load_experiment(common | name).config
        data = build.settings(config, build.federation(config, build.dataset(config))).data
        for found, part in ((data.validation, expected.validation), (data.train, expected.train)):
            np.testing.assert_array_equal(found.x, part.x, err_msg=str(name))
            np.testing.assert_array_equal(found.y, part.y, err_msg=str(name))
