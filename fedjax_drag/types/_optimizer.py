"""The contract of an optimizer whose numbers a compiled program takes as inputs."""

from typing import TYPE_CHECKING, Any

import jax

from fedjax_drag.types._messages import Params
from fedjax_drag.types._part import Part, undefined

if TYPE_CHECKING:
    import optax


class Optimizer(Part):
    """An optimizer as a part, which is used like the ``optax.GradientTransformation`` that it makes of its numbers."""

    def transformation(self) -> "optax.GradientTransformation":
        """The optax transformation."""
        raise undefined(self, "transformation")

    def init(self, params: Params) -> Any:
        """As of the transformation."""
        return self.transformation().init(params)

    def update(self, updates: Params, state: Any, params: Params | None = None) -> tuple[Params, Any]:
        """As of the transformation, in the types of ``updates`` and ``state`` whatever those of the numbers are."""
        after = self.transformation().update(updates, state, params)
        return jax.tree.map(lambda value, before: value.astype(before.dtype), after, (updates, state))
