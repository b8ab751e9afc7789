"""The training loss in the history is that of the clients whose messages were accepted."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import fedjax_drag as fd

CLIENTS = 4


class Linear(nn.Module):
    """Logits that begin at zero, so that the first loss is known."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(CLIENTS, kernel_init=nn.initializers.zeros)(x)


def loss(logits, labels):
    """Cross-entropy times the label, and not a number for the last class."""
    weight = jnp.where(labels == CLIENTS - 1, jnp.nan, labels)
    return weight * fd.losses.cross_entropy()(logits, labels)


@pytest.mark.parametrize("aggregation", ["stack", "stream"])
def test_a_rejected_client_is_left_out_of_it(aggregation):
    labels = np.repeat(np.arange(CLIENTS), 10)  # client m has the examples of class m
    inputs = np.random.default_rng(0).normal(size=(len(labels), 3)).astype(np.float32)
    data = fd.data.from_arrays(inputs, labels, inputs, labels, users=labels)
    result = fd.simulate(
        fd.aggregators.fedavg(),
        model=Linear(),
        data=fd.data.partition.natural(data),
        num_rounds=1,
        cohort_size=CLIENTS,
        local_steps=1,
        batch_size=10,
        step_size=0.1,
        loss=loss,
        aggregation=aggregation,
    )
    assert result.history["num_rejected"].tolist() == [1]
    expected = np.log(CLIENTS) * np.mean([0, 1, 2])  # clients 0, 1 and 2 at uniform predictions
    np.testing.assert_allclose(result.history["train_loss"], expected, rtol=1e-5)
