"""Compression in a run: what reaches the server, what is kept of each client, and the bytes in the history."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_drag as fd
from fedjax_drag.compression import _channel as channel
from fedjax_drag.compression import low_rank, qsgd, random_k, sign, top_k
from fedjax_drag.ops.screening import MetricsOnly
from fedjax_drag.simulation import prepare, trace
from fedjax_drag.simulation.batch import prepare_batch
from fedjax_drag.simulation.program import keys
from fedjax_drag.simulation.settings import Settings
from fedjax_drag.types import Aggregator, Attack, Uplink

NUM_CLIENTS, PARAMETERS, ROUNDS = 12, 650, 4
SHAPES = {"Dense_0": {"bias": jnp.zeros(10), "kernel": jnp.zeros((64, 10))}}
COMPRESSORS = {
    "top_k": top_k(0.05),
    "random_k": random_k(0.1),
    "qsgd": qsgd(4),
    "sign": sign(),
    "low_rank": low_rank(2),
}


def on_host(result):
    """Of parameters, rows and what clients have received; of keys nothing."""
    return jax.tree.map(np.asarray, (result.params, result.state.clients, result.state.received))


def recorder(needs=()):
    """A rule that moves nothing and reports all deltas, and the root delta if it ``needs`` one."""

    def metrics(deltas):
        return {"delta": jnp.concatenate([d.reshape(len(d), -1) for d in jax.tree.leaves(deltas)], 1)}

    def init(params):
        return MetricsOnly({"delta": jnp.zeros((0, PARAMETERS))} | ({"root": jnp.zeros(PARAMETERS)} if needs else {}))

    def apply(params, deltas, state, *, root_delta=None, **_):
        root = {"root": jnp.concatenate([x.ravel() for x in jax.tree.leaves(root_delta)])} if needs else {}
        return params, MetricsOnly(metrics(deltas) | root)

    return Aggregator(init, apply, frozenset(needs))


@pytest.fixture(scope="module")
def run(settings):
    def simulate(rule=None, **changes):
        base = {"num_rounds": ROUNDS, "eval_every": 1, "cohort_size": 4, "local_steps": 2, "clients_axis": "map"}
        return fd.simulate(rule or recorder(), **settings(**base | changes))

    return simulate


@pytest.fixture(scope="module")
def raw(run):
    """What clients would send, which is the same in every run whose parameters stay."""
    return run(dropout_rate=0.3).history


def tree_of(row):
    return {"Dense_0": {"bias": jnp.asarray(row[:10]), "kernel": jnp.asarray(row[10:]).reshape(64, 10)}}


def flat(tree):
    return np.concatenate([np.ravel(x) for x in jax.tree.leaves(tree)])


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if place else []) for place, name in enumerate(COMPRESSORS)]
)
def test_the_server_gets_what_the_compressor_makes_of_each_message_and_of_its_memory(run, raw, name):
    """Also of clients that miss rounds, or that work and do not answer: they remember what has arrived."""
    compressor, key = COMPRESSORS[name], jax.random.key(0)
    found = run(compression=compressor, dropout_rate=0.3)
    first = channel.uplink_memory(compressor, Uplink(SHAPES))
    memory = dict.fromkeys(range(NUM_CLIENTS), first)
    send = jax.jit(lambda uplink, memory, key: channel.send(compressor, uplink, memory, key))
    np.testing.assert_array_equal(found.history["client_ids"], raw["client_ids"])
    assert not raw["valid"].all()
    for t, (ids, answers) in enumerate(zip(raw["client_ids"], raw["valid"], strict=True)):
        for place, client in enumerate(ids):
            own_key = keys.client_key(key, "compression", t, client)
            received, after = send(Uplink(tree_of(raw["delta"][t, place])), memory[client], own_key)
            np.testing.assert_allclose(found.history["delta"][t, place], flat(received.delta), rtol=1e-3, atol=1e-6)
            memory[client] = after if answers[place] else memory[client]
    kept = found.state.clients.compression
    if jax.tree.leaves(first):
        for client in range(NUM_CLIENTS):
            own = jax.tree.map(lambda x, client=client: x[client], kept.rows)
            chex.assert_trees_all_close(own, memory[client], rtol=1e-2, atol=1e-4)
    else:
        assert kept == ()


@pytest.mark.sample(1)
@pytest.mark.parametrize("unusable", [np.nan, np.inf, 1e32])
def test_a_message_that_cannot_be_used_is_sent_as_it_is_and_not_remembered(unusable):
    compressor, delta = top_k(0.05), {"w": jnp.arange(40.0)}
    memory = channel.uplink_memory(compressor, Uplink(delta))
    _, memory = channel.send(compressor, Uplink(delta), memory, jax.random.key(0))
    broken = Uplink({"w": delta["w"].at[3].set(unusable)})
    received, after = channel.send(compressor, broken, memory, jax.random.key(1))
    chex.assert_trees_all_equal(received, broken)
    chex.assert_trees_all_equal(after, memory)
    assert np.abs(flat(memory)).max() > 0


@pytest.mark.thorough
@pytest.mark.optimised
@pytest.mark.parametrize(
    "compressor", [pytest.param(top_k(1.0), marks=pytest.mark.slow), low_rank(10)], ids=lambda c: c.name
)
def test_everything_sent_is_the_run_without_compression_bit_for_bit(run, compressor):
    rule = fd.aggregators.drag(c=0.25, alpha=0.25)
    plain, compressed = run(rule), run(rule, compression=compressor)
    chex.assert_trees_all_equal(plain.params, compressed.params)
    chex.assert_trees_all_equal(plain.history, compressed.history)


class TestBytes:
    @pytest.mark.sample(2)
    @pytest.mark.parametrize(
        ("compressor", "sent"),
        [
            (None, 2600),
            (top_k(0.05), 32 * 8),
            (random_k(0.1), 8 + 65 * 4),
            (qsgd(4), (4 + 5) + (4 + 320)),
            (sign(), (4 + 2) + (4 + 80)),
            (low_rank(2), 10 * 4 + 2 * (64 + 10) * 4),
        ],
        ids=lambda value: getattr(value, "name", None),
    )
    def test_up_and_down(self, settings, compressor, sent):
        down = None if compressor is None or compressor.contraction is None else compressor
        cost = prepare(recorder(), **settings(compression=compressor, downlink_compression=down)).cost
        assert (cost.bytes_up, cost.bytes_down) == (sent, 2600 if down is None else sent)

    @pytest.mark.thorough
    def test_of_methods_with_two_messages(self, settings):
        given = settings(compression=top_k(0.05), downlink_compression=top_k(0.05))
        scaffold = prepare(fd.algorithms.scaffold(NUM_CLIENTS), **given).cost
        assert (scaffold.bytes_up, scaffold.bytes_down) == (2 * 256, 256 + 2 * 2600)
        assert prepare(fd.algorithms.fednova(), **given).cost.bytes_up == 256 + 4, "its aux is a number"

    @pytest.mark.thorough
    def test_in_the_history(self, raw, run):
        found = run(compression=top_k(0.05), downlink_compression=sign(), dropout_rate=0.3).history
        np.testing.assert_array_equal(found["bytes_up"], 256 * found["participants"])
        np.testing.assert_array_equal(found["bytes_down"], 90 * found["drawn"])
        np.testing.assert_array_equal(found["participants"], raw["valid"].sum(1))


class TestDownlink:
    @pytest.mark.thorough
    def test_clients_start_where_the_compressed_differences_have_brought_them(self, settings):
        """The client rule reports where it started; the server moves by the mean of the deltas."""
        compressor, key = qsgd(5, error_feedback=True), jax.random.key(0)
        vector = lambda x: jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(x)])

        def aggregate(params, uplink, state, **_):
            metrics = {"start": vector(jax.tree.map(lambda x: x[0], uplink.aux)), "params": vector(params)}
            return fd.tree.move(params, fd.tree.mean(uplink.delta)), MetricsOnly(metrics)

        plain = fd.algorithms.from_aggregator(fd.aggregators.fedavg())
        report = lambda downlink, w_end, carry, total: downlink.start
        client = fd.types.ClientRule(direction=plain.client.direction, report=report)
        init = lambda params: MetricsOnly({"start": jnp.zeros(PARAMETERS), "params": jnp.zeros(PARAMETERS)})
        method = plain._replace(client=client, init=init, aggregate=aggregate, sums=None)
        given = settings(num_rounds=ROUNDS, eval_every=1, cohort_size=4, downlink_compression=compressor)
        history = fd.simulate(method, **given).history
        received = history["params"][0]
        np.testing.assert_array_equal(history["start"][0], received)
        send = jax.jit(lambda x, key: compressor.contraction.compress(x, (), key)[0])
        for t in range(1, ROUNDS):
            first = jax.tree.leaves(tree_of(received))
            difference = [a - b for a, b in zip(jax.tree.leaves(tree_of(history["params"][t])), first, strict=True)]
            sent = send(difference, keys.round_key(key, "downlink compression", t))
            received = flat([a + b for a, b in zip(first, sent, strict=True)])
            np.testing.assert_allclose(history["start"][t], received, rtol=1e-4, atol=1e-6)
            assert np.abs(received - history["params"][t]).max() > 1e-4

    def test_what_may_add_up_is_refused(self, refused):
        refused("must feed its errors back; set error_feedback=True", recorder(), downlink_compression=random_k(0.1))
        message = r"compression='top_k': must be a compressor, .*fd.compression.top_k\(...\)"
        refused(message, recorder(), compression="top_k")
        refused(r"call it, fd.compression.sign\(...\)", recorder(), compression=sign)


class TestAttackers:
    """Messages of ones, which no sparse message is."""

    def forge(self, key, uplink, malicious, *, client_ids, **_):
        ones = lambda x: jnp.where(fd.tree.expand(malicious, x), jnp.linspace(1, 2, x[0].size).reshape(x[0].shape), x)
        return jax.tree.map(ones, uplink)

    @pytest.mark.thorough
    @pytest.mark.parametrize(("form", "nonzero"), [("decompressed", PARAMETERS), ("compressed", 32)])
    def test_they_forge_what_is_decompressed_or_what_is_sent(self, run, form, nonzero):
        found = run(
            compression=top_k(0.05),
            attack=Attack(forge=self.forge),
            byzantine_fraction=0.5,
            forged_messages=form,
            num_rounds=1,
        ).history
        malicious, delta = found["malicious"][0], found["delta"][0]
        assert 0 < malicious.sum() < 4
        assert set((delta != 0).sum(1)[malicious]) == {nonzero}
        assert ((delta != 0).sum(1)[~malicious] <= 32).all()
        expected = np.linspace(1, 2, 640)
        if form == "compressed":
            largest = np.append(expected[-31:], 2.0)  # of the kernel, and the last of the bias
            np.testing.assert_allclose(np.sort(delta[malicious][0])[-32:], largest, rtol=1e-6)

    @pytest.mark.thorough
    def test_the_root_delta_is_the_servers_own(self, run):
        plain, compressed = (
            run(recorder({"root_delta"}), root_size=40, num_rounds=1, compression=c) for c in (None, top_k(0.05))
        )
        np.testing.assert_array_equal(plain.history["root"], compressed.history["root"])


@pytest.mark.thorough
def test_a_message_that_is_not_usable_is_rejected_and_not_remembered(settings, digits):
    train, test = (part._replace(x=np.float32(part.x)) for part in (digits.train, digits.test))
    train.x[digits.rows[3][: digits.counts[3]]] = np.inf
    data = dataclasses.replace(digits, train=train, test=test)
    given = settings(data=data, cohort_size=NUM_CLIENTS, num_rounds=2, compression=sign())
    result = fd.simulate(fd.aggregators.fedavg(), **given)
    assert result.history["num_rejected"].sum() == 2
    error = flat(jax.tree.map(lambda x: x[3], result.state.clients.compression.rows.delta.error))
    assert not error.any()
    assert np.isfinite(flat(result.state.clients.compression.rows.delta.error)).all()


EVERYTHING = {"compression": low_rank(2), "downlink_compression": random_k(0.2, error_feedback=True)}


class TestTheSameBits:
    """With a memory of several arrays on both ways and random draws; ``test_client_rows`` has other ways to compute."""

    @pytest.mark.thorough
    def test_resumed(self, run):
        whole = run(fd.algorithms.scaffold(NUM_CLIENTS), **EVERYTHING)
        half = run(fd.algorithms.scaffold(NUM_CLIENTS), num_rounds=2, **EVERYTHING)
        again = run(fd.algorithms.scaffold(NUM_CLIENTS), initial=half.state, **EVERYTHING)
        chex.assert_trees_all_equal(on_host(again), on_host(whole), strict=True)

    @pytest.mark.slow
    def test_streamed_as_stacked(self, run):
        drag = fd.aggregators.drag(c=0.25, alpha=0.25)
        stack, stream = (run(drag, aggregation=a, **EVERYTHING) for a in ("stack", "stream"))
        chex.assert_trees_all_close(stack.params, stream.params, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("build", "values", "sent"),
    [
        pytest.param(top_k, (0.05, 0.3), (256, 1560), marks=pytest.mark.slow),
        pytest.param(random_k, (0.05, 0.3), (136, 788), marks=pytest.mark.slow),
        pytest.param(qsgd, (3, 6), (252, 496), marks=pytest.mark.thorough),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_cells_of_a_sweep_are_the_separate_runs(settings, build, values, sent):
    """With keys, memories and bytes of their own, and one program for all numbers."""
    made = [
        Settings(algorithm=fd.algorithms.from_aggregator(fd.aggregators.fedavg()), **settings(seed=seed, compression=c))
        for seed, c in enumerate(map(build, values))
    ]
    cells = prepare_batch(made).run([0, 1])
    for one, cell, bytes_up in zip(made, cells, sent, strict=True):
        alone = trace(one).run()
        assert alone.cost == cell.cost
        assert cell.cost.bytes_up == bytes_up
        np.testing.assert_array_equal(alone.history["bytes_up"], cell.history["bytes_up"])
        chex.assert_trees_all_close(on_host(alone), on_host(cell), rtol=1e-3, atol=1e-4)


@pytest.mark.thorough
def test_cells_of_a_sweep_with_a_clock_have_rounds_of_their_own_length(settings):
    """The time of a message goes by its bytes, also where cells of one program send different ones."""
    given = settings(clock=fd.clocks.constant(seconds_per_step=0.0, bandwidth=1000.0), eval_every=1)
    method = fd.algorithms.from_aggregator(fd.aggregators.fedavg())
    made = [Settings(algorithm=method, **given | {"compression": random_k(fraction)}) for fraction in (0.1, 0.4)]
    for cell, kept in zip(prepare_batch(made).run([0, 1]), (65, 260), strict=True):
        np.testing.assert_allclose(cell.history["seconds"], (4 * PARAMETERS + 8 + 4 * kept) / 1000, rtol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "method",
    [
        fd.algorithms.adabest(NUM_CLIENTS),
        fd.algorithms.feddyn(NUM_CLIENTS, a=0.1),
        fd.algorithms.feddc(NUM_CLIENTS),
        fd.algorithms.fedacg(),
        fd.algorithms.stem(),
        fd.algorithms.taco(NUM_CLIENTS),
        fd.algorithms.tailored_fedprox(NUM_CLIENTS),
        fd.algorithms.fednova(),
        fd.algorithms.mime(),
        fd.algorithms.from_aggregator(fd.aggregators.krum(1), client=fd.clients.momentum_sgd(0.9)),
    ],
    ids=lambda method: method.name,
)
def test_every_method(run, method):
    found = run(method, compression=sign(), downlink_compression=sign())
    assert np.isfinite(flat(found.params)).all()
    assert found.history["bytes_up"][0] < 4 * 2600 / 10
