"""Mini-batches drawn inside a compiled program.

The examples lie on the device once; a client is a row of indices into them, padded to a common length.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Key

from fedjax_drag.types import Batch


def draw_positions(
    key: Key[Array, ""], num_examples: Int[Array, ""] | int, num_steps: int, batch_size: int
) -> Int[Array, "num_steps batch_size"]:
    """Positions in a client's list, in ``[0, num_examples)``, uniform with replacement.

    Every example of the client is equally likely at every position, also if it has fewer than a batch.
    """
    return jax.random.randint(key, (num_steps, batch_size), 0, num_examples)


def whole_batches(
    num_examples: Int[Array, ""] | int, num_steps: int, most: int
) -> tuple[Int[Array, "num_steps most"], Bool[Array, "num_steps most"]]:
    """Batches of all of a client's examples, one for each step.

    Args:
      num_examples: n, of the client, in ``[1, most]``.
      num_steps: U.
      most: examples of the largest client.

    Returns:
      Positions in the client's list, in ``[0, n)``, and which of them are real. The padding repeats the first example.
    """
    return draw_epochs(None, num_examples, num_steps, most, most)


def draw_epochs(
    key: Key[Array, ""] | None, num_examples: Int[Array, ""] | int, epochs: float, batch_size: int, most: int
) -> tuple[Int[Array, "steps batch_size"], Bool[Array, "steps batch_size"]]:
    """Mini-batches of passes over a client's examples, each pass in a random order and cut into batches.

    The last batch of a pass may be smaller than the others. A fraction of a pass goes over ``fraction * n`` examples
    (to the nearest integer, at least one in all), a random sample without replacement. Without a key every pass is in
    the order of the list, and a fraction goes over the first examples.

    Args:
      key: of the orders; None for that of the list.
      num_examples: n, of the client, in ``[1, most]``.
      epochs: number of passes, > 0, not necessarily whole.
      batch_size: B.
      most: examples of the largest client; determines the number of steps.

    Returns:
      Positions in the client's list, in ``[0, n)``, and which of them are real. The padding of a batch repeats its
      first example; batches after the client's last one have no real position.
    """
    whole, fraction = int(epochs), epochs % 1
    part = _part(num_examples, epochs)
    per_epoch = -(-num_examples // batch_size)
    num_steps = whole * -(-most // batch_size) + -(-min(most, int(fraction * most) + 1) // batch_size) * bool(fraction)

    step = jnp.arange(num_steps)
    epoch = jnp.minimum(step // per_epoch, whole)
    begin = (step - epoch * per_epoch)[:, None] * batch_size
    place = begin + jnp.arange(batch_size)
    real = place < jnp.where(epoch < whole, num_examples, part)[:, None]
    place = jnp.minimum(jnp.where(real, place, begin), num_examples - 1)
    if key is None:
        return place, real

    def order(epoch: jax.Array) -> jax.Array:
        rank = jax.random.bits(jax.random.fold_in(key, epoch), (most,))
        own = jnp.arange(most) < num_examples
        return jnp.lexsort((rank, ~own))  # the client's own come first

    orders = jax.vmap(order)(jnp.arange(whole + bool(fraction)))
    return orders[jnp.minimum(epoch, len(orders) - 1)[:, None], place], real


def epoch_steps(num_examples: Any, epochs: Any, batch_size: int) -> Any:
    """How many mini-batches :func:`draw_epochs` gives each client.

    Args:
      num_examples: of each client, integers ``[*clients]``, as those that are returned.
      epochs: number of passes: a number > 0, or a whole one for each client, which may be traced.
      batch_size: B.
    """
    per_epoch = -(-num_examples // batch_size)
    if isinstance(epochs, jax.Array):
        return epochs * per_epoch
    return int(epochs) * per_epoch + -(-_part(num_examples, epochs) // batch_size)


def _part(num_examples: Int[Array, "*clients"] | int, epochs: float) -> Any:
    """Examples of the fraction of a pass after the whole ones."""
    whole, fraction = int(epochs), epochs % 1
    if not fraction:
        return 0
    # The margin keeps a product such as 0.59 * 50 from falling just below its half.
    part = jnp.floor(fraction * num_examples + 0.501).astype(jnp.int32)
    return jnp.clip(part, 0 if whole else 1, num_examples)


def gather(
    train: Batch,
    row: Int[Array, " length"] | Batch,
    positions: Int[Array, " batch"],
    preprocess: Callable[[Any], Any],
) -> Batch:
    """The examples of a client at ``positions``, preprocessed.

    Args:
      train: every example; not used if ``row`` holds examples.
      row: the client's index list, or its examples themselves with a leading axis of that length.
      positions: in the list, in ``[0, length)``.
      preprocess: from stored examples to model inputs.
    """
    train, index = (row, positions) if isinstance(row, Batch) else (train, row[positions])
    take = functools.partial(jax.tree.map, lambda array: jnp.asarray(array)[index])
    return Batch(preprocess(take(train.x)), take(train.y))
