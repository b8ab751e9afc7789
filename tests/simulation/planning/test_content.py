"""The content of parts: equal for those that are built anew, different for those that compute something else."""

import dataclasses
import functools
from typing import Any, NamedTuple

import cases
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import fedjax_drag as fd
from fedjax_drag.simulation.planning.content import read

FACTOR = 2.0


@pytest.mark.parametrize(
    "case", [*cases.AGGREGATORS, *cases.CLIENTS, *cases.ALGORITHMS, *cases.ATTACKS], ids=lambda case: case.label
)
def test_every_part_of_the_package_that_is_built_anew_is_the_same(case):
    assert read(case.build()) is not None
    assert read(case.build()) == read(case.build())
    for name, values in case.sweeps.items():
        positive = [value for value in values if value > 0]
        assert len({read(case.build(**{name: value})) for value in positive}) == len(set(positive))


@pytest.mark.parametrize(
    "build",
    [
        functools.partial(fd.models.mlp, 10, hidden=(5,)),
        functools.partial(optax.cosine_decay_schedule, 0.1, 100),
        functools.partial(optax.chain, optax.add_decayed_weights(1e-4), optax.trace(0.9)),
        lambda: nn.Sequential([nn.Dense(3), nn.relu, lambda x: 2 * x]),
        lambda: (jax.nn.relu, jnp.tanh, np.exp, jax.random.key(3), jnp.arange(3), np.float32(1)),
        fd.losses.cross_entropy,
        fd.data.augmentation.crop_flip,
    ],
)
def test_models_schedules_and_functions_of_libraries(build):
    assert read(build()) is not None
    assert read(build()) == read(build())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Flax's own, where JAX is older
def test_a_module_of_nnx():
    one, same, other = (read(nnx.bridge.to_linen(nnx.Linear, 3, width)) for width in (2, 2, 4))
    assert one is not None
    assert one == same != other


def model(width):
    """The same module as a notebook's cell defines it that is run again."""

    class Model(nn.Module):
        width: int
        activation: Any = nn.relu

        @nn.compact
        def __call__(self, x):
            return nn.Dense(10)(self.activation(nn.Dense(self.width)(x.reshape(x.shape[0], -1))))

    return Model(width)


class State(NamedTuple):
    metrics: dict
    mean: Any


class Scaled:
    def __init__(self, by):
        self.by = by

    def __call__(self, logits, labels):
        return FACTOR * self.by * fd.losses.cross_entropy()(logits, labels)


@dataclasses.dataclass
class Weights:
    values: list = dataclasses.field(default_factory=list)

    def loss(self, logits, labels):
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels) * sum(self.values)


def rule(beta):
    def init(params):
        return State({}, jax.tree.map(jnp.zeros_like, params))

    def apply(params, deltas, state, **_):
        mean = jax.tree.map(lambda old, delta: beta * old + delta.mean(0), state.mean, deltas)
        return fd.tree.add(params, mean), State({}, mean)

    return fd.types.Aggregator(init, apply)


@pytest.mark.parametrize(
    "build",
    [model, rule, Scaled, lambda by: Weights([by]).loss, lambda by: functools.partial(np.multiply, np.full(3, by))],
    ids=["module", "rule", "object", "method", "partial"],
)
def test_parts_of_a_user_are_compared_by_content(build):
    assert read(build(2)) is not None
    assert read(build(2)) == read(build(2))
    assert len({read(build(by)) for by in (1, 2, True, 2.0)}) == 4


def test_a_changed_global_is_seen(monkeypatch):
    def outer(x):
        return inner(x)

    def inner(x):
        return FACTOR * x

    of_function, of_object = read(outer), read(Scaled(1))
    monkeypatch.setitem(globals(), "FACTOR", 3.0)
    assert read(outer) != of_function
    assert read(Scaled(1)) != of_object
    monkeypatch.setitem(globals(), "FACTOR", 2.0)
    assert (read(outer), read(Scaled(1))) == (of_function, of_object)


def test_a_changed_attribute_and_a_changed_array_are_seen():
    weights, values = Weights([1.0]), np.zeros(3)
    loss, partial = read(weights.loss), read(functools.partial(jnp.add, values))
    weights.values.append(2.0)
    values[1] = 1
    assert read(weights.loss) != loss
    assert read(functools.partial(jnp.add, values)) != partial


def test_an_object_that_cannot_be_looked_at_has_no_content():
    class Hidden:
        __slots__ = ("value",)

        def __getattr__(self, name):
            raise RuntimeError(name)

    assert read(Hidden()) is None
    assert read({"rule": Hidden()}) is None


def test_a_call_that_is_no_function_of_the_class_is_read():
    class Loss:
        __call__ = Scaled(1.0)

    before = read(Loss())
    Loss.__call__ = Scaled(2.0)
    assert None is not before != read(Loss())


def test_classes_whose_objects_a_run_returns_are_compared_by_identity():
    def named():
        class Own(NamedTuple):
            metrics: dict

        return Own({})

    assert read(named()) is not None
    assert read(named()) != read(named())


GENERATOR = np.random.default_rng(0)


def test_what_may_read_anything_has_no_fingerprint():
    def counting(x):
        global COUNT
        COUNT = 1
        return x

    unreadable = [
        lambda x: x * np.random.normal(),  # noqa: NPY002
        lambda x: x * GENERATOR.normal(),
        lambda x: x * eval("3"),
        lambda x: x * pytest.approx(x),
        lambda x: pytest,
        lambda x: __import__("time").time(),
        counting,
        iter([1]),
        GENERATOR,
    ]
    assert [read(part) for part in unreadable] == [None] * len(unreadable)
    assert jax.make_jaxpr(lambda x: jnp.float32(read(x) is None))(1.0).jaxpr.outvars[0].val == 1, "a tracer"


def test_a_jitted_function_is_compared_by_identity_too():
    one, other = jax.jit(lambda x: FACTOR * x), jax.jit(lambda x: FACTOR * x)
    assert read(one) is not None
    assert read(one) == read(one) != read(other)


class Graph(nnx.Module):
    def __init__(self, scale, rngs):
        self.dense, self.scale = nnx.Linear(4, 3, rngs=rngs), scale

    def __call__(self, x):
        return self.scale * self.dense(x)


def test_modules_of_nnx_are_compared_by_graph_and_arrays():
    made = [read(Graph(*arguments)) for arguments in ((2.0, nnx.Rngs(0)), (2.0, nnx.Rngs(0)))]
    assert made[0] is not None
    assert made[0] == made[1]
    assert made[0] not in (read(Graph(3.0, nnx.Rngs(0))), read(Graph(2.0, nnx.Rngs(1))))
    assert read(Graph) is not None
