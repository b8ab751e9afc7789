from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_drag.experiment.checkpoints import Checkpoints


class State(NamedTuple):
    params: Any
    clients: Any
    key: jax.Array
    round: jax.Array
    nothing: Any = ()


@pytest.fixture
def state():
    """Leaves of one shape in an order that is not alphabetic, an empty one and a random key."""
    params = {"b": jnp.arange(3.0), "a": [jnp.ones(3), jnp.zeros((0, 3))]}
    return State(params, {"h": jnp.full((4, 3), np.nan)}, jax.random.key(7), jnp.int32(5))


@pytest.mark.parametrize("abstract", [False, True])
def test_state_comes_back_bit_for_bit(tmp_path, state, abstract):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(5, state)
    checkpoints.close()
    checkpoints = Checkpoints(tmp_path)
    back = checkpoints.restore(5, jax.eval_shape(lambda: state) if abstract else state)
    checkpoints.close()
    assert jax.tree.structure(back) == jax.tree.structure(state)
    assert jax.random.key_data(back.key).tolist() == jax.random.key_data(state.key).tolist()
    for old, new in zip(jax.tree.leaves(state._replace(key=0)), jax.tree.leaves(back._replace(key=0)), strict=True):
        np.testing.assert_array_equal(old, new)
        assert jnp.result_type(old) == jnp.result_type(new)


def test_newest_are_kept(tmp_path, state):
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.latest() is None
    for round_number in (2, 10, 30):
        checkpoints.save(round_number, state)
    checkpoints.close()
    assert Checkpoints(tmp_path).latest() == 30
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["10", "30"]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"b": jnp.zeros(4), "a": [jnp.ones(3)]}, r"has \(3,\) at params.b; must have \(4,\)"),
        ({"b": jnp.zeros(3)}, r"has \(3,\) at params.a.0; must have nothing"),
        ({"b": jnp.zeros(3), "a": [jnp.ones(3)], "c": jnp.zeros(2)}, r"has nothing at params.c; must have \(2,\)"),
    ],
)
def test_state_of_another_structure_is_refused_in_one_line(tmp_path, state, other, message):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(5, state)
    with pytest.raises(ValueError, match=f"round 5: {message}") as caught:
        checkpoints.restore(5, state._replace(params=other))
    assert "\n" not in str(caught.value)
