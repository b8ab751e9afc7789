"""Linen modules, nnx modules and pairs of functions train alike, and as a plain loop would train them."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from nets import NNX, Net, Noise, apply, init

import fedjax_drag as fd
from fedjax_drag.data.batching import draw_epochs, draw_positions
from fedjax_drag.simulation import prepare
from fedjax_drag.simulation.model.forms import form_of, variables_of
from fedjax_drag.simulation.program import keys

DRAG = fd.aggregators.drag(c=0.25, alpha=0.25)
FEDAVG = fd.aggregators.fedavg()


def same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(np.testing.assert_array_equal, a, b)


def started(rule, params, statistics=None, **settings):
    """A run from given parameters."""
    simulation = prepare(rule, **settings)
    state = simulation.initial_state()
    model = state.model if statistics is None else state.model._replace(statistics=statistics)
    return simulation.run(initial=state._replace(params=params, model=model))


@pytest.mark.thorough
def test_three_forms_give_the_same_bits(settings):
    params = init(jax.random.key(3))
    forms = [Net(0.0, normalised=False), NNX(nnx.Rngs(0), 0.0, normalised=False), (init, apply)]
    linen, *others = [started(DRAG, params, **settings(model=form)) for form in forms]
    for other in others:
        same(other.params, linen.params)
        np.testing.assert_array_equal(other.history["test_loss"], linen.history["test_loss"])


@pytest.mark.slow
def test_batch_norm_of_linen_and_nnx_give_the_same_bits(settings):
    module = NNX(nnx.Rngs(1), 0.0)
    before = nnx.to_pure_dict(nnx.state(module))
    params = nnx.to_pure_dict(nnx.state(module, nnx.Param))
    linen = started(DRAG, params, **settings(model=Net(0.0)))
    other = fd.simulate(DRAG, **settings(model=module))
    same(other.params, linen.params)
    same(other.state.model.statistics, linen.state.model.statistics["batch_stats"])
    same(nnx.to_pure_dict(nnx.state(module)), before)  # the user's module is as it was


def batches(data, key, round_index, local_epochs, epoch_order):
    """The mini-batches of the only client in a round, as rows of the training examples."""
    if epoch_order == "fixed":
        return [data.rows[0][start : start + 8] for start in range(0, data.counts[0], 8)]
    own = keys.client_key(key, "batches", round_index, 0)
    if local_epochs is None:
        return list(data.rows[0][np.asarray(draw_positions(own, data.counts[0], 3, 8))])
    places, real = map(np.asarray, draw_epochs(own, int(data.counts[0]), local_epochs, 8, len(data.rows[0])))
    return [data.rows[0][place[kept]] for place, kept in zip(places, real, strict=True)]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("local_epochs", "order"), [(None, "random"), (1.0, "random"), (1.0, "fixed")], ids=["steps", "epochs", "fixed"]
)
def test_one_client_with_all_data_is_a_plain_loop(digits, settings, local_epochs, order):
    """With dropout and BatchNorm, by optax and the same keys; the last batch of an epoch has 4 examples."""
    x, y = np.asarray(digits.train.x[:36], np.float32) / 16, np.asarray(digits.train.y[:36])
    data = fd.data.partition.iid(fd.data.from_arrays(x, y, x, y), num_clients=1)
    length = {"local_steps": None, "local_epochs": 1.0, "epoch_order": order} if local_epochs else {"local_steps": 3}
    net, key, optimizer = Net(), jax.random.key(0), optax.sgd(0.1)
    options = {"data": data, "cohort_size": 1, "batch_size": 8, "num_rounds": 2, "eval_every": 1, "seed": 0}
    ours = fd.simulate(fd.aggregators.fedavg(), **settings(model=net, **options, **length))
    variables = net.init(keys.stream(key, "init"), jnp.zeros((1, *data.input_shape)), train=False)
    params, statistics = variables["params"], variables["batch_stats"]
    inputs = np.asarray(data.preprocess(data.train.x))

    @jax.jit
    def gradient(params, statistics, x, y, rng):
        def loss(params):
            variables = {"params": params, "batch_stats": statistics}
            logits, after = net.apply(variables, x, train=True, rngs={"dropout": rng}, mutable=["batch_stats"])
            return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean(), after["batch_stats"]

        return jax.grad(loss, has_aux=True)(params)

    for round_index in range(2):
        dropout = keys.client_key(key, "model.dropout", round_index, 0)
        for step, index in enumerate(batches(data, key, round_index, local_epochs, order)):
            rng = jax.random.fold_in(dropout, step)
            slope, statistics = gradient(params, statistics, inputs[index], data.train.y[index], rng)
            params = optax.apply_updates(params, optimizer.update(slope, optimizer.init(params))[0])
    close = functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-5)
    jax.tree.map(close, ours.params, params)
    jax.tree.map(close, ours.state.model.statistics["batch_stats"], statistics)
    logits = net.apply(ours.variables, data.preprocess(data.test.x), train=False)
    assert ours.history["test_accuracy"][-1] == pytest.approx(np.mean(logits.argmax(-1) == data.test.y))


class Both(nn.Module):
    """Knows whether it is in training by an argument of the usual name, and by one of its own."""

    @nn.compact
    def __call__(self, x, train=False, noisy=False):
        x = nn.BatchNorm(use_running_average=not train)(x=x.reshape(len(x), -1))
        return nn.Dense(10)(x + noisy * jax.random.normal(self.make_rng("noise"), x.shape) if noisy else x)


@pytest.mark.thorough
def test_arguments_of_the_usual_names_are_known_also_beside_given_ones(settings):
    model = fd.models.with_modes(Both(), training={"noisy": True}, evaluation={"noisy": False}, rngs=["noise"])
    simulation = prepare(FEDAVG, **settings(model=model, num_rounds=1))
    before = simulation.initial_state().model.statistics
    after = simulation.run().state.model.statistics
    padded = settings(model=model, num_rounds=1, local_steps=None, local_epochs=1.0, model_state="frozen")
    assert np.isfinite(prepare(FEDAVG, **padded).run().history["test_loss"]).all()
    assert (jax.tree.leaves(after)[0] != jax.tree.leaves(before)[0]).any(), "running statistics are those of training"


@pytest.mark.parametrize("make", [lambda: NNX(nnx.Rngs(0)), lambda: fd.models.with_modes(NNX(nnx.Rngs(0)))])
def test_nnx_modules_draw_anew_in_every_step(make):
    """Whatever their streams are called."""
    module = make()
    functions, (params, statistics) = form_of(module, jnp.ones((1, 8, 8, 1))), variables_of(module)
    x = jax.random.normal(jax.random.key(3), (4, 8, 8, 1))
    first, second = (
        functions.train(params, statistics, x, dict.fromkeys(functions.streams, jax.random.key(seed)), None)[0]
        for seed in (1, 2)
    )
    assert (first != second).any()


def test_modes_and_streams_may_be_given(settings):
    plain = {"train_loss": [], "test_loss": []}
    for noisy in (False, True):
        model = fd.models.with_modes(Noise(), training={"noisy": noisy}, rngs=["noise"] if noisy else [])
        history = fd.simulate(FEDAVG, **settings(model=model)).history
        for name, values in plain.items():
            values.append(history[name][-1])
    assert plain["train_loss"][1] != plain["train_loss"][0]
    assert np.isfinite(plain["test_loss"]).all()
    with pytest.raises(ValueError, match=r"training=3: must be a mapping"):
        fd.models.with_modes(Noise(), training=3)
    with pytest.raises(ValueError, match=r"rngs='noise': must be names of streams"):
        fd.models.with_modes(Noise(), rngs="noise")


@pytest.mark.thorough
def test_the_functions_of_a_linen_module_are_a_pair(settings):
    """Whose ``init`` takes an input beside the key."""
    net = Net(0.0, normalised=False)
    pair = (
        (lambda key, x: net.init(key, x, train=False)["params"]),
        (lambda params, x, train: net.apply({"params": params}, x, train=train)),
    )
    linen, functions = (prepare(FEDAVG, **settings(model=model)).initial_state() for model in (net, pair))
    same(linen.params, functions.params)
    whole = prepare(FEDAVG, **settings(model=(nn.Dense(10).init, nn.Dense(10).apply), data=flat())).initial_state()
    assert whole.params["params"]["kernel"].shape == (4, 10)


def flat():
    x, y = np.zeros((60, 4), np.float32), np.arange(60) % 10
    return fd.data.partition.iid(fd.data.from_arrays(x, y, x, y), num_clients=6)


@pytest.mark.thorough
def test_a_pair_may_have_a_key(settings):
    def dropped(params, x, *, train=False, key=None):
        assert train == (key is not None)
        return apply(params, x * jax.random.bernoulli(key, 0.5, x.shape) * 2 if train else x)

    result = fd.simulate(FEDAVG, **settings(model=(init, dropped)))
    plain = fd.simulate(FEDAVG, **settings(model=(init, apply)))
    assert result.history["train_loss"][-1] != plain.history["train_loss"][-1]


@pytest.mark.thorough
def test_an_nnx_class_starts_by_the_seed(settings):
    starts = [prepare(FEDAVG, **settings(model=NNX, seed=seed)).initial_state() for seed in (0, 0, 1)]
    same(starts[0].params, starts[1].params)
    assert (starts[0].params["a"]["kernel"] != starts[2].params["a"]["kernel"]).any()
    module = NNX(nnx.Rngs(5))
    start = prepare(FEDAVG, **settings(model=module, seed=1)).initial_state()
    same(start.params, nnx.to_pure_dict(nnx.state(module, nnx.Param)))


@pytest.mark.thorough
def test_nnx_drops_out_in_training_only(settings):
    kept, dropped = (fd.simulate(FEDAVG, **settings(model=NNX(nnx.Rngs(0), rate))) for rate in (0.0, 0.25))
    assert kept.history["train_loss"][-1] != dropped.history["train_loss"][-1]
    again = fd.simulate(FEDAVG, **settings(model=NNX(nnx.Rngs(0), 0.25)))
    same(again.params, dropped.params)  # the keys are the run's, not the module's


class Sowing(nn.Module):
    """Keeps a number of every call."""

    @nn.compact
    def __call__(self, x):
        self.sow("losses", "square", (x**2).mean())
        return nn.Dense(2)(x)


def test_a_collection_that_grows_in_training_is_named():
    form = form_of(Sowing(), jax.ShapeDtypeStruct((1, 3), jnp.float32))
    with pytest.raises(ValueError, match=r"model=Sowing: in training: has \['losses'\]\['square'\]\[1\] in addition"):
        form.train(*form.init(jax.random.key(0)), jnp.ones((4, 3)), {}, None)


def test_nnx_batch_norm_has_no_padded_batches(refused):
    refused(
        r"model=NNX: has BatchNorm, .* must have none with local_epochs",
        FEDAVG,
        model=NNX(nnx.Rngs(0)),
        local_steps=None,
        local_epochs=1.0,
    )


@pytest.mark.thorough
@pytest.mark.parametrize("changes", [{}, {"deadline": 2, "late": "drop"}], ids=["pair", "late"])
def test_nnx_batch_norm_takes_any_number_of_full_batches(settings, changes):
    """Of which there is no padding, however many a client takes."""
    module = NNX(nnx.Rngs(1), 0.0)
    params = nnx.to_pure_dict(nnx.state(module, nnx.Param))
    linen = started(FEDAVG, params, **settings(model=Net(0.0), local_steps=(1, 3), **changes))
    other = fd.simulate(FEDAVG, **settings(model=module, local_steps=(1, 3), **changes))
    same(other.params, linen.params)
    same(other.state.model.statistics, linen.state.model.statistics["batch_stats"])


@pytest.mark.parametrize(
    "changes",
    [{"clients_axis": "map"}, pytest.param({"clients_axis": "map", "clients_per_chunk": 2}, marks=pytest.mark.slow)],
)
@pytest.mark.thorough
def test_ways_over_the_clients_agree(settings, changes):
    runs = [fd.simulate(FEDAVG, **settings(model=Net(), **ways)) for ways in (changes, {"clients_axis": "vmap"})]
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-5), *(run.state.model for run in runs))


@pytest.mark.thorough
def test_a_run_goes_on_where_it_stopped(settings):
    whole = fd.simulate(DRAG, **settings(model=Net()))
    half = fd.simulate(DRAG, **settings(model=Net(), num_rounds=3))
    same(fd.simulate(DRAG, **settings(model=Net()), initial=half.state).state, whole.state)
