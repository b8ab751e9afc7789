"""An attack that lasts for some rounds only."""

import jax

from fedjax_drag import checks, kinds
from fedjax_drag.types import Attack, Scalar, WrappedAttack


class during(WrappedAttack):
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

    attack: Attack
    start: Scalar = 0
    stop: Scalar | None = None

    def check(self) -> None:
        kinds.ATTACK.check("attack", self.attack)
        for name, value in (("start", self.start), ("stop", self.stop)):
            if value is not None:
                checks.in_range(name, value, 0.0)
                if checks.is_concrete(value) and value != int(value):
                    raise checks.ArgumentError(name, "must be the number of a round, an integer >= 0", given=value)
        known = checks.is_concrete(self.start) and checks.is_concrete(self.stop)
        if self.stop is not None and known and self.stop <= self.start:
            raise checks.ArgumentError(
                "stop", f"must be above start={self.start}, the first round of the attack", given=self.stop
            )

    def attackers(self, malicious: jax.Array, round_index: jax.Array) -> jax.Array:
        inside = round_index >= self.start
        if self.stop is not None:
            inside &= round_index < self.stop
        return inside & self.attack.attackers(malicious, round_index)
