"""What a traced program holds."""

from collections.abc import Iterator
from typing import Any

import jax


def products(jaxpr: Any) -> Iterator[Any]:
    """The matrix products and convolutions of a program, and of those inside it, as equations."""
    for equation in jaxpr.eqns:
        if equation.primitive.name in ("dot_general", "conv_general_dilated"):
            yield equation
        for parameter in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda p: hasattr(p, "eqns")):
            inner = getattr(parameter, "jaxpr", parameter)
            if hasattr(inner, "eqns"):
                yield from products(inner)
