"""Metrics of a method beside those of the aggregation rule inside it."""

from typing import Any

import jax


def with_metrics(inner: Any, **metrics: jax.Array) -> Any:
    """The state of the aggregation rule, its metrics extended by those of the method around it."""
    return inner._replace(metrics={**inner.metrics, **metrics})
