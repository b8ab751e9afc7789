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

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Shaped

from fedjax_drag.types import STATIC_EXTRAS, Deltas, Params, State

SAFE_SQUARES = (1e-20, 1e30)  # sums of squares within which float32 neither under- nor overflows
_SUMMABLE = 2.0**24  # how many messages of the greatest accepted length can be added up without overflow
_EXACT = jax.lax.Precision.HIGHEST  # a product in full float32, also where the hardware offers less


def cohort_size(deltas: Deltas) -> int:
    """Length S of the common leading axis.

    Raises:
      ValueError: if there are no leaves, or leaves disagree about S.
    """
    sizes = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(deltas)}
    if len(sizes) != 1 or () in sizes:
        raise ValueError(f"deltas with leading axes {sizes or '{}'}: every leaf needs the same leading client axis [S]")
    return sizes.pop()[0]


def check_cohort(params: Params, deltas: Deltas) -> int:
    """Returns S after checking that ``deltas`` is ``params`` with one more leading axis.

    Raises:
      ValueError: naming the first leaf that does not match.
    """
    check_arrays("params", params)
    if _are_separate(params, deltas):
        raise ValueError(
            f"deltas: a {type(deltas).__name__} of {len(deltas)}; must be like params with a leading client axis, "
            "jax.tree.map(lambda *leaves: jnp.stack(leaves), *deltas)"
        )
    check_structure("deltas", deltas, "params", params)
    check_arrays("deltas", deltas)
    if [jnp.shape(d) for d in jax.tree.leaves(deltas)] == [jnp.shape(p) for p in jax.tree.leaves(params)] != []:
        one = "also one client's, jax.tree.map(lambda leaf: leaf[None], delta)"
        raise ValueError(f"deltas: have the shapes of params; must have a leading client axis [S], {one}")
    size = cohort_size(deltas)
    for (path, p), d in zip(jax.tree.leaves_with_path(params), jax.tree.leaves(deltas), strict=True):
        if jnp.shape(d)[1:] != jnp.shape(p):
            expected = ", ".join(["S", *map(str, jnp.shape(p))])
            where = f"deltas{jax.tree_util.keystr(path)}"
            raise ValueError(f"{where} with shape {jnp.shape(d)}: must be [{expected}], S clients on a leading axis")
    return size


def _are_separate(params: Params, deltas: Any) -> bool:
    """Whether deltas are those of the clients one after another, instead of a stack."""
    structure = jax.tree.structure(params)
    if not isinstance(deltas, list | tuple) or jax.tree.structure(deltas) == structure:
        return False
    return bool(deltas) and all(jax.tree.structure(delta) == structure for delta in deltas)


def check_arrays(name: str, tree: Any) -> None:
    """Raises ValueError unless every leaf is a floating JAX or NumPy array, or a plain float."""
    for path, leaf in jax.tree.leaves_with_path(tree):
        where, kind = f"{name}{jax.tree_util.keystr(path)}", type(leaf)
        if not isinstance(leaf, jax.Array | np.ndarray | np.generic | float):
            whose = kind.__module__.partition(".")[0]
            remedy = "; give tensor.detach().numpy()" if whose == "torch" else ""
            raise ValueError(f"{where} of type {whose}.{kind.__name__}: must be an array of JAX or NumPy{remedy}")
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            raise ValueError(f"{where} of type {jnp.result_type(leaf)}: must be floating, such as float32")


def check_structure(name: str, given: Any, like_name: str, like: Any) -> None:
    """Raises ValueError, naming an entry in which they differ, unless two pytrees have the same structure."""
    if jax.tree.structure(given) == jax.tree.structure(like):
        return
    has, expected = ([jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(x)] for x in (given, like))
    lacks = [path for path in expected if path and path not in has]
    extra = [path for path in has if path and path not in expected]
    if type(given) is type(like) and (lacks or extra):
        difference = f"lacks {lacks[0]}" if lacks else f"has {extra[0]} in addition"
    else:
        difference = f"is of type {type(given).__name__}"
    raise ValueError(f"{name}: {difference}; must have the structure of {like_name}, a {type(like).__name__}")


def check_like(name: str, given: Any, like_name: str, like: Any) -> None:
    """Raises ValueError, naming an entry in which they differ, unless two pytrees have one structure and shapes."""
    check_structure(name, given, like_name, like)
    for (path, leaf), expected in zip(jax.tree.leaves_with_path(given), jax.tree.leaves(like), strict=True):
        if jnp.shape(leaf) != jnp.shape(expected):
            where = f"{name}{jax.tree_util.keystr(path)}"
            raise ValueError(f"{where} with shape {jnp.shape(leaf)}: must be {jnp.shape(expected)}, as in {like_name}")


def zeros_like(tree: Any) -> Any:
    """A pytree of zeros."""
    return jax.tree.map(jnp.zeros_like, tree)


def add(a: Any, b: Any) -> Any:
    """``a + b``."""
    return jax.tree.map(jnp.add, a, b)


def subtract(a: Any, b: Any) -> Any:
    """``a - b``."""
    return jax.tree.map(jnp.subtract, a, b)


def scale(factor: Any, tree: Any) -> Any:
    """``factor * tree`` for a scalar factor."""
    return jax.tree.map(lambda x: factor * x, tree)


def move(params: Params, update: Params) -> Params:
    """``params + update`` in the dtype of ``params``."""
    return jax.tree.map(lambda p, u: (p + u).astype(jnp.result_type(p)), params, update)


def where(condition: Any, a: Any, b: Any) -> Any:
    """``a`` where the scalar ``condition`` holds, else ``b``; the one not taken may be non-finite."""
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), a, b)


def take(tree: Any, rows: jax.Array) -> Any:
    """Rows of a stacked pytree: ``[M, *p]`` and indices ``[S]`` to ``[S, *p]``."""
    return jax.tree.map(lambda x: x[rows], tree)


def expand(per_client: Any, stacked: Any) -> Any:
    """``[S]`` as ``[S, 1, ..., 1]``, with as many axes as the leaf ``stacked`` ``[S, *p]``, to multiply or mask it."""
    return per_client.reshape(-1, *[1] * (stacked.ndim - 1))


def accurate(x: Any) -> Float[Array, "..."]:
    """``x`` in the dtype that statistics accumulate in: at least float32."""
    return jnp.asarray(x).astype(jnp.promote_types(jnp.result_type(x), jnp.float32))


def inverse(x: Any) -> Float[Array, "..."]:
    """``1 / x``, and 0 where ``x`` is 0: a term divided by a zero norm vanishes."""
    return jnp.where(x != 0, 1 / jnp.where(x != 0, x, 1), 0)


def _rows(leaf: jax.Array) -> jax.Array:
    return accurate(leaf).reshape(leaf.shape[0], -1)


def _largest(deltas: Deltas) -> jax.Array:
    """Largest absolute entry of each row ``[S]``; NaN or infinite if any entry is."""
    largest = [jnp.max(jnp.abs(_rows(leaf)), axis=1, initial=0.0) for leaf in jax.tree.leaves(deltas)]
    return jax.lax.stop_gradient(jnp.stack(largest).max(0))


def _unit_of(largest: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A length by which entries up to ``largest`` > 0 are divided before they are squared, and its inverse.

    That is ``largest`` itself, but at most the largest number whose inverse is not subnormal: XLA flushes subnormal
    numbers to zero, and every length above it would be measured as 0.
    """
    unit = jnp.minimum(largest, 1 / jnp.finfo(largest.dtype).tiny)
    return unit, inverse(unit)


def _length(usable: jax.Array, unit: jax.Array, squares: Any) -> jax.Array:
    """``unit * sqrt(squares)``; 0 where that is not ``usable``, or more than the largest number."""
    length = unit * jnp.sqrt(jnp.where(usable, squares, 1.0))
    return jnp.where(usable & (length < jnp.inf), length, 0.0)


def _squares(deltas: Deltas) -> tuple[jax.Array, jax.Array]:
    """Each row's sum of squares ``[S]``, and whether all are finite and far from under- and overflow (scalar)."""
    first, *rest = [jnp.square(_rows(leaf)).sum(1) for leaf in jax.tree.leaves(deltas)]
    squares = sum(rest, first)
    return squares, ((squares > SAFE_SQUARES[0]) & (squares < SAFE_SQUARES[1])).all()


def _measure(deltas: Deltas) -> tuple[jax.Array, jax.Array]:
    """Each row's norm ``[S]``, 0 if that is not finite, and a bound on its entries ``[S]``: one pass as a rule.

    The bound is the largest absolute entry, NaN or infinite if any entry is, or, where squares are safe, the norm.
    """
    if cohort_size(deltas) == 1:
        alone = _alone(deltas)
        return norm(alone)[None], _largest_of(alone)[None]
    return jax.lax.platform_dependent(deltas, cpu=_measure_twice, default=_measure_once)


def _measure_twice(deltas: Deltas) -> tuple[jax.Array, jax.Array]:
    """:func:`_measure` with more passes where squares are not safe."""
    squares, safe = _squares(deltas)

    def plain() -> tuple[jax.Array, jax.Array]:
        lengths = jnp.sqrt(jnp.where(safe, squares, 1.0))
        return lengths, jax.lax.stop_gradient(lengths)

    def scaled() -> tuple[jax.Array, jax.Array]:
        largest = _largest(deltas)
        usable = jnp.isfinite(largest) & (largest > 0)
        unit, per_unit = _unit_of(jnp.where(usable, largest, 1.0))
        total = sum(jnp.square(_rows(leaf) * per_unit[:, None]).sum(1) for leaf in jax.tree.leaves(deltas))
        return _length(usable, unit, total), largest

    # One function for both answers, so that XLA sees one conditional where a rule asks for both.
    return jax.lax.cond(safe, plain, scaled)


def _measure_once(deltas: Deltas) -> tuple[jax.Array, jax.Array]:
    """:func:`_measure` in one pass, always: squares in three units, one of which is safe for the row (Blue, 1978)."""
    dtype = jnp.promote_types(jnp.result_type(*jax.tree.leaves(deltas)), jnp.float32)
    long = 2.0 ** (jnp.finfo(dtype).maxexp // 2 + 6)
    short = 1 / long

    def squares_in(unit: float, entry: Callable[[jax.Array], jax.Array] = lambda x: x) -> jax.Array:
        return row_sums(lambda leaf: jnp.square(entry(leaf.astype(dtype)) * (1 / unit)), deltas)

    plain = squares_in(1.0)
    too_long, too_short = ~(plain < SAFE_SQUARES[1]), plain < SAFE_SQUARES[0]  # the former also if they are NaN
    # Entries of other rows are left out of the short unit, in which the gradient of their squares overflows.
    in_short = squares_in(short, lambda x: jnp.where(jnp.abs(x) < 1, x, 0))
    squares = jnp.where(too_long, squares_in(long), jnp.where(too_short, in_short, plain))
    unit = jnp.where(too_long, long, jnp.where(too_short, short, 1.0)).astype(dtype)
    largest = [accurate(jnp.abs(leaf).max(_of_params(leaf), initial=0.0)) for leaf in jax.tree.leaves(deltas)]
    bound = jax.lax.stop_gradient(functools.reduce(jnp.maximum, largest))
    return _length(jnp.isfinite(bound) & (bound > 0), unit, squares), bound


def _of_params(leaf: jax.Array) -> tuple[int, ...]:
    """The axes of ``[S, *p]`` but the first."""
    return tuple(range(1, leaf.ndim))


def row_sums(term: Callable[..., jax.Array], deltas: Deltas, *others: Any) -> Shaped[Array, " clients"]:
    """Sum over the coordinates of ``term(delta, *others)``, elementwise, for each client."""
    per_leaf = jax.tree.map(lambda leaf, *rest: term(leaf, *rest).sum(_of_params(leaf)), deltas, *others)
    return functools.reduce(jnp.add, jax.tree.leaves(per_leaf))


def finite_rows(deltas: Deltas) -> Bool[Array, " clients"]:
    """Which clients' deltas are finite in every entry, ``[S]`` bool."""
    return jnp.isfinite(_measure(deltas)[1])


def usable_rows(deltas: Deltas) -> Bool[Array, " clients"]:
    """Which clients' deltas a rule can compute with, ``[S]`` bool: finite, and of a norm that leaves room for sums.

    A row of d numbers is usable if its largest absolute entry times ``sqrt(d)``, which its norm does not exceed, is at
    most ``max / 2^24``, with the largest number ``max`` of the accumulation dtype: 2.0e31 in float32. Sums of 2^24 such
    rows, and differences of two, are finite then, and norms and their inverses lose nothing to over- or underflow.
    """
    leaves = jax.tree.leaves(deltas)
    numbers = sum(math.prod(leaf.shape[1:]) for leaf in leaves)
    longest = min(float(jnp.finfo(accurate(leaf).dtype).max) for leaf in leaves) / _SUMMABLE
    return _measure(deltas)[1] * math.sqrt(numbers) <= longest


def norms(deltas: Deltas) -> Float[Array, " clients"]:
    """Euclidean norm of each client's delta ``[S]``; 0 for a row that has no finite norm."""
    return _measure(deltas)[0]


def _alone(deltas: Deltas) -> Params:
    """The delta of a client by itself, ``[1, *p]`` to ``[*p]``."""
    return jax.tree.map(lambda leaf: accurate(leaf[0]), deltas)


def _largest_of(tree: Any) -> jax.Array:
    """Largest absolute entry of all leaves (scalar); NaN or infinite if any entry is."""
    largest = [jnp.max(jnp.abs(accurate(leaf)), initial=0.0) for leaf in jax.tree.leaves(tree)]
    return jax.lax.stop_gradient(jnp.stack(largest).max())


def norm(tree: Any) -> Float[Array, ""]:
    """Euclidean norm over all leaves together (scalar); 0 if that is not a finite number."""
    leaves = [accurate(leaf) for leaf in jax.tree.leaves(tree)]
    largest = _largest_of(leaves)
    usable = jnp.isfinite(largest) & (largest > 0)
    unit, per_unit = _unit_of(jnp.where(usable, largest, 1.0))
    total = sum(jnp.square(leaf * per_unit).sum() for leaf in leaves)
    return _length(usable, unit, total)


def cosines(deltas: Deltas, reference: Params) -> Float[Array, " clients"]:
    """Cosine of each client's delta with ``reference``, ``[S]`` in [-1, 1].

    0 where either vector is zero or has no finite norm.
    """
    row_norms, reference_norm = norms(deltas), norm(reference)
    # Against a unit vector no product exceeds the row's norm, so the rows need no scaling: one matmul each.
    unit = jax.tree.map(lambda r: accurate(r) * inverse(reference_norm), reference)
    products = _products(deltas, unit)
    usable = (row_norms > 0) & (reference_norm > 0)
    return jnp.where(usable, jnp.clip(products * inverse(row_norms), -1.0, 1.0), 0.0)


def _products(deltas: Deltas, other: Params) -> Float[Array, " clients"]:
    """Inner product of each client's delta with ``other`` ``[S]``, in which no sum may overflow."""
    if cohort_size(deltas) == 1:
        pairs = jax.tree.map(lambda d, u: (d * u).sum()[None], _alone(deltas), other)
        return functools.reduce(jnp.add, jax.tree.leaves(pairs))

    def as_product(deltas: Deltas, other: Params) -> jax.Array:
        leaves = jax.tree.map(lambda d, u: jnp.dot(_rows(d), u.reshape(-1), precision=_EXACT), deltas, other)
        return functools.reduce(jnp.add, jax.tree.leaves(leaves))

    in_one_pass_with_norms = functools.partial(row_sums, lambda d, u: accurate(d) * u)
    return jax.lax.platform_dependent(deltas, other, cpu=as_product, default=in_one_pass_with_norms)


def angles(deltas: Deltas, reference: Params) -> Float[Array, " clients"]:
    """Angle of each client's delta with ``reference`` in radians, ``[S]`` in [0, pi].

    pi/2 where either vector is zero or not finite. Accurate to full precision at both ends, where the arc
    cosine of a rounded cosine is not: ``2 atan2(|a - b|, |a + b|)`` for unit vectors a and b.
    """
    row_norms, reference_norm = norms(deltas), norm(reference)
    unit = scale(inverse(reference_norm), jax.tree.map(accurate, reference))
    per_row = inverse(row_norms)

    def from_unit(sign: int) -> jax.Array:
        return norms(jax.tree.map(lambda d, u: accurate(d) * expand(per_row, d) + sign * u, deltas, unit))

    usable = (row_norms > 0) & (reference_norm > 0)
    return jnp.where(usable, 2 * jnp.arctan2(from_unit(-1), from_unit(1)), jnp.pi / 2)


def weighted_sum(weights: Float[Array, " clients"], deltas: Deltas) -> Params:
    """``sum_m weights[m] deltas[m]`` in accumulation precision, in one pass over the deltas.

    A client of weight 0 is absent: its entries do not count even where they are not finite.
    """
    if cohort_size(deltas) == 1:
        present = weights[0] != 0
        return jax.tree.map(lambda d: jnp.where(present, weights[0] * jnp.where(present, d, 0), 0), _alone(deltas))

    def as_product(weights: jax.Array, deltas: Deltas) -> Params:
        return jax.tree.map(lambda leaf: leaf[0], mix(weights[None], deltas))

    def masked(weights: jax.Array, deltas: Deltas) -> Params:
        def leaf_sum(leaf: jax.Array) -> jax.Array:
            weight = expand(weights, leaf)
            return (weight * accurate(jnp.where(weight != 0, leaf, 0))).sum(0)

        return jax.tree.map(leaf_sum, deltas)

    return jax.lax.platform_dependent(weights, deltas, cpu=as_product, default=masked)


def mix(weights: Float[Array, "rows clients"], deltas: Deltas) -> Deltas:
    """Several weighted sums at once, as one matrix product: ``sum_m weights[k, m] deltas[m]``.

    Args:
      weights: ``[K, S]``; a client whose weights are all 0 is absent, even where it is not finite.
      deltas: ``[S, *p]``.

    Returns:
      ``[K, *p]`` in accumulation precision.
    """
    if len(weights) == 1:
        return _if_finite(weights, deltas)
    # A product of several rows is not bound by memory: masking before it costs a CPU nothing.
    return jax.lax.platform_dependent(weights, deltas, cpu=_masked, default=_if_finite)


def _if_finite(weights: jax.Array, deltas: Deltas) -> Deltas:
    """The product, and once more without absent clients if it is not finite: 0 times what is not finite is NaN."""
    # For a single row masking costs ten times the product.
    sums = _product(weights, deltas)
    finite = jnp.stack([jnp.isfinite(total).all() for total in jax.tree.leaves(sums)]).all()
    return jax.lax.cond(finite, lambda: sums, lambda: _masked(weights, deltas))


def _masked(weights: jax.Array, deltas: Deltas) -> Deltas:
    present = (weights != 0).any(0)
    return _product(weights, jax.tree.map(lambda leaf: jnp.where(expand(present, leaf), leaf, 0), deltas))


def _product(weights: jax.Array, deltas: Deltas) -> Deltas:
    def leaf_product(leaf: jax.Array) -> jax.Array:
        return jnp.dot(weights, _rows(leaf), precision=_EXACT).reshape(len(weights), *leaf.shape[1:])

    return jax.tree.map(leaf_product, deltas)


def mean(deltas: Deltas, valid: Bool[Array, " clients"] | None = None) -> Params:
    """Mean over the valid clients, zero if there are none; over all of them without a mask, finite or not."""
    if valid is not None:
        return weighted_sum(uniform_weights(valid), deltas)
    size = cohort_size(deltas)
    return jax.tree.map(lambda row: row[0], _product(jnp.full((1, size), 1 / size), deltas))


def uniform_weights(valid: Bool[Array, " clients"]) -> Float[Array, " clients"]:
    """``1 / (number of valid clients)`` on each of them, 0 elsewhere, ``[S]``."""
    return valid * inverse(valid.sum().astype(jnp.float32))


def initial_state(apply: Any, state: State, params: Params, deltas: Deltas, **extras: Any) -> State:
    """``state`` with the shapes that ``apply`` returns.

    Per-client entries of ``state.metrics`` have length 0 after ``init``, which knows no cohort. A
    ``lax.scan`` over rounds needs the final shapes from the start, and a jitted ``apply`` is then
    compiled once. Only shapes are computed here. ``deltas`` may be ``jax.ShapeDtypeStruct`` leaves.

    Args:
      apply: ``(params, deltas, state, **extras) -> (params, state)``.
      state: what ``init`` returned.
      params: global parameters.
      deltas: a cohort's deltas, ``[S, *p]``.
      **extras: those that ``apply`` needs.

    Returns:
      ``state``, its metrics in their final shapes.

    Raises:
      ValueError: if ``apply`` changes the shape or dtype of another leaf.
    """
    static = {name: extras.pop(name) for name in STATIC_EXTRAS if name in extras}
    after = jax.eval_shape(lambda p, d, s, e: apply(p, d, s, **static, **e)[1], params, deltas, state, extras)
    return settle(state, after)


def settle(tree: Any, shapes: Any) -> Any:
    """``tree`` with zeros for the entries of fields ``metrics`` whose shape or dtype is not that of ``shapes``.

    Raises:
      ValueError: if any other leaf differs; a state must keep its shapes and dtypes from round to round.
    """

    def leaf(path: Any, x: Any, like: Any) -> jax.Array:
        x = jnp.asarray(x)
        if x.shape == like.shape and x.dtype == like.dtype:
            return x
        if any(getattr(key, "name", None) == "metrics" for key in path):
            return jnp.zeros(like.shape, like.dtype)
        now, was = f"{x.shape} {x.dtype}", f"{like.shape} {like.dtype}"
        raise ValueError(f"state{jax.tree_util.keystr(path)} with {now}: must stay {was} in every round")

    check_structure("state after a round", tree, "the state before", shapes)
    return jax.tree_util.tree_map_with_path(leaf, tree, shapes)
