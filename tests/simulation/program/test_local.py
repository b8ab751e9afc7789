"""The local pass: epochs over clients of different sizes, schedules of the step size, momentum and weight decay."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from quadratics import stateless

import fedjax_drag as fd
from fedjax_drag import aggregators, algorithms, clients
from fedjax_drag.data.batching import draw_epochs, epoch_steps
from fedjax_drag.experiment.build.optimizers import local_sgd
from fedjax_drag.losses import cross_entropy
from fedjax_drag.selection._uniform import draw_uniformly
from fedjax_drag.simulation.program import keys
from fedjax_drag.simulation.program.local import local_pass
from fedjax_drag.types import Batch, Downlink

drawn = jax.jit(draw_epochs, static_argnames=("epochs", "batch_size", "most"))
COUNTS = (2, 5, 11)
ETA = 0.3


@pytest.mark.parametrize("epochs", [0.3, 1, 2.5])
@pytest.mark.parametrize("n", [1, 3, 8, 11])
def test_epochs_are_samples_without_replacement_cut_into_batches(n, epochs):
    positions, real = map(np.asarray, drawn(jax.random.key(n), n, epochs=epochs, batch_size=4, most=11))
    whole, part = int(epochs), int(np.floor(epochs % 1 * n + 0.5))
    sizes = [n] * whole + [part if whole else max(part, 1)]
    expected = [min(4, size - start) for size in sizes for start in range(0, size, 4)]
    assert real.sum(1).tolist() == expected + [0] * (len(real) - len(expected))
    assert positions.min() >= 0
    assert positions.max() < n
    taken = np.split(positions[real], np.cumsum(sizes)[:-1])
    assert [len(set(places)) for places in taken] == sizes
    for places, mask in zip(positions, real, strict=True):
        assert mask.tolist() == sorted(mask, reverse=True)
        assert not mask.any() or set(places[~mask]) <= {places[0]}


@pytest.mark.parametrize("epochs", [0.3, 1, 2.5])
def test_without_a_key_every_epoch_is_in_the_order_of_the_list(epochs):
    of_key = draw_epochs(jax.random.key(0), 7, epochs, 4, most=11)
    positions, real = map(np.asarray, draw_epochs(None, 7, epochs, 4, most=11))
    np.testing.assert_array_equal(real, of_key[1])
    assert positions[real].tolist() == [*range(7)] * int(epochs) + [*range({0.3: 2, 1: 0, 2.5: 4}[epochs])]
    assert all(set(places[~mask]) <= {places[0]} for places, mask in zip(positions, real, strict=True) if mask.any())


@pytest.mark.thorough
def test_the_largest_client_has_room_for_a_part_that_is_rounded_up():
    """Seven and a half examples are eight."""
    _, real = draw_epochs(jax.random.key(0), 10, 0.75, 1, most=10)
    assert int(real.sum()) == 8


def test_a_fraction_of_an_epoch_is_that_of_its_decimals():
    """Halves are rounded up, also where the product is just below one in float32, such as 0.59 * 50."""
    n = np.arange(1, 401)
    for percent in (1, 29, 53, 59, 65, 78, 99):
        exact = (2 * percent * n + 100) // 200
        np.testing.assert_array_equal(epoch_steps(jnp.asarray(n), percent / 100, 1), np.maximum(exact, 1))


def test_epochs_differ_in_order_and_examples_are_equally_likely():
    draw = jax.jit(jax.vmap(lambda key: draw_epochs(key, 5, 2, 5, most=9)[0][:2]))
    positions = np.asarray(draw(jax.random.split(jax.random.key(0), 4000)))
    assert (positions[:, 0] == positions[:, 1]).all(-1).mean() == pytest.approx(1 / 120, abs=0.006)
    shares = (positions[:, 0, :, None] == np.arange(5)).mean(0)
    np.testing.assert_allclose(shares, 0.2, atol=0.03)


def loss_fn(w, batch):
    losses = cross_entropy()(batch.x @ w, batch.y)
    if batch.real is None:
        return losses.mean()
    return jnp.where(batch.real, losses, 0.0).sum() / jnp.maximum(batch.real.sum(), 1)


def alone(client, downlink, batches):
    """A local pass as a plain loop over batches of their own sizes."""
    w, carry, losses = downlink.start, client.begin(downlink), []
    for batch in batches:
        losses.append(loss_fn(w, batch))
        direction, carry = client.direction(jax.grad(loss_fn), w, carry, downlink, batch)
        w = w - ETA * direction
    message = w - downlink.start, client.report(downlink, w, carry, jnp.float32(len(batches) * ETA))
    return message, jnp.stack(losses).mean()


@pytest.mark.thorough
@pytest.mark.parametrize(
    "method",
    [
        pytest.param(algorithms.from_aggregator(aggregators.fedavg(), clients.fedprox(0.5)), id="fedprox"),
        pytest.param(
            algorithms.from_aggregator(aggregators.fedavg(), clients.robust_sgd(aggregators.median())), id="robust_sgd"
        ),
        pytest.param(algorithms.scaffold(3), id="scaffold"),
        pytest.param(algorithms.stem(carry_momentum=True), id="stem"),
        pytest.param(algorithms.taco(3, gamma=0.5), id="taco"),
        pytest.param(algorithms.fednova(rho=0.5, mu=0.1), id="fednova"),
        pytest.param(algorithms.mime(), id="mime"),
    ],
)
def test_a_client_beside_larger_ones_computes_the_same_as_alone(method):
    rng = np.random.default_rng(0)
    some = lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), leaf.dtype) if leaf.dtype == jnp.float32 else ~leaf
    x, y = jnp.asarray(rng.normal(size=(3, 11, 4)), jnp.float32), jnp.asarray(rng.integers(0, 3, (3, 11)))
    start = some(jnp.zeros((4, 3)))
    downlink = jax.tree.map(some, method.broadcast(start, method.init(start), jnp.arange(3)))

    def one(data, downlink, key, count):
        positions, real = draw_epochs(key, count, 1.5, 4, most=11)
        fetch = lambda at: Batch(data[0][at], data[1][at])
        return (
            local_pass(method.client, stateless(loss_fn), downlink, fetch, positions, ETA, real=real),
            positions,
            real,
        )

    keys, axes = jax.random.split(jax.random.key(0), 3), Downlink(None, None, 0)
    together = jax.jit(jax.vmap(one, in_axes=(0, axes, 0, 0)))
    result, positions, real = together((x, y), downlink, keys, jnp.array(COUNTS))
    assert real.any(-1).sum(1).tolist() == [2, 3, 5]
    positions, real = np.asarray(positions), np.asarray(real)

    def apart():
        for m in range(3):
            chosen = [places[mask] for places, mask in zip(positions[m], real[m], strict=True) if mask.any()]
            batches = [Batch(x[m, places], y[m, places]) for places in chosen]
            own = downlink._replace(own=jax.tree.map(lambda leaf, m=m: leaf[m], downlink.own))
            yield alone(method.client, own, batches)

    messages, losses = jax.tree.map(lambda *leaves: jnp.stack(leaves), *jax.jit(lambda: list(apart()))())
    np.testing.assert_allclose(result.loss, losses, rtol=1e-5)
    compare = lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)
    jax.tree.map(compare, tuple(result.uplink), messages)


def numpy_pass(start, x, y, batches, step_size, momentum, weight_decay):
    """SGD on softmax regression with the momentum and weight decay of the usual libraries."""
    (w, b), buffers, losses = start, (0.0, 0.0), []
    for chosen in batches:
        z = x[chosen] @ w + b
        p = np.exp(z - z.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        losses.append(-np.log(p[np.arange(len(chosen)), y[chosen]]).mean())
        p[np.arange(len(chosen)), y[chosen]] -= 1
        gradients = x[chosen].T @ p / len(chosen) + weight_decay * w, p.mean(0) + weight_decay * b
        buffers = tuple(momentum * v + g for v, g in zip(buffers, gradients, strict=True))
        w, b = w - step_size * buffers[0], b - step_size * buffers[1]
    return w, b, np.mean(losses)


def twin(simulation, data, chosen_clients, start, index, step_size, momentum=0.0, weight_decay=0.0):
    """The ends of local passes of one epoch and a half, from the engine's draws: client ids, rows and counts."""
    x = np.asarray(data.preprocess(data.train.x), np.float64).reshape(len(data.train.y), -1)
    for m, row, count in chosen_clients:
        key = jax.random.fold_in(keys.round_key(simulation.key, "batches", index), m)
        positions, real = map(np.asarray, drawn(key, count, epochs=1.5, batch_size=16, most=len(row)))
        batches = [row[places[mask]] for places, mask in zip(positions, real, strict=True) if mask.any()]
        yield numpy_pass(start, x, data.train.y, batches, step_size, momentum, weight_decay)


@pytest.mark.parametrize(
    "changes",
    [
        {"clients_axis": "map"},
        pytest.param({"clients_axis": "vmap"}, marks=pytest.mark.slow),
        pytest.param({"clients_axis": "map", "clients_per_chunk": 2}, marks=pytest.mark.slow),
        pytest.param({"clients_axis": "map", "cohort_size": 4, "mesh": "cores"}, marks=pytest.mark.slow),
    ],
)
def test_epochs_schedule_momentum_and_weight_decay_equal_a_numpy_twin(digits, settings, fedavg, changes):
    work = {
        "local_steps": None,
        "local_epochs": 1.5,
        "batch_size": 16,
        "step_size": optax.exponential_decay(0.1, 1, 0.5),
        "local_optimizer": optax.chain(optax.add_decayed_weights(0.01), optax.trace(0.6)),
    }
    simulation = fd.simulation.prepare(fedavg, **settings(num_rounds=2, eval_every=2, **work | changes))
    start = simulation.initial_state().params["Dense_0"]
    w, b = (np.asarray(start[name], np.float64) for name in ("kernel", "bias"))
    losses = []
    for index, step_size in enumerate((0.1, 0.05)):
        key = keys.round_key(simulation.key, "cohort", index)
        ids = np.asarray(draw_uniformly(key, 12, changes.get("cohort_size", 5)))
        cohort = [(m, digits.rows[m], digits.counts[m]) for m in ids]
        ends = list(twin(simulation, digits, cohort, (w, b), index, step_size, 0.6, 0.01))
        w, b, loss = (np.mean([end[i] for end in ends], axis=0) for i in range(3))
        losses.append(loss)
    result = simulation.run()
    np.testing.assert_allclose(result.params["Dense_0"]["kernel"], w, rtol=1e-5, atol=2e-6)
    np.testing.assert_allclose(result.params["Dense_0"]["bias"], b, rtol=1e-5, atol=2e-6)
    assert result.history["train_loss"][-1] == pytest.approx(np.mean(losses), rel=1e-5)


@pytest.mark.thorough
def test_the_server_passes_over_its_root_data_as_often_as_a_client(digits, settings):
    algorithm = algorithms.from_aggregator(aggregators.root_only())
    work = {"local_steps": None, "local_epochs": 1.5, "batch_size": 16, "num_rounds": 1, "root_size": 37}
    simulation = fd.simulation.prepare(algorithm, **settings(**work))
    start = simulation.initial_state().params["Dense_0"]
    root = [(12, np.asarray(simulation.federation.root_row), 37)]
    ((w, b, _),) = twin(simulation, digits, root, (np.asarray(start["kernel"]), np.asarray(start["bias"])), 0, 0.1)
    params = simulation.run().params["Dense_0"]
    np.testing.assert_allclose(params["kernel"], w, rtol=1e-5, atol=2e-6)
    np.testing.assert_allclose(params["bias"], b, rtol=1e-5, atol=2e-6)


@pytest.mark.thorough
def test_a_schedule_is_traced_once_and_passed_to_the_method_exactly(settings):
    asked = []

    def schedule(index):
        asked.append(index)
        return 0.1 / (1.0 + index)

    simulation = fd.simulation.prepare(algorithms.taco(12), **settings(step_size=schedule))
    before = len(asked)
    state = simulation.run().state.algorithm
    assert len(asked) == before
    np.testing.assert_allclose(state.work.total_step_size, 3 * 0.1 / 6, rtol=1e-6)


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_and_weight_decay_on_a_quadratic(nesterov):
    centre = np.array([1.0, -2.0])
    loss = lambda w, batch: 0.5 * jnp.sum((w - batch.x) ** 2)
    w = v = np.zeros(2)
    for _ in range(3):
        d = w - centre + 0.1 * w
        v = 0.8 * v + d
        w = w - 0.2 * (d + 0.8 * v if nesterov else v)
    batch = Batch(jnp.asarray(centre, jnp.float32), jnp.zeros(1, jnp.int32))
    downlink, places = Downlink(jnp.zeros(2)), jnp.zeros((3, 1), jnp.int32)
    optimizer = local_sgd(momentum=0.8, nesterov=nesterov, weight_decay=0.1)
    result = local_pass(clients.sgd(), stateless(loss), downlink, lambda _: batch, places, 0.2, optimizer=optimizer)
    np.testing.assert_allclose(result.uplink.delta, w, rtol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("num_steps", [1, 4])
def test_a_first_step_apart_takes_the_same_steps(num_steps, monkeypatch):
    # Accelerators take it where several clients run at once; here it is taken on the CPU too.
    rng = np.random.default_rng(0)
    data = Batch(jnp.asarray(rng.normal(size=(5, 3)), jnp.float32), jnp.asarray(rng.integers(0, 2, 5), jnp.int32))
    places = jnp.asarray(rng.integers(0, 5, (2, num_steps, 4)))
    downlink, optimizer = Downlink(jnp.ones((3, 2))), local_sgd(momentum=0.8)

    def run(places, at_once):
        fetch = lambda drawn: jax.tree.map(lambda x: x[drawn], data)
        options = {"optimizer": optimizer, "at_once": at_once}
        return local_pass(clients.sgd(), stateless(loss_fn), downlink, fetch, places, ETA, **options)

    of_clients = lambda at_once: jax.jit(jax.vmap(lambda one: run(one, at_once)))
    expected, as_on_cpu = of_clients(False)(places), of_clients(True)(places)
    jax.tree.map(np.testing.assert_array_equal, as_on_cpu, expected)
    # A product with the parameters that the clients share comes before the loop.
    text = of_clients(True).trace(places).lower(lowering_platforms=("cuda",)).as_text()
    products = [line for line in text.splitlines() if "stablehlo.dot_general" in line]
    assert any("tensor<2x4x3xf32>, tensor<3x2xf32>" in line for line in products)
    assert jax.tree.structure(of_clients(True).eval_shape(places)) == jax.tree.structure(expected)
    on_gpu = lambda *args, default, **platforms: platforms.get("cuda", default)(*args)
    monkeypatch.setattr(jax.lax, "platform_dependent", on_gpu)
    elsewhere = of_clients(True)(places)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), elsewhere, expected)


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"local_steps": None}, ["local_steps=None, local_epochs=None", "exactly one"]),
        ({"local_epochs": 1}, ["local_steps=3, local_epochs=1", "exactly one"]),
        ({"local_steps": None, "local_epochs": 0}, ["local_epochs=0", "(0, inf)"]),
        ({"epoch_order": "fixed"}, ["epoch_order='fixed'", "needs local_epochs"]),
        ({"local_steps": None, "local_epochs": "two"}, ["local_epochs='two'", "a number > 0"]),
        ({"step_size": optax.linear_schedule(0.1, 0.0, 5)}, ["step_size(5)=0.0", "(0, inf)"]),
        ({"step_size": lambda _: jnp.ones(2)}, ["step_size(0)", "[2]", "a single number"]),
        ({"local_steps": 10**7, "eval_every": 10**6, "num_rounds": 50}, ["eval_every=1000000", "at most 42, so that"]),
        ({"local_steps": (1, 10**7), "eval_every": 50, "num_rounds": 50}, ["2,500,000,000 local steps", "at most 42,"]),
        ({"step_size": lambda _: None}, ["step_size(0)=None", "a single number"]),
        ({"augmentation": lambda _, x: x[:2]}, ["augmentation=function", "float32[2, ", "in the same shape"]),
        ({"augmentation": lambda x: x}, ["augmentation=function", "a key and x", "TypeError"]),
        ({"local_optimizer": optax.sgd(0.1, 0.9)}, ["local_optimizer", "optax.trace(0.9)"]),
    ],
)
def test_wrong_settings_of_local_work(refused, fedavg, changes, parts):
    refused(parts, fedavg, **changes)
