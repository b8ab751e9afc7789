"""What a model computes before its last dense layer."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn

_DENSE = ((nn.Dense, "__call__"), (nn.DenseGeneral, "__call__"), (nn.Embed, "attend"))
"""Dense layers of linen, the transposed embedding of a language model among them, and their methods."""


def with_representation(function: Callable[..., Any]) -> Callable[..., tuple[Any, Any]]:
    """A model's function that also returns the input of the last dense layer of linen that it calls; None for none.

    That layer is called outside of loops, as the head of a classifier is.
    """

    def both(*args: Any) -> tuple[Any, Any]:
        inputs: list[Any] = []

        def look(method: Callable[..., Any], args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
            if any(isinstance(context.module, layer) and context.method_name == name for layer, name in _DENSE):
                inputs.append(args[0] if args else next(iter(kwargs.values())))
            return method(*args, **kwargs)

        with nn.intercept_methods(look):
            returned = function(*args)
        return returned, inputs[-1] if inputs else None

    return both
