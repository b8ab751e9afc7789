"""Worker momentum: kept from round to round, sent in place of the gradient."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_drag as fd
from fedjax_drag.clients import momentum_sgd, sgd
from fedjax_drag.testing import check_client_rule


class Point(nn.Module):
    """The logits are ``w - x``: with half their square as the loss, the gradient is ``w`` minus the mean input."""

    @nn.compact
    def __call__(self, x):
        return self.param("w", nn.initializers.zeros, (x.shape[-1],)) - x


def half_square(logits, labels):
    del labels
    return (logits**2).sum(-1) / 2


def federation(points):
    """A client for each point, which is its only example."""
    points = np.asarray(points, np.float32)
    labels = np.arange(len(points)) % points.shape[1]
    data = fd.data.from_arrays(
        points, labels, points[:2], labels[:2], num_classes=points.shape[1], mean=(0.0,), std=(1.0,)
    )
    fed = fd.data.partition.iid(data, num_clients=len(points), seed=0)
    return fed, points[fed.rows[:, 0]]


def run(fed, rule, client, **changes):
    settings = {"num_rounds": 2, "cohort_size": fed.num_clients, "local_steps": 1, "batch_size": 1, "eval_every": 1}
    settings |= {"step_size": 0.5, "loss": half_square, "model": Point(), "data": fed, "time_clients": False}
    method = fd.algorithms.from_aggregator(rule, client=client)
    return fd.simulate(method, **settings | changes)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("client", "changes", "ends"),
    [
        # m = x/2; then m = x/4 + (w - x)/2 at w = mean m: (-11/4, 1/2) and (1/4, -11/2).
        (momentum_sgd(0.5), {}, (1.125, 2.25)),
        # v = -x; then v = -x/2 + (w - x) at w = (1, 2): (-5, 2) and (1, -10).
        (sgd(), {"local_optimizer": optax.trace(0.5), "local_optimizer_state": "keep"}, (2.0, 4.0)),
        # The same without the half of the first round's v: (-3, 2) and (1, -6).
        pytest.param(sgd(), {"local_optimizer": optax.trace(0.5)}, (1.5, 3.0), marks=pytest.mark.thorough),
    ],
    ids=["momentum_sgd", "kept", "reset"],
)
def test_two_rounds_by_hand(client, changes, ends):
    """Of clients at (4, 0) and (0, 8), from the origin, with step size 1/2; all numbers are exact in binary."""
    fed, _ = federation([(4.0, 0.0), (0.0, 8.0)])
    result = run(fed, fd.aggregators.fedavg(), client, **changes)
    np.testing.assert_array_equal(result.params["w"], ends)


def trimmed(values, cut):
    return np.sort(values, axis=0)[cut : len(values) - cut].mean(axis=0)


@pytest.mark.thorough
def test_byzfl_s_setting_is_its_formula():
    """One gradient a round with momentum, an attack on what is sent, a robust rule, and a part of the clients."""
    points, beta, eta, epsilon = 9, 0.9, 0.4, 3.0
    rng = np.random.default_rng(0)
    fed, x = federation(rng.normal(size=(points, 3)))
    attack = {"attack": fd.attacks.ipm(epsilon), "num_byzantine": 2}
    changes = {"num_rounds": 7, "cohort_size": 6, "step_size": eta} | attack
    result = run(fed, fd.aggregators.trimmed_mean(0.34), momentum_sgd(beta), **changes)

    w, momentum = np.zeros(3), np.zeros((points, 3))
    history = result.history
    for ids, malicious in zip(history["client_ids"], history["malicious"], strict=True):
        momentum[ids] = beta * momentum[ids] + (1 - beta) * (w - x[ids])
        sent = momentum[ids]
        sent[malicious] = -epsilon * sent[~malicious].mean(axis=0)
        w = w - eta * trimmed(sent, 2)
    assert history["malicious"].any()
    assert len(np.unique(history["client_ids"])) == points, "some clients are absent in some rounds"
    np.testing.assert_allclose(result.params["w"], w, rtol=2e-5)
    np.testing.assert_allclose(result.state.clients.carry.rows["w"], momentum, rtol=2e-5)


@pytest.mark.thorough
def test_without_a_past_it_is_sgd():
    fed, _ = federation(np.random.default_rng(1).normal(size=(5, 2)))
    plain, past = (run(fed, fd.aggregators.median(), client).params["w"] for client in (sgd(), momentum_sgd(0.0)))
    np.testing.assert_array_equal(plain, past)


@pytest.mark.thorough
def test_as_root_client_it_begins_afresh_in_every_round():
    """FLTrust takes the direction of the root delta, which one step from no momentum does not change."""
    fed, _ = federation(np.random.default_rng(2).normal(size=(8, 2)))
    root = {"root_size": 4, "num_rounds": 3}
    plain, past = (
        run(fed, fd.aggregators.root_only(), sgd(), root_client=r, **root) for r in (None, momentum_sgd(0.5))
    )
    half = run(fed, fd.aggregators.root_only(), sgd(), step_size=0.25, **root)
    np.testing.assert_allclose(past.params["w"], half.params["w"], rtol=1e-6)
    assert not np.allclose(past.params["w"], plain.params["w"])


def test_it_is_a_client_rule():
    check_client_rule(momentum_sgd(0.9))
    assert momentum_sgd().keeps_carry
    assert not sgd().keeps_carry


@pytest.mark.thorough
def test_a_kept_carry_that_begins_with_more_than_the_parameters_is_found_out():
    class unlike(momentum_sgd):
        def begin(self, downlink):
            return jax.tree.map(jnp.zeros_like, downlink.shared)

    with pytest.raises(AssertionError, match="A kept carry begins with the initial parameters alone"):
        check_client_rule(unlike(), shared={"kernel": np.zeros((3, 2)), "bias": np.zeros(2), "scale": np.zeros(())})


@pytest.mark.parametrize("beta", [-0.1, 1.0])
def test_a_share_out_of_range_is_refused(beta):
    with pytest.raises(ValueError, match=r"beta=.*: must be in \[0, 1\)"):
        momentum_sgd(beta)


@pytest.mark.thorough
def test_attackers_that_keep_no_state_send_a_part_of_their_gradient():
    points, beta, eta = 6, 0.5, 0.4
    fed, x = federation(np.random.default_rng(3).normal(size=(points, 2)))
    attack = fd.attacks.sign_flip(keeps_state=False)
    changes = {"attack": attack, "num_byzantine": 2, "num_rounds": 4, "step_size": eta}
    result = run(fed, fd.aggregators.fedavg(), momentum_sgd(beta), **changes)
    w, momentum = np.zeros(2), np.zeros((points, 2))
    malicious = np.zeros(points, bool)
    malicious[np.asarray(result.history["client_ids"][0])[result.history["malicious"][0]]] = True
    for _ in range(4):
        momentum = beta * momentum + (1 - beta) * (w - x)
        w = w - eta * np.where(malicious[:, None], -momentum, momentum).mean(axis=0)
        momentum[malicious] = 0.0
    np.testing.assert_allclose(result.params["w"], w, rtol=2e-5)
    np.testing.assert_allclose(result.state.clients.carry.rows["w"], momentum, rtol=2e-5, atol=1e-7)
