"""A rule as the server of a federation that runs elsewhere: named NumPy arrays in, named NumPy arrays out."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_drag import checks, kinds, per_client, tree
from fedjax_drag.types import Aggregator

Arrays = Mapping[str, np.ndarray]
"""A model by name, as a PyTorch ``state_dict`` in NumPy arrays."""

RootDelta = Callable[[dict[str, np.ndarray], int], Arrays]
"""``(arrays, round) -> delta``: the change of the global arrays in a local pass over the server's own data.

Rounds count from 1.
"""

KNOWN = frozenset({"client_ids", "key", "num_examples", "root_delta", "round"})
"""Extras that a server can give a rule."""

MOST_EXAMPLES = 2**31
"""Largest number of examples that a client may claim; larger ones would distort sums."""


class Update(NamedTuple):
    """The reply of a client.

    Attributes:
      delta: its change of every floating point array.
      num_examples: number of examples that it claims, in (0, 2^31].
    """

    delta: dict[str, np.ndarray]
    num_examples: float


def update(sent: Arrays, returned: Arrays, num_examples: Any = 1) -> Update:
    """Checks a client's reply.

    Args:
      sent: the arrays that the client received.
      returned: the arrays that it sent back. Entries that are not finite are allowed: a rule rejects the client.
      num_examples: number of examples that it claims.

    Raises:
      ValueError: a floating point array is missing or has another shape or kind than the one sent, or ``num_examples``
        is out of range.
    """
    checks.in_range("num_examples", num_examples, 0.0, MOST_EXAMPLES, open_low=True)
    return Update(_changes(sent, returned, subtract=True), float(num_examples))


class RuleServer:
    """An aggregation rule with its state from round to round.

    Floating point arrays are the model's parameters. Integer and boolean ones, such as counters of batches, keep the
    server's values. Running statistics of a normalisation are floating point and therefore parameters to the rule. The
    rule computes in float32 unless JAX is configured otherwise.

    A program is compiled for every size of a cohort. Clients that do not reply are absent (the extra ``valid``), as in
    a simulation, and do not change its size.

    Args:
      rule: from :mod:`fedjax_drag.aggregators`, or of one's own.
      root_delta: for rules that need one, such as BR-DRAG and FLTrust.
      seed: of rules that draw at random.

    Raises:
      ValueError: the rule needs an extra that a server does not have, or a ``root_delta``.

    Attributes:
      state: of the rule; None before the first round. ``state`` and ``rows`` are enough to continue after a restart.
      rows: for rules with a state for each client (``client_ids``), the row of each client so far. A client that
        returns under a new name is a new client.
    """

    def __init__(self, rule: Aggregator, root_delta: RootDelta | None = None, seed: int = 0) -> None:
        kinds.AGGREGATOR.check("rule", rule)
        if "num_byzantine" in rule.needs:
            raise ValueError(
                "num_byzantine=None: nobody tells the number outside a simulation; must be given to the rule"
            )
        unknown = sorted(rule.needs - KNOWN)
        if unknown:
            raise ValueError(
                f"rule={rule.name}: needs {', '.join(unknown)}, which only a simulation tells; must be a rule that "
                f"needs deltas, {', '.join(sorted(KNOWN))} at most"
            )
        if "root_delta" in rule.needs and root_delta is None:
            raise ValueError("root_delta=None: the rule needs one; give a function (arrays, round) -> delta")
        checks.count("seed", seed, 0, 2**32 - 1)
        self._rule, self._root_delta, self._seed = rule, root_delta, seed
        self._apply = jax.jit(rule.apply)
        self._size = -1
        self.state: Any = None
        self.rows: dict[int, int] = {}

    def round(
        self, number: int, sent: Arrays, cohort: Sequence[int], updates: Mapping[int, Update]
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Applies the rule to the replies of a round.

        Args:
          number: of the round, from 1.
          sent: the global arrays.
          cohort: the clients of the round, in an order that does not depend on the order of replies.
          updates: of the clients that replied; those of clients outside the cohort are ignored.

        Returns:
          The new global arrays, named and ordered as those sent; and the rule's metrics, of clients ``[S]`` in the
          order of ``cohort``, where absent clients have weight 0.

        Raises:
          ValueError: the cohort is empty or has a client twice, a global array is not numeric, an update or
            ``root_delta`` does not fit, or the rule does not accept the cohort.
        """
        if not len(cohort) or len(set(cohort)) < len(cohort):
            raise ValueError(f"cohort={checks.shown(list(cohort))}: must have one client at least, and each once")
        params = _parameters(sent)
        here = np.array([client in updates for client in cohort], bool)
        deltas = {name: np.zeros((len(cohort), *p.shape), p.dtype) for name, p in params.items()}
        num_examples = np.zeros(len(cohort), np.float32)
        for row, client in enumerate(cohort):
            if here[row]:
                num_examples[row] = updates[client].num_examples
                delta = _delta(f"update of client {client!r}", sent, updates[client].delta)
                for name, stacked in deltas.items():
                    stacked[row] = delta[name]
        if self.state is None:
            self.state = self._rule.init(params)
        extras = self._extras(number, sent, cohort) | {"valid": here, "num_examples": num_examples}
        if len(cohort) != self._size:
            self.state = tree.initial_state(self._rule.apply, self.state, params, deltas, **extras)
            self._size = len(cohort)
        moved, self.state = self._apply(params, deltas, self.state, **extras)
        after = {name: np.asarray(moved[name], x.dtype) if name in moved else x for name, x in sent.items()}
        return after, {name: np.asarray(value) for name, value in self.state.metrics.items()}

    def _extras(self, number: int, sent: Arrays, cohort: Sequence[int]) -> dict[str, Any]:
        key = jax.random.fold_in(jax.random.key(self._seed), number)
        extras: dict[str, Any] = {"round": np.int32(number - 1), "key": key}
        if "root_delta" in self._rule.needs:
            assert self._root_delta is not None
            extras["root_delta"] = _delta("root_delta", sent, self._root_delta(dict(sent), number))
        if "client_ids" in self._rule.needs:
            extras["client_ids"] = self._rows_of(cohort)
        return extras

    def _rows_of(self, cohort: Sequence[int]) -> np.ndarray:
        """The rows of clients in the rule's state; new clients get the next free ones."""
        rows = dict(self.rows)
        for client in cohort:
            rows.setdefault(client, len(rows))
        leaves = jax.tree.leaves(per_client.found_in(self.state))
        most = min((leaf.shape[0] for leaf in leaves), default=self._rule.num_clients or np.inf)
        if len(rows) > most:
            raise ValueError(f"num_clients={most}: {len(rows)} clients so far; must be at least that")
        self.rows = rows
        return np.array([self.rows[client] for client in cohort], np.int32)


def _parameters(arrays: Arrays) -> dict[str, np.ndarray]:
    """The floating point arrays; a rule does not move integers and booleans."""
    for name, x in arrays.items():
        if x.dtype.kind not in "fiub":
            raise ValueError(f"array {name!r} of dtype {x.dtype}: must be of real numbers")
    return {name: x for name, x in arrays.items() if x.dtype.kind == "f"}


def _delta(where: str, sent: Arrays, given: Arrays) -> dict[str, np.ndarray]:
    """The change of each parameter, in its shape and dtype; errors name where it is from."""
    try:
        return _changes(sent, given, subtract=False)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _changes(sent: Arrays, given: Arrays, subtract: bool) -> dict[str, np.ndarray]:
    """For each parameter the array given, minus the parameter if ``subtract``, in its shape and dtype."""
    changes = {}
    if not isinstance(given, Mapping):
        raise ValueError(f"{checks.shown(given)}: must be arrays by name")
    for name, param in _parameters(sent).items():
        if name not in given:
            raise ValueError(f"array {name!r}: is missing")
        x = np.asarray(given[name])
        if x.shape != param.shape:
            raise ValueError(f"array {name!r} with shape {x.shape}: must be {param.shape}")
        if x.dtype.kind != "f":
            raise ValueError(f"array {name!r} of dtype {x.dtype}: must be floating point, as {param.dtype}")
        with np.errstate(all="ignore"):  # the rule rejects values that are not finite
            changes[name] = x.astype(param.dtype) - param if subtract else x.astype(param.dtype)
    return changes
