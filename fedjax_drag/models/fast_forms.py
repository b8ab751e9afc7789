"""Any model's convolutions and poolings in the form that is fast on the platform.

A model is a function of arrays, whatever it is written in; its equations (the jaxpr) have ``conv_general_dilated`` and
``reduce_window`` in them. :func:`in_fast_forms` computes the same equations, but for these:

* a convolution with a square kernel, the bias that is added to it, ReLU and 2x2 max pooling after it, as
  :func:`~fedjax_drag.models.conv.convolution`; at a stride, or dilated, on other images
  (:mod:`~fedjax_drag.kernels.strides`);
* a convolution whose kernel is 1x1, or no larger than its stride, as a product;
* 2x2 max pooling as :func:`~fedjax_drag.kernels.pooling.max_pool`;
* sums over windows that do not overlap, such as those of average pooling, without a window.

Parameters, outputs and gradients are the same up to rounding. All other equations are computed as they are, and so are
convolutions inside loops, in functions with gradients of their own, and with a precision of their own.
"""

import collections
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, jaxpr_as_fun

from fedjax_drag.kernels.convolution import Pads
from fedjax_drag.kernels.pooling import max_pool
from fedjax_drag.kernels.strides import every, together, without_gaps, without_stride
from fedjax_drag.models.conv import convolution

_CONVOLUTION, _MAXIMA, _SUMS = "conv_general_dilated", "reduce_window_max", "reduce_window_sum"
_CALLS = ("jit", "pjit", "closed_call")


def in_fast_forms(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function of pytrees of arrays."""

    def fast(*args: Any) -> Any:
        closed, outputs = jax.make_jaxpr(function, return_shape=True)(*args)
        computed = jaxpr_as_fun(closed)
        if _changes_anything(closed.jaxpr):
            computed = functools.partial(_evaluate, closed.jaxpr, closed.consts)
        return jax.tree.unflatten(jax.tree.structure(outputs), computed(*jax.tree.leaves(args)))

    return fast


class _Convolved(NamedTuple):
    """A convolution that waits for what comes after it.

    Attributes:
      x: images ``[N, H, W, Cin]``.
      kernel: ``[k, k, Cin, Cout]``.
      pads: zeros before and after.
      axes: of the output in that order of the equations, where batch, height, width and channels are.
      bias: ``[Cout]``; None for none.
      relu: whether ReLU follows.
    """

    x: jax.Array
    kernel: jax.Array
    pads: Pads
    axes: tuple[int, int, int, int]
    bias: jax.Array | None = None
    relu: bool = False

    def value(self, pool: bool = False) -> jax.Array:
        """The output, in the order of the equations."""
        bias = jnp.zeros(self.kernel.shape[-1], self.kernel.dtype) if self.bias is None else self.bias
        y = convolution(self.x, self.kernel, bias, self.pads, pool=pool, relu=self.relu)
        return jnp.moveaxis(y, range(4), self.axes)


def _evaluate(jaxpr: Jaxpr, consts: Sequence[Any], *args: Any) -> list[Any]:
    """The outputs of equations."""
    read_by = (*(var for eqn in jaxpr.eqns for var in eqn.invars), *jaxpr.outvars)
    uses = collections.Counter(var for var in read_by if not isinstance(var, Literal))
    known: dict[Any, Any] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True))

    def waiting(var: Any) -> _Convolved | None:
        if isinstance(var, Literal) or uses[var] != 1:
            return None
        return known[var] if isinstance(known[var], _Convolved) else None

    def read(var: Any) -> Any:
        if isinstance(var, Literal):
            return var.val
        if isinstance(known[var], _Convolved):
            known[var] = known[var].value()
        return known[var]

    for eqn in jaxpr.eqns:
        changed = _extended(eqn, [waiting(var) for var in eqn.invars], read)
        if changed is None:
            changed = _replaced(jaxpr, eqn, [read(var) for var in eqn.invars])
        known.update(zip(eqn.outvars, changed, strict=True))
    return [read(var) for var in jaxpr.outvars]


def _extended(eqn: JaxprEqn, waiting: list[_Convolved | None], read: Callable[[Any], Any]) -> list[Any] | None:
    """An equation's outputs if a convolution that waits takes it up, else None."""
    name = eqn.primitive.name
    layers = [layer for layer in waiting if layer is not None]
    if len(layers) != 1:
        return None
    (layer,) = layers
    if name == "add" and layer.bias is None and not layer.relu:
        other = eqn.invars[1 - waiting.index(layer)]
        channels = layer.kernel.shape[-1]
        wanted = tuple(channels if axis == layer.axes[3] else 1 for axis in range(4))
        return [layer._replace(bias=read(other).reshape(channels))] if _array(other).shape == wanted else None
    if _is_relu(eqn):
        return [layer._replace(relu=True)]
    if name == _MAXIMA and _window(eqn) == {layer.axes[1]: 2, layer.axes[2]: 2}:
        return [layer.value(pool=True)]
    return None


def _replaced(jaxpr: Jaxpr, eqn: JaxprEqn, inputs: list[Any]) -> Sequence[Any]:
    """An equation's outputs; of a convolution, what waits for the next equations."""
    name, params = eqn.primitive.name, eqn.params
    if name in _CALLS and _changes_anything(params["jaxpr"].jaxpr):
        return _evaluate(params["jaxpr"].jaxpr, params["jaxpr"].consts, *inputs)
    if name == _CONVOLUTION and _can_be_a_layer(eqn):
        return [_layer(eqn, *inputs)]
    if name == _MAXIMA and [*_window(eqn).values()] == [2, 2] and inputs[0].ndim == 4:
        axes = tuple(_window(eqn))
        return [jnp.moveaxis(max_pool(jnp.moveaxis(inputs[0], axes, (1, 2))), (1, 2), axes)]
    if name == _SUMS and _window(eqn):
        return [_summed(inputs[0], _window(eqn))]
    variables = [var for var in eqn.invars if not isinstance(var, Literal)]
    values = [value for var, value in zip(eqn.invars, inputs, strict=True) if not isinstance(var, Literal)]
    origin = jaxpr.debug_info._replace(arg_names=None, result_paths=None)
    alone = Jaxpr((), variables, eqn.outvars, [eqn], eqn.effects, origin)
    return jaxpr_as_fun(ClosedJaxpr(alone, ()))(*values)


def _layer(eqn: JaxprEqn, x: jax.Array, kernel: jax.Array) -> Any:
    """The convolution of an equation, with images and kernels in the usual order."""
    numbers = eqn.params["dimension_numbers"]
    batch, channels, *space = numbers.lhs_spec
    x = x.transpose(batch, *space, channels)
    out, inner, *space = numbers.rhs_spec
    kernel = kernel.transpose(*space, inner, out)
    batch, channels, *space = numbers.out_spec
    axes = (batch, *space, channels)
    (stride, *_), (gap, *_) = eqn.params["window_strides"], eqn.params["rhs_dilation"]
    pads, k = eqn.params["padding"], len(kernel)
    if gap > 1:
        height, width = (_array(eqn.outvars[0]).shape[axis] for axis in space)
        parts = without_gaps(x, k, gap, pads)
        y = convolution(parts, kernel, jnp.zeros(kernel.shape[-1], kernel.dtype), (0, 0))
        return jnp.moveaxis(together(y, gap, height, width), range(4), axes)
    if k == 1 and stride > 1:
        x = every(x, stride)
    elif stride > 1 or pads[0] != pads[1]:
        (x, kernel), pads = without_stride(x, kernel, stride, pads), ((0, 0), (0, 0))
    if len(kernel) == 1:
        return jnp.moveaxis(x @ kernel[0, 0], range(4), axes)
    low, high = pads[0]
    return _Convolved(x, kernel, (low, high), axes)


def _can_be_a_layer(eqn: JaxprEqn) -> bool:
    params = eqn.params
    plain = params["feature_group_count"] == params["batch_group_count"] == 1 and {*params["lhs_dilation"]} == {1}
    if _array(eqn.invars[0]).ndim != 4 or not plain or params["precision"] != _usual_precision():
        return False
    sides = {_array(eqn.invars[1]).shape[axis] for axis in params["dimension_numbers"].rhs_spec[2:]}
    strides, gaps = {*params["window_strides"]}, {*params["rhs_dilation"]}
    if max(map(len, (sides, strides, gaps))) > 1 or _array(eqn.outvars[0]).dtype != _array(eqn.invars[0]).dtype:
        return False
    (side,), (stride,), (gap,) = sides, strides, gaps
    pads = [pad for both in params["padding"] for pad in both]
    if min(pads) < 0 or max(pads) > gap * (side - 1) or 0 in _array(eqn.outvars[0]).shape:
        return False
    return gap == 1 or (stride == 1 and side > 1)


def _usual_precision() -> Any:
    """That of a product that is given none, as JAX's configuration says."""
    one = jax.ShapeDtypeStruct((1, 1), jnp.float32)
    return jax.make_jaxpr(jax.lax.dot)(one, one).eqns[0].params["precision"]


def _array(var: Any) -> jax.ShapeDtypeStruct:
    """Shape and dtype of a variable."""
    return var.aval


def _window(eqn: JaxprEqn) -> dict[int, int]:
    """Of windows that lie side by side, their length along each axis where it is not 1; empty for others."""
    params = eqn.params
    dilations = {*params["base_dilation"], *params["window_dilation"]}
    simple = dilations == {1} and {tuple(pad) for pad in params["padding"]} == {(0, 0)}
    if not simple or params["window_dimensions"] != params["window_strides"]:
        return {}
    return {axis: length for axis, length in enumerate(params["window_dimensions"]) if length > 1}


def _summed(x: jax.Array, window: dict[int, int]) -> jax.Array:
    for axis, length in window.items():
        whole = x.shape[axis] // length
        x = jax.lax.slice_in_dim(x, 0, whole * length, axis=axis)
        x = x.reshape(*x.shape[:axis], whole, length, *x.shape[axis + 1 :]).sum(axis + 1, dtype=x.dtype)
    return x


def _is_relu(eqn: JaxprEqn) -> bool:
    """Whether an equation is ``jax.nn.relu``, by where it is written: another one may have another gradient."""
    return eqn.primitive.name == "custom_jvp_call" and _written(eqn) == _relu_written()


@functools.cache
def _relu_written() -> str:
    return _written(jax.make_jaxpr(jax.nn.relu)(0.0).eqns[0])


def _written(eqn: JaxprEqn) -> str:
    """Name, file and line of the function that an equation calls."""
    return eqn.params["call_jaxpr"].jaxpr.debug_info.func_src_info


def _changes_anything(jaxpr: Jaxpr) -> bool:
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        if (name == _CONVOLUTION and _can_be_a_layer(eqn)) or (name in (_MAXIMA, _SUMS) and _window(eqn)):
            return True
        if name in _CALLS and _changes_anything(eqn.params["jaxpr"].jaxpr):
            return True
    return False
