"""Clients that send back the last update, in runs of a small federation."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_drag as fd
from fedjax_drag.simulation import prepare
from fedjax_drag.types import Aggregator

CLIENTS, ROUNDS = 8, 4


@functools.cache
def run(resumed=0, **changes):
    """Everybody takes part in every round. The result, and the parameters at first and after each round.

    It may be resumed from a run of so many rounds.
    """
    settings = {
        "model": fd.models.mlp(num_classes=10, hidden=(4,)),
        "data": fd.data.partition.dirichlet(fd.data.load("digits"), num_clients=CLIENTS, beta=0.5, seed=0),
        "num_rounds": ROUNDS,
        "cohort_size": CLIENTS,
        "local_steps": 2,
        "batch_size": 4,
        "step_size": 0.1,
        "eval_every": 1,
        "time_clients": False,
    }
    simulation = prepare(fd.algorithms.from_aggregator(RECORDER), **settings | changes)
    state = run(**changes, num_rounds=resumed)[0].state if resumed else simulation.initial_state()
    trajectory = [flat(state.params)]
    result = simulation.run([lambda evaluation: trajectory.append(flat(evaluation.state.params))], state)
    return result, np.array(trajectory)


def flat(params):
    return np.concatenate([np.array(x).reshape(-1) for x in jax.tree.leaves(params)])


def recorder():
    """FedAvg that reports what it was given, ``[S, D]``."""
    plain = fd.aggregators.fedavg()

    def init(params):
        state = plain.init(params)
        return state._replace(metrics={**state.metrics, "sent": jnp.zeros((0, 0))})

    def apply(params, deltas, state, **extras):
        params, state = plain.apply(params, deltas, state, **extras)
        sent = jnp.concatenate([x.reshape(CLIENTS, -1) for x in jax.tree.leaves(deltas)], axis=1)
        return params, state._replace(metrics={**state.metrics, "sent": sent})

    return Aggregator(init, apply)


RECORDER = recorder()
ATTACK = fd.attacks.freeloader()
LAZY = {"attack": ATTACK, "byzantine_fraction": 0.25}


@pytest.mark.thorough
def test_freeloaders_send_the_last_update_and_zeros_in_the_first_round():
    result, trajectory = run(**LAZY)
    malicious, sent = result.history["malicious"][0], result.history["sent"]
    assert malicious.sum() == 2
    np.testing.assert_array_equal(sent[0][malicious], 0)
    for t in range(1, ROUNDS):
        last = np.broadcast_to(trajectory[t] - trajectory[t - 1], sent[t][malicious].shape)
        assert np.abs(last).max() > 1e-3
        np.testing.assert_allclose(sent[t][malicious], last, rtol=0, atol=1e-7)
        assert np.abs(sent[t][~malicious] - last[0]).max(axis=1).min() > 1e-3
    np.testing.assert_allclose(flat(result.state.last_update), trajectory[-1] - trajectory[-2], rtol=0, atol=1e-7)


@pytest.mark.slow
def test_honest_messages_do_not_change():
    """Bit for bit in the first round, before the parameters part."""
    (attacked, after), (plain, unharmed) = run(**LAZY), run()
    malicious = attacked.history["malicious"][0]
    first, honest = attacked.history["sent"][0], plain.history["sent"][0]
    assert first[~malicious].tobytes() == honest[~malicious].tobytes()
    assert (np.abs(honest[malicious]).max(axis=1) > 0).all()
    # Six of eight did the work: the mean is three quarters of theirs.
    np.testing.assert_allclose(after[1] - after[0], honest[~malicious].sum(0) / CLIENTS, rtol=0, atol=1e-7)
    assert np.abs(after[1] - unharmed[1]).max() > 1e-3


@pytest.mark.thorough
def test_without_malicious_clients_it_is_the_run_without_attack():
    (lazy, after), (plain, expected) = run(attack=ATTACK, byzantine_fraction=0.0), run()
    assert after.tobytes() == expected.tobytes()
    assert lazy.history["sent"].tobytes() == plain.history["sent"].tobytes()


@pytest.mark.thorough
def test_the_last_update_is_kept_for_attackers_only():
    assert run()[0].state.last_update == ()
    assert jax.tree.leaves(run(**LAZY)[0].state.last_update)


@pytest.mark.thorough
def test_a_resumed_run_keeps_the_last_update():
    whole, _ = run(**LAZY)
    rest, _ = run(resumed=2, **LAZY)
    assert whole.history["sent"][2:].tobytes() == rest.history["sent"].tobytes()
