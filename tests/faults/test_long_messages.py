"""Malicious clients that send finite numbers near the largest ones: the federation learns as if they sent nothing."""

import flax.linen as nn
import jax
import numpy as np
import pytest

import fedjax_drag as fd

CLASSES, INPUTS = 10, 4000  # of 40,000 normal numbers some are beyond 4.3 deviations, where an inverse is subnormal


@pytest.fixture(scope="module")
def settings():
    rng = np.random.default_rng(0)
    y = np.arange(200) % CLASSES
    x = (np.eye(CLASSES, INPUTS)[y] + 0.1 * rng.normal(size=(200, INPUTS)) / INPUTS**0.5).astype(np.float32)
    fed = fd.data.partition.iid(fd.data.from_arrays(x, y, x, y, num_classes=CLASSES), num_clients=10)
    lengths = {
        "eval_every": 1,
        "num_rounds": 3,
        "cohort_size": 10,
        "local_steps": 2,
        "batch_size": 10,
        "step_size": 1e-4,
    }
    return lengths | {"model": nn.Dense(CLASSES), "data": fed, "time_clients": False, "clients_axis": "vmap"}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "rule",
    [
        fd.aggregators.krum(num_byzantine=3),
        pytest.param(fd.aggregators.geometric_median(), marks=pytest.mark.slow),
        pytest.param(fd.aggregators.rfa(), marks=pytest.mark.slow),
        pytest.param(fd.aggregators.centered_clipping(radius=1.0), marks=pytest.mark.slow),
        fd.aggregators.norm_clipping(max_norm=1.0),
    ],
    ids=["krum", "geometric_median", "rfa", "centered_clipping", "norm_clipping"],
)
def test_long_messages_change_nothing(settings, rule):
    method, attack = fd.algorithms.from_aggregator(rule), fd.attacks.gaussian(sigma=2e37)
    found = fd.simulate(method, attack=attack, num_byzantine=3, **settings)
    assert found.diverged_at is None
    assert found.history["num_rejected"].tolist() == [3, 3, 3]
    assert np.isfinite(found.history["test_loss"]).all()
    assert found.history["test_loss"][-1] < found.history["test_loss"][0]
    assert all(np.abs(leaf).max() < 10 for leaf in jax.tree.leaves(found.params))


@pytest.mark.slow
def test_who_is_rejected_counts_as_detected(settings):
    """By a rule that says whom it rejects."""
    method, attack = fd.algorithms.from_aggregator(fd.aggregators.multi_krum(3, 5)), fd.attacks.gaussian(sigma=2e37)
    history = fd.simulate(method, attack=attack, num_byzantine=3, **settings).history
    assert history["detection_tpr"].tolist() == [1.0, 1.0, 1.0]
    assert history["malicious_weight"].tolist() == [0.0, 0.0, 0.0]
