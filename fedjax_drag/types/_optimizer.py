"""The contract of an optimizer whose numbers a compiled program takes as inputs."""

from typing import TYPE_CHECKING, Any

from fedjax_drag.types._messages import Params
from fedjax_drag.types._part import Part

if TYPE_CHECKING:
    import optax


class Optimizer(Part):
    """An optimizer as a part, which is used like the ``optax.GradientTransformation`` that it makes of its numbers."""

    def transformation(self) -> "optax.GradientTransformation":
        """The optax transformation."""
        raise NotImplementedError

    def init(self, params: Params) -> Any:
        """As of the transformation."""
        return self.transformation().init(params)

    def update(self, updates: Params, state: Any, params: Params | None = None) -> tuple[Params, Any]:
        """As of the transformation."""
        return self.transformation().update(updates, state, params)
