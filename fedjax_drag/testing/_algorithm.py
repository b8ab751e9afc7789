"""The contract of methods with a client and a server side."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_drag import checks, kinds, per_client, tree
from fedjax_drag.testing import _server
from fedjax_drag.testing._local import batches, cohort_pass
from fedjax_drag.testing._promises import assert_like, assert_needs, check, parameters, tolerated
from fedjax_drag.testing._server import Inputs, ServerBench
from fedjax_drag.types import Algorithm, Params, State, Uplink
from fedjax_drag.types._part import told


@dataclasses.dataclass(frozen=True)
class _AlgorithmBench(ServerBench[Algorithm]):
    """A method and its test input: in a round, a mask ``[S]`` of the clients that send NaN.

    Attributes:
      num_clients: M.
    """

    num_clients: int = dataclasses.field(kw_only=True)

    def inputs(self, round: int) -> Inputs:
        ids = np.random.default_rng([4, round]).permutation(self.num_clients)[: self.cohort].astype(np.int32)
        return np.zeros(self.cohort, bool), self.extras(round) | {"client_ids": ids}

    def messages(self, params: Params, state: State, inputs: Inputs) -> Uplink:
        broken, extras = inputs
        own = per_client.gather(state, extras["client_ids"])
        downlink = self.part.broadcast(params, own, extras["client_ids"])
        everybody = batches(range(self.num_clients))
        data = jax.tree.map(lambda x: x[extras["client_ids"]], everybody)
        uplink = cohort_pass(self.part.client, downlink, data)
        delta = jax.tree.map(lambda d: jnp.where(tree.expand(broken, d), jnp.nan, d), uplink.delta)
        return uplink._replace(delta=delta)

    def step(self, params: Params, state: State, inputs: Inputs) -> tuple[Params, State]:
        uplink, extras = self.messages(params, state, inputs), inputs[1]
        own = per_client.gather(state, extras["client_ids"])
        moved, after = self.part.aggregate(params, uplink, own, **extras)
        return moved, per_client.scatter(state, after, extras["client_ids"])

    def sending_nan(self, inputs: Inputs, who: np.ndarray) -> Inputs:
        return who, inputs[1]


def check_algorithm(
    algorithm: Algorithm, *, params: Params = None, num_clients: int = 8, cohort: int = 6, keyed: bool = False
) -> None:
    """Checks the behaviour of a method that simulations and sweeps rely on.

    Clients with quadratic losses take part in a few rounds. The method's formula is not checked, but that its parts
    keep shapes, that it is pure, can be scanned over rounds, needs no more than it says, reports its metrics, and
    leaves out clients that are absent or whose message is not finite; of its sums, that chunks give what the whole
    cohort gives.

    Args:
      algorithm: the method to check.
      params: parameters to use; default a small pytree of float32 arrays.
      num_clients: M, as of the method if it was given there.
      cohort: clients in a round, from 3 to M; the method must accept one client fewer.
      keyed: True for a method whose rule draws from ``key`` by the clients' places in the cohort: their order then
        matters, and the absence of one changes the draw for the others.

    Raises:
      AssertionError: names every broken promise, one per line.
      ValueError: if ``algorithm`` is something else, or ``cohort`` not a count in [3, num_clients].
    """
    kinds.ALGORITHM.check("algorithm", algorithm)
    checks.count("cohort", cohort, 3, num_clients)
    algorithm = told(algorithm, num_clients=num_clients)
    if "num_byzantine" in algorithm.needs:  # a Python integer, which no transformation sees
        aggregate = functools.partial(algorithm.aggregate, num_byzantine=tolerated(cohort))
        algorithm = algorithm._replace(aggregate=aggregate)
    check(_AlgorithmBench(algorithm, parameters(params), cohort, keyed, num_clients=num_clients), _PROMISES)


def _keeps_shapes(bench: _AlgorithmBench) -> None:
    """Downlink, uplink, parameters and state have the structures, shapes and dtypes of the contract."""
    assert_needs(bench.part.needs)
    state, (nobody, extras) = bench.part.init(bench.params), bench.inputs(0)
    ids = extras["client_ids"]
    inputs = nobody, {name: value for name, value in extras.items() if name != "valid"}  # which few methods receive
    own = per_client.gather(state, ids)
    downlink = jax.eval_shape(bench.part.broadcast, bench.params, own, ids)
    assert_like("broadcast gives a start", downlink.start, bench.params)
    _assert_rows("broadcast gives own", downlink.own, bench.cohort)
    uplink = jax.eval_shape(bench.messages, bench.params, state, inputs)
    _assert_rows("report gives", uplink.aux, bench.cohort)
    before = bench.params, bench.start(inputs)
    after = jax.eval_shape(bench.step, *before, inputs)
    assert_like("aggregate returns parameters", after[0], before[0])
    assert_like("aggregate returns a state", after[1], before[1])


def _assert_rows(what: str, found: Any, cohort: int) -> None:
    for path, leaf in jax.tree.leaves_with_path(found):
        name = f"{what}{jax.tree_util.keystr(path)}"
        assert leaf.shape[:1] == (cohort,), f"{name} with {leaf.shape}: must have a leading axis [{cohort}]"


def _has_eligible_and_output(bench: _AlgorithmBench) -> None:
    """``eligible`` gives a mask of all clients, ``output`` a model like the parameters."""
    params, state = bench.rounds([bench.inputs(0)])
    if bench.part.eligible is not None:
        assert_like("eligible returns", bench.part.eligible(state), jax.ShapeDtypeStruct((bench.num_clients,), bool))
    if bench.part.output is not None:
        assert_like("output returns", bench.part.output(params, state), params)


_PROMISES = (
    _keeps_shapes,
    _server.reports_metrics,
    _server.repeats,
    _server.ignores_unknown_extras,
    _server.scans,
    _server.ignores_order,
    _server.leaves_out_the_absent,
    _server.rejects_what_is_not_finite,
    _has_eligible_and_output,
    _server.sums_in_chunks,
)
