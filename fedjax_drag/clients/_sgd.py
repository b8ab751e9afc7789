"""Plain local SGD."""

from typing import Any

from fedjax_drag.types import Batch, ClientRule, Downlink, GradFn, Params


class sgd(ClientRule):
    """Follows the mini-batch gradient: ``w -= eta grad f_m(w)``.

    References:
      McMahan et al., Communication-efficient learning of deep networks from decentralized data, 2017.
    """

    def direction(self, grad_fn: GradFn, w: Params, carry: Any, downlink: Downlink, batch: Batch) -> tuple[Params, Any]:
        del downlink
        return grad_fn(w, batch), carry
