"""What a loss is."""

# pyright: reportIncompatibleMethodOverride=false

import jax
from jaxtyping import Array, Float, Shaped

from fedjax_drag.types._part import CallablePart, undefined


class Loss(CallablePart):
    """A loss with weights; a plain function of outputs and targets is a loss whose examples all weigh 1."""

    def __call__(self, outputs: Shaped[Array, "batch ..."], targets: Shaped[Array, "batch ..."]) -> jax.Array:
        """``(outputs [B, ...], targets [B, ...]) -> [B]``, differentiable in the outputs."""
        raise undefined(self, "__call__")

    def weights(self, targets: Shaped[Array, "batch ..."]) -> Float[Array, " batch"] | None:
        """What each example weighs in a mean over examples, ``[B]``, such as how many tokens it has; None for 1."""
        del targets
        return None
