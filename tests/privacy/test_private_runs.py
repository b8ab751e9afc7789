"""Differential privacy in runs: what the history reports, where the noise comes in, resume, sweeps and devices."""

import dataclasses
import sys

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from nets import Net
from tiny import SYNTHETIC, TINY

import fedjax_drag as fd
from fedjax_drag.experiment.build import build
from fedjax_drag.experiment.build.experiment import load
from fedjax_drag.experiment.build.resolve import resolve
from fedjax_drag.experiment.run import metrics_file
from fedjax_drag.privacy import FixedSize, Local, Poisson, adaptive_dp, central_dp, epsilon, local_dp
from fedjax_drag.simulation.planning.spending import spent_by
from fedjax_drag.simulation.program.federation import Federation
from fedjax_drag.simulation.program.local import sent
from fedjax_drag.simulation.program.sampling import expected_clients
from fedjax_drag.simulation.run import ClientInput, LocalResult, RoundInput
from fedjax_drag.simulation.settings import Settings
from fedjax_drag.testing import check_client_rule
from fedjax_drag.types import Downlink, Uplink

CONFIG = TINY | SYNTHETIC | {"cohort_size": 4}  # of six clients
NAMES = ("central_dp", "adaptive_dp", "local_dp")
CENTRAL = {"name": "central_dp", "clip": 0.2, "noise_multiplier": 0.5}


def run(privacy, out=None, resume=False, **changes):
    return fd.run(CONFIG | {"privacy": privacy} | changes, out=out, resume=resume, quiet=True)


@pytest.fixture
def library():
    return pytest.importorskip("dp_accounting")


def fedavg(**options):
    return central_dp(fd.aggregators.fedavg(), **{"clip": 0.2, "noise_multiplier": 0.5, "delta": 1e-3} | options)


def settings(rule, client=None, **changes):
    """Of a run of six clients, four of them in a round."""
    data = fd.data.partition.iid(fd.data.synthetic(num_examples=60, num_test_examples=20, dim=8), num_clients=6)
    options = {"model": fd.models.mlp(3, hidden=(4,)), "data": data, "num_rounds": 6, "cohort_size": 4}
    options |= {"step_size": 0.1, "local_steps": 1, "batch_size": 4}
    return Settings(algorithm=fd.algorithms.from_aggregator(rule, client), **options | changes)


UNEVEN = [0.1, 0.1, 0.1, 0.4, 0.2, 0.2]


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("rule", "changes", "sampling"),
    [
        (fedavg(), {}, FixedSize(6, 4)),
        (fedavg(), {"cohort_size": 6}, Poisson(1.0)),
        (fedavg(), {"cohort_size": 6, "availability": 0.5, "dropout_rate": 0.2}, Poisson(0.5)),
        (fedavg(), {"availability": [0.5] * 6}, Poisson(0.5, 6, 4)),
        (fedavg(), {"cohort_size": 6, "availability": UNEVEN}, Poisson(float(np.float32(0.4)))),
        (fedavg(noise_cohort_size=1000, population=10**6), {}, Poisson(1e-3)),
        (fedavg(population=400), {}, Poisson(0.01)),
        (adaptive_dp(fd.aggregators.fedavg(), 0.2, 0.5, 1e-3), {}, FixedSize(6, 4)),
        (fd.aggregators.median(), {"client": local_dp(fd.clients.sgd(), 0.2, 0.5, 1e-3)}, Local()),
        (fedavg(delta=None), {"client": local_dp(fd.clients.sgd(), 0.2, 0.5, 1e-3)}, Local()),
    ],
    ids=["fixed", "everybody", "poisson", "cut", "uneven", "larger cohort", "population", "adaptive", "local", "both"],
)
def test_what_a_run_spends(library, rule, changes, sampling):
    spent = spent_by(settings(rule, **changes))
    assert [spent(rounds)["epsilon"] for rounds in (0, 4)] == pytest.approx([0, epsilon(0.5, 1e-3, 4, sampling)])


@pytest.mark.parametrize(
    ("rule", "changes", "message"),
    [
        (fedavg(noise_cohort_size=100), {}, r"noise_cohort_size=100, delta=0.001: must be given with population"),
        (fedavg(noise_cohort_size=3, population=100), {"dropout_rate": 0.1}, r"must be at least .* cohort_size=4"),
        (fedavg(population=3), {}, r"population=3: must be at least cohort_size=4"),
        (fedavg(), {"availability": UNEVEN}, r"must have cohort_size=6, all clients, or no delta$"),
    ],
)
def test_what_cannot_be_accounted(library, rule, changes, message):
    asked = settings(rule, **changes)
    with pytest.raises(ValueError, match=message):
        spent_by(asked)


@pytest.mark.thorough
def test_the_history_reports_what_was_spent(library, tmp_path):
    result = run(CENTRAL | {"delta": 1e-3}, out=tmp_path / "run", cohort_size=6)
    spent = [epsilon(0.5, 1e-3, rounds, Poisson(1.0)) for rounds in (2, 4, 6)]
    assert result.history["round"].tolist() == [2, 4, 6]
    np.testing.assert_allclose(result.history["epsilon"], spent)
    np.testing.assert_allclose(metrics_file.read(tmp_path / "run" / "metrics.jsonl").history["epsilon"], spent)


def test_without_a_delta_nothing_is_reported_and_no_library_needed(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    assert spent_by(settings(fedavg(delta=None)))(4) == {}
    assert spent_by(settings(fd.aggregators.fedavg()))(4) == {}
    with pytest.raises(ValueError, match=r"^delta=0.001: epsilon needs dp-accounting; pip install 'fedjax-drag\[priv"):
        spent_by(settings(fedavg()))


@pytest.mark.parametrize(
    ("privacy", "changes", "message"),
    [
        (CENTRAL, {"aggregator": "drag"}, r"^privacy.aggregator=drag: sums more than the deltas"),
        (CENTRAL, {"aggregator": "krum"}, r"^privacy.aggregator=krum: is no sum over clients"),
        (
            CENTRAL,
            {"algorithm": "tailored_fedprox"},
            r"^privacy.name='central_dp': algorithm tailored_fedprox uses the m",
        ),
        (
            CENTRAL | {"name": "local_dp"},
            {"algorithm": "scaffold"},
            r"^privacy.name='local_dp': algorithm scaffold has its",
        ),
        (CENTRAL | {"clip": 0}, {}, r"^privacy.clip=0"),
        (CENTRAL | {"aggregator": "fedavg"}, {}, r"^privacy.aggregator: .*set the top-level key 'aggregator'"),
        ({"name": "central_dp"}, {}, r"^privacy.clip: missing"),
    ],
)
def test_configurations_that_are_refused(privacy, changes, message):
    with pytest.raises(ValueError, match=message):
        run(privacy, **changes)


@pytest.mark.sample(1)
@pytest.mark.parametrize("rule", [central_dp(fd.aggregators.fedavg(), 1.0, 1.0), None], ids=["central", "local"])
def test_statistics_of_the_clients_data_are_not_sent(rule):
    base = fd.data.load("digits")
    data = fd.data.partition.iid(base, num_clients=6)
    client = None if rule else local_dp(fd.clients.sgd(), 1.0, 1.0)
    method = fd.algorithms.from_aggregator(rule or fd.aggregators.median(), client)
    options = {"model": Net(rate=0.0), "data": data, "num_rounds": 1, "cohort_size": 4, "step_size": 0.1}
    options |= {"local_steps": 1, "batch_size": 4}
    with pytest.raises(ValueError, match=r"^model_state='average': clients would send the model's statistics without"):
        fd.simulation.prepare(method, **options)
    fd.simulation.prepare(method, **options, model_state="frozen")


def test_the_expected_number_of_clients_is_public():
    others = dict.fromkeys(("train", "rows", "counts", "malicious", "root_row", "root_count"))
    trace = jnp.float32([[0.5] * 8, [0.25] * 8])
    for rate, share in ((None, 1.0), (jnp.float32(0.25), 0.75)):
        federation = Federation(**others, availability=trace, dropout_rate=rate)
        shared = RoundInput(federation, jax.random.key(0), jnp.int32(0), Downlink(()), None)
        found = [float(expected_clients(shared._replace(round=jnp.int32(t)), 8)) for t in range(3)]
        assert found == [4 * share, 2 * share, 4 * share]
        assert float(expected_clients(shared, 3)) == 3 * share
        always = shared._replace(federation=federation._replace(availability=None))
        assert float(expected_clients(always, 5)) == 5 * share


@pytest.mark.slow
def test_a_round_divides_by_the_expected_number():
    """Without noise and clip, FedAvg's step times the number that answered, by the number expected."""
    quiet = {"name": "central_dp", "clip": 1e3, "noise_multiplier": 0.0}
    changes = {"cohort_size": 6, "availability": 0.5, "rounds": 1, "eval_every": 1, "seed": 3}
    plain, private = run(None, **changes), run(quiet, **changes)
    answered = int(plain.history["participants"][0])
    assert answered not in (0, 3)
    start = fd.run(CONFIG | changes | {"step_size": 1e-30}, quiet=True).params

    def step(result):
        return flat(jax.tree.map(lambda a, b: a - b, result.params, start))

    np.testing.assert_allclose(step(private), step(plain) * answered / 3, rtol=1e-3, atol=1e-6)


@pytest.mark.thorough
def test_a_rule_inside_a_method_divides_by_the_expected_number():
    quiet = central_dp(fd.aggregators.fedavg(), clip=1e3, noise_multiplier=0.0)
    asked = settings(quiet, cohort_size=6, availability=0.5, num_rounds=1, model=fd.models.mlp(10))
    asked = dataclasses.replace(asked, algorithm=fd.algorithms.scaffold(aggregator=quiet))
    np.testing.assert_allclose(fd.simulation.trace(asked).run().history["weight"].max(), 1 / 3, rtol=1e-6)


def flat(tree, lead=0):
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(tree)]
    return np.concatenate([leaf.reshape(*leaf.shape[:lead], -1) for leaf in leaves], axis=-1)


@pytest.mark.thorough
def test_a_rule_that_noises_its_messages_keeps_the_promises_of_client_rules():
    check_client_rule(local_dp(fd.clients.sgd(), 0.5, 2.0))


class TestLocal:
    RULE = local_dp(fd.clients.sgd(), 0.5, 2.0)

    @property
    def delta(self):
        return {"a": jnp.arange(40.0), "b": jnp.ones((3, 2))}

    def noises(self, delta, number=2000):
        keys = jax.random.split(jax.random.key(0), number)
        sent = jax.vmap(lambda key: self.RULE.send(key, Uplink(delta)).delta)(keys)
        return flat(sent, lead=1)

    def test_a_message_is_the_clipped_delta_and_noise(self):
        delta, sent = flat(self.delta), self.noises(self.delta)
        noise = sent - 0.5 * delta / np.linalg.norm(delta)
        assert abs(noise.std() - 1.0) < 0.01
        assert np.abs(noise.mean(0)).max() < 5 / np.sqrt(len(sent))
        assert np.abs(np.corrcoef(noise.T) - np.eye(46)).max() < 6 / np.sqrt(len(sent))

    @pytest.mark.sample(1)
    @pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
    def test_a_delta_that_is_not_usable_counts_as_zero(self, value):
        spoilt = self.delta | {"b": self.delta["b"].at[1, 1].set(value)}
        zero = jax.tree.map(jnp.zeros_like, self.delta)
        np.testing.assert_array_equal(self.noises(spoilt, 3), self.noises(zero, 3))

    @pytest.mark.thorough
    def test_the_noise_differs_between_clients_and_rounds_and_attackers_add_none(self):
        local = LocalResult(Uplink(self.delta), 0.0, 1)

        def message(round=0, client=0, malicious=False):
            shared = RoundInput(None, jax.random.key(0), jnp.int32(round), Downlink(self.delta), None)
            own = ClientInput(jnp.int32(client), None, None, jnp.asarray(malicious))
            return np.asarray(sent(self.RULE, fd.attacks.sign_flip(), shared, own, local).uplink.delta["a"])

        honest = [message(), message(round=1), message(client=1), message(client=1, round=1)]
        assert len({x.tobytes() for x in honest}) == 4
        np.testing.assert_array_equal(message(), message())
        np.testing.assert_array_equal(message(malicious=True), self.delta["a"])

    def test_more_than_a_delta_is_refused(self):
        with pytest.raises(ValueError, match="clients send more than a delta, which the noise would not cover"):
            self.RULE.send(jax.random.key(0), Uplink(self.delta, jnp.ones(3)))
        with pytest.raises(ValueError, match=r"^client=local_dp: changes its messages already"):
            local_dp(self.RULE, 1.0, 1.0)

    @pytest.mark.parametrize(
        ("rule", "bare"),
        [(fd.aggregators.fedavg("examples"), "num_examples"), (fd.aggregators.clusterguard(), "class_histogram_diss")],
    )
    def test_rules_of_more_than_the_deltas_are_refused(self, rule, bare):
        with pytest.raises(ValueError, match=rf"^aggregator={rule.name}: needs {bare}.*without noise"):
            fd.algorithms.from_aggregator(rule, self.RULE)


WAYS = {
    "central": (CENTRAL, {}),
    "adaptive": (CENTRAL | {"name": "adaptive_dp", "count_noise": 0.4}, {"aggregator": {"name": "fedavg"}}),
    "local": (
        CENTRAL | {"name": "local_dp"},
        {"aggregator": "drag", "attack": "sign_flip", "byzantine_fraction": 0.34},
    ),
    "dp_sgd": (None, {"client": {"name": "dp_sgd", "clip": 1.0, "noise_multiplier": 0.5}}),
}


@pytest.mark.optimised
@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=pytest.mark.thorough if way == "adaptive" else pytest.mark.slow) for way in WAYS]
)
def test_a_run_resumes_to_the_same_bits(way, tmp_path):
    privacy, changes = WAYS[way]
    whole = run(privacy, **changes)
    run(privacy, out=tmp_path / "run", **changes, rounds=4)
    resumed = run(privacy, out=tmp_path / "run", resume=True, **changes)
    chex.assert_trees_all_equal(resumed.state, whole.state)
    chex.assert_trees_all_equal(resumed.history, whole.history)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_chunks_devices_and_streams_draw_the_same_noise(way):
    """Every way over the clients gives the same run to rounding, which is far below the noise."""
    privacy, changes = WAYS[way]
    whole = run(privacy, **changes, mesh=None, aggregation="stack")
    for form in ({"mesh": "cores"}, {"mesh": None, "clients_axis": "map", "clients_per_chunk": 3}):
        chex.assert_trees_all_close(run(privacy, **changes, **form).params, whole.params, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.parametrize("name", NAMES)
def test_a_sweep_of_clip_and_noise_is_one_program_with_the_results_of_single_runs(name, tmp_path):
    config = CONFIG | {"privacy": CENTRAL | {"name": name} | ({"count_noise": 0.9} if name == "adaptive_dp" else {})}
    config["mesh"] = None  # as the cells of a sweep
    axes = {"privacy.clip": [0.1, 0.4], "privacy.noise_multiplier": [0.0, 1.0]}
    swept = fd.sweep(config | {"axes": axes}, out=tmp_path / "sweep", quiet=True)
    assert [cell.status for cell in swept.cells] == ["done"] * 4
    config["privacy"] |= {"clip": 0.4, "noise_multiplier": 1.0}
    chex.assert_trees_all_close(swept.cells[-1].history, fd.run(config, quiet=True).history, rtol=1e-5)
    assert len({cell.history["test_loss"].tobytes() for cell in swept.cells}) == 4


@pytest.mark.parametrize("name", NAMES)
def test_clip_and_noise_may_be_traced(name):
    config = resolve(load(CONFIG | {"privacy": CENTRAL | {"name": name}}))
    method = build.method(config, 6)
    shares = dict(jax.tree_util.tree_leaves_with_path(method))
    names = {jax.tree_util.keystr(path).rpartition(".")[2] for path in shares}
    assert {"clip", "noise_multiplier"} <= names
