"""An attack that lasts for some rounds only."""

from typing import Any

import jax

from fedjax_drag import checks, kinds
from fedjax_drag.types import Attack


def during(attack: Attack, start: Any = 0, stop: Any = None) -> Attack:
    """Malicious clients attack in the rounds ``start <= t < stop``; before and after that they are honest.

    Outside these rounds they train on their true examples and send what they have computed. They still count as
    malicious in the history. The success of the attack is measured at every evaluation: how long a backdoor lasts shows
    in ``attack_success_rate`` after ``stop``.

    Args:
      attack: what they do in these rounds.
      start: the first round of the attack, >= 0, counted from 0.
      stop: the first round after it, above ``start``; None for no end.

    Raises:
      ValueError: if ``attack`` is none, or a round is out of range.

    Knows:
      what the attack inside knows.

    References:
      Zhang et al., Neurotoxin: Durable backdoors in federated learning, ICML 2022, whose attackers take part in some
      rounds, and whose backdoors are measured after these.
    """
    kinds.ATTACK.check("attack", attack)
    checks.in_range("start", start, 0.0)
    if stop is not None:
        checks.in_range("stop", stop, 0.0)
    if checks.is_concrete(start) and checks.is_concrete(stop) and stop <= start:
        raise ValueError(f"stop={stop}: must be above start={start}, the first round of the attack")

    def active(round_index: jax.Array) -> jax.Array:
        inside = round_index >= start
        if stop is not None:
            inside &= round_index < stop
        return inside if attack.active is None else inside & attack.active(round_index)

    return attack._replace(active=active)
