"""What a metric of predictions is."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Shaped

from fedjax_drag.types._part import Part, undefined

Sums = Any
"""A pytree of arrays: what examples add up to."""


class Metric(Part):
    """A metric of outputs and targets as sums over examples.

    It is the same however the examples are divided into batches, clients and devices. One of your own::

        class within_one(fd.types.Metric):
            def update(self, outputs, targets):
                return abs(outputs.argmax(-1) - targets) <= 1, jnp.ones(len(targets))

            def result(self, sums):
                hits, number = sums
                return hits / number

    Attributes:
      higher_is_better: whether the best round is that with the highest value.
      is_share: whether values are in [0, 1], and shown in percent.
      of_clients: whether it is measured for each client too; not if an example adds many numbers, which are kept for
        all of the clients' examples until they are added up.
    """

    higher_is_better: ClassVar[bool] = True
    is_share: ClassVar[bool] = False
    of_clients: ClassVar[bool] = True

    def update(self, outputs: Shaped[Array, "batch ..."], targets: Shaped[Array, "batch ..."]) -> Sums:
        """What each example adds: a pytree of arrays with a leading axis ``[B]``."""
        raise undefined(self, "update")

    def result(self, sums: Sums) -> jax.Array:
        """The value, of the sums over examples of :meth:`update`; NaN where it is not defined, as of no example."""
        raise undefined(self, "result")

    def init(self, outputs: Shaped[Array, "batch ..."], targets: Shaped[Array, "batch ..."]) -> Sums:
        """Sums over no example, for arrays, or ``jax.ShapeDtypeStruct``, like those of the first batch."""
        added = jax.eval_shape(self.update, outputs, targets)
        return jax.tree.map(lambda one: jnp.zeros(one.shape[1:], jnp.result_type(one.dtype, jnp.int32)), added)

    def __call__(self, outputs: Shaped[Array, "batch ..."], targets: Shaped[Array, "batch ..."]) -> jax.Array:
        """The value over one batch that holds all examples."""
        return self.result(jax.tree.map(lambda added: added.sum(0), self.update(outputs, targets)))
