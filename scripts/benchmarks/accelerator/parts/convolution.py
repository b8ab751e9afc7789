"""One local step of all clients with each form of the convolution, of the same models with the same parameters."""

import contextlib
import functools
import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from benchmarks.accelerator.part import Cases, Part, attempts
from benchmarks.accelerator.parts.counts import temporary_mib, work
from benchmarks.accelerator.sizes import Sizes
from benchmarks.timing import Contestants, Row, in_turn, ratio, warm_up
from benchmarks.workloads import NUM_CLASSES, Workload
from fedjax_drag.kernels.pooling import max_pool
from fedjax_drag.losses import cross_entropy
from fedjax_drag.models import conv
from fedjax_drag.models.conv import Conv

STEPS = 5
"""In one loop, since the form in a loop may be another than outside."""

_CROWD = "crowd"


def forms() -> dict[str, Callable[[], AbstractContextManager[Any]]]:
    """By name, a context in which the layers :class:`~fedjax_drag.models.conv.Conv` of a model take a form.

    They are what the platform takes by itself, Flax's own layer, and all that :mod:`~fedjax_drag.models.conv` offers.
    """
    convolve: Callable[..., Any] = conv.conv2d
    named = {name: functools.partial(convolve, form=name) for name in getattr(conv, "FORMS", {})}
    convolutions = {"flax.linen.Conv": _flax, **named}

    def context(convolve: Callable[..., Any]) -> Callable[[], AbstractContextManager[Any]]:
        return lambda: nn.intercept_methods(functools.partial(_instead, convolve))

    own = {name: context(convolve) for name, convolve in convolutions.items()}
    return {"as the engine chooses": contextlib.nullcontext, **own}


def cases(sizes: Sizes) -> Cases:
    """A case for each workload, and one for the large cohort."""
    settings = {name: sizes.workloads[name] for name in sizes.forms} | {_CROWD: sizes.crowd}
    return {name: functools.partial(compare, setting, sizes) for name, setting in settings.items()}


def compare(setting: Workload, sizes: Sizes) -> list[Row]:
    """A row for each form, timed in turn; the ratio is to the first."""
    model, shape = setting.model(), setting.image_shape
    keys = jax.random.split(jax.random.key(0), 3)
    params = model.init(keys[0], jnp.zeros((1, *shape)))["params"]
    x = jax.random.normal(keys[1], (setting.cohort_size, STEPS, setting.batch_size, *shape))
    y = jax.random.randint(keys[2], x.shape[:3], 0, NUM_CLASSES)
    programs, failed = attempts(
        {name: functools.partial(_compiled, model, form, params, x, y) for name, form in forms().items()}
    )

    def contestant(program: Any) -> Callable[[], Any]:
        return lambda: jax.block_until_ready(program(params, x, y))

    contestants: Contestants = {name: contestant(program) for name, program in programs.items()}
    warm_up(contestants)
    times = in_turn(contestants, sizes.repeats, STEPS)
    rows: list[Row] = []
    for name in forms():
        row: Row = {"workload": setting.title, "form": name, "failed": failed.get(name)}
        if name in programs:
            done = work(programs[name])
            row |= {
                "ms_per_step": statistics.median(times[name]),
                "ratio": ratio(times, name, next(iter(times))),
                "GB_moved": done and done.bytes / STEPS / 1e9,
                "kernels": done and done.num_kernels // STEPS,
                "temporary_mib": temporary_mib(programs[name]),
            }
        rows.append(row)
    return rows


def _compiled(model: nn.Module, form: Callable[[], AbstractContextManager[Any]], params: Any, x: Any, y: Any) -> Any:
    """Local steps of all clients, compiled: ``(params, x, y) -> params`` of each client."""
    loss = cross_entropy()

    def loss_of(params: Any, x: Any, y: Any) -> Any:
        with form():
            logits: Any = model.apply({"params": params}, x)
        return loss(logits, y).mean()

    def step(params: Any, batch: Any) -> tuple[Any, None]:
        return jax.tree.map(lambda p, g: p - 0.01 * g, params, jax.grad(loss_of)(params, *batch)), None

    def one(params: Any, x: Any, y: Any) -> Any:
        return jax.lax.scan(step, params, (x, y))[0]

    return jax.jit(jax.vmap(one, (None, 0, 0))).lower(params, x, y).compile()


def _instead(
    convolve: Callable[..., Any],
    layer: Callable[..., Any],
    args: Any,
    kwargs: Any,
    context: nn.module.InterceptorContext,
) -> Any:
    """A layer with another convolution ``(x, kernel, padding)``; layers of other classes as they are."""
    own = context.module
    if not isinstance(own, Conv) or context.method_name != "__call__":
        return layer(*args, **kwargs)
    kernel, bias = (own.get_variable("params", name) for name in ("kernel", "bias"))
    y = convolve(*args, kernel, own.padding)
    return (max_pool(y) if own.pool else y) + bias


def _flax(x: Any, kernel: Any, padding: str) -> Any:
    layer = nn.Conv(kernel.shape[3], kernel.shape[:2], padding=padding, use_bias=False, parent=None)
    return layer.apply({"params": {"kernel": kernel}}, x)


PART = Part(
    name="convolution",
    title="Forms of the convolution",
    text=f"{STEPS} local steps of all clients at once, without a server; figures are of one step. *flax.linen.Conv* "
    "becomes a grouped convolution where clients are batched. *GB moved* and *kernels* are counted in the "
    "compiled program.",
    minutes=2.5,
    cases=cases,
)
