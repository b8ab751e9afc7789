"""SCAFFOLD's control variates, which FedDC uses as well."""

from typing import Any

import jax

from fedjax_drag.types import Downlink, Params


def control_change(downlink: Downlink, w_end: Params, carry: Any, total_step_size: jax.Array) -> Params:
    """``c_m' - c_m = -c - g_m / (U eta)`` (option II): the ``report`` of a client with ``c`` in ``downlink.shared``."""
    del carry
    return jax.tree.map(
        lambda c, w, start: (-c - (w - start) / total_step_size).astype(c.dtype),
        downlink.shared,
        w_end,
        downlink.start,
    )
