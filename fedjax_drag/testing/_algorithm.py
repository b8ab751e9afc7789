"""The contract of methods with a client and a server side."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_drag import checks, kinds, per_client, tree
from fedjax_drag.testing._chunks import round_in_chunks
from fedjax_drag.testing._local import batches, cohort_pass
from fedjax_drag.testing._promises import (
    ATOL,
    COMMON,
    RTOL,
    assert_needs,
    assert_pure,
    check,
    parameters,
    random_extras,
    rows_of,
    stacked,
    tolerated,
)
from fedjax_drag.types import Algorithm, Params, State, Uplink
from fedjax_drag.types._part import told


@dataclasses.dataclass(frozen=True)
class _AlgorithmBench:
    """A method and its test input.

    Attributes:
      method: under test; its server side has the number of malicious clients already, if it needs one.
      params: the global parameters.
      num_clients: M.
      cohort: S.
      keyed: whether the places of the clients matter.
      starts: the states before the first round, by the size of the cohort.
    """

    method: Algorithm
    params: Params
    num_clients: int
    cohort: int
    keyed: bool
    starts: dict[int, State] = dataclasses.field(default_factory=dict)

    def extras(self, round: int) -> dict[str, Any]:
        """The extras that the engine gives in a round, ``valid`` included; every client takes part."""
        ids = np.random.default_rng([4, round]).permutation(self.num_clients)[: self.cohort].astype(np.int32)
        given = random_extras(self.params, self.cohort, round, self.method.needs)
        return given | {"client_ids": ids, "valid": np.ones(self.cohort, bool)}

    def send(self, params: Params, state: State, extras: dict[str, Any]) -> Uplink:
        """The messages of a cohort to the server."""
        downlink = self.method.broadcast(params, state, extras["client_ids"])
        return cohort_pass(self.method.client, downlink, self.data(extras))

    def data(self, extras: dict[str, Any]) -> Any:
        """The mini-batches of a cohort."""
        everybody = batches(range(self.num_clients))
        return jax.tree.map(lambda x: x[extras["client_ids"]], everybody)

    def round(self, params: Params, state: State, extras: dict[str, Any], broken: Any = False) -> tuple[Params, State]:
        """A round as the engine runs it; what ``broken`` clients send is NaN."""
        own = per_client.gather(state, extras["client_ids"])
        uplink = self.send(params, own, extras)
        broken = jnp.broadcast_to(jnp.asarray(broken), (uplink_size(uplink),))
        delta = jax.tree.map(lambda d: jnp.where(tree.expand(broken, d), jnp.nan, d), uplink.delta)
        moved, after = self.method.aggregate(params, uplink._replace(delta=delta), own, **extras)
        return moved, per_client.scatter(state, after, extras["client_ids"])

    @functools.cached_property
    def compiled(self) -> Callable[..., tuple[Params, State]]:
        """:meth:`round`, compiled once for each size of a cohort."""
        return jax.jit(self.round)

    def start(self, extras: dict[str, Any]) -> State:
        """The state before the first round, in the shapes of this cohort."""
        size = len(extras["client_ids"])
        if size not in self.starts:  # tracing takes most of the time of a check
            first = self.method.init(self.params)
            self.starts[size] = tree.cast_like(first, jax.eval_shape(self.round, self.params, first, extras)[1])
        return self.starts[size]

    def rounds(self, inputs: list[dict[str, Any]], broken: Any = None) -> tuple[Params, State]:
        """Parameters and state after several rounds, in all of which ``broken`` clients send NaN; default none."""
        params, state = self.params, self.start(inputs[0])
        for extras in inputs:
            nobody = np.zeros(len(extras["client_ids"]), bool)
            params, state = self.compiled(params, state, extras, nobody if broken is None else broken)
        return params, state


def uplink_size(uplink: Uplink) -> int:
    """S."""
    return tree.cohort_size(uplink.delta)


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
    check(_AlgorithmBench(algorithm, parameters(params), num_clients, cohort, keyed), _PROMISES)


def _keeps_shapes(bench: _AlgorithmBench) -> None:
    """Downlink, uplink, parameters and state have the structures, shapes and dtypes of the contract."""
    assert_needs(bench.method.needs)
    state = bench.method.init(bench.params)
    extras = {name: value for name, value in bench.extras(0).items() if name != "valid"}  # which few methods receive
    own = per_client.gather(state, extras["client_ids"])
    downlink = jax.eval_shape(bench.method.broadcast, bench.params, own, extras["client_ids"])
    _assert_like("broadcast gives a start", downlink.start, bench.params)
    _assert_rows("broadcast gives own", downlink.own, bench.cohort)
    uplink = jax.eval_shape(bench.send, bench.params, own, extras)
    _assert_rows("report gives", uplink.aux, bench.cohort)
    before = bench.params, bench.start(extras)
    after = jax.eval_shape(bench.round, *before, extras)
    _assert_like("aggregate returns parameters", after[0], before[0])
    _assert_like("aggregate returns a state", after[1], before[1])


def _assert_like(what: str, found: Any, like: Any) -> None:
    difference = tree.mismatch(found, like)
    assert not difference, f"{what} {difference}"


def _assert_rows(what: str, found: Any, cohort: int) -> None:
    for path, leaf in jax.tree.leaves_with_path(found):
        name = f"{what}{jax.tree_util.keystr(path)}"
        assert leaf.shape[:1] == (cohort,), f"{name} with {leaf.shape}: must have a leading axis [{cohort}]"


def _reports_metrics(bench: _AlgorithmBench) -> None:
    """``state.metrics`` has weight, cosine and num_rejected, and the same keys from ``init`` on."""
    first = bench.method.init(bench.params).metrics.keys()
    _, state = bench.rounds([bench.extras(0)])
    assert first >= COMMON, f"lacks {sorted(COMMON - first)}"
    assert first == state.metrics.keys(), f"{sorted(first)} at first, then {sorted(state.metrics)}"
    for name, value in state.metrics.items():
        assert value.shape[:1] in ((), (bench.cohort,)), f"{name} has shape {value.shape}: must be () or [S, ...]"
        assert not np.isnan(value).any(), f"{name} is NaN"


def _repeats(bench: _AlgorithmBench) -> None:
    """The same input gives the same bits."""
    extras = bench.extras(0)
    assert_pure(bench.round, bench.params, bench.start(extras), extras)


def _ignores_unknown_extras(bench: _AlgorithmBench) -> None:
    """Extras that the method does not know are ignored."""
    extras = bench.extras(0) | {"weather": np.ones(())}
    jax.eval_shape(bench.round, bench.params, bench.start(bench.extras(0)), extras)


def _scans(bench: _AlgorithmBench) -> None:
    """A scan over rounds equals a loop."""
    inputs = [bench.extras(t) for t in range(3)]
    looped, _ = bench.rounds(inputs)

    def body(carry: tuple[Params, State], extras: Any) -> tuple[tuple[Params, State], None]:
        return bench.round(*carry, extras), None

    (scanned, _), _ = jax.lax.scan(body, (bench.params, bench.start(inputs[0])), stacked(inputs))
    chex.assert_trees_all_close(scanned, looped, rtol=RTOL, atol=ATOL)


def _ignores_order(bench: _AlgorithmBench) -> None:
    """The order of the clients does not matter."""
    if bench.keyed:
        return
    order = np.random.default_rng(3).permutation(bench.cohort)
    inputs = [bench.extras(t) for t in range(2)]
    shuffled, _ = bench.rounds([rows_of(extras, order) for extras in inputs])
    chex.assert_trees_all_close(shuffled, bench.rounds(inputs)[0], rtol=RTOL, atol=ATOL)


def _leaves_out_the_absent(bench: _AlgorithmBench) -> None:
    """A client with valid=False is as if it were not there."""
    there = np.arange(bench.cohort) != 1
    params, state = bench.rounds([bench.extras(0) | {"valid": there}])
    assert int(state.metrics["num_rejected"]) == 0, "it is counted in num_rejected"
    _assert_as_without_one(bench, params, there)


def _rejects_what_is_not_finite(bench: _AlgorithmBench) -> None:
    """A client that sends NaN is as if it were not there, and is counted in num_rejected."""
    there = np.arange(bench.cohort) != 1
    params, state = bench.rounds([bench.extras(0)], broken=~there)
    count = int(state.metrics["num_rejected"])
    assert count == 1, f"num_rejected={count}: must be 1"
    _assert_as_without_one(bench, params, there)


def _assert_as_without_one(bench: _AlgorithmBench, params: Params, there: np.ndarray) -> None:
    """The parameters are those after a round of the clients ``there`` alone."""
    if bench.keyed:
        return
    fewer, _ = bench.rounds([rows_of(bench.extras(0), there)])
    chex.assert_trees_all_close(params, fewer, rtol=RTOL, atol=ATOL)


def _has_eligible_and_output(bench: _AlgorithmBench) -> None:
    """``eligible`` gives a mask of all clients, ``output`` a model like the parameters."""
    params, state = bench.rounds([bench.extras(0)])
    if bench.method.eligible is not None:
        _assert_like("eligible returns", bench.method.eligible(state), jax.ShapeDtypeStruct((bench.num_clients,), bool))
    if bench.method.output is not None:
        _assert_like("output returns", bench.method.output(params, state), params)


def _sums_in_chunks(bench: _AlgorithmBench) -> None:
    """``sums`` of chunks give the parameters that ``aggregate`` gives of the whole cohort."""
    sums = bench.method.streamed
    if sums is None:
        return
    extras = bench.extras(0)

    def in_chunks(params: Params, state: State, extras: dict[str, Any]) -> Params:
        uplink = bench.send(params, per_client.gather(state, extras["client_ids"]), extras)
        return round_in_chunks(sums, params, uplink, state, extras)[0]

    whole, _ = bench.rounds([extras])
    chunks = jax.jit(in_chunks)(bench.params, bench.method.init(bench.params), extras)
    chex.assert_trees_all_close(chunks, whole, rtol=RTOL, atol=ATOL)


_PROMISES = (
    _keeps_shapes,
    _reports_metrics,
    _repeats,
    _ignores_unknown_extras,
    _scans,
    _ignores_order,
    _leaves_out_the_absent,
    _rejects_what_is_not_finite,
    _has_eligible_and_output,
    _sums_in_chunks,
)
