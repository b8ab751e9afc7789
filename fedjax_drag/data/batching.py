"""Mini-batches drawn inside a compiled program.

The examples lie on the device once; a client is a row of indices into them, padded to a common length.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedjax_drag.types import Batch


def draw_positions(key: jax.Array, num_examples: jax.Array, num_steps: int, batch_size: int) -> jax.Array:
    """Places in a client's list, ``[num_steps, batch_size]`` in ``[0, num_examples)``, uniform with replacement.

    Every example of the client is equally likely at every place, also when it has fewer than a batch.
    """
    return jax.random.randint(key, (num_steps, batch_size), 0, num_examples)


def gather(train: Batch, row: jax.Array, positions: jax.Array, preprocess: Callable[[jax.Array], jax.Array]) -> Batch:
    """The examples at ``positions`` ``[B]`` of a client with index list ``row`` ``[L]``, preprocessed."""
    index = row[positions]
    return Batch(preprocess(train.x[index]), jnp.asarray(train.y)[index])
