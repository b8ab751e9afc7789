"""A small federation, all of whose clients take part in every round."""

import functools

import flax.linen as nn
import pytest

import fedjax_drag as fd


class Softmax(nn.Module):
    """Softmax regression."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(10)(x.reshape(len(x), -1))


@pytest.fixture(scope="session")
def options():
    """Keyword arguments of a short run, to be overridden."""
    data = fd.data.partition.iid(fd.data.load("digits"), num_clients=12, seed=0)
    base = {"model": Softmax(), "data": data, "num_rounds": 4, "cohort_size": 12, "local_steps": 2, "batch_size": 8}
    base |= {"step_size": 0.2, "eval_every": 2, "time_clients": False}
    return lambda **changes: base | changes


@pytest.fixture(scope="session")
def run(options):
    @functools.cache
    def once(method, **changes):
        return fd.simulate(method, **options(**changes))

    return once
