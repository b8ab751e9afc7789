"""A backdoor whose examples look to the model like others of the target class, so that it lasts."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedjax_drag import checks, kinds
from fedjax_drag.kernels.norms import unit_rows
from fedjax_drag.ops.paths import check_patterns, joined, split
from fedjax_drag.types import Attack, Batch, Examined, Params, Scalar, WrappedAttack


class chameleon(WrappedAttack):
    """A backdoor that is learned in two stages: the features by contrast between labels, then the classifier alone.

    With the features ``z`` of the examples of a mini-batch, its poisoned ones included, at length 1, malicious clients
    minimise in the first ``contrastive_steps`` of their local steps the mean over the examples i of::

        -weight_i mean_p log( exp(<z_i, z_p> / temperature) / sum_a exp(<z_i, z_a> / temperature) )

    over the other examples ``a``, of which the ``p`` have the same label. ``weight_i`` is ``weight`` for examples
    labelled as the target, of which benign clients hold some too (the facilitators of the backdoor), and 1 for others.
    So poisoned examples move away from those of their true class, its interferers. In the steps after that malicious
    clients minimise the training loss, and leave alone all parameters but the ``head``.

    Args:
      attack: a backdoor with a ``target``: :func:`~fedjax_drag.attacks.backdoor`, :func:`~fedjax_drag.attacks.dba`,
        :func:`~fedjax_drag.attacks.edge_case` or :func:`~fedjax_drag.attacks.a3fl`.
      head: patterns of the paths of the classifier's parameters, such as ``"Dense_1"``.
      contrastive_steps: >= 0, fewer than the local steps if the classifier is to learn the backdoor.
      weight: > 0. Its authors' code takes 4 and 6.
      temperature: > 0. Its authors' code takes 0.07.

    Raises:
      ValueError: if ``attack`` is none or has no target, or another argument is out of range; while the run is built,
        if a pattern matches no parameter.

    Knows:
      what the attack inside knows.

    References:
      Dai and Li, Chameleon: Adapting to peer images for planting durable backdoors in federated learning, ICML 2023.
      Interpretations: the contrast is the supervised one of Khosla et al., 2020; features are what
      :class:`~fedjax_drag.types.Prediction` calls the representation; both stages are steps of the local pass, where
      its authors' code, github.com/ybdai7/Chameleon-durable-backdoor, makes 10 epochs and 3, with step sizes of their
      own and the delta kept in a ball in between, for which see :func:`~fedjax_drag.attacks.stealth`.
    """

    attack: Attack
    head: str | Sequence[str]
    contrastive_steps: int = 3
    weight: Scalar = 4.0
    temperature: Scalar = 0.07

    def check(self) -> None:
        kinds.ATTACK.check("attack", self.attack)
        if self.target is None:
            raise checks.ArgumentError("attack", "must be a backdoor with a target", given=self.attack)
        check_patterns("head", self.head)
        checks.count("contrastive_steps", self.contrastive_steps)
        checks.positive("weight", self.weight)
        checks.positive("temperature", self.temperature)

    @property
    def target(self) -> int | None:
        """The class that the backdoor inside aims at."""
        return getattr(self.attack, "target", None)

    @property
    def needs(self) -> frozenset[str]:
        """Those of the attack inside, and which step it is."""
        return self.inner.needs | {"local_step"}

    @property
    def has_loss(self) -> bool:
        return True

    @property
    def has_gradient(self) -> bool:
        return True

    def poison(self, key: jax.Array, batch: Batch, *, local_step: Any = None, **known: Any) -> Batch:
        del local_step
        return self.inner.poison(key, batch, **known)

    def loss(
        self, losses: jax.Array, examined: Examined, batch: Batch, *, local_step: jax.Array, **_: Any
    ) -> jax.Array:
        contrasts = contrastive_losses(examined.representation, batch, self.temperature)
        contrasts = jnp.where(batch.y == self.target, self.weight, 1.0) * contrasts
        return jnp.where(local_step < self.contrastive_steps, contrasts.astype(losses.dtype), losses)

    def gradient(self, gradient: Params, w: Params, start: Params, *, local_step: jax.Array, **_: Any) -> Params:
        del w, start
        head, features = split(gradient, self.head, "head")
        frozen = local_step >= self.contrastive_steps
        return joined(head, jax.tree.map(lambda g: jnp.where(frozen, jnp.zeros_like(g), g), features))


def contrastive_losses(z: Float[Array, "batch features"], batch: Batch, temperature: Any) -> Float[Array, " batch"]:
    """The contrast of each example with the others by their labels; 0 for one that is alone with its label."""
    z = unit_rows(z)
    others = ~jnp.eye(len(z), dtype=bool)
    if batch.real is not None:
        others &= batch.real
    agreement = jnp.where(others, z @ z.T / temperature, jnp.finfo(z.dtype).min)
    likelihood = agreement - jax.nn.logsumexp(agreement, axis=1, keepdims=True)
    same = others & (batch.y[:, None] == batch.y)
    return -jnp.where(same, likelihood, 0.0).sum(1) / jnp.maximum(same.sum(1), 1)
