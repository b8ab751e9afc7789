"""What methods have in common whose clients end with models of their own."""

# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false

import functools
from typing import Any

from fedjax_drag.algorithms._from_aggregator import of_uplinks
from fedjax_drag.algorithms._two_sided import TwoSided
from fedjax_drag.types import Batch, Downlink, GradFn, Params, State, Sums, Uplink


class PersonalMethod(TwoSided):
    """A method that gives every client a model of its own; the server applies the rule to the deltas of ``shared``.

    A subclass has a field ``aggregator``, as of :class:`~fedjax_drag.algorithms.TwoSided`. It says what clients have
    for themselves (``own``, ``trained``, ``keep``, as of :class:`~fedjax_drag.types.ClientRule`), how they train
    (``direction``, by default plain SGD on all of ``w``), and what a client's model is (``own_model``, by default the
    global one).
    """

    def own_model(self, params: Params, own: Any) -> Params:
        """As of :class:`~fedjax_drag.types.Algorithm`, by default the global model."""
        del own
        return params

    def direction(self, grad_fn: GradFn, w: Any, carry: Any, downlink: Downlink, batch: Batch) -> tuple[Any, Any]:
        del downlink
        return grad_fn(w, batch), carry

    def init(self, params: Params) -> State:
        return self.rule.init(params)

    def aggregate(self, params: Params, uplink: Uplink, state: State, **extras: Any) -> tuple[Params, State]:
        return self.rule.apply(params, uplink.delta, state, **extras)

    @property
    def streamed(self) -> Sums | None:
        sums = self.rule.streamed
        return sums and sums._replace(accumulate=functools.partial(of_uplinks, sums))
