"""Equal runs in one process are compiled once, whatever their numbers, and give what they would give alone."""

import dataclasses
import gc
import json
import subprocess
import sys
import threading
import weakref

import chex
import jax
import numpy as np
import pytest
from flax import nnx
from tiny import DRAG, TINY
from traces import COMPILING, TRACING, steps_in

import fedjax_drag as fd
from fedjax_drag.simulation import engine
from fedjax_drag.simulation.batch import prepare_batch
from fedjax_drag.simulation.program import programs
from fedjax_drag.simulation.settings import Settings

pytestmark = pytest.mark.fresh


@pytest.fixture
def spent():
    """The result of a function, and the steps of a compilation that JAX took in it."""

    def during(function):
        with steps_in() as steps:
            result = function()
        return result, steps

    return during


@pytest.fixture
def call(settings):
    """A short run whose parts are built anew."""

    def calling(initial=None, callbacks=(), **changes):
        rule = fd.algorithms.from_aggregator(fd.aggregators.norm_clipping(2.0))
        asked = settings(algorithm=rule, clients_axis="map") | changes
        return fd.simulate(initial=initial, callbacks=callbacks, **asked)

    return calling


@pytest.mark.thorough
def test_rounds_that_go_on_on_several_devices_are_not_compiled_again(call):
    compiled = []
    for at_once in (2, 1):
        jax.clear_caches()
        with steps_in() as steps:
            call(mesh="cores", cohort_size=4, num_rounds=2, eval_every=2, rounds_per_compile=at_once)
        compiled.append(steps.count(COMPILING))
    assert compiled[0] == compiled[1]


def alone(function):
    """The same in a process that keeps nothing."""
    jax.clear_caches()
    return function()


def assert_same(one, other):
    chex.assert_trees_all_equal(one.state, other.state)
    assert one.history.keys() == other.history.keys()
    for name in one.history.keys() - {"client_seconds"}:
        np.testing.assert_array_equal(one.history[name], other.history[name], err_msg=name)
    assert (one.cost, one.diverged_at) == (other.cost, other.diverged_at)


def test_an_equal_call_neither_traces_nor_compiles(call, digits, spent):
    first, steps = spent(call)
    assert set(steps) >= {TRACING, COMPILING}
    second, steps = spent(call)
    assert steps == []
    assert_same(first, second)
    halves = dataclasses.replace(digits, counts=np.maximum(digits.counts // 2, 4))
    changes = {"num_rounds": 5, "eval_every": 2, "rounds_per_compile": 3, "seed": 3, "data": halves}
    result, steps = spent(lambda: call(**changes))
    assert steps == []
    assert_same(result, alone(lambda: call(**changes)))


def test_other_numbers_are_the_same_program(call, spent):
    """Of the rule, of the client rule, of the attack, and the step size."""

    def with_numbers(radius, mu, scale, step_size):
        rule = fd.aggregators.norm_clipping(radius)
        method = fd.algorithms.from_aggregator(rule, client=fd.clients.fedprox(mu))
        attack = {"attack": fd.attacks.sign_flip(scale), "byzantine_fraction": 0.25}
        return call(algorithm=method, step_size=step_size, **attack)

    with_numbers(2.0, 0.1, 1.0, 0.1)
    other, steps = spent(lambda: with_numbers(1, 0.5, 3.0, np.float32(0.05)))
    assert steps == []
    assert_same(other, alone(lambda: with_numbers(1.0, 0.5, 3.0, 0.05)))


@pytest.mark.thorough
def test_a_sweep_over_three_numbers_and_seeds_is_traced_once(settings, spent):
    def cell(c, alpha, step_size, seed):
        rule = fd.aggregators.drag(c=c, alpha=alpha)
        own = settings(step_size=step_size, seed=seed, num_rounds=3, clients_axis="map")
        return Settings(algorithm=fd.algorithms.from_aggregator(rule), **own)

    grid = [(c, a, s, n) for c in (0.1, 0.2, 0.3, 0.5) for a in (0.1, 0.5) for s in (0.05, 0.1) for n in range(4)]
    cells = [cell(*one) for one in grid]
    assert len(cells) == 64
    jax.clear_caches()
    before = programs.advance._cache_size()
    results, _ = spent(lambda: prepare_batch(cells).run(range(64)))
    assert programs.advance._cache_size() == before == 0, "rounds are traced inside of the cells' program alone"
    _, steps = spent(lambda: prepare_batch(cells).run(range(64)))
    assert COMPILING not in steps
    own = engine.trace(cells[37]).run()
    chex.assert_trees_all_equal(jax.tree.map(np.asarray, own.state), results[37].state)


@pytest.mark.thorough
def test_a_resumed_run_uses_the_same_programs_and_no_buffer_twice(call, spent):
    half = call(num_rounds=3)
    kept = jax.tree.map(np.asarray, half.state)
    whole = call(initial=half.state)
    again, steps = spent(lambda: call(initial=half.state))
    assert COMPILING not in steps
    assert_same(whole, again)
    chex.assert_trees_all_equal(half.state, kept)
    chex.assert_trees_all_equal(whole.params, alone(call).params)


@pytest.mark.thorough
@pytest.mark.parametrize("changes", [{"mesh": "cores", "cohort_size": 6}, {"client_state": "host"}], ids=str)
def test_devices_and_state_on_the_host(call, spent, changes):
    def scaffold(**more):
        return call(algorithm=fd.algorithms.scaffold(12), **changes, **more)

    first, _ = spent(scaffold)
    second, steps = spent(scaffold)
    assert COMPILING not in steps
    assert_same(first, second)
    assert_same(scaffold(seed=1), alone(lambda: scaffold(seed=1)))


def scaled(by):
    return lambda logits, labels: by * fd.losses.cross_entropy()(logits, labels)


@pytest.mark.slow
@pytest.mark.parametrize("change", ["loss", "step", "statistics", "type", "precision"])
def test_a_changed_constant_is_another_program(call, digits, change):
    def changed():
        floats = [part._replace(x=np.float32(part.x)) for part in (digits.train, digits.test)]
        data = {
            "statistics": {"data": dataclasses.replace(digits, mean=(0.5,), std=(0.25,))},
            "type": {"data": dataclasses.replace(digits, train=floats[0], test=floats[1])},
            "step": {"step_size": 0.2},
            "precision": {"loss": scaled(1.0), "compute_dtype": "bfloat16"},
            "loss": {"loss": scaled(2.0)},
        }
        return call(**{"loss": scaled(1.0)} | data[change])

    before = call(loss=scaled(1.0))
    after = changed()
    assert_same(after, alone(changed))
    assert not np.array_equal(before.params["Dense_0"]["kernel"], after.params["Dense_0"]["kernel"])
    assert_same(before, call(loss=scaled(1.0)))


@pytest.mark.thorough
def test_a_function_written_anew_is_another_program(call, spent):
    """Functions are compared by identity, as by ``jax.jit``; an object that is kept is traced once."""
    kept = scaled(1.0)
    first = call(loss=kept)
    second, steps = spent(lambda: call(loss=kept))
    assert steps == []
    third, steps = spent(lambda: call(loss=scaled(1.0)))
    assert COMPILING in steps
    assert_same(first, second)
    assert_same(first, third)


class Net(nnx.Module):
    """A small network in another of the forms that a model has."""

    def __init__(self, rngs):
        self.layer = nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, x):
        return self.layer(x.reshape(x.shape[0], -1))


MODELS = {
    "linen": lambda: fd.models.mlp(10, hidden=(4,)),
    "a class of nnx": lambda: Net,
    "a module of nnx": lambda: Net(nnx.Rngs(0)),
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_a_model_built_anew_is_the_same_program(call, spent, model):
    first = call(model=model())
    second, steps = spent(lambda: call(model=model()))
    assert steps == []
    assert_same(first, second)


@pytest.mark.thorough
def test_a_module_that_has_changed_in_place_starts_from_what_it_has_now(call, spent):
    module = Net(nnx.Rngs(0))
    before = call(model=module)
    module.layer.kernel[...] = 0.5 * module.layer.kernel[...]
    after, steps = spent(lambda: call(model=module))
    assert steps == []
    assert not np.array_equal(before.params["layer"]["kernel"], after.params["layer"]["kernel"])
    assert_same(after, alone(lambda: call(model=module)))


@pytest.mark.thorough
def test_every_run_calls_its_own_functions(call):
    def listening():
        heard = []

        def loss(logits, labels):
            jax.debug.callback(lambda x: heard.append(float(x)), logits.sum())
            return fd.losses.cross_entropy()(logits, labels)

        call(loss=loss, num_rounds=3)
        jax.effects_barrier()
        return heard

    one, other = listening(), listening()
    assert one
    assert sorted(one) == sorted(other)


@pytest.mark.thorough
def test_no_data_are_kept(call, digits):
    copied = dataclasses.replace(digits, train=jax.tree.map(np.copy, digits.train))
    images = weakref.ref(copied.train.x)
    call(data=copied)
    del copied
    gc.collect()
    assert images() is None


@pytest.mark.thorough
def test_the_configuration_of_jax_is_a_part_of_the_name(call, spent):
    call(num_rounds=1)
    with jax.default_matmul_precision("highest"):
        _, steps = spent(lambda: call(num_rounds=1))
    assert steps


@pytest.mark.thorough
def test_threads_may_run_at_once(call):
    expected, found = call(), []
    jax.clear_caches()
    threads = [threading.Thread(target=lambda: found.append(call())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    for result in found:
        assert_same(result, expected)


@pytest.mark.thorough
def test_configurations_share_programs_too(spent):
    configuration = TINY | DRAG | {"clients_axis": "map"}
    first, _ = spent(lambda: fd.run(configuration))
    second, steps = spent(lambda: fd.run(configuration))
    assert COMPILING not in steps
    assert_same(first, second)


SCRIPT = """
import json, jax, fedjax_drag as fd
events = []
jax.monitoring.register_event_listener(lambda name, **_: events.append(name.rpartition("/")[2]))
data = fd.data.partition.iid(fd.data.load("digits"), 8)
rule = fd.algorithms.from_aggregator(fd.aggregators.fedavg())
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
fd.simulate(rule, model=fd.models.mlp(10, hidden=(3,)), data=data, num_rounds=2, cohort_size=4, local_steps=1,
            batch_size=4, step_size=0.1)
print(json.dumps([events.count("cache_hits"), events.count("cache_misses")]))
"""


@pytest.mark.slow
def test_other_processes_use_the_persistent_cache_of_the_user(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    counts = []
    for _ in range(2):
        ran = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
        counts.append(json.loads(ran.stdout.splitlines()[-1]))
    (_, compiled), (read, missed) = counts
    assert compiled >= 4
    assert read >= 4
    assert missed == 0


@pytest.mark.optimised
@pytest.mark.thorough
def test_what_is_compiled_for_one_call_draws_the_same_bits():
    model = fd.models.mlp(10, hidden=(64,))

    def init(key):
        return model.init(key, np.zeros((1, 64), np.float32))

    key = jax.random.key(3)
    quickly = programs.compiled_quickly(init, (), "cpu")
    chex.assert_trees_all_equal(quickly(key), jax.jit(init)(key))
