"""What a defence demands: knowledge about the federation, and passes over the deltas."""

import inspect
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_drag import per_client
from fedjax_drag.accelerators import counts
from fedjax_drag.experiment.build import build
from fedjax_drag.experiment.config.components import Component
from fedjax_drag.experiment.config.config import Config
from fedjax_drag.testing._local import batches, cohort_pass
from fedjax_drag.testing._promises import random_extras
from fedjax_drag.types import DISSIMILARITIES, Algorithm, Uplink

TOLD = "num_byzantine"

KNOWLEDGE = {
    TOLD: "number of attackers",
    "root_delta": "root data",
    "root_data": "root data",
    "malicious": "who attacks",
    "num_examples": "clients' numbers of examples",
    "start_loss": "clients' losses",
    **dict.fromkeys(DISSIMILARITIES, "clients' predictions"),
}
"""Words for the extras that a rule asks for and that are knowledge about the federation."""

ARGUMENTS = {"trusted": "malicious", "use_num_examples": "num_examples"}
"""Arguments of rules that are such knowledge, or ask for it."""

DIMENSION = 10**5
"""Parameters with which passes are counted."""


def needs(config: Config, num_clients: int) -> list[str]:
    """What the method of a resolved configuration must know, in words."""
    names = build.method(config, num_clients).needs | {*_told("aggregator", config.aggregator)}
    return list(dict.fromkeys(words for name, words in KNOWLEDGE.items() if name in names))


def passes(config: Config, num_clients: int) -> float | None:
    """What the server's side of a method moves in a round, in multiples of the deltas; None where it is not known.

    Counted, not timed: the bytes that the kernels of the program for a CPU read and write, of a cohort of the
    configuration's size with :data:`DIMENSION` parameters in one vector. Of alternatives, such as the slower arithmetic
    for deltas of extreme length, the one that moves least counts; a loop whose length depends on the deltas counts
    once.
    """
    cohort = config.cohort_size
    try:
        text = _compiled(build.method(config, num_clients), cohort, num_clients)
        return round(counts.work_of(text, least=True).bytes / (4 * cohort * DIMENSION), 1)
    except Exception:  # of a user's own rule that needs the parameters of the model, or cannot be compiled
        return None


def _compiled(method: Algorithm, cohort: int, num_clients: int) -> str:
    """The text of the server's program."""
    clients = jnp.arange(cohort) % num_clients
    params = {"w": jax.ShapeDtypeStruct((DIMENSION,), jnp.float32)}
    extras = random_extras({"w": np.zeros(DIMENSION, np.float32)}, cohort, 0, method.needs - {"predict"})

    def messages(params: Any, state: Any) -> Uplink:
        return cohort_pass(method.client, method.broadcast(params, state, clients), batches(range(cohort)))

    def server(params: Any, uplink: Uplink, state: Any, extras: dict[str, Any]) -> Any:
        return method.aggregate(params, uplink, state, **extras)

    state = jax.eval_shape(lambda params: per_client.gather(method.init(params), clients), params)
    uplink = jax.eval_shape(messages, params, state)
    state = jax.eval_shape(lambda *given: server(*given)[1], params, uplink, state, extras)
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        return jax.jit(server).lower(params, uplink, state, extras).compile().as_text() or ""


def _told(key: str, part: Component) -> Iterator[str]:
    """What a rule, or one inside it, has as an argument; the number of attackers a simulation fills in."""
    yield from {TOLD} & inspect.signature(build.builder_of(key, part)).parameters.keys()
    for name, value in part.arguments.items():
        if isinstance(value, Component):
            yield from _told(f"{key}.{name}", value)
        elif name in ARGUMENTS and value is not None and value is not False:
            yield ARGUMENTS[name]
