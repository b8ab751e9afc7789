"""The geometric median: Weiszfeld's iteration, and a solver that converges where it does not.

Both minimise ``sum_m p_m h(||z - g_m||)``, where ``h(d) = d`` from ``nu`` on and the tangent parabola
``d^2 / (2 nu) + nu / 2`` below. Where the gradient vanishes,

    z = sum_m w_m g_m,    w_m proportional to p_m / max(nu, ||z - g_m||).

Weiszfeld takes this as an iteration. It is fast while the offsets ``g_m - z`` point everywhere, as those of large
models do, and then takes place in the span of the deltas, where their inner products are enough: one product
``[S, d] x [d, S]``, and no further pass however many steps it needs. It is slow near ties, near a delta that is almost
the median, and in few dimensions. There, and where inner products lose digits, it is repeated with differences of the
deltas, at two passes a step, until a round of Newton's method takes over, in the span of the offsets from the point
reached. ``scripts/benchmark.py kernels`` compares it with the :func:`reference`.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
from jax.scipy.sparse.linalg import cg
from jaxtyping import Array, Bool, Float

from fedjax_drag import tree
from fedjax_drag.kernels.arithmetic import axes_of_params, sum_rows
from fedjax_drag.kernels.distances import gram
from fedjax_drag.kernels.newton import median_of_places
from fedjax_drag.kernels.span import Span, span_around
from fedjax_drag.types import Deltas, Params

_SLOW = 0.5  # a step longer than this share of the one before
_USABLE = 1e-3  # relative uncertainty of squared distances, from which differences of the deltas start anew
_MARGIN = 0.1  # Weiszfeld goes below the tolerance by this factor: slow parts of the error shorten its steps little
_MANY = 256  # rows from which XLA:CPU reduces them 3 x faster in blocks of coordinates that stay in cache
_BLOCK = 2048
_CG_STEPS = 100


def reference(deltas: Deltas, mass: Float[Array, " clients"], smoothing: chex.Numeric, steps: int = 1000) -> Params:
    """The point that both approach: Weiszfeld's iteration as it is written, for finite deltas that are not extreme."""

    def step(_: Any, z: Params) -> Params:
        distance = jnp.sqrt(tree.row_sums(lambda g, z: jnp.square(g - z), deltas, z))
        weight = mass / jnp.maximum(smoothing, distance)
        return tree.weighted_sum(weight / weight.sum(), deltas)

    return jax.lax.fori_loop(0, steps, step, tree.weighted_sum(mass / mass.sum(), deltas))


class Median(NamedTuple):
    """A geometric median and how it was computed.

    Attributes:
      point: the geometric median, like ``params``.
      weight: its coefficients on the deltas ``[S]``, summing to 1.
      iterations: steps of Weiszfeld and rounds of Newton's method.
      residual: relative to :func:`spread`, the length of the last step; after Newton's method, the share of its
        last round that rounding leaves uncertain.
    """

    point: Params
    weight: jax.Array
    iterations: jax.Array
    residual: jax.Array


def offsets(deltas: Deltas, point: Params, mass: Float[Array, " clients"]) -> Deltas:
    """``g_m - z`` in accumulation precision; ones for clients of mass 0, whose norms then need no special care."""

    def leaf(g: jax.Array, z: jax.Array) -> jax.Array:
        return jnp.where(tree.expand(mass, g) > 0, tree.accurate(g) - z, 1.0)

    return jax.tree.map(leaf, deltas, point)


@jax.custom_jvp
def distances_to(point: Params, deltas: Deltas, mass: Float[Array, " clients"]) -> Float[Array, " clients"]:
    """``||g_m - z||``, and some positive number for clients of mass 0, ``[S]``.

    XLA fuses the offsets into the sums; storing them would cost several passes.
    """

    def in_blocks(g: jax.Array, z: jax.Array) -> jax.Array:
        g, z = g.reshape(len(mass), -1), z.reshape(-1)
        whole = g.shape[1] // _BLOCK if len(mass) > _MANY else 0

        def square(g: jax.Array, z: jax.Array) -> jax.Array:
            return jnp.square(tree.accurate(g) - z).sum(1)

        def block(k: jax.Array, total: jax.Array) -> jax.Array:
            of = functools.partial(jax.lax.dynamic_slice_in_dim, start_index=k * _BLOCK, slice_size=_BLOCK, axis=-1)
            return total + square(of(g), of(z))

        rest = square(g[:, whole * _BLOCK :], z[whole * _BLOCK :])
        return jax.lax.fori_loop(0, whole, block, rest) if whole else rest

    def at_once(g: jax.Array, z: jax.Array) -> jax.Array:
        return jnp.square(tree.accurate(g) - z).sum(axes_of_params(g))

    def squares(g: jax.Array, z: jax.Array) -> jax.Array:
        return jax.lax.platform_dependent(g, z, cpu=in_blocks, default=at_once)

    total = jnp.where(mass > 0, _over_leaves(squares, deltas, point), 1.0)
    safe = ((total > tree.SAFE_SQUARES[0]) & (total < tree.SAFE_SQUARES[1])).all()
    scaled = lambda: tree.norms(offsets(deltas, point, mass)).astype(total.dtype)
    return jax.lax.cond(safe, lambda: jnp.sqrt(jnp.where(safe, total, 1.0)), scaled)


@distances_to.defjvp
def _distances_to_jvp(
    primals: tuple[Params, Deltas, jax.Array], tangents: tuple[Params, Deltas, Any]
) -> tuple[jax.Array, jax.Array]:
    point, deltas, mass = primals
    distance = distances_to(*primals)
    unit = jnp.where(mass > 0, tree.inverse(distance), 0.0)

    def along(away: jax.Array, dg: jax.Array, dz: jax.Array) -> jax.Array:
        change = tree.accurate(dg) - dz
        return sum_rows(tree.expand(unit, away) * away * change)

    return distance, _over_leaves(along, offsets(deltas, point, mass), tangents[1], tangents[0])


def _over_leaves(term: Callable[..., jax.Array], *trees: Any) -> jax.Array:
    """Sum of ``term`` over the leaves of the trees."""
    return functools.reduce(jnp.add, jax.tree.leaves(jax.tree.map(term, *trees)))


def closeness(
    distance: Float[Array, " clients"], mass: Float[Array, " clients"], smoothing: chex.Numeric
) -> Float[Array, " clients"]:
    """``w_m``, proportional to ``p_m / max(nu, d_m)`` and summing to 1."""
    bounded = jnp.maximum(distance, smoothing)
    nearest = jax.lax.stop_gradient(jnp.where(mass > 0, bounded, jnp.inf).min())
    weight = jnp.where(mass > 0, mass * (nearest / bounded), 0.0)  # relative to the nearest: no inverse overflows
    # The condition comes last, to stop the derivative by the weight of an absent client that is not finite.
    return jnp.where(mass > 0, weight * tree.inverse(weight.sum()), 0.0)


def spread(
    distance: Float[Array, " clients"], mass: Float[Array, " clients"], smoothing: chex.Numeric
) -> Float[Array, ""]:
    """The median distance, or ``nu`` if that is larger: a length that no minority can change at will."""
    order = jnp.argsort(distance)
    beyond_half = jnp.cumsum(mass[order]) > (0.5 + 1e-5) * mass.sum()
    return jnp.maximum(distance[order][jnp.argmax(beyond_half)], smoothing)


def in_accuracy_of(deltas: Deltas, *values: Any) -> list[jax.Array]:
    """The values in the dtype that statistics of the deltas accumulate in."""
    dtype = jnp.result_type(*map(tree.accurate, jax.tree.leaves(deltas)))
    return [jnp.asarray(value).astype(dtype) for value in values]


def weiszfeld(
    deltas: Deltas,
    mass: Float[Array, " clients"],
    smoothing: chex.Numeric,
    tolerance: chex.Numeric,
    max_iterations: int,
    from_zero: bool = False,
) -> Median:
    """Weiszfeld's iteration from the weighted mean, or from zero, until a step is shorter than ``tolerance``.

    The loop is a scan whose steps after convergence are skipped, so that it can be differentiated in reverse.

    Args:
      deltas: ``[S, *p]``.
      mass: non-negative weights ``[S]``; clients of mass 0 are absent.
      smoothing: lower bound ``nu`` on a distance, > 0, in the units of the deltas.
      tolerance: length of the last step, relative to :func:`spread`.
      max_iterations: static bound on the number of steps.
      from_zero: static, whether the first point is zero.
    """
    mass, smoothing = in_accuracy_of(deltas, mass * tree.inverse(mass.sum()), smoothing)

    def step(now: Median) -> Median:
        point, weight, distance = _step(deltas, mass, smoothing, now.point)
        moved = tree.norm(tree.subtract(point, now.point))
        return Median(point, weight, now.iterations + 1, moved / spread(distance, mass, smoothing))

    def guarded(now: Median, _: None) -> tuple[Median, None]:
        return jax.lax.cond(now.residual > tolerance, step, lambda done: done, now), None

    first = tree.weighted_sum((0 if from_zero else 1) * mass, deltas)
    start = Median(first, mass, jnp.zeros((), int), jnp.full((), jnp.inf, mass.dtype))
    return jax.lax.scan(guarded, start, length=max_iterations)[0]


def pull(point: Params, deltas: Deltas, mass: Float[Array, " clients"], smoothing: chex.Numeric) -> Params:
    """``sum_m w_m (z - g_m)``: 0 at the geometric median."""
    weight = closeness(distances_to(point, deltas, mass), mass, smoothing)
    return tree.scale(-1.0, tree.weighted_sum(weight, offsets(deltas, point, mass)))


def _root(equation: Callable[..., Params], point: Params, *arguments: Any) -> Params:
    """``point``, where ``equation(point, *arguments)`` is 0, with the derivatives that follow from that.

    By the implicit function theorem, independent of the steps that led to it. The derivative of ``equation`` by
    the point must be symmetric.
    """
    del equation, arguments
    return point


root = jax.custom_jvp(_root, nondiff_argnums=(0,))


@root.defjvp
def _root_jvp(
    equation: Callable[..., Params], primals: tuple[Any, ...], tangents: tuple[Any, ...]
) -> tuple[Params, Params]:
    point, arguments = primals[0], primals[1:]
    _, right = jax.jvp(lambda *arguments: equation(point, *arguments), arguments, tangents[1:])
    _, linear = jax.linearize(lambda point: equation(point, *arguments), point)
    eps = float(jnp.finfo(jax.tree.leaves(point)[0].dtype).eps)
    # Deltas on a line leave the median free: without the ridge there would be no solution.
    ridge = lambda v: jax.tree.map(lambda a, b: a + 4 * eps * b, linear(v), v)
    solve = lambda apply, right: cg(apply, right, tol=10 * eps, maxiter=_CG_STEPS)[0]
    return point, tree.scale(-1.0, jax.lax.custom_linear_solve(ridge, right, solve, symmetric=True))


def geometric_median_of(
    deltas: Deltas,
    mass: Float[Array, " clients"],
    smoothing: chex.Numeric,
    tolerance: chex.Numeric,
    max_iterations: int,
) -> Median:
    """The geometric median, also where Weiszfeld's iteration is slow.

    Arguments as for :func:`weiszfeld`. The point is differentiated as the root of the gradient; its weights are not.
    """
    mass, smoothing = in_accuracy_of(deltas, mass * tree.inverse(mass.sum()), smoothing)
    known, nu, limit = jax.lax.stop_gradient((deltas, smoothing, tolerance))
    weights = jax.lax.stop_gradient(mass)
    span = span_around(known, closest_to_zero(known, weights, nu))
    near, usable = converge_in(span, weights, nu, limit, max_iterations, weights)
    near = tree.where(usable, near, before(weights, weights))
    reached = near._replace(median=near.median._replace(point=tree.weighted_sum(near.median.point, known)))

    def onward() -> Median:
        return converge(known, weights, nu, limit, max_iterations, reached)

    median = jax.lax.cond(reached.settled, lambda: reached.median, onward)
    return median._replace(point=root(pull, median.point, deltas, mass, smoothing))


def closest_to_zero(
    deltas: Deltas, mass: Float[Array, " clients"], smoothing: chex.Numeric
) -> Float[Array, " clients"]:
    """Coefficients of a point among the deltas that long ones do not move far: one step of Weiszfeld's from zero."""
    return closeness(tree.norms(deltas).astype(mass.dtype), mass, smoothing)


class Iteration(NamedTuple):
    """How far an iteration has come; a point of the span is given by its coefficients."""

    median: Median
    moved: jax.Array
    previous: jax.Array
    settled: jax.Array


def converge(
    deltas: Deltas,
    mass: Float[Array, " clients"],
    smoothing: chex.Numeric,
    tolerance: chex.Numeric,
    max_iterations: int,
    start: Iteration,
) -> Median:
    """Weiszfeld's iteration from ``start`` while it is fast, then rounds of Newton's method; without derivatives.

    Arguments as for :func:`weiszfeld`; ``mass`` sums to 1.
    """
    deltas, mass, smoothing, tolerance, start = jax.lax.stop_gradient((deltas, mass, smoothing, tolerance, start))
    dtype = mass.dtype

    def step(point: Params) -> tuple[Params, jax.Array, jax.Array, jax.Array]:
        following, weight, distance = _step(deltas, mass, smoothing, point)
        return following, weight, distance, tree.norm(tree.subtract(following, point))

    def newton(now: Iteration) -> Iteration:
        point, moved, reach = _newton(deltas, mass, smoothing, now.median.point)
        residual = jnp.sqrt(jnp.finfo(dtype).eps) * moved / reach
        median = now.median._replace(point=point, iterations=now.median.iterations + 1, residual=residual)
        return Iteration(median, moved, now.moved, residual <= tolerance)

    walked = _walk(step, mass, smoothing, tolerance, max_iterations, start)
    infinite = jnp.full((), jnp.inf, dtype)
    again = walked._replace(moved=infinite, previous=infinite)
    median = jax.lax.while_loop(functools.partial(_unfinished, max_iterations), newton, again).median
    distance = distances_to(median.point, deltas, mass)
    return median._replace(weight=closeness(distance, mass, smoothing))


def converge_in(
    span: Span,
    mass: Float[Array, " clients"],
    smoothing: chex.Numeric,
    tolerance: chex.Numeric,
    max_iterations: int,
    start: Float[Array, " clients"],
) -> tuple[Iteration, Bool[Array, ""]]:
    """Weiszfeld's iteration while it is fast, in the span of the deltas; points are their coefficients ``[S]``.

    Returns:
      How far it has come, settled only if what inner products leave uncertain of the distances moves the point by less
      than the tolerance, and whether it is worth going on from there with differences of the deltas.
    """

    def step(point: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        distance = span.distances(point)
        weight = closeness(distance, mass, smoothing)
        return weight, weight, distance, span.length(weight - point)

    walked = _walk(step, mass, smoothing, tolerance, max_iterations, before(start, mass))
    point = walked.median.point
    distance = span.distances(point)
    doubt = tree.product(mass, span.doubt(point, jnp.maximum(distance, smoothing)))
    arrived = (walked.moved <= 0.1 * _nearest(distance, mass, smoothing)) & (doubt <= tolerance)
    median = walked.median._replace(weight=closeness(distance, mass, smoothing))
    return walked._replace(median=median, settled=walked.settled & arrived), doubt <= _USABLE


def before(start: Any, mass: jax.Array) -> Iteration:
    """Nothing done so far."""
    infinite, none = jnp.full((), jnp.inf, mass.dtype), jnp.zeros((), int)
    return Iteration(Median(start, mass, none, infinite), infinite, infinite, jnp.zeros((), bool))


def _nearest(distance: jax.Array, mass: jax.Array, smoothing: Any) -> jax.Array:
    return jnp.where(mass > 0, jnp.maximum(distance, smoothing), jnp.inf).min()


def _unfinished(max_iterations: int, now: Iteration) -> jax.Array:
    fast = ~(now.moved > _SLOW * now.previous)
    return fast & ~now.settled & (now.median.iterations < max_iterations)


def _walk(
    step: Callable[[Any], tuple[Any, jax.Array, jax.Array, jax.Array]],
    mass: jax.Array,
    smoothing: Any,
    tolerance: Any,
    max_iterations: int,
    first: Iteration,
) -> Iteration:
    """Weiszfeld's iteration while it is fast.

    ``step`` returns where a step leads from a point, with what weights, the distances before it, and how far it is.
    """

    def advance(now: Iteration) -> Iteration:
        point, weight, distance, moved = step(now.median.point)
        residual = moved / spread(distance, mass, smoothing)
        # Close to a delta the steps are short because it weighs so much, not because they have arrived.
        settled = (residual <= _MARGIN * tolerance) & (moved <= 0.1 * _nearest(distance, mass, smoothing))
        return Iteration(Median(point, weight, now.median.iterations + 1, residual), moved, now.moved, settled)

    return jax.lax.while_loop(functools.partial(_unfinished, max_iterations), advance, first)


def _step(deltas: Deltas, mass: jax.Array, smoothing: Any, point: Params) -> tuple[Params, jax.Array, jax.Array]:
    """Where one step of Weiszfeld's leads from ``point``, with what weights, and the distances before it."""
    distance = distances_to(point, deltas, mass)
    weight = closeness(distance, mass, smoothing)
    return tree.weighted_sum(weight, deltas), weight, distance


def _newton(deltas: Deltas, mass: jax.Array, smoothing: Any, point: Params) -> tuple[Params, jax.Array, jax.Array]:
    """One round of Newton's method: the next point, how far it is, and :func:`spread` around it.

    From the inner products of the unit offsets follow coordinates of the deltas in their span, with the origin at
    ``point``: S places in at most S dimensions. They are exact to about the root of the precision, so the next round
    starts from exact differences again.
    """
    away = offsets(deltas, point, mass)
    distance = distances_to(point, deltas, mass)
    unit, scale = jnp.where(mass > 0, tree.inverse(distance), 0.0), spread(distance, mass, smoothing)
    eps = jnp.finfo(distance.dtype).eps
    power, axes = jnp.linalg.eigh(gram(away, unit))
    kept = power > len(power) * eps * power[-1]
    length = jnp.sqrt(jnp.where(kept, power, 0.0))
    far = jnp.minimum(distance / scale, 1 / eps)  # from there on only the direction matters
    places = far[:, None] * axes * length
    shift, _ = median_of_places(places, mass, smoothing / scale)
    along = tree.product(axes, shift * tree.inverse(length))
    step = tree.weighted_sum(along * (scale * unit), away)
    reach = spread(jnp.linalg.norm(places - shift, axis=1), mass, smoothing / scale)
    return tree.add(point, step), scale * jnp.linalg.norm(shift), scale * reach
