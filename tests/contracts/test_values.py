"""Losses, schedules, optimizers, compressors, private parts and what else decides a program are values.

What is built anew is equal and shares a program, with other numbers too; ``test_parts.py`` says so of rules and
methods.
"""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

import fedjax_drag as fd
from fedjax_drag import aggregators, clients, clocks, compression, losses, privacy, selection, server_optimizers
from fedjax_drag.data import augmentation
from fedjax_drag.experiment.build import optimizers
from fedjax_drag.models import with_modes
from fedjax_drag.simulation.planning.setup import run_of
from fedjax_drag.simulation.settings import Settings
from fedjax_drag.types._part import as_part

W = {"w": jnp.linspace(-1.0, 2.0, 6).reshape(3, 2), "b": jnp.ones(2)}
GRADIENTS = jax.tree.map(lambda w: jnp.sin(3 * w), W)
COHORT = jax.tree.map(lambda w: jnp.stack([w, -2 * w, jnp.cos(w)]), W)
LOGITS, LABELS = jnp.linspace(-2.0, 3.0, 12).reshape(4, 3), jnp.array([0, 2, 1, 2])


def as_optimizer(part):
    state, total = part.init(W), W
    for _ in range(2):
        update, state = part.update(GRADIENTS, state, total)
        total = optax.apply_updates(total, update)
    return total


def as_rule(part):
    params, state = W, part.init(W)
    for t in range(2):
        params, state = part.apply(params, COHORT, state, key=jax.random.key(t))
    return params


def as_loss(part):
    return part(LOGITS, LABELS)


def as_schedule(part):
    return jax.vmap(part)(jnp.arange(5))


def as_augmentation(part):
    return part(jax.random.key(0), jnp.arange(32.0).reshape(2, 4, 4, 1))


def as_sender(part):
    return part.send(jax.random.key(0), fd.types.Uplink(W, ()))


def as_selection(part):
    losses = lambda client_ids, batch_size=None: client_ids / 4.0
    seconds = lambda client_ids: client_ids + 1.0
    candidates = selection.Candidates(jnp.arange(1, 9), None, jnp.int32(3), losses, seconds)
    return part.select(jax.random.key(0), part.init(8), candidates, 2)


def as_clock(part):
    ids = jnp.arange(4)
    return part.seconds(jax.random.key(0), clocks.Work(ids, ids, ids, ids > 2, 10, 20))


def as_compressor(part):
    return part.compress(W, part.init(W), jax.random.key(0))


RATE, PRIVATE = {"learning_rate": 0.3}, {"clip": 0.5, "noise_multiplier": 0.4}
FEDAVG = {"aggregator": aggregators.fedavg()}
KINDS = [
    (losses.cross_entropy, {}, {"label_smoothing": 0.1}, as_loss),
    (augmentation.crop_flip, {"padding": 1}, {}, as_augmentation),
    (server_optimizers.fedavgm, {}, RATE | {"momentum": 0.0}, as_optimizer),
    (server_optimizers.fedadam, RATE, {"learning_rate": 0.1, "b1": 0.5, "b2": 0.9, "tau": 0.1}, as_optimizer),
    (server_optimizers.fedyogi, RATE, {"learning_rate": 0.1, "b1": 0.5, "b2": 0.9, "tau": 0.1}, as_optimizer),
    (server_optimizers.fedadagrad, RATE, {"learning_rate": 0.1, "b1": 0.5, "tau": 0.1}, as_optimizer),
    (optimizers.sgd, RATE, {"momentum": 0.9}, as_optimizer),
    (optimizers.adam, RATE, {"learning_rate": 0.1, "b1": 0.5, "b2": 0.9, "eps": 0.1}, as_optimizer),
    (optimizers.yogi, RATE, {"learning_rate": 0.1, "b1": 0.5, "b2": 0.9, "eps": 0.1}, as_optimizer),
    (optimizers.adagrad, RATE, {"initial_accumulator_value": 0.1, "eps": 0.1}, as_optimizer),
    (optimizers.local_sgd, {"momentum": 0.9, "nesterov": True}, {"weight_decay": 0.1}, as_optimizer),
    (
        optimizers.linear_schedule,
        {"init_value": 1.0, "end_value": 0.1, "transition_steps": 3, "transition_begin": 1},
        {"init_value": 0.5, "end_value": 0.0},
        as_schedule,
    ),
    (
        optimizers.cosine_decay_schedule,
        {"init_value": 1.0, "decay_steps": 3},
        {"init_value": 0.5, "alpha": 0.2},
        as_schedule,
    ),
    (
        optimizers.exponential_decay,
        {"init_value": 1.0, "transition_steps": 2, "decay_rate": 0.5},
        {"init_value": 0.5, "decay_rate": 0.1},
        as_schedule,
    ),
    (
        server_optimizers.fedavgm,
        {"learning_rate": optimizers.exponential_decay(1.0, 1, 0.5)},
        {"learning_rate": optimizers.exponential_decay(0.2, 1, 0.5)},
        as_optimizer,
    ),
    (
        aggregators.fedavg,
        {"server_optimizer": server_optimizers.fedadam(0.3)},
        {"server_optimizer": server_optimizers.fedadam(0.1, b1=0.5)},
        as_rule,
    ),
    (privacy.central_dp, FEDAVG | PRIVATE | {"delta": 1e-5}, {"clip": 2.0, "noise_multiplier": 0.0}, as_rule),
    (
        privacy.adaptive_dp,
        FEDAVG | PRIVATE | {"noise_cohort_size": 100},
        {"noise_multiplier": 0.1, "quantile": 0.2, "clip_step_size": 0.1, "count_noise": 0.1},
        as_rule,
    ),
    (
        privacy.local_dp,
        {"client": clients.fedprox(0.1)} | PRIVATE,
        {"client": clients.fedprox(0.5), "clip": 2.0},
        as_sender,
    ),
]


KINDS += [
    (compression.top_k, {"fraction": 0.2}, {"fraction": 0.5}, as_compressor),
    (compression.random_k, {"fraction": 0.2}, {"fraction": 0.5}, as_compressor),
    (compression.qsgd, {"bits": 3}, {"bits": 5}, as_compressor),
    (compression.sign, {}, {}, as_compressor),
    (compression.low_rank, {"rank": 1}, {}, as_compressor),
]
KINDS += [
    (selection.uniform, {}, {}, as_selection),
    (selection.weighted, {"replacement": True}, {}, as_selection),
    (selection.round_robin, {}, {}, as_selection),
    (selection.power_of_choice, {"d": 4, "batch_size": 2}, {}, as_selection),
    (
        selection.oort,
        {},
        {"exploration": 0.5, "decay": 0.9, "least_exploration": 0.1, "cutoff": 0.5, "clip": 0.9},
        as_selection,
    ),
]
KINDS += [
    (selection.asynchronous, {"concurrency": 3}, {}, as_selection),
    (clocks.constant, {"bandwidth": 5.0}, {"seconds_per_step": 0.5, "latency": 0.1, "bandwidth": 10.0}, as_clock),
    (clocks.log_normal, {}, {"sigma": 0.5, "seconds_per_step": 0.5, "latency": 0.1, "jitter": 0.2}, as_clock),
    (clocks.table, {"seconds_per_step": (1.0, 2.0)}, {}, as_clock),
    (clocks.attackers, {"clock": clocks.constant(), "factor": 2.0}, {"factor": 0.5}, as_clock),
]
PARTS = [builder(**settings | numbers) for builder, settings, numbers, _ in KINDS]


@pytest.mark.parametrize(
    ("builder", "settings", "numbers", "use"), KINDS, ids=[f"{kind[0].__name__}-{i}" for i, kind in enumerate(KINDS)]
)
def test_a_part_is_a_value_whose_numbers_are_inputs(builder, settings, numbers, use):
    part, again, other = builder(**settings), builder(**settings), builder(**settings | numbers)
    assert part == again
    assert repr(part) == repr(again)
    assert repr(part).startswith(f"{builder.__name__}(")
    assert " at 0x" not in repr(part)
    assert len({jax.tree.structure(one) for one in (part, again, other)}) == 1
    traces = []

    @jax.jit
    def used(part):
        traces.append(part)
        return use(part)

    for one in (part, other):
        chex.assert_trees_all_close(used(one), jax.jit(lambda one=one: use(one))(), rtol=1e-5, atol=1e-6)
    chex.assert_trees_all_equal(used(again), used(part))
    assert len(traces) == 1


@pytest.mark.parametrize(
    "part", [part for part in PARTS if getattr(part, "guarantee", None)], ids=lambda part: part.name
)
def test_a_guarantee_may_hold_a_traced_number(part):
    promised = jax.jit(lambda part, z: dataclasses.replace(part, noise_multiplier=z).guarantee.noise_multiplier)
    np.testing.assert_allclose(promised(part, 0.2), 0.2)


@pytest.mark.parametrize("staircase", [False, True])
def test_an_exponential_decay_is_that_of_optax(staircase):
    given = {"init_value": 0.5, "transition_steps": 3, "decay_rate": 0.2, "transition_begin": 4, "staircase": staircase}
    expected = jax.vmap(optax.exponential_decay(**given))(jnp.arange(20))
    np.testing.assert_allclose(jax.vmap(optimizers.exponential_decay(**given))(jnp.arange(20)), expected, rtol=1e-6)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda own: optax.chain(optax.clip(10.0), own),
        lambda own: optax.masked(own, {"w": True, "b": True}),
        lambda own: optax.apply_if_finite(own, 3),
        lambda own: optax.MultiSteps(own, 1),
    ],
    ids=["chain", "masked", "apply_if_finite", "MultiSteps"],
)
def test_an_optimizer_goes_where_one_of_optax_goes(wrap):
    own = server_optimizers.fedadam(0.3)
    chex.assert_trees_all_close(as_optimizer(wrap(own)), as_optimizer(own), rtol=1e-6)


@pytest.mark.parametrize(
    "own", [part for part in PARTS if isinstance(part, fd.types.Optimizer)], ids=lambda own: own.name
)
def test_numbers_that_are_arrays_change_no_type(own):
    """As in a sweep, where each number is an entry of an array."""
    params, gradients = jax.tree.map(lambda x: x.astype(jnp.bfloat16), (W, GRADIENTS))
    own = jax.tree.map(jnp.float32, own)
    state = own.init(params)
    chex.assert_trees_all_equal_shapes_and_dtypes(own.update(gradients, state, params), (gradients, state))


def test_other_objects_are_compared_by_identity():
    of_optax, function = optax.trace(0.9), lambda logits, labels: logits[:, 0]
    for one in (of_optax, function):
        assert as_part(one) == as_part(one)
        assert jax.tree.leaves(as_part(one)) == []
        assert " at 0x" not in repr(as_part(one))
    assert jax.tree.structure(as_part(of_optax)) != jax.tree.structure(as_part(optax.trace(0.9)))
    part = losses.cross_entropy()
    assert as_part(part) is part
    assert as_part(None) is None


class Noisy(nn.Module):
    @nn.compact
    def __call__(self, x, noisy=False):
        del noisy
        return nn.Dense(10, name="head")(nn.Dense(3, name="body")(x.reshape(len(x), -1)))


@pytest.fixture
def structure():
    data = fd.data.partition.iid(fd.data.load("digits"), 8)

    def of(**changes):
        given = {
            "model": with_modes(Noisy(), training={"noisy": True}, evaluation={"noisy": False}, rngs=["noise"]),
            "trainable": ["head", "body/kernel"],
            "loss": losses.cross_entropy(),
            "local_optimizer": optimizers.local_sgd(0.9),
            "step_size": optimizers.cosine_decay_schedule(0.1, 3),
        }
        common = {"data": data, "num_rounds": 3, "cohort_size": 4, "local_steps": 1, "batch_size": 4}
        method = fd.algorithms.from_aggregator(aggregators.fedavg())
        return jax.tree.structure(run_of(Settings(algorithm=method, **common | given | changes)))

    return of


def test_runs_of_parts_built_anew_have_one_structure(structure):
    first = structure()
    hash(first)
    assert structure() == first
    numbers = {
        "loss": losses.cross_entropy(0.1),
        "local_optimizer": optimizers.local_sgd(0.9, weight_decay=1e-4),
        "step_size": optimizers.cosine_decay_schedule(0.2, 3, alpha=0.1),
    }
    assert structure(**numbers) == first
    modes = with_modes(Noisy(), training={"noisy": False}, evaluation={"noisy": False}, rngs=["noise"])
    others = {"model": modes, "trainable": ["head"], "local_optimizer": optimizers.local_sgd(0.5)}
    for name, value in others.items():
        assert structure(**{name: value}) != first, name


def test_modes_are_compared_by_value_and_read_as_mappings():
    def modes():
        return with_modes(Noisy(), training={"noisy": True, "more": {"x": 1}}, rngs=["noise"])

    assert modes() == modes()
    assert hash(modes()) == hash(modes())
    assert dict(modes().training)["noisy"] is True
    assert modes().evaluation == {}
