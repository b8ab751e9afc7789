"""Arithmetic on parameter pytrees and on stacked pytrees ``[S, *p]``.

Vectors are whole models: a norm or a cosine runs over all leaves together. Statistics accumulate in
float32 (float64 for float64 leaves), whatever the dtype of the leaves, and are scaled by the largest entry
so that neither a norm of 1e30 nor one of 1e-30 over- or underflows.

Reductions over clients are matrix products with the weights: one pass over the deltas, where a ``mean`` over the
leading axis costs up to 80 passes on CPU. For a single client, ``[1, *p]``, they are written without a product: XLA
then fuses them with the computation of the delta and with the sum that it is added to, and never stores the delta.

Accelerators are bound by memory, so there every pass does what the CPU does in a second one for rare inputs. Their
forms reshape nothing: a TPU copies an array whose last axes change, and devices that share it exchange it.
"""

from fedjax_drag.tree._arithmetic import (
    accurate,
    add,
    expand,
    inverse,
    move,
    product,
    row_sums,
    scale,
    stored,
    subtract,
    take,
    where,
    zeros_like,
)
from fedjax_drag.tree._norms import SAFE_SQUARES, angles, cosines, finite_rows, is_finite, norm, norms, usable_rows
from fedjax_drag.tree._structure import (
    cast_like,
    check_arrays,
    check_cohort,
    check_like,
    check_structure,
    check_types,
    cohort_size,
    initial_state,
    mismatch,
)
from fedjax_drag.tree._sums import mean, mix, uniform_weights, weighted_sum

__all__ = [
    "SAFE_SQUARES",
    "accurate",
    "add",
    "angles",
    "cast_like",
    "check_arrays",
    "check_cohort",
    "check_like",
    "check_structure",
    "check_types",
    "cohort_size",
    "cosines",
    "expand",
    "finite_rows",
    "initial_state",
    "inverse",
    "is_finite",
    "mean",
    "mismatch",
    "mix",
    "move",
    "norm",
    "norms",
    "product",
    "row_sums",
    "scale",
    "stored",
    "subtract",
    "take",
    "uniform_weights",
    "usable_rows",
    "weighted_sum",
    "where",
    "zeros_like",
]
