"""IFCA and HypCluster beside their listings in NumPy, and what they promise."""

import jax
import numpy as np
import pytest
from flax import nnx

import fedjax_drag as fd
from fedjax_drag.algorithms import hypcluster, ifca

FEATURES, STEPS, STEP_SIZE = 4, 2, 0.5


def clients(number=6, noise=0.1):
    """Examples of two kinds of clients, whose labels are opposite; numbers of examples that differ."""
    rng = np.random.default_rng(0)
    truth, found = rng.normal(size=FEATURES), []
    for index in range(number):
        x = rng.normal(size=(12 + 3 * index, FEATURES)).astype(np.float32)
        y = (-1) ** index * (x @ truth + noise * rng.normal(size=len(x))) > 0
        found.append((x, y.astype(int)))
    return found


SHARE = 0.25
"""Of its examples that a client holds out."""

FED = fd.data.from_clients(clients(), test=clients()[0], mean=(0.0,), std=(1.0,))
MODEL = fd.models.mlp(2, hidden=())
SETTINGS = {"model": MODEL, "data": FED, "cohort_size": 4, "local_steps": STEPS, "batch_size": "full"}
SETTINGS |= {"num_rounds": 6, "step_size": STEP_SIZE, "eval_every": 1}


def run(method, **changes):
    return fd.simulate(method, **SETTINGS | changes)


def loss_and_gradient(w, x, y):
    """Of softmax regression with parameters ``[F + 1, C]``, the last row being the bias."""
    x = np.column_stack([x, np.ones(len(x))])
    scores = x @ w
    likelihood = np.exp(scores - scores.max(1, keepdims=True))
    likelihood /= likelihood.sum(1, keepdims=True)
    truth = np.eye(w.shape[1])[y]
    return -np.log(likelihood[truth == 1]).mean(), x.T @ (likelihood - truth) / len(x)


def as_matrices(models):
    """``[K, F + 1, C]`` of the models of a state."""
    layer = jax.tree.map(np.float64, models)["Dense_0"]
    return np.concatenate([layer["kernel"], layer["bias"][..., None, :]], axis=-2)


def listing(models, cohorts, weigh):
    """Algorithm 1: the models after the last round, what each client chose last, and the choices of every round."""
    models, chosen, choices = models.copy(), np.full(len(clients()), -1), []
    for cohort in cohorts:
        ends = {}
        for m in cohort:
            x, y = clients()[m]
            losses = [loss_and_gradient(w, x, y)[0] for w in models]
            k = int(np.argmin(losses))
            w = models[k]
            for _ in range(STEPS):
                w = w - STEP_SIZE * loss_and_gradient(w, x, y)[1]
            ends[m] = (k, w - models[k])
            chosen[m] = k
        choices.append([ends[m][0] for m in cohort])
        for k in range(len(models)):
            mine = [m for m in cohort if ends[m][0] == k]
            if mine:
                models[k] = models[k] + sum(weigh(m, mine, cohort) * ends[m][1] for m in mine)
    return models, chosen, choices


def size(m):
    return len(clients()[m][1])


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("method", "weigh"),
    [
        (ifca(num_models=2), lambda m, mine, cohort: 1 / len(mine)),
        (ifca(num_models=3, averaging="gradients"), lambda m, mine, cohort: 1 / len(cohort)),
        (hypcluster(num_models=2), lambda m, mine, cohort: size(m) / sum(map(size, mine))),
    ],
    ids=["ifca", "ifca-gradients", "hypcluster"],
)
def test_agrees_with_its_listing(method, weigh):
    simulation = fd.simulation.prepare(method, **SETTINGS)
    start, result = as_matrices(simulation.initial_state().algorithm.models), simulation.run()
    assert np.abs(start[0] - start[1]).max() > 0.1
    models, chosen, choices = listing(start, [list(map(int, ids)) for ids in result.history["client_ids"]], weigh)
    assert len({k for row in choices for k in row}) > 1
    np.testing.assert_array_equal(result.history["cluster"], choices)
    np.testing.assert_array_equal(result.history["bytes_down"], 4 * 4 * start.size)  # of four clients, all models
    state = result.state.algorithm
    np.testing.assert_array_equal(state.chosen, chosen)
    np.testing.assert_allclose(as_matrices(state.models), models, atol=1e-5)
    most = np.bincount(chosen[chosen >= 0]).argmax()
    np.testing.assert_allclose(as_matrices(result.params), models[most], atol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("method", "rule"),
    [
        (ifca(num_models=1), fd.aggregators.fedavg()),
        (hypcluster(num_models=1), fd.aggregators.fedavg("examples")),
        (ifca(num_models=1, averaging="gradients", aggregator=fd.aggregators.median()), fd.aggregators.median()),
    ],
    ids=["ifca", "hypcluster", "median"],
)
def test_with_one_model_it_is_its_rule(method, rule):
    found, expected = run(method), run(rule)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7), found.params, expected.params)
    np.testing.assert_allclose(found.history["weight"], expected.history["weight"], rtol=1e-6)


def own_accuracies(models, chosen):
    """Of every client's model on what it holds out, the end of its row."""
    found = []
    for row, count, k in zip(FED.rows, FED.counts, chosen, strict=True):
        held = row[count - round(SHARE * count) : count]
        x = np.column_stack([FED.train.x[held], np.ones(len(held))])
        found.append(((x @ models[k]).argmax(1) == FED.train.y[held]).mean())
    return found


def test_finds_planted_clusters_and_evaluates_each_client_on_its_own_model():
    """One model for all learns nothing here, since the labels of one half are those of the other turned around."""
    result = run(ifca(num_models=2), num_rounds=15, cohort_size=6, evaluate_clients=SHARE, eval_every=15)
    chosen = np.asarray(result.state.algorithm.chosen)
    assert {*chosen[::2]} != {*chosen[1::2]}
    assert len({*chosen[::2]}) == len({*chosen[1::2]}) == 1
    accuracies = own_accuracies(as_matrices(result.state.algorithm.models), chosen)
    np.testing.assert_allclose(result.history["client_accuracy"][-1], accuracies, rtol=1e-6)
    assert result.history["client_accuracy_mean"][-1] > 0.85


def test_nobody_chooses_a_model_that_an_attacker_has_destroyed():
    """Its predictions, and so its loss, are NaN."""
    destroys = fd.attacks.during(fd.attacks.gaussian(1e25), start=1, stop=2)
    attacked = {"attack": destroys, "byzantine_fraction": 0.2, "cohort_size": 6, "num_rounds": 4}
    result = run(ifca(num_models=2), model=fd.models.mlp(2, hidden=(8,)), **attacked)
    destroyed = result.history["cluster"][1][result.history["malicious"][1]]
    assert len(destroyed) == 1
    assert (result.history["cluster"][2:] != destroyed).all()
    assert np.isfinite(result.history["train_loss"]).all()


def test_a_choice_is_sent_as_it_is_where_messages_are_compressed():
    """Of signs, the server would take every choice for that of the first model."""
    simulation = fd.simulation.prepare(ifca(), **SETTINGS | {"num_rounds": 1}, compression=fd.compression.sign())
    start, history = as_matrices(simulation.initial_state().algorithm.models), simulation.run().history
    *_, choices = listing(start, [list(map(int, history["client_ids"][0]))], lambda m, mine, cohort: 1 / len(mine))
    assert len({*choices[0]}) > 1
    np.testing.assert_array_equal(history["cluster"], choices)


@pytest.mark.thorough
def test_one_model_for_all_does_not_fit_two_kinds_of_clients():
    result = run(fd.aggregators.fedavg(), num_rounds=15, cohort_size=6, evaluate_clients=SHARE, eval_every=15)
    assert result.history["client_accuracy_mean"][-1] < 0.75


@pytest.mark.thorough
def test_a_client_that_has_not_taken_part_uses_what_most_chose():
    result = run(ifca(num_models=2), num_rounds=1, cohort_size=3, evaluate_clients=SHARE)
    state = result.state.algorithm
    used = np.asarray(ifca(num_clients=6).clusters(state).of_client)
    chosen = np.asarray(state.chosen)
    most = np.bincount(chosen[chosen >= 0]).argmax()
    np.testing.assert_array_equal(used, np.where(chosen < 0, most, chosen))
    assert (chosen < 0).sum() == 3
    accuracies = own_accuracies(as_matrices(state.models), used)
    np.testing.assert_allclose(result.history["client_accuracy"][-1], accuracies, rtol=1e-6)


@pytest.mark.thorough
def test_a_robust_rule_protects_each_cluster():
    many = clients(10)
    data = fd.data.from_clients(many, test=many[0], mean=(0.0,), std=(1.0,))
    attacked = {"attack": fd.attacks.gaussian(sigma=10.0), "num_byzantine": 1, "data": data, "cohort_size": 10}
    method = ifca(num_models=2, aggregator=fd.aggregators.krum(num_byzantine=1))
    result = run(method, num_rounds=40, evaluate_clients=True, eval_every=40, **attacked)
    assert result.history["malicious_weight"][-1] == 0
    assert result.history["client_accuracy_mean"][-1] > 0.85
    assert np.isclose(result.history["weight"][-1].sum(), 2), "krum follows one client of each cluster"


@pytest.mark.thorough
@pytest.mark.parametrize("changes", [{"clients_axis": "vmap"}, {"client_state": "host"}, {"model_forms": "as_is"}])
def test_the_way_over_the_clients_does_not_matter(changes):
    expected, found = run(ifca()), run(ifca(), **changes)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), found.state, expected.state)


@pytest.mark.thorough
def test_clients_choose_by_their_poisoned_examples():
    """Flipped labels are those of the other kind of clients."""
    flipped = run(ifca(), attack=fd.attacks.label_flip(1.0), num_byzantine=3, num_rounds=15, cohort_size=6)
    chosen = np.asarray(flipped.state.algorithm.chosen)
    kind = (np.arange(6) % 2) ^ flipped.history["malicious"][-1]
    assert len({*chosen[kind == 0]}) == len({*chosen[kind == 1]}) == 1
    assert {*chosen[kind == 0]} != {*chosen[kind == 1]}


def test_what_does_not_go_together_is_refused_in_one_line():
    start = {"initial_params": run(fd.aggregators.fedavg(), num_rounds=1).params}
    module = nnx.Linear(FEATURES, 2, rngs=nnx.Rngs(0))
    for build, message in (
        (lambda: ifca(num_models=0), "num_models=0"),
        (lambda: ifca(num_clients=3, num_models=4), r"num_models=4: must be an integer in \[1, 3\]"),
        (lambda: ifca(averaging="model"), "averaging='model': .*models"),
        (lambda: ifca(aggregator=fd.aggregators.fltrust()), "aggregator=fltrust: needs root_delta"),
        (lambda: hypcluster(aggregator=fd.aggregators.clusterguard()), "needs class_histogram_dissimilarity"),
        (lambda: run(ifca(), **start), "algorithm=ifca: draws 2 models; must have no initial_params"),
        (lambda: run(ifca(), model=module), "algorithm=ifca: draws 2 models"),
        (lambda: run(ifca(), downlink_compression=fd.compression.top_k(0.1)), "downlink_compression=top_k: .*=ifca"),
        (lambda: run(ifca(), secure_aggregation=True), "secure_aggregation=True: ifca"),
    ):
        with pytest.raises(ValueError, match=message):
            build()
    run(ifca(num_models=1), **start, num_rounds=1)
