"""Order statistics over the client axis, coordinate by coordinate.

XLA's sort along the client axis, the :func:`reference`, is slow on CPU: for the median of 10, 24 and 100 clients it
takes 31, 19 and 10 times as long as what follows (``scripts/benchmark.py kernels``). Up to 32 clients, a network of
compare-exchanges (elementwise minima and maxima) fuses into a pass over the deltas for each result. Beyond, where its
program would grow too long, an order statistic is found bit by bit: every step counts the clients below a trial value,
of whose bits it compares one byte, over a block of coordinates that stays in cache.

Accelerators sort, in one kernel that reads and writes each leaf once. Of up to 16 clients a GPU takes the network,
which is fused into one kernel that writes nothing but the results; a TPU does not fuse it.

All work on integers in the order of the floats. They compare faster, and the result is one of the
input numbers, bit for bit: XLA on CPU takes subnormal floats for zero, but not here, and -0 lies below +0.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fedjax_drag import tree
from fedjax_drag.types import Deltas

_LARGEST_INLINE = 16  # rows; up to here a network for each leaf compiles quickly
_LARGEST_NETWORK = 32  # rows; beyond, counting is as fast and compiles sooner
_BLOCK_ENTRIES = 2**20  # keys of a block; their bytes then stay in the cores' caches
_ROWS_PER_SUM = 32  # rows unrolled into one fused sum
_ROWS_PER_COUNT = 127  # rows counted in a byte
_COLUMNS_PER_SUM = 1008  # columns whose counts are added up side by side


_FindFn = Callable[[jax.Array, jax.Array, jax.Array], tuple[jax.Array, jax.Array, jax.Array]]
"""``(block [S, *p], valid [S], trim) -> (mean, low, high)``."""


class TrimmedRange(NamedTuple):
    """The values of each coordinate that remain when the outermost clients are cut off.

    Attributes:
      mean: of the values kept, in accumulation precision.
      low: the smallest of them, as a key (see :func:`to_keys`).
      high: the largest of them, as a key.
    """

    mean: Any
    low: Any
    high: Any


def reference(block: jax.Array, valid: jax.Array, trim: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """What all forms compute for one leaf ``[S, *p]``, by XLA's sort; it is the form of accelerators.

    Returns:
      The mean of the values kept, and the keys of the smallest and the largest of them.
    """
    first, last, weight = _ranks(valid, trim, block.dtype)
    keys = jax.lax.sort(_masked_keys(block, tree.expand(valid, block)), dimension=0, is_stable=False)
    ranks = tree.expand(jnp.arange(len(keys)), block)
    kept = (ranks >= first) & (ranks <= last)
    mean = jnp.where(kept, weight * _values(keys, block.dtype), 0).sum(0)
    return mean, *(jax.lax.dynamic_index_in_dim(keys, rank, keepdims=False) for rank in (first, last))


def middle(deltas: Deltas, valid: Bool[Array, " clients"], trim: Int[Array, ""]) -> TrimmedRange:
    """The mean of each coordinate's order statistics from rank ``trim`` to ``n - 1 - trim``, of n valid clients.

    Args:
      deltas: ``[S, *p]``; rows that are not valid may hold anything.
      valid: ``[S]`` bool.
      trim: how many clients to cut off at either end, below n/2; an integer that may be traced.

    Returns:
      A :class:`TrimmedRange` of pytrees like ``params``. The gradient of the mean falls on the clients that were kept;
      those that tie at an end of what was kept have equal shares of it.
    """
    size, sorting = tree.cohort_size(deltas), functools.partial(_middle_of_leaves, reference)
    if size <= _LARGEST_INLINE:
        network = functools.partial(_middle_of_leaves, _by_network)
        return jax.lax.platform_dependent(deltas, valid, trim, tpu=sorting, default=network)
    on_cpu = functools.partial(_middle_of_all, _by_network if size <= _LARGEST_NETWORK else _in_blocks)
    return jax.lax.platform_dependent(deltas, valid, trim, cpu=on_cpu, default=sorting)


def _middle_of_leaves(find: _FindFn, deltas: Deltas, valid: jax.Array, trim: jax.Array) -> TrimmedRange:
    """:func:`middle` of each leaf as it lies."""
    leaves, structure = jax.tree.flatten(deltas)
    parts = zip(*(_middle(find, leaf, valid, trim) for leaf in leaves), strict=True)
    return TrimmedRange(*(structure.unflatten(part) for part in parts))


def _middle_of_all(find: _FindFn, deltas: Deltas, valid: jax.Array, trim: jax.Array) -> TrimmedRange:
    """:func:`middle` of all leaves in one array, a copy, so that a long program is compiled only once.

    Stored, or XLA on CPU computes the network again in every operation on every leaf of what it returns.
    """
    leaves, structure = jax.tree.flatten(deltas)
    size, common = tree.cohort_size(deltas), jnp.result_type(*leaves)
    rows = jnp.concatenate([leaf.reshape(size, -1) for leaf in leaves], axis=1)
    whole = tree.stored(_middle(find, rows, valid, trim))
    cuts = np.cumsum([leaf[0].size for leaf in leaves])[:-1]

    def shaped(leaf: jax.Array, mean: jax.Array, *ends: jax.Array) -> list[jax.Array]:
        keys = [to_keys(_values(end, common).astype(leaf.dtype)) for end in ends]
        return [x.reshape(leaf.shape[1:]) for x in (mean, *keys)]

    parts = zip(*(jnp.split(part, cuts) for part in whole), strict=True)
    columns = zip(*(shaped(leaf, *one) for leaf, one in zip(leaves, parts, strict=True)), strict=True)
    return TrimmedRange(*(structure.unflatten(column) for column in columns))


def median_of(numbers: Float[Array, " clients"], valid: Bool[Array, " clients"]) -> Float[Array, ""]:
    """The median of the valid clients' numbers: of an even number of them the mean of the two middle ones; else 0."""
    ordered, number = jnp.sort(jnp.where(valid, numbers, jnp.inf)), valid.sum()
    low, high = ordered[jnp.maximum(number - 1, 0) // 2], ordered[number // 2]
    return jnp.where(number > 0, low + (high - low) / 2, 0.0)


def kept_share(deltas: Deltas, valid: Bool[Array, " clients"], kept: TrimmedRange) -> Float[Array, " clients"]:
    """Each client's share ``[S]`` of the values between the ends of what is kept; these sum to 1.

    It finds the ends again by comparison. Behind an unstored product their last bits may differ in some coordinates,
    whose ends are then not counted; to store the deltas before (:func:`fedjax_drag.tree.stored`) costs half as much as
    the rule.
    """

    def between(values: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
        keys = to_keys(values)
        return (keys >= low) & (keys <= high)

    count = valid * count_entries(between, deltas, kept.low, kept.high).astype(jnp.float32)
    return count * tree.inverse(count.sum())


def count_entries(holds: Callable[..., jax.Array], deltas: Deltas, *shared: Any) -> Int[Array, " clients"]:
    """Number of coordinates in which ``holds(values, *shared)`` is true, for each client, ``[S]`` int32.

    Args:
      holds: an elementwise comparison of some coordinates of the clients ``[S, *c]`` with those shared by all ``[*c]``.
      deltas: ``[S, *p]``.
      *shared: pytrees ``[*p]``.
    """

    def at_once(deltas: Deltas, *shared: Any) -> jax.Array:
        return tree.row_sums(lambda *leaves: holds(*leaves).astype(jnp.int32), deltas, *shared)

    by_block = functools.partial(_count_by_block, holds)
    return jax.lax.platform_dependent(deltas, *shared, cpu=by_block, default=at_once)


def _count_by_block(holds: Callable[..., jax.Array], deltas: Deltas, *shared: Any) -> jax.Array:
    """:func:`count_entries` for some columns at a time: XLA on CPU takes 8 times as long to add up along a row."""

    def leaf_count(leaf: jax.Array, *others: jax.Array) -> jax.Array:
        arrays = [leaf.reshape(leaf.shape[0], -1), *(x.reshape(-1) for x in others)]
        number, rest = divmod(arrays[0].shape[1], _COLUMNS_PER_SUM)

        def held(start: Any, length: int) -> jax.Array:
            return holds(*(jax.lax.dynamic_slice_in_dim(x, start, length, axis=-1) for x in arrays)).astype(jnp.int32)

        def add(index: jax.Array, sums: jax.Array) -> jax.Array:
            return sums + held(index * _COLUMNS_PER_SUM, _COLUMNS_PER_SUM)

        total = held(number * _COLUMNS_PER_SUM, rest).sum(1)
        if number:
            sums = jnp.zeros((leaf.shape[0], _COLUMNS_PER_SUM), jnp.int32)
            total += jax.lax.fori_loop(0, number, add, sums).sum(1)
        return total

    return jnp.stack(jax.tree.leaves(jax.tree.map(leaf_count, deltas, *shared))).sum(0)


def to_keys(values: Float[Array, "*shape"]) -> Int[Array, "*shape"]:
    """Integers of as many bits as the floats and in their order, -0 before +0."""
    bits = jax.lax.bitcast_convert_type(values, jnp.dtype(f"int{8 * values.dtype.itemsize}"))
    return jnp.where(bits < 0, bits ^ jnp.iinfo(bits.dtype).max, bits)


def _values(keys: jax.Array, dtype: Any) -> jax.Array:
    """The floats of type ``dtype`` that have these keys, in accumulation precision."""
    bits = jnp.where(keys < 0, keys ^ jnp.iinfo(keys.dtype).max, keys)
    return tree.accurate(jax.lax.bitcast_convert_type(bits, dtype))


def _masked_keys(values: jax.Array, valid: jax.Array) -> jax.Array:
    """Keys of the values; those that are not valid come last."""
    return to_keys(jnp.where(valid, values, jnp.finfo(values.dtype).max))


def _ranks(valid: jax.Array, trim: jax.Array, dtype: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The first and last rank to keep, and the weight of each value kept, in accumulation precision."""
    last = jnp.maximum(valid.sum() - 1 - trim, trim)
    return trim, last, 1 / (last - trim + 1).astype(jnp.promote_types(dtype, jnp.float32))


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _middle(
    find: _FindFn, block: jax.Array, valid: jax.Array, trim: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The parts of :func:`middle` for ``[S, *p]``, the ends as keys, by one of the ways to find them."""
    mean, low, high = find(block, valid, trim)
    low_value, high_value = _values(low, block.dtype), _values(high, block.dtype)
    return jnp.where(low == high, low_value, jnp.clip(mean, low_value, high_value)), low, high


@functools.cache
def exchange_network(size: int) -> tuple[tuple[int, int], ...]:
    """Pairs (low, high) of Batcher's odd-even merge sort for ``size`` inputs, in order."""
    pairs = []
    block = 1
    while block < size:
        gap = block
        while gap >= 1:
            for first in range(gap % block, size - gap, 2 * gap):
                for low in range(first, first + min(gap, size - first - gap)):
                    if low // (2 * block) == (low + gap) // (2 * block):
                        pairs.append((low, low + gap))
            gap //= 2
        block *= 2
    return tuple(pairs)


def _by_network(block: jax.Array, valid: jax.Array, trim: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Sorts, then takes the ranks asked for."""
    first, last, weight = _ranks(valid, trim, block.dtype)
    rows = [_masked_keys(block[m], valid[m]) for m in range(block.shape[0])]
    for a, b in exchange_network(len(rows)):
        rows[a], rows[b] = jnp.minimum(rows[a], rows[b]), jnp.maximum(rows[a], rows[b])
    low = high = rows[0]
    mean = jnp.zeros((), weight.dtype)
    for rank, row in enumerate(rows):
        low, high = jnp.where(rank == first, row, low), jnp.where(rank == last, row, high)
        mean += jnp.where((rank >= first) & (rank <= last), weight * _values(row, block.dtype), 0)
    return mean, low, high


@jax.custom_batching.sequential_vmap
def _in_blocks(block: jax.Array, valid: jax.Array, trim: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """:func:`_by_counting` for as many coordinates at a time as the cache holds."""
    size, width = block.shape
    # An odd number of cache lines, so that the rows of a block do not fall on the same lines of the cache.
    step = min(width, 16 * (2 * (_BLOCK_ENTRIES // (32 * size)) + 1))

    def fill(index: jax.Array, out: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        start = jnp.minimum(index * step, width - step)
        results = _by_counting(jax.lax.dynamic_slice_in_dim(block, start, step, 1), valid, trim)
        return tuple(jax.lax.dynamic_update_slice_in_dim(o, x, start, 0) for o, x in zip(out, results, strict=True))

    like = jax.eval_shape(_by_counting, block, valid, trim)
    return jax.lax.fori_loop(0, -(-width // step), fill, tuple(jnp.zeros(x.shape, x.dtype) for x in like))


def _by_counting(block: jax.Array, valid: jax.Array, trim: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Finds both ends by bisection, then adds up what lies between."""
    first, last, weight = _ranks(valid, trim, block.dtype)
    rows = _masked_keys(block, valid[:, None])
    largest = jnp.iinfo(rows.dtype).max
    keys = _grouped(rows, _ROWS_PER_SUM, largest)

    def each_group(
        combine: Callable[[jax.Array, jax.Array], jax.Array], term: Callable[[jax.Array], jax.Array]
    ) -> jax.Array:
        return functools.reduce(combine, [term(keys[:, row]) for row in range(keys.shape[1])])

    def over_groups(sums: jax.Array) -> jax.Array:
        # A product, which XLA does not fuse with the pass for each group into a longer, slower pass.
        return tree.product(jnp.ones(len(keys), weight.dtype), sums.astype(weight.dtype))

    def one_or_two() -> tuple[jax.Array, jax.Array]:
        def at_most_low(k: jax.Array) -> jax.Array:
            return (k <= low).astype(keys.dtype)

        above = each_group(jnp.minimum, lambda k: jnp.where(k > low, k, largest)).min(0)
        high = jnp.where(over_groups(each_group(jnp.add, at_most_low)) > last, low, above)
        return weight * low_value + weight * _values(high, block.dtype), high

    def several() -> tuple[jax.Array, jax.Array]:
        high = _key_at_rank(rows, last)
        high_value = _values(high, block.dtype)

        def inside(k: jax.Array) -> jax.Array:
            return jnp.where((k > low) & (k < high), weight * _values(k, block.dtype), 0)

        def both_counts(k: jax.Array) -> jax.Array:  # of at most 32 rows each
            return (k <= low).astype(keys.dtype) + ((k < high).astype(keys.dtype) << 8)

        counts = each_group(jnp.add, both_counts)
        at_low, at_high = over_groups(counts & 0xFF) - first, last + 1 - over_groups(counts >> 8)
        between = over_groups(each_group(jnp.add, inside))
        return between + weight * at_low * low_value + weight * at_high * high_value, high

    low = _key_at_rank(rows, first)
    low_value = _values(low, block.dtype)
    mean, high = jax.lax.cond(last - first < 2, one_or_two, several)
    return mean, low, high


def _grouped(rows: jax.Array, most: int, fill: Any) -> jax.Array:
    """Rows ``[S, n]`` in groups of at most so many, ``[groups, rows, n]``; the last is filled up."""
    size, width = rows.shape
    groups = -(-size // most)
    each = -(-size // groups)
    return jnp.pad(rows, ((0, groups * each - size), (0, 0)), constant_values=fill).reshape(groups, each, width)


def _key_at_rank(keys: jax.Array, rank: jax.Array) -> jax.Array:
    """The key ``[n]`` of each column of ``[S, n]`` that so many others precede.

    It is found byte by byte. With the keys outside the range of those that begin alike moved to its ends, the rank is
    also that among the next bytes, of which a processor compares four times as many at once as of whole keys.
    """
    width, kind = keys.shape[1], keys.dtype
    largest, smallest, bits = jnp.iinfo(kind).max, jnp.iinfo(kind).min, jnp.iinfo(kind).bits

    def add_byte(index: jax.Array, start: jax.Array) -> jax.Array:
        shift = (bits - 8 * (index + 1)).astype(kind)
        end = jnp.where(index == 0, largest, start | ((jnp.ones((), kind) << (shift + 8)) - 1))
        sign = jnp.where(index == 0, 0, -128).astype(jnp.int8)  # the first byte has one, the others are made to
        parts = (jnp.clip(keys, start, end) >> shift).astype(jnp.int8) ^ sign
        byte = _byte_at_rank(_grouped(parts, _ROWS_PER_COUNT, 127), rank) ^ sign
        return jnp.where(index == 0, 0, start) | ((byte.astype(kind) & 0xFF) << shift)

    return jax.lax.fori_loop(0, bits // 8, add_byte, jnp.full(width, smallest, kind))


def _byte_at_rank(parts: jax.Array, rank: jax.Array) -> jax.Array:
    """The byte ``[n]`` of each column of ``[groups, rows, n]`` int8 that so many others precede, bit by bit."""
    groups, rows, width = parts.shape

    def before(trial: jax.Array) -> jax.Array:
        return functools.reduce(jnp.add, [(parts[:, row] < trial).astype(jnp.int8) for row in range(rows)])

    def comes_later(trial: jax.Array) -> jax.Array:
        if groups == 1:
            return before(trial)[0] <= rank.astype(jnp.int8)
        counts = before(trial)  # in bytes, as a loop takes them; XLA fuses anything else, and counts in wider integers
        total = jax.lax.fori_loop(0, groups, lambda g, sums: sums + counts[g], jnp.zeros(width, jnp.int32))
        return total <= rank

    def add_bit(index: jax.Array, byte: jax.Array) -> jax.Array:
        trial = byte + (jnp.ones((), jnp.int8) << (7 - index).astype(jnp.int8))
        return jnp.where(comes_later(trial), trial, byte)

    return jax.lax.fori_loop(0, 8, add_bit, jnp.full(width, -128, jnp.int8))


@_middle.defjvp
def _middle_jvp(
    find: _FindFn, primals: tuple[jax.Array, jax.Array, jax.Array], tangents: tuple[jax.Array, Any, Any]
) -> tuple[tuple[jax.Array, jax.Array, jax.Array], tuple[jax.Array, Any, Any]]:
    block, valid, trim = primals
    block = tree.stored(block)
    mean, low, high = _middle(find, block, valid, trim)
    first, last, weight = _ranks(valid, trim, block.dtype)
    rows = tree.expand(valid, block)
    keys = _masked_keys(block, rows)
    ties_low, ties_high = rows & (keys == low), rows & (keys == high)
    kept_low = jnp.minimum((rows & (keys <= low)).sum(0), last + 1) - first
    kept_high = last + 1 - (rows & (keys < high)).sum(0)
    share = (rows & (keys > low) & (keys < high)).astype(weight.dtype)
    share = jnp.where(ties_high, kept_high / ties_high.sum(0), share)
    share = weight * jnp.where(ties_low, kept_low / ties_low.sum(0), share)
    change = jnp.where(share != 0, share * tree.accurate(tangents[0]), 0).sum(0)
    none: Any = np.zeros(low.shape, jax.dtypes.float0)  # keys are integers
    return (mean, low, high), (change.astype(mean.dtype), none, none)
