"""An attack around another one."""

from typing import Any

import jax

from fedjax_drag.types._attack import Attack, LossOfModel
from fedjax_drag.types._client_rule import Examined
from fedjax_drag.types._messages import Batch, Deltas, Params, Uplink


class WrappedAttack(Attack):
    """Another attack with something changed: a subclass overrides what differs."""

    @property
    def inner(self) -> Attack:
        """The attack inside, by default the field ``attack``."""
        return self.attack  # type: ignore[attr-defined]

    @property
    def keeps_state(self) -> bool:  # type: ignore[override]
        return self.inner.keeps_state

    @property
    def needs(self) -> frozenset[str]:
        return self.inner.needs

    def poison(self, key: jax.Array, batch: Batch, **known: Any) -> Batch:
        return self.inner.poison(key, batch, **known)

    def loss(self, losses: jax.Array, examined: Examined, batch: Batch, **known: Any) -> jax.Array:
        return self.inner.loss(losses, examined, batch, **known)

    def gradient(self, gradient: Params, w: Params, start: Params, **known: Any) -> Params:
        return self.inner.gradient(gradient, w, start, **known)

    def forge(self, key: jax.Array, uplink: Uplink, malicious: jax.Array, **knowledge: Any) -> Uplink:
        return self.inner.forge(key, uplink, malicious, **knowledge)

    def forge_for(self, own: Params, others: Deltas, weight: jax.Array, malicious: jax.Array) -> Deltas:
        return self.inner.forge_for(own, others, weight, malicious)

    def goal(self, x: jax.Array, y: jax.Array, num_classes: int, **known: Any) -> tuple[jax.Array, jax.Array]:
        return self.inner.goal(x, y, num_classes, **known)

    def rehearse(self, key: jax.Array, memory: Any, params: Params, batch: Batch, loss: LossOfModel) -> Any:
        return self.inner.rehearse(key, memory, params, batch, loss)

    def init(self, key: jax.Array, params: Params) -> Any:
        return self.inner.init(key, params)

    def observe(self, memory: Any, update: Params, round_index: jax.Array) -> Any:
        return self.inner.observe(memory, update, round_index)

    def attackers(self, malicious: jax.Array, round_index: jax.Array) -> jax.Array:
        return self.inner.attackers(malicious, round_index)

    @property
    def poisons(self) -> bool:
        return self.inner.poisons

    @property
    def has_loss(self) -> bool:
        return self.inner.has_loss

    @property
    def has_gradient(self) -> bool:
        return self.inner.has_gradient

    @property
    def forges(self) -> bool:
        return self.inner.forges

    @property
    def forges_for_each(self) -> bool:
        return self.inner.forges_for_each

    @property
    def rehearses(self) -> bool:
        return self.inner.rehearses

    @property
    def is_targeted(self) -> bool:
        return self.inner.is_targeted

    @property
    def needs_labels(self) -> bool:
        return self.inner.needs_labels
