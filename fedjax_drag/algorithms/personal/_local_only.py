"""Training without a federation."""

# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false

from typing import Any

from fedjax_drag.algorithms.personal._personal import PersonalMethod
from fedjax_drag.types import Params, State, Uplink


class local_only(PersonalMethod):
    """Every client trains a model by itself, and nobody sends anything: what any federation must be better than.

    ::

        client:  v_m -= eta grad f_m(v_m)
        own:     v_m

    A client trains in the rounds in which it is drawn. The global model stays as it began. Assumes nothing of the local
    step.

    Notes:
      ``bytes_up`` and ``bytes_down`` are 0, and ``model_state="auto"`` is ``"local"``. Metrics: those of
      :func:`~fedjax_drag.aggregators.fedavg`, of deltas that are 0.
    """

    @property
    def communicates(self) -> bool:
        return False

    @property
    def model_state(self) -> str:
        return "local"

    def aggregate(self, params: Params, uplink: Uplink, state: State, **extras: Any) -> tuple[Params, State]:
        return params, super().aggregate(params, uplink, state, **extras)[1]  # whatever an attack forges

    def own(self, params: Params, layers: Params) -> Params:
        del layers
        return params

    def trained(self, w: Any) -> Params:
        return w.own

    def own_model(self, params: Params, own: Params) -> Params:
        del params
        return own
