"""Parameters that are not trained stay where they are, and travel in no message."""

import flax.linen as nn
import jax
import numpy as np
import pytest
from nets import Net

import fedjax_drag as fd
from fedjax_drag.ops.paths import joined, split
from fedjax_drag.simulation import prepare

PARAMS = {"body": {"first": {"kernel": 1.0, "lora_a": 2.0}, "second": {"kernel": 3.0}}, "head": {"bias": 4.0}}


@pytest.mark.parametrize(
    ("trainable", "expected"),
    [
        ("head", {4.0}),
        ("body/first", {1.0, 2.0}),
        ("*/lora_*", {2.0}),
        (["head", "*/lora_*"], {2.0, 4.0}),
        (lambda path: path.endswith("kernel"), {1.0, 3.0}),
        ("*", {1.0, 2.0, 3.0, 4.0}),
    ],
)
def test_patterns(trainable, expected):
    trained, frozen = split(PARAMS, trainable)
    assert set(jax.tree.leaves(trained)) == expected
    assert set(jax.tree.leaves(frozen)) == set(jax.tree.leaves(PARAMS)) - expected
    assert joined(trained, frozen) == PARAMS


@pytest.mark.parametrize(
    ("trainable", "message"),
    [
        ("tail", "trainable='tail': matches no parameter; there are body/first/kernel, body/first/lora_a"),
        (["body", "haed"], "trainable='haed': matches no parameter; there are body/first/kernel"),
        ([], r"trainable=\[\]: must be a pattern of parameter paths"),
        (3, "trainable=3: must be a pattern"),
    ],
)
def test_errors(settings, trainable, message):
    with pytest.raises(ValueError, match=message):
        split(PARAMS, trainable) if "no parameter" in message else prepare(
            fd.aggregators.fedavg(), **settings(trainable=trainable)
        )


class Features(nn.Module):
    """A head on frozen random features."""

    @nn.compact
    def __call__(self, x):
        features = nn.relu(nn.Dense(16, name="features")(x.reshape(len(x), -1)))
        return nn.Dense(10, name="head")(features)


@pytest.mark.thorough
@pytest.mark.parametrize("attack", [None, fd.attacks.sign_flip()], ids=["honest", "attack"])
def test_a_head_on_frozen_features_is_a_linear_model_of_them(digits, settings, attack):
    """Under BR-DRAG, whose norms and cosines would see the features' parameters."""
    options = {"attack": attack, "byzantine_fraction": attack and 0.3, "root_size": 20, "batch_size": 8}
    rule = fd.aggregators.br_drag(c=0.5)
    simulation = prepare(rule, **settings(model=Features(), trainable="head", **options))
    start = simulation.initial_state()
    result = simulation.run(initial=start)
    jax.tree.map(np.testing.assert_array_equal, result.params["features"], start.model.frozen["features"])
    head = {"kernel": start.params["head"]["kernel"], "bias": start.params["head"]["bias"]}
    body = start.model.frozen["features"]

    def apply(params, x):
        features = nn.relu(x.reshape(len(x), -1) @ body["kernel"] + body["bias"])
        return features @ params["kernel"] + params["bias"]

    linear = prepare(rule, **settings(model=(lambda key: head, apply), **options))
    twin = linear.run(initial=linear.initial_state())
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), result.params["head"], twin.params)
    assert simulation.cost.bytes_up == linear.cost.bytes_up == 4 * 170


@pytest.mark.thorough
def test_whole_parameters_come_out(settings, tmp_path):
    result = fd.simulate(fd.aggregators.fedavg(), **settings(model=Net(), trainable=["b", "bn"]))
    assert result.state.params["a"]["kernel"] is None
    assert result.params["a"]["kernel"].shape == (64, 16)
    assert Net().apply(result.variables, np.zeros((2, 8, 8, 1)), train=False).shape == (2, 10)
