"""What JAX does to compile: counted, as the promise that nothing is compiled twice asks."""

import contextlib

import jax.monitoring

TRACING, LOWERING, COMPILING = STEPS = (
    "jaxpr_trace_duration",
    "jaxpr_to_mlir_module_duration",
    "backend_compile_duration",
)

_heard = []
jax.monitoring.register_event_duration_secs_listener(lambda name, *_, **__: _heard.append(name.rpartition("/")[2]))


@contextlib.contextmanager
def steps_in():
    """The steps of a compilation that JAX takes in the block, each as often as it takes it; filled at its end."""
    found, before = [], len(_heard)
    yield found
    found += [step for step in _heard[before:] if step in STEPS]
