"""A small federation and a way to run it."""

import flax.linen as nn
import pytest

import fedjax_drag as fd


class Softmax(nn.Module):
    """Softmax regression: compiles quickly, and its gradient is known in closed form."""

    num_classes: int = 10

    @nn.compact
    def __call__(self, x):
        return nn.Dense(self.num_classes)(x.reshape(x.shape[0], -1))


@pytest.fixture(scope="session")
def digits():
    return fd.data.partition.dirichlet(fd.data.load("digits"), num_clients=12, beta=0.3, seed=0)


@pytest.fixture(scope="session")
def settings(digits):
    """Keyword arguments of a short run, to be overridden."""

    def make(**changes):
        base = {
            "model": Softmax(),
            "data": digits,
            "num_rounds": 6,
            "cohort_size": 5,
            "local_steps": 3,
            "batch_size": 4,
            "step_size": 0.1,
            "eval_every": 3,
            "time_clients": False,
        }
        return base | changes

    return make


@pytest.fixture(scope="session")
def fedavg():
    return fd.algorithms.from_aggregator(fd.aggregators.fedavg())


@pytest.fixture(scope="session")
def refused(settings):
    """Checks that a rule and settings are refused in one line that matches a pattern, or has all of some parts."""

    def check(message, rule, **changes):
        call = fd.simulate if "initial" in changes else fd.simulation.prepare
        with pytest.raises(ValueError, match=message if isinstance(message, str) else ".") as error:
            call(rule, **settings(**changes))
        assert "\n" not in str(error.value)
        assert isinstance(message, str) or all(part in str(error.value) for part in message), str(error.value)

    return check
