"""State of clients with a random key in it, kept, written and resumed."""

import chex
import jax
import optax
import pytest
from tiny import SYNTHETIC, TINY

from fedjax_drag.experiment.run.run import run

NOISY = TINY | SYNTHETIC | {"rounds": 4, "eval_every": 1, "local_optimizer_state": "keep"}


@pytest.mark.sample(1)
@pytest.mark.parametrize("place", ["device", "host", "disk"])
def test_a_kept_key_is_resumed(tmp_path, interrupt_after, place):
    noisy = NOISY | {"local_optimizer": optax.add_noise(0.1, 0.5, key=jax.random.key(0)), "client_state": place}
    whole = run(noisy)
    with interrupt_after(2), pytest.raises(KeyboardInterrupt):
        run(noisy, out=tmp_path / "out")
    resumed = run(noisy, out=tmp_path / "out", resume=True)
    chex.assert_trees_all_equal(resumed.params, whole.params)
    keys = (jax.random.key_data(one.state.clients.optimizer.rows.rng_key) for one in (resumed, whole))
    chex.assert_trees_all_equal(*keys)
