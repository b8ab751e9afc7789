"""A boosted attack whose traces the attackers remove between its steps."""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_drag import checks, kinds, tree
from fedjax_drag.attacks._backdoor import backdoor
from fedjax_drag.types import Attack, Batch, Examined, Params, Scalar, WrappedAttack


class alter_min(WrappedAttack):
    """Malicious clients minimise in turn the loss of another attack, in boosted steps, and a loss of stealth.

    Of every ``stealth_steps + 1`` local steps of a malicious client the first is adversarial, on the examples that the
    attack inside makes of the mini-batch; the others are on true examples. With the delta ``d = w - G`` so far and the
    last change ``u`` of the global model they are::

        w <- w - step_size boost grad L(w; poisoned)                      adversarial
        w <- w - step_size (grad L(w; true) + rho (d - u))                stealth: L + rho / 2 ||d - u||^2

    The message is not boosted again unless the attack inside does so: set its ``boost`` to 1, and its ``fraction`` to 1
    for adversarial steps on poisoned examples alone. In the first round ``u`` is 0.

    Args:
      attack: on data; default ``backdoor(fraction=1.0, boost=1.0)``.
      boost: lambda > 0, of adversarial steps. The paper's is the number of clients.
      stealth_steps: after each of them, >= 0.
      rho: >= 0, weight of the distance constraint.

    Raises:
      ValueError: if ``attack`` is none, or a number is out of range.

    Knows:
      what the server sent to it: the parameters of this round and of the one before; and what the attack inside knows.

    References:
      Bhagoji et al., Analyzing federated learning through an adversarial lens, ICML 2019, alternating minimization
      with a distance constraint. Interpretations: the numbers are those of its authors' code,
      github.com/inspire-group/ModelPoisoning. The adversarial step comes first, as in the text, and is one gradient of
      the local pass; the code's last step is adversarial. ``u`` takes the place of the mean delta of the other clients
      in the last round, and has the attackers' share in it; the constraint is half the squared distance of all
      parameters, as in the code, which leaves out biases. The attack inside says which examples are misclassified; the
      paper's are a few chosen ones.
    """

    attack: Attack | None = None
    boost: Scalar = 10.0
    stealth_steps: int = 10
    rho: Scalar = 1e-4

    def check(self) -> None:
        if self.attack is not None:
            kinds.ATTACK.check("attack", self.attack)
        checks.positive("boost", self.boost)
        checks.count("stealth_steps", self.stealth_steps)
        checks.in_range("rho", self.rho, 0.0)

    @property
    def inner(self) -> Attack:
        """The attack inside."""
        return backdoor(fraction=1.0, boost=1.0) if self.attack is None else self.attack

    @property
    def needs(self) -> frozenset[str]:
        """Those of the attack inside, the last update, and which step it is."""
        return self.inner.needs | {"last_update", "local_step"}

    @property
    def has_gradient(self) -> bool:
        return True

    def poison(self, key: jax.Array, batch: Batch, *, local_step: Any = None, **known: Any) -> Batch:
        poisoned = self.inner.poison(key, batch, **known)
        return poisoned if local_step is None else tree.where(self._attacks_in(local_step), poisoned, batch)

    def loss(
        self, losses: jax.Array, examined: Examined, batch: Batch, *, local_step: jax.Array, **known: Any
    ) -> jax.Array:
        own = self.inner.loss(losses, examined, batch, local_step=local_step, **known)
        return jnp.where(self._attacks_in(local_step), own, losses)

    def gradient(
        self, gradient: Params, w: Params, start: Params, *, last_update: Params, local_step: jax.Array, **known: Any
    ) -> Params:
        own = self.inner.gradient(gradient, w, start, last_update=last_update, local_step=local_step, **known)
        adversarial = self._attacks_in(local_step)

        def leaf(own: jax.Array, g: jax.Array, w: jax.Array, origin: jax.Array, change: jax.Array) -> jax.Array:
            held = g + self.rho * (w - origin - change)
            return jnp.where(adversarial, self.boost * own, held).astype(g.dtype)

        return jax.tree.map(leaf, own, gradient, w, start, last_update)

    def _attacks_in(self, local_step: jax.Array) -> jax.Array:
        return local_step % (self.stealth_steps + 1) == 0
