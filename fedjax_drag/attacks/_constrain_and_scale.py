"""A backdoor whose attackers stay near the global model while they train."""

from typing import Any, Literal

import jax

from fedjax_drag import checks, kinds, tree
from fedjax_drag.attacks._backdoor import backdoor
from fedjax_drag.attacks._harm import along, unit
from fedjax_drag.types import Attack, Params, Scalar, WrappedAttack

Anomaly = Literal["distance", "cosine"]
"""What a detector is thought to look at: how far a model is from the global one, or the angle between the two."""


class constrain_and_scale(WrappedAttack):
    """Another attack, whose clients minimise an anomaly of their model beside the loss on their poisoned examples.

    In a local pass that began at the global model ``G`` malicious clients descend::

        alpha L_class(w) + (1 - alpha) L_ano(w),    L_ano(w) = ||w - G||  or  1 - cos(w, G)

    instead of ``L_class``, the loss on what they train on; then they scale the delta by the ``boost`` of the attack
    inside. The gradient of the distance has length 1 however near ``w`` is, and is 0 at ``G``. Around
    :func:`~fedjax_drag.attacks.dba` it is the same with a distributed trigger.

    Args:
      attack: on data, such as :func:`~fedjax_drag.attacks.backdoor`, which with its defaults is the default, or
        :func:`~fedjax_drag.attacks.dba`.
      alpha: in [0, 1], weight of the loss; 1 is the attack inside.
      anomaly: ``"distance"`` or ``"cosine"``.

    Raises:
      ValueError: if ``attack`` is none, ``alpha`` is out of range or ``anomaly`` unknown.

    Knows:
      what the attack inside knows.

    References:
      Bagdasaryan et al., How to backdoor federated learning, AISTATS 2020, Section 3, constrain-and-scale.
      Interpretations: the distance is not squared, as in its authors' code,
      github.com/ebagdasa/backdoor_federated_learning. Attackers take the steps of the local pass of all clients, where
      the paper's have a number and a size of their own and stop when the loss is small; there one client attacks, here
      all malicious ones do. The code's cosine, which it does not use, is that of the scaled model, times 1000; here it
      is that of the model before, whose gradient points the same way while the model is near ``G``.
    """

    attack: Attack | None = None
    alpha: Scalar = 0.5
    anomaly: Anomaly = "distance"

    def check(self) -> None:
        if self.attack is not None:
            kinds.ATTACK.check("attack", self.attack)
        checks.in_range("alpha", self.alpha, 0.0, 1.0)
        checks.one_of("anomaly", self.anomaly, ("distance", "cosine"))

    @property
    def inner(self) -> Attack:
        """The attack inside."""
        return backdoor() if self.attack is None else self.attack

    @property
    def has_gradient(self) -> bool:
        return True

    def gradient(self, gradient: Params, w: Params, start: Params, **known: Any) -> Params:
        gradient = self.inner.gradient(gradient, w, start, **known)
        away = unit(tree.subtract(w, start)) if self.anomaly == "distance" else _turning(w, start)

        def leaf(g: jax.Array, a: jax.Array) -> jax.Array:
            return (self.alpha * g + (1 - self.alpha) * a).astype(g.dtype)

        return jax.tree.map(leaf, gradient, away)


def _turning(w: Params, start: Params) -> Params:
    """The gradient of ``1 - cos(w, start)`` by ``w``, 0 where one of them is."""
    ahead, before = unit(w), unit(start)
    cosine, shrinking = along(ahead, before), tree.inverse(tree.norm(w))
    return jax.tree.map(lambda a, b: shrinking * (cosine * a - b), ahead, before)
