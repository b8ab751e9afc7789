"""One local step of all clients with each form of the convolution, of the same models with the same parameters."""

import functools
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from benchmarks.roofline import planned_ms
from benchmarks.timing import Row, in_turn, ratio, warm_up
from benchmarks.workloads import NUM_CLASSES, Workload, select
from fedjax_drag.kernels.convolution import FORMS
from fedjax_drag.losses import cross_entropy
from fedjax_drag.models.conv import POOLED, Conv

STEPS = 5
"""In one loop, since the form in a loop may be another than outside."""


def run(chosen: Sequence[str], repeats: int) -> list[Row]:
    """A row for each workload and form; ratios are to the form that the platform takes by itself.

    Args:
      chosen: names of workloads; none: ``cnn``, ``lenet`` and ``cifar10``.
      repeats: timed turns.

    Raises:
      ValueError: an unknown workload.
    """
    return [row for work in select(chosen or ("cnn", "lenet", "cifar10")) for row in measure(work, repeats)]


def measure(work: Workload, repeats: int) -> list[Row]:
    """The forms of one workload, timed in turn; one that cannot be computed has its reason."""
    model, shape = work.model(), work.image_shape
    keys = jax.random.split(jax.random.key(0), 3)
    params = model.init(keys[0], jnp.zeros((1, *shape)))["params"]
    x = jax.random.normal(keys[1], (work.cohort_size, STEPS, work.batch_size, *shape))
    y = jax.random.randint(keys[2], x.shape[:3], 0, NUM_CLASSES)
    programs, failed = {}, {}
    for form in ("auto", *FORMS, POOLED):
        try:
            programs[form] = jax.jit(_local_steps(model, form)).lower(params, x, y).compile()
            jax.block_until_ready(programs[form](params, x, y))
        except Exception as error:  # such as one that needs more memory than there is
            programs.pop(form, None)
            failed[form] = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    calls = {
        form: lambda program=program: jax.block_until_ready(program(params, x, y)) for form, program in programs.items()
    }
    warm_up(calls)
    times = in_turn(calls, repeats, STEPS)
    rows: list[Row] = []
    for form in (*programs, *failed):
        row: Row = {"workload": work.title, "form": form}
        row |= dict.fromkeys(("ms_per_step", "ratio_to_auto", "planned_ms"))
        if form in programs:
            planned = planned_ms(programs[form])
            row["ms_per_step"] = statistics.median(times[form])
            row["ratio_to_auto"] = ratio(times, form, "auto")
            row["planned_ms"] = planned and planned / STEPS
        rows.append(row | {"failed": failed.get(form)})
    return rows


def _local_steps(model: nn.Module, form: str) -> Callable[[Any, Any, Any], Any]:
    """Local steps of all clients ``(params, x, y) -> params`` of each client."""
    loss = cross_entropy()

    def loss_of(params: Any, x: Any, y: Any) -> Any:
        with nn.intercept_methods(functools.partial(_in_form, form)):
            logits: Any = model.apply({"params": params}, x)
        return loss(logits, y).mean()

    def step(params: Any, batch: Any) -> tuple[Any, None]:
        return jax.tree.map(lambda p, g: p - 0.01 * g, params, jax.grad(loss_of)(params, *batch)), None

    return jax.vmap(lambda params, x, y: jax.lax.scan(step, params, (x, y))[0], (None, 0, 0))


def _in_form(
    form: str, layer: Callable[..., Any], args: Any, kwargs: Any, context: nn.module.InterceptorContext
) -> Any:
    """A convolutional layer in a form; other layers as they are."""
    own = context.module
    if not isinstance(own, Conv) or own.form == form or context.method_name != "__call__":
        return layer(*args, **kwargs)
    return own.clone(form=form, parent=None).apply({"params": own.variables["params"]}, *args)
