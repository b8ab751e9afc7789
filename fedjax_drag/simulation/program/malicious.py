"""What an attack changes in the local steps of malicious clients: the loss, and the gradient that is followed."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jaxtyping import Array, Float

from fedjax_drag import tree
from fedjax_drag.simulation.program.examples import Drawn
from fedjax_drag.simulation.run import ClientInput, RoundInput, Run
from fedjax_drag.types import Batch, ClientParams, Examined, Params
from fedjax_drag.types._messages import shared_params


class Misled(NamedTuple):
    """What becomes of a client's loss and gradient in a step on a mini-batch ``drawn``; None where nothing does.

    Attributes:
      loss: ``(losses, examined, batch, drawn) -> losses``, as :meth:`~fedjax_drag.types.Attack.loss`.
      gradient: ``(gradient, w, start, drawn) -> gradient``, as :meth:`~fedjax_drag.types.Attack.gradient`, but of all
        parameters of the client.
    """

    loss: Callable[[jax.Array, Examined, Batch, Any], jax.Array] | None = None
    gradient: Callable[[Any, Any, Any, Any], Any] | None = None


HONEST = Misled()
"""Of a run without an attack on losses and gradients."""


def misled(run: Run, shared: RoundInput, own: ClientInput) -> Misled:
    """What the attack of a run changes in the steps of a client; a benign one keeps its losses and gradients."""
    attack = run.attack
    if attack is None or not (attack.has_loss or attack.has_gradient):
        return HONEST
    attacks = attack.attackers(own.malicious, shared.round)

    def known(drawn: Drawn) -> dict[str, Any]:
        told = {"memory": shared.memory, "last_update": shared.last_update, "local_step": drawn.step}
        return {name: value for name, value in told.items() if name in attack.needs}

    def chosen(what: str, forged: Any, honest: Any) -> Any:
        tree.check_returned(f"attack: {what}", forged, honest)
        return tree.where(attacks, forged, honest)

    def loss(losses: Float[Array, " batch"], examined: Examined, batch: Batch, drawn: Drawn) -> Float[Array, " batch"]:
        return chosen("loss", attack.loss(losses, examined, batch, **known(drawn)), losses)

    def gradient(gradient: Any, w: Any, start: Any, drawn: Drawn) -> Any:
        honest: Params = shared_params(gradient)
        forged = attack.gradient(honest, shared_params(w), shared_params(start), **known(drawn))
        after = chosen("gradient", forged, honest)
        # What a client has for itself is none of the attacker's.
        return gradient._replace(shared=after) if isinstance(gradient, ClientParams) else after

    return Misled(loss if attack.has_loss else None, gradient if attack.has_gradient else None)
