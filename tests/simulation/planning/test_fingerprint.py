"""Fingerprints: equal for parts that are built anew, different for whatever changes the programs."""

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
from fedjax_drag.simulation.planning.fingerprint import fingerprint, read
from fedjax_drag.simulation.planning.setup import federate
from fedjax_drag.simulation.settings import Settings

FACTOR = 2.0


def of(changed):
    asked = Settings(**changed)
    return fingerprint(asked, None, federate(asked))


@pytest.fixture
def base(settings):
    def make(**changes):
        rule = fd.algorithms.from_aggregator(fd.aggregators.drag(c=0.25, alpha=0.25))
        return settings(algorithm=rule, clients_axis="map", **changes)

    return make


@pytest.mark.parametrize("case", [*cases.AGGREGATORS, *cases.CLIENTS, *cases.ALGORITHMS, *cases.ATTACKS], ids=str)
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
        lambda: nnx.bridge.to_linen(nnx.Linear, 3, 2),
        lambda: (jax.nn.relu, jnp.tanh, np.exp, jax.random.key(3), jnp.arange(3), np.float32(1)),
        fd.losses.cross_entropy,
        fd.data.augmentation.crop_flip,
    ],
)
def test_models_schedules_and_functions_of_libraries(build):
    assert read(build()) is not None
    assert read(build()) == read(build())


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


@pytest.mark.parametrize("seed", [0, 1])
def test_data_seeds_and_lengths_are_inputs_of_the_same_programs(base, digits, seed):
    reordered = dataclasses.replace(digits, rows=digits.rows[::-1].copy(), counts=digits.counts[::-1].copy())
    changes = {"seed": seed, "num_rounds": 7, "eval_every": 2, "data": reordered, "time_clients": True}
    assert of(base()) is not None
    assert of(base(**changes)) == of(base())
    attacked = {"attack": fd.attacks.sign_flip(), "num_byzantine": 2}
    assert of(base(**attacked)) == of(base(**attacked | {"num_byzantine": 3}))


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm": fd.algorithms.from_aggregator(fd.aggregators.drag(c=0.5, alpha=0.25))},
        {"model": fd.models.mlp(10, hidden=(3,))},
        {"step_size": 0.2},
        {"step_size": np.float32(0.1)},
        {"step_size": optax.constant_schedule(0.1)},
        {"batch_size": 5},
        {"local_steps": 4},
        {"local_steps": None, "local_epochs": 1},
        {"cohort_size": 4},
        {"attack": fd.attacks.sign_flip(), "num_byzantine": 2},
        {"attack": fd.attacks.sign_flip(), "num_byzantine": 2, "byzantine_of": "cohort"},
        {"nonfinite": "propagate"},
        {"aggregation": "stack"},
        {"clients_per_chunk": 2},
        {"compute_dtype": "bfloat16"},
        {"client_state": "host"},
        {"diagnostics": False},
        {"loss": Scaled(1.0)},
        {"local_optimizer": optax.trace(0.9)},
        {"augmentation": lambda key, x: x},
        {"root_client": fd.clients.fedprox(0.1)},
    ],
    ids=lambda changes: ",".join(changes),
)
def test_other_options_are_other_programs(base, changes):
    assert of(base() | changes) != of(base())


def as_float(examples):
    return examples._replace(x=np.float32(examples.x))


@pytest.mark.parametrize("change", ["mean", "std", "type", "classes", "examples", "rows"])
def test_other_data_are_another_program_where_they_decide_it(base, digits, change):
    changed = {
        "mean": {"mean": (0.25,)},
        "std": {"std": (0.25,)},
        "type": {"train": as_float(digits.train), "test": as_float(digits.test)},
        "classes": {"num_classes": 11},
        "examples": {"test": jax.tree.map(lambda x: x[1:], digits.test)},
        "rows": {"rows": np.pad(digits.rows, ((0, 0), (0, 1)))},
    }[change]
    assert of(base(data=dataclasses.replace(digits, **changed))) != of(base())


def test_a_mesh_is_a_part_of_the_fingerprint(base):
    asked = Settings(**base(cohort_size=6))
    meshes = [None, *(jax.sharding.Mesh(jax.devices()[:number], ("clients",)) for number in (1, 2))]
    assert len({fingerprint(asked, mesh, federate(asked)) for mesh in meshes}) == 3


def test_what_chooses_the_walk_counts_where_it_is_chosen(base, monkeypatch):
    auto = base() | {"clients_axis": "auto"}
    assert of(auto) != of(auto | {"num_rounds": 7})
    before = of(auto)
    monkeypatch.setenv("FEDJAX_DRAG_CALIBRATE", "1")
    assert of(auto) != before
