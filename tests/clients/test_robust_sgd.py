"""A local step along a robust reduction of the examples' gradients."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_drag as fd
from fedjax_drag.aggregators import br_drag, bucketing, drag, fedavg, geometric_median, median, norm_clipping
from fedjax_drag.clients import robust_sgd, sgd
from fedjax_drag.losses import cross_entropy
from fedjax_drag.types import Batch, Downlink

NUM_CLASSES = 4


def loss(w, batch):
    return cross_entropy()(batch.x @ w["kernel"] + w["bias"], batch.y).mean()


def start():
    rng = np.random.default_rng(0)
    return {"kernel": jnp.asarray(rng.normal(size=(6, NUM_CLASSES)), jnp.float32), "bias": jnp.zeros(NUM_CLASSES)}


def examples(number=20, seed=1):
    """Classes around well separated centres."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, NUM_CLASSES, number)
    x = 2 * np.eye(6)[y] + 0.3 * rng.normal(size=(number, 6))
    return Batch(jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.int32))


def direction(rule):
    """``(w, batch) -> direction`` of one local step."""

    def one(w, batch):
        downlink = Downlink(w)
        return rule.direction(jax.grad(loss), w, rule.begin(downlink), downlink, batch)[0]

    return jax.jit(one)


def flat(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)]).astype(np.float64)


def cosine(a, b):
    a, b = flat(a), flat(b)
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


def test_with_the_mean_it_is_sgd():
    for batch in (examples(), examples(1)):
        plain = direction(sgd())(start(), batch)
        np.testing.assert_allclose(flat(direction(robust_sgd(fedavg()))(start(), batch)), flat(plain), atol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "reducer",
    [
        pytest.param(geometric_median(), marks=pytest.mark.slow, id="geometric_median"),
        pytest.param(norm_clipping(0.3), id="norm_clipping"),
    ],
)
def test_wrong_labels_change_the_reduced_direction_less(reducer):
    """A fifth of the labels is wrong. Once the model has learnt, their long gradients turn the mean around."""
    w = jax.tree.map(jnp.zeros_like, start())
    mean, reduced = direction(sgd()), direction(robust_sgd(reducer))
    for _ in range(20):
        w = jax.tree.map(lambda p, d: p - 0.5 * d, w, mean(w, examples(40, seed=3)))
    clean = examples(40, seed=4)
    poisoned = clean._replace(y=jnp.where(np.arange(40) < 8, NUM_CLASSES - 1 - clean.y, clean.y))
    truth, bent, kept = mean(w, clean), mean(w, poisoned), reduced(w, poisoned)
    assert cosine(bent, truth) < 0
    assert cosine(kept, truth) > 0.7
    assert np.linalg.norm(flat(kept) - flat(truth)) < np.linalg.norm(flat(bent) - flat(truth)) / 2


@pytest.mark.thorough
def test_examples_of_a_gradient_that_is_not_finite_are_left_out():
    batch = examples(8)
    broken = batch._replace(x=batch.x.at[3, 2].set(np.nan))
    kept = np.arange(8) != 3
    rule = direction(robust_sgd(geometric_median()))
    alone = rule(start(), Batch(batch.x[kept], batch.y[kept]))
    np.testing.assert_allclose(flat(rule(start(), broken)), flat(alone), rtol=1e-4, atol=1e-6)


@pytest.mark.thorough
def test_the_reducer_has_a_new_state_in_every_step():
    """A rule with memory gives the same direction however often it was asked."""
    rule, w = robust_sgd(drag()), start()

    @jax.jit
    def ask(carry, batch):
        return rule.direction(jax.grad(loss), w, carry, Downlink(w), batch)

    once, carry = ask(rule.begin(Downlink(w)), examples())
    _, carry = ask(carry, examples(seed=5))
    twice, _ = ask(carry, examples())
    np.testing.assert_array_equal(flat(once), flat(twice))


@pytest.mark.parametrize("reducer", [br_drag(), fedavg(weighting="examples"), bucketing(median())])
def test_rules_that_need_more_than_gradients_are_refused(reducer):
    with pytest.raises(ValueError, match=r"reducer: needs \w+; must be a rule of the gradients alone"):
        robust_sgd(reducer)


@pytest.mark.parametrize("reducer", [median, "median"])
def test_what_is_no_rule_is_refused(reducer):
    with pytest.raises(ValueError, match=r"^reducer=.*median.*: must be an aggregation rule"):
        robust_sgd(reducer)


@pytest.fixture(scope="module")
def federation():
    return fd.data.partition.dirichlet(fd.data.load("digits"), num_clients=6, beta=0.5, seed=0)


def run(federation, algorithm, **settings):
    class Softmax(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(10)(x.reshape(x.shape[0], -1))

    result = fd.simulate(
        algorithm,
        model=Softmax(),
        data=federation,
        num_rounds=2,
        cohort_size=3,
        local_steps=2,
        batch_size=5,
        step_size=0.1,
        eval_every=2,
        time_clients=False,
        **settings,
    )
    return flat(result.params)


@pytest.mark.slow
def test_root_client_makes_the_reference(federation):
    guarded = fd.algorithms.from_aggregator(br_drag())
    plain = run(federation, guarded)
    np.testing.assert_allclose(run(federation, guarded, root_client=robust_sgd(fedavg())), plain, rtol=1e-4, atol=1e-6)
    assert not np.allclose(run(federation, guarded, root_client=robust_sgd(median())), plain, atol=1e-4)


@pytest.mark.slow
def test_it_is_a_rule_of_clients_too(federation):
    plain = run(federation, fd.algorithms.from_aggregator(fedavg()))
    for axis in ("map", "vmap"):
        same = run(federation, fd.algorithms.from_aggregator(fedavg(), client=robust_sgd(fedavg())), clients_axis=axis)
        np.testing.assert_allclose(same, plain, rtol=1e-4, atol=1e-6)
