"""Cohorts of random deltas as matrices, what attacks send in them, and what rules make of that."""

import jax
import jax.numpy as jnp
import numpy as np
from reference.twins import as_tree

from fedjax_drag.types import Uplink

COHORTS, COHORT, MALICIOUS, SIZE = 24, 10, 3, 12
EXTRAS = {"client_ids": jnp.arange(COHORT), "key": jax.random.key(0), "round": 0}


def cohorts(seed=0, number=COHORTS):
    """Deltas ``[N, S, D]`` that agree more or less, and who is malicious ``[N, S]``, always as many."""
    rng = np.random.default_rng(seed)
    common = rng.uniform(0.1, 0.8, (number, 1, 1)) * rng.normal(size=(number, 1, SIZE))
    G = (common + rng.normal(size=(number, COHORT, SIZE))).astype(np.float32)
    return G, rng.permuted(np.tile(np.arange(COHORT) < MALICIOUS, (number, 1)), axis=1)


def as_matrix(tree):
    """Inverse of ``as_tree`` for any leading axes."""
    a, b = tree["a"], tree["b"]
    return jnp.concatenate([a.reshape(*b.shape[:-1], -1), b], axis=-1)


def sent(attack, **knowledge):
    """``(G [N, S, D], malicious [N, S]) -> [N, S, D]``, each cohort with a key of its own."""

    def one(key, deltas, malicious):
        return attack.forge(key, Uplink(deltas), malicious, client_ids=jnp.arange(malicious.size), **knowledge).delta

    def all_of_them(G, malicious):
        keys = jax.random.split(jax.random.key(1), len(G))
        return np.asarray(as_matrix(jax.jit(jax.vmap(one))(keys, as_tree(G), jnp.asarray(malicious))))

    return all_of_them


def update_of(rule):
    """``(deltas [S, *p], root_delta) -> update``."""

    def update(deltas, root):
        zero = jax.tree.map(lambda x: jnp.zeros(x.shape[1:], x.dtype), deltas)
        return rule.apply(zero, deltas, rule.init(zero), root_delta=root, **EXTRAS)[0]

    return update


def updates(rule, G, roots=None):
    """What the rule makes of each cohort, ``[N, D]``."""
    roots = G.mean(1) if roots is None else roots
    return np.asarray(as_matrix(jax.jit(jax.vmap(update_of(rule)))(as_tree(G), as_tree(roots))), np.float64)


def observed(G, malicious, knowledge):
    """The rows that the attacker knows, in float64."""
    return np.float64(G[malicious if knowledge == "partial" else ~malicious])
