"""What a traced program holds."""

from collections.abc import Iterator
from typing import Any

import jax


def products(jaxpr: Any) -> Iterator[Any]:
    """The matrix products and convolutions of a program, and of those inside it, as equations."""
    return (one for one in equations(jaxpr) if one.primitive.name in ("dot_general", "conv_general_dilated"))


def equations(jaxpr: Any) -> Iterator[Any]:
    """The equations of a program, and of those inside it."""
    for equation in jaxpr.eqns:
        yield equation
        for parameter in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda p: hasattr(p, "eqns")):
            inner = getattr(parameter, "jaxpr", parameter)
            if hasattr(inner, "eqns"):
                yield from equations(inner)
