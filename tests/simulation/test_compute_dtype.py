"""bfloat16 inside the model, float32 everywhere else."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxprs import products

import fedjax_drag as fd
from fedjax_drag.simulation.model.forms import form_of
from fedjax_drag.simulation.model.model import Model, ModelState

MODELS = {
    "mlp": (fd.models.mlp(10), (8, 8, 1), jnp.float32),
    "cnn": (fd.models.cnn(10), (8, 8, 1), jnp.float32),
    "narrow cnn": (fd.models.cnn(10, "small"), (8, 8, 1), jnp.float32),
    "lenet": (fd.models.lenet(10), (16, 16, 1), jnp.float32),
    "resnet18": (fd.models.resnet18(10, width=8, groups=4), (8, 8, 3), jnp.float32),
    "lstm": (fd.models.lstm(10), (6,), jnp.int32),
}


def traced_gradient(model, shape, dtype, compute_dtype):
    """The gradient's program and the shapes of logits and gradient, from shapes alone."""
    example = jnp.zeros((2, *shape), dtype)
    form = form_of(model, jax.ShapeDtypeStruct((1, *shape), dtype))
    functions = Model(form, fd.losses.cross_entropy(), jnp.asarray, 10, compute_dtype=compute_dtype)
    apply = lambda params, x: functions.apply(params, ModelState(), x)
    params = jax.eval_shape(functions.init, jax.random.key(0))[0]
    gradient = jax.grad(lambda p, x: (apply(p, x) ** 2).sum())
    shapes = jax.eval_shape(apply, params, example), jax.eval_shape(gradient, params, example)
    return jax.make_jaxpr(gradient)(params, example).jaxpr, shapes


@pytest.mark.sample(2)
@pytest.mark.parametrize("compute_dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", [pytest.param(n, marks=(n == "resnet18") * [pytest.mark.slow]) for n in MODELS])
def test_every_product_is_in_the_dtype_and_every_result_in_float32(name, compute_dtype):
    program, results = traced_gradient(*MODELS[name], compute_dtype)
    dtypes = {x.aval.dtype for product in products(program) for x in product.invars}
    assert dtypes == {jnp.dtype(compute_dtype)}
    assert {leaf.dtype for leaf in jax.tree.leaves(results)} == {jnp.dtype(jnp.float32)}


@pytest.mark.thorough
def test_bfloat16_trains_as_well_and_the_state_stays_float32(settings, fedavg):
    whole, half = (
        fd.simulate(fedavg, compute_dtype=dtype, **settings(num_rounds=30, eval_every=30, local_steps=5))
        for dtype in ("float32", "bfloat16")
    )
    assert whole.history["test_accuracy"][-1] > 0.8
    assert abs(half.history["test_accuracy"][-1] - whole.history["test_accuracy"][-1]) < 0.03
    assert {leaf.dtype for leaf in jax.tree.leaves(half.params)} == {jnp.dtype(jnp.float32)}
    differences = jax.tree.map(lambda a, b: np.abs(a - b).max(), whole.params, half.params)
    assert all(0 < difference < 0.05 for difference in jax.tree.leaves(differences))


def test_float32_is_the_default(settings, fedavg):
    programs = [fd.simulation.prepare(fedavg, **settings(**c)).lowered for c in ({}, {"compute_dtype": "float32"})]
    assert programs[0].advance.as_text() == programs[1].advance.as_text()
    assert "bf16" not in programs[0].advance.as_text() + programs[0].evaluate.as_text()


def test_another_dtype_is_refused(refused, fedavg):
    refused("compute_dtype='float16': must be one of float32, bfloat16", fedavg, compute_dtype="float16")


def precisions(program):
    """The precisions of the products in a lowered program, one for each that there is."""
    return {
        found for found in ("DEFAULT", "HIGH", "HIGHEST") if re.search(rf"precision = \[{found}, {found}\]", program)
    }


@pytest.mark.parametrize(
    ("precision", "in_rounds"), [("float32", "HIGHEST"), ("tensorfloat32", "HIGH"), ("bfloat16", "DEFAULT")]
)
def test_the_precision_is_that_of_products_in_local_passes(settings, precision, in_rounds):
    root = fd.aggregators.br_drag(c=0.5)  # which has no products of its own
    with jax.default_matmul_precision("highest" if precision != "float32" else "bfloat16"):
        lowered = fd.simulation.prepare(root, matmul_precision=precision, **settings()).lowered
        elsewhere = precisions(lowered.evaluate.as_text())
    assert precisions(lowered.advance.as_text()) == {in_rounds}
    assert elsewhere == {"HIGHEST" if precision != "float32" else "DEFAULT"}


def test_jax_says_the_precision_by_default(refused, settings, fedavg):
    programs = [
        fd.simulation.prepare(fedavg, **settings(**more)).lowered.advance.as_text()
        for more in ({}, {"matmul_precision": "default"})
    ]
    assert programs[0] == programs[1]
    refused("matmul_precision='tf32': must be one of default, float32, tensorfloat32", fedavg, matmul_precision="tf32")
