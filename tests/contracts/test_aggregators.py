"""What every server rule promises, whatever its formula, beyond ``check_aggregator`` (``test_testing.py``)."""

import collections
import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import AGGREGATORS, SIZE, extras, flatten, nested_params, parametrize, select, unflatten
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedjax_drag.aggregators import br_drag, drag, krum
from fedjax_drag.simulation.devices.placement import split_coordinates
from fedjax_drag.testing._promises import assert_pure
from fedjax_drag.tree import initial_state
from fedjax_drag.types import DISSIMILARITIES

COHORT = 7
ONE_OF_EACH = ("drag", "median", "krum")
"""Rules with a sum, with coordinates and with distances: the fast tier tries with these what compiles for one test."""
FEW = ("drag", "fltrust", "geometric_median", "median", "krum")
"""One of each way to look at a cohort: with the others, what costs a compilation of its own is slow."""


def in_fast_tier(case):
    return case.label in ONE_OF_EACH


PER_CLIENT = {
    "weight",
    "cosine",
    "divergence",
    "trust",
    "score",
    "alpha",
    "scale",
    "selected",
    "cluster",
    "dissimilarity",
    "agreement",
    "mixture",
}
STATE_ONLY = {
    "iterations",
    "residual",
    "num_rejected",
    "server_step_size",
    "tilted_loss",
    "reversed_share",
    "parameter_scale",
}


TRACES = collections.Counter()


@functools.cache
def compiled(case):
    """The rule and its jitted ``apply``, shared by the tests so that each shape compiles once."""
    rule = case.build()

    def apply(params, deltas, state, **extra):
        TRACES[case.label] += 1
        return rule.apply(params, deltas, state, **extra)

    return rule, jax.jit(apply)


@functools.cache
def settled(case, cohort=COHORT, dtype=jnp.float32):
    """The state before the first round, with the shapes of ``cohort`` clients."""
    rule, apply = compiled(case)
    params, deltas = nested_params(dtype), unflatten(np.ones((cohort, SIZE)), dtype)
    return initial_state(apply, rule.init(params), params, deltas, **extras(cohort), valid=jnp.ones(cohort, bool))


def matrix(cohort=COHORT, seed=1, scale=1.0):
    return (scale * np.random.default_rng(seed).normal(size=(cohort, SIZE))).astype(np.float32)


def run(case, G, state=None, params=None, **changes):
    """One round; returns parameters and state. A mask is always given, so that one program serves all tests."""
    _, apply = compiled(case)
    params = nested_params() if params is None else params
    dtype = jax.tree.leaves(params)[0].dtype
    state = settled(case, len(G), dtype) if state is None else state
    return apply(params, unflatten(G, dtype), state, **{**extras(len(G)), "valid": jnp.ones(len(G), bool), **changes})


def assert_same_bits(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        x, y = np.asarray(x), np.asarray(y)
        assert x.dtype == y.dtype
        assert x.tobytes() == y.tobytes()


def assert_close(a, b, rtol=2e-5, atol=2e-6):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(np.asarray(x, np.float64), np.asarray(y, np.float64), rtol=rtol, atol=atol)


def carried(state):
    """What a state remembers, without the metrics."""
    return state._replace(metrics={})


@parametrize(AGGREGATORS)
@pytest.mark.parametrize(
    "dtype", [jnp.float32, pytest.param(jnp.bfloat16, marks=pytest.mark.slow)], ids=["float32", "bfloat16"]
)
def test_structure_shapes_and_dtypes_are_kept(case, dtype):
    params = nested_params(dtype)
    rule, apply = compiled(case)
    before, valid = settled(case, COHORT, dtype), jnp.ones(COHORT, bool)
    after, new = jax.eval_shape(apply, params, unflatten(matrix(), dtype), before, **extras(COHORT), valid=valid)
    assert jax.tree.structure(after) == jax.tree.structure(params)
    for x, y in zip(jax.tree.leaves(after), jax.tree.leaves(params), strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
    assert jax.tree.structure(new) == jax.tree.structure(before) == jax.tree.structure(rule.init(params))
    for x, y in zip(jax.tree.leaves(new), jax.tree.leaves(before), strict=True):
        assert (x.shape, x.dtype, x.weak_type) == (y.shape, y.dtype, y.weak_type)


@pytest.mark.thorough
@parametrize([case for case in AGGREGATORS if case.label in ("fedavg", "drag", "fltrust", "median")])
def test_bfloat16_deltas_are_summed_in_float32(case):
    """The only loss against float32 parameters is the one rounding of the result."""
    G = np.asarray(jnp.asarray(matrix(), jnp.bfloat16).astype(jnp.float32))
    exact, _ = run(case, G, params=unflatten(np.zeros(SIZE)))
    rounded, _ = run(case, G, params=unflatten(np.zeros(SIZE), jnp.bfloat16))
    np.testing.assert_allclose(flatten(rounded), flatten(exact), rtol=1e-2, atol=1e-5)


@parametrize(AGGREGATORS)
def test_metrics_keep_their_keys_and_say_who_counted(case):
    rule, _ = compiled(case)
    first = rule.init(nested_params()).metrics
    _, state = run(case, matrix())
    assert first.keys() == state.metrics.keys()
    assert {"weight", "cosine", "num_rejected"} <= first.keys() <= PER_CLIENT | STATE_ONLY
    for name, value in state.metrics.items():
        if name in PER_CLIENT:
            assert first[name].shape == (0,)
            assert value.shape == (COHORT,)
        else:
            assert first[name].shape == value.shape == ()
        assert np.isfinite(value).all()
    assert int(state.metrics["num_rejected"]) == 0
    assert np.abs(state.metrics["cosine"]).max() <= 1 + 1e-6


@parametrize(AGGREGATORS)
def test_initial_state_keeps_values_and_fills_shapes_with_zeros(case):
    rule, _ = compiled(case)
    state = settled(case)
    assert_same_bits(carried(state), carried(rule.init(nested_params())))
    assert all(not np.asarray(value).any() for value in state.metrics.values())


@parametrize(AGGREGATORS, fast=in_fast_tier)
def test_traced_again_it_is_the_same_program(case):
    rule = case.build()
    apply = lambda params, deltas, state, extra: rule.apply(params, deltas, state, **extra)
    assert_pure(apply, nested_params(), unflatten(matrix()), settled(case), extras(COHORT))


@parametrize(AGGREGATORS)
def test_one_compilation_serves_all_rounds(case):
    params, state = run(case, matrix())
    before = TRACES[case.label]
    for t in range(1, 4):
        params, state = run(case, matrix(seed=t), state, params, **extras(COHORT, t))
    assert TRACES[case.label] == before


@parametrize(
    [case for case in AGGREGATORS if case.sweeps],
    slow=lambda case: case.label in ("geometric_median", "autogm", "flame", "rfl_bat", "signguard"),
    fast=in_fast_tier,
)
def test_vmap_over_hyperparameters_and_scan_over_rounds_equal_loops(case):
    """Two rounds, so that what the state carries is swept too; all hyperparameters of a rule at once."""
    rounds = [(unflatten(matrix(seed=t)), extras(COHORT, t)) for t in range(2)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *rounds)
    start = settled(case)

    def final(values):
        rule = case.build(**values)

        def body(carry, xs):
            return rule.apply(carry[0], xs[0], carry[1], **xs[1]), None

        return jax.lax.scan(body, (nested_params(), start), stacked)[0][0]

    values = {name: jnp.asarray(points) for name, points in case.sweeps.items()}
    swept, alone = jax.jit(jax.vmap(final))(values), jax.jit(final)
    params, state = run(case, matrix(seed=0))
    params, _ = run(case, matrix(seed=1), state, params, **extras(COHORT, 1))
    assert_close(alone({name: jnp.float32(case.settings[name]) for name in values}), params, rtol=1e-4, atol=1e-5)
    count = {len(points) for points in values.values()}
    assert len(count) == 1
    for k in range(count.pop()):
        one = alone({name: points[k] for name, points in values.items()})
        assert_close(jax.tree.map(lambda x, k=k: x[k], swept), one, rtol=1e-4, atol=1e-5)


@parametrize([case for case in AGGREGATORS if not case.keyed])
def test_order_of_clients_does_not_matter(case):
    G, order = matrix(), np.random.default_rng(3).permutation(COHORT)
    params, state = run(case, G)
    shuffled, permuted = run(case, G[order], **select(extras(COHORT), order))
    assert_close(shuffled, params)
    for name in PER_CLIENT & state.metrics.keys():
        assert_close(permuted.metrics[name], state.metrics[name][order], rtol=1e-4, atol=1e-5)


@parametrize(AGGREGATORS, fast=in_fast_tier)
def test_unknown_extras_are_ignored(case):
    rule, _ = compiled(case)
    arguments = nested_params(), unflatten(matrix()), settled(case)
    needed = {name: value for name, value in extras(COHORT).items() if name in case.requires}
    more = functools.partial(rule.apply, weather="rain", **needed)
    plain = functools.partial(rule.apply, **needed)
    assert str(jax.make_jaxpr(more)(*arguments)) == str(jax.make_jaxpr(plain)(*arguments))


@parametrize([case for case in AGGREGATORS if case.requires])
def test_a_missing_extra_is_a_type_error(case):
    rule = case.build()
    params, deltas = nested_params(), unflatten(matrix())
    for name in case.requires:
        extra = {key: value for key, value in extras(COHORT).items() if key != name}
        with pytest.raises(TypeError, match=name):
            jax.eval_shape(rule.apply, params, deltas, rule.init(params), **extra)


@parametrize(AGGREGATORS, fast=in_fast_tier)
def test_only_the_extras_named_as_required_are(case):
    rule = case.build()
    params, deltas = nested_params(), unflatten(matrix())
    needed = {name: value for name, value in extras(COHORT).items() if name in case.requires}
    jax.eval_shape(rule.apply, params, deltas, rule.init(params), **needed)
    # monna asks for ids only so that no wrapper puts anything else in the place of its trusted client.
    needs = rule.needs - ({"client_ids"} if case.label == "monna-trusted" else set())
    assert {"dissimilarity" if need in DISSIMILARITIES else need for need in needs} <= case.requires


ABSENT = np.array([False, True, False, False, True, False, False])


DROPPABLE = [case for case in AGGREGATORS if not case.keyed and case.smallest <= COHORT - ABSENT.sum()]


@parametrize(DROPPABLE, slow=lambda case: case.label in ("raga", "autogm", "meamed"), fast=in_fast_tier)
@pytest.mark.parametrize(
    "junk",
    ["nan", *(pytest.param(junk, marks=pytest.mark.slow) for junk in ("masked", "inf", "one-entry"))],
)
@pytest.mark.sample(1)
def test_absent_and_rejected_rows_count_as_dropped(case, junk):
    """Two rounds; the rows that are there must act as a smaller cohort would."""
    mask, state, smaller = {}, None, None
    params = dropped = nested_params()
    for t in range(2):
        G, extra = matrix(seed=t), extras(COHORT, t)
        dropped, smaller = run(case, G[~ABSENT], smaller, dropped, **select(extra, ~ABSENT))
        if junk == "masked":
            mask = {"valid": jnp.asarray(~ABSENT)}
            G[ABSENT] *= 100
        elif junk == "one-entry":
            G[ABSENT, 3] = [-np.inf, np.nan]
        else:
            G[ABSENT] = float(junk)
        params, state = run(case, G, state, params, **extra, **mask)
    assert_close(params, dropped)
    assert_close(carried(state), carried(smaller))
    assert int(state.metrics["num_rejected"]) == (0 if junk == "masked" else 2)
    for name in PER_CLIENT & state.metrics.keys():
        assert_close(state.metrics[name][~ABSENT], smaller.metrics[name], rtol=1e-4, atol=1e-5)
        assert not np.isnan(state.metrics[name]).any()
    assert not state.metrics["weight"][ABSENT].any()


@parametrize(DROPPABLE, fast=in_fast_tier)
def test_rejected_and_masked_rows_together(case):
    G = matrix()
    G[1] = np.nan
    params, state = run(case, G, valid=jnp.asarray([True, True, True, True, False, True, True]))
    dropped, _ = run(case, matrix()[~ABSENT], **select(extras(COHORT), ~ABSENT))
    assert_close(params, dropped)
    assert int(state.metrics["num_rejected"]) == 1


@parametrize(AGGREGATORS)
@pytest.mark.parametrize("reason", ["nan", pytest.param("masked", marks=pytest.mark.slow)])
def test_a_round_without_a_usable_delta_changes_nothing(case, reason):
    """Neither in the first round, nor after one."""
    bad = matrix() if reason == "masked" else np.full_like(matrix(), np.nan)
    mask = {"valid": jnp.zeros(COHORT, bool)} if reason == "masked" else {}
    rule, _ = compiled(case)
    start = nested_params()
    params, state = run(case, bad, **mask)
    assert_same_bits(params, start)
    assert_same_bits(carried(state), carried(rule.init(start)))
    params, state = run(case, matrix(), state)
    after, unchanged = run(case, bad, state, params, **mask)
    assert_same_bits(after, params)
    assert_same_bits(carried(unchanged), carried(state))
    assert int(unchanged.metrics["num_rejected"]) == (0 if reason == "masked" else COHORT)
    assert not unchanged.metrics["weight"].any()
    assert not any(np.isnan(value).any() for value in unchanged.metrics.values())


@parametrize(AGGREGATORS, slow=lambda case: case.label not in FEW, fast=in_fast_tier)
@pytest.mark.sample(1)
def test_non_finite_deltas_reach_the_parameters_if_asked_to(case):
    rule = case.build()
    params, G = nested_params(), np.full_like(matrix(), np.nan)
    apply = jax.jit(functools.partial(rule.apply, reject_nonfinite=False))
    after, state = apply(params, unflatten(G), rule.init(params), **extras(COHORT))
    assert not np.isfinite(flatten(after)).any()
    assert int(state.metrics["num_rejected"]) == 0


@parametrize(AGGREGATORS)
def test_zero_deltas_change_nothing(case):
    """With a zero reference where the rule has one; a second round meets the state that this left."""
    here = jax.tree.map(lambda p: jnp.stack([p] * COHORT), nested_params())
    zero = {"root_delta": unflatten(np.zeros(SIZE)), "starts": here}
    params, state = run(case, np.zeros_like(matrix()), **zero)
    assert_same_bits(params, nested_params())
    params, state = run(case, np.zeros_like(matrix()), state, **zero)
    assert_same_bits(params, nested_params())
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state))


@parametrize([case for case in AGGREGATORS if case.smallest == 1])
def test_a_single_client(case):
    """Rules that trust their clients take its delta."""
    alone = jnp.arange(COHORT) == 3
    params, state = run(case, matrix(), params=unflatten(np.zeros(SIZE)), valid=alone)
    assert np.isfinite(flatten(params)).all()
    np.testing.assert_array_equal(state.metrics["weight"] != 0, alone & (state.metrics["weight"][3] != 0))
    if case.consensus:
        np.testing.assert_allclose(flatten(params), matrix()[3], rtol=1e-6)


@parametrize(AGGREGATORS)
def test_identical_clients(case):
    """Rules that trust their clients take the common delta."""
    G = np.repeat(matrix(1), COHORT, axis=0)
    params, state = run(case, G, params=unflatten(np.zeros(SIZE)))
    assert np.isfinite(flatten(params)).all()
    if case.consensus:
        np.testing.assert_allclose(flatten(params), G[0], rtol=1e-5)
        np.testing.assert_allclose(state.metrics["cosine"], 1.0, rtol=1e-5)


@parametrize(AGGREGATORS)
@pytest.mark.parametrize("length", [1e30, pytest.param(1e-30, marks=pytest.mark.slow)])
@pytest.mark.parametrize("who", [pytest.param("everybody", marks=pytest.mark.slow), "one"])
def test_deltas_of_extreme_length(case, length, who):
    """Whatever the rule makes of them is a number, and so is what it remembers for the next round."""
    G = matrix()
    G[slice(None) if who == "everybody" else 2] *= length
    params, state = run(case, G, params=unflatten(np.zeros(SIZE)))
    assert np.isfinite(flatten(params)).all()
    assert int(state.metrics["num_rejected"]) == 0
    assert not any(np.isnan(leaf).any() for leaf in jax.tree.leaves(state))
    params, state = run(case, matrix(seed=2), state, params, **extras(COHORT, 1))
    assert np.isfinite(flatten(params)).all()


NEAR_HONEST = {
    "geometric_median": 3,
    "median": 3,
    "trimmed_mean": 1,
    "krum": 1,
    "multi_krum": 1,
    "bulyan": 1,
    "bucketing-median": 1,
    "fedbuff-median": 3,
    "raga": 3,
    "geomed": 1,
    "autogm": 1,
    "mda": 2,
    "meamed": 2,
    "monna": 2,
    "monna-trusted": 2,
    "smea": 2,
    "caf": 2,
    "dnc": 1,
    "arc-median": 2,
    "clipped_clustering": 3,
    "signguard": 3,
    "flame": 3,
    "flame-models": 3,
    "deepsight": 3,
    "lasa": 3,
    "foundationfl-median": 1,
    "foundationfl-trimmed_mean": 1,
    "fldetector-median": 3,
}
"""Rules whose update stays near the honest deltas, and the attackers that they tolerate among ``COHORT``."""

SHORT = {
    "br_drag": lambda root: root,
    "br_drag-schedule": lambda root: root,
    "fltrust": lambda root: root,
    "root_only": lambda root: root,
    "signsgd_majority": lambda root: 0.01 * SIZE**0.5,
    "norm_clipping": lambda root: 2.0,
    "clipping-fedavg": lambda root: 2.0,
    "crfl": lambda root: 20.0,
    "centered_clipping": lambda root: 2 * 2.0,
}
"""Rules whose update is bounded whoever is malicious: by how much in the first round, given the root delta's norm."""

MOVED_BY_ONE = {
    "fedavg",
    "fedavg-examples",
    "fedavg-unbiased",
    "qffl",
    "term",
    "afl",
    "drag",
    "drag-angle",
    "br_drag-oracle",
    "fltrust-projection",
    "nnm-drag",
    "fedexp",
    "rfa",
    "clustering",
    "clusterguard",
    "clusterguard-standardised",
    "rfl_bat",
    "flare",
    "foolsgold",
    "foolsgold_taco",
    "rescaled_mean",
    "robust_lr",
    "hierarchical",
    "fedasync-hinge",
}
"""Rules that a single long delta may move anywhere, with these arguments."""

EDGE = float(jnp.finfo(jnp.float32).max) / 2**24 / SIZE**0.5
"""The largest entry that is accepted in a delta of ``SIZE`` numbers."""


def long_rows(magnitude, count):
    """Deltas of one magnitude: the same from all and of one sign, of signs of their own, and drawn."""
    rng, end = np.random.default_rng(6), float(np.finfo(np.float32).max)
    yield np.full((count, SIZE), magnitude)
    yield -magnitude * rng.choice([-1.0, 1.0], (count, SIZE))
    yield np.clip(magnitude * rng.normal(size=(count, SIZE)), -end, end)


def within(case, honest, update):
    """Whether an update is one that the honest deltas, or the arguments of the rule, can account for."""
    if case.label in NEAR_HONEST:
        centre = honest.mean(0)
        # Of the geometric median with f of S malicious: 2 (S - f) / (S - 2 f) times the radius; 8 for 3 of 7.
        return np.linalg.norm(update - centre) <= 8 * np.linalg.norm(honest - centre, axis=1).max()
    if case.label in SHORT:
        root = np.linalg.norm(flatten(extras(COHORT)["root_delta"]))
        return np.linalg.norm(update) <= (1 + 1e-5) * SHORT[case.label](root)
    assert case.label in MOVED_BY_ONE, "a rule whose bound the test does not know"
    return np.isfinite(update).all()


@parametrize(AGGREGATORS, fast=in_fast_tier)
@pytest.mark.parametrize("magnitude", [1e20, 1e30, 0.999 * EDGE, 1.001 * EDGE, 2e37, 3e38])
def test_as_many_attackers_as_it_tolerates_send_long_deltas(case, magnitude):
    """Up to the largest numbers. Too long for float32, they are as if they had not been sent."""
    attackers = NEAR_HONEST.get(case.label, 3)
    malicious = np.arange(COHORT) < attackers
    zero = unflatten(np.zeros(SIZE))
    for rows in long_rows(magnitude, attackers):
        G = matrix()
        G[malicious] = rows
        params, state = run(case, G, params=zero)
        assert within(case, G[~malicious].astype(np.float64), flatten(params))
        assert not any(np.isnan(leaf).any() for leaf in jax.tree.leaves(state))
        rejected = np.abs(G).max(1) > EDGE
        assert int(state.metrics["num_rejected"]) == rejected.sum()
        if rejected[malicious].all():
            expected, _ = run(case, matrix(), params=zero, valid=jnp.asarray(~malicious))
            assert_close(params, expected)
            assert not state.metrics["weight"][malicious].any()
        params, _ = run(case, matrix(seed=2), state, params, **extras(COHORT, 1))
        assert np.isfinite(flatten(params)).all()


@pytest.mark.thorough
@parametrize(AGGREGATORS, slow=lambda case: case.label not in ("drag", "median"))
def test_gradients_are_finite(case):
    """Attacks are optimised through rules; of clients that are rejected, there is none, and short deltas have one."""
    rule, _ = compiled(case)
    direction = np.random.default_rng(5).normal(size=SIZE)
    state, extra = settled(case), extras(COHORT)

    def objective(deltas):
        params, _ = rule.apply(nested_params(), deltas, state, **extra)
        moved = jnp.concatenate([leaf.reshape(-1) for leaf in jax.tree.leaves(params)])
        return moved @ direction

    slope = jax.jit(jax.grad(objective))
    gradient = flatten(slope(unflatten(matrix())), 1)
    assert np.isfinite(gradient).all()
    assert gradient.any() != case.flat
    assert np.isfinite(flatten(slope(unflatten(1e-25 * matrix())), 1)).all()
    rejected, G = np.arange(COHORT) == 2, matrix()
    G[rejected] = np.nan
    gradient = flatten(slope(unflatten(G)), 1)
    assert np.isfinite(gradient).all()
    assert not gradient[rejected].any()


@parametrize(AGGREGATORS, slow=lambda case: case.label != "drag", fast=lambda case: False)
def test_divided_over_two_devices(case):
    """As the engine divides a cohort of eight."""
    rule, _ = compiled(case)
    mesh = Mesh(jax.devices()[:2], ("clients",))
    G, cohort = matrix(8), 8
    extra, params = extras(cohort), nested_params()

    @jax.jit
    def on_two(deltas):
        if rule.split == "coordinates":
            deltas = split_coordinates(deltas, mesh)
        else:
            deltas = jax.lax.with_sharding_constraint(deltas, NamedSharding(mesh, PartitionSpec("clients")))
        return rule.apply(params, deltas, rule.init(params), **extra)

    moved, state = on_two(unflatten(G))
    alone = jax.jit(lambda deltas: rule.apply(params, deltas, rule.init(params), **extra)[0])
    assert_close(moved, alone(unflatten(G)))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state))


@parametrize(AGGREGATORS)
def test_the_docstring_says_what_the_list_of_rules_needs(case):
    text = inspect.getdoc(case.builder)
    for section in ("Args", "Returns", "Breakdown point", "Cost", "References"):
        if section != "Args" or inspect.signature(case.builder).parameters:
            assert f"\n{section}:\n" in text, f"{case.builder.__name__} lacks {section}"


def test_krum_stays_finite_when_rejections_leave_no_neighbours():
    case = next(case for case in AGGREGATORS if case.label == "krum")
    for kept in (1, 2, 3):
        G = matrix()
        G[kept:] = np.nan
        params, state = run(case, G)
        assert np.isfinite(flatten(params)).all()
        assert not state.metrics["weight"][kept:].any()


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (lambda: drag(c=-1.0, alpha=0.25), "c=-1.0"),
        (lambda: drag(c=0.25, alpha=1.5), "alpha=1.5"),
        (lambda: drag(c=float("nan"), alpha=0.5), "c=nan"),
        (lambda: drag(c=0.25, alpha=0.25, divergence="angel"), "divergence='angel'.*angle"),
        (lambda: br_drag(c=-0.5), "c=-0.5"),
        (lambda: krum(num_byzantine=-1), "num_byzantine=-1"),
        (lambda: krum(num_byzantine=1.5), "num_byzantine=1.5"),
    ],
)
def test_bad_arguments_are_named_with_their_value(build, name):
    with pytest.raises(ValueError, match=name) as error:
        build()
    assert "\n" not in str(error.value)


@parametrize(AGGREGATORS)
def test_deltas_of_another_structure_are_refused(case):
    rule = case.build()
    with pytest.raises(ValueError, match="deltas"):
        rule.apply(nested_params(), {"other": jnp.ones((COHORT, 2))}, rule.init(nested_params()), **extras(COHORT))
