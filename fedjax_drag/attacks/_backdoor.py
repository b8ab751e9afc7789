"""A trigger of pixels that makes the model predict the attacker's class."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fedjax_drag import checks, tree
from fedjax_drag.attacks._attack import in_fraction, scale_malicious
from fedjax_drag.types import Attack, Batch, Uplink


class backdoor(Attack):
    """Malicious clients learn to classify images with a trigger as the target, and boost their messages.

    The trigger is a square in the lower right corner. In every round the same ``floor(fraction * n_m)`` examples of a
    malicious client carry it, labelled as the target. Its message is multiplied by ``boost``; the default factor
    replaces the global model by the backdoored one if the server averages and the other deltas are zero. The attack
    succeeds on a test example with the trigger if the model predicts the target; examples of that class do not count.
    Examples without the trigger keep their labels, so that ``test_accuracy`` does not show the attack.

    Knows:
      nothing; if ``boost`` is None, how many clients take part and how many of them are malicious.

    Args:
      target: class that the model is to predict for images with the trigger, >= 0.
      fraction: of a malicious client's examples that carry the trigger, in [0, 1].
      trigger_size: side of the square in pixels, >= 1.
      trigger_value: of its pixels, after normalisation.
      boost: factor > 0 of what malicious clients send; None for the number of clients present divided by theirs,
        1 for no boost.

    Raises:
      ValueError: if an argument is out of range; while the run is built, if the data are not images or smaller than
        the trigger, or the target is not among the classes.

    References:
      Gu et al., BadNets: Identifying vulnerabilities in the machine learning model supply chain, 2017; Bagdasaryan
      et al., How to backdoor federated learning, AISTATS 2020, Section 3 (model replacement), where one client
      attacks in one round; here all malicious clients do, in every round.
    """

    target: int = 0
    fraction: float = 0.5
    trigger_size: int = 3
    trigger_value: float = 1.0
    boost: float | None = None

    def check(self) -> None:
        checks.count("target", self.target)
        checks.in_range("fraction", self.fraction, 0.0, 1.0)
        checks.count("trigger_size", self.trigger_size, 1)
        checks.in_range("trigger_value", self.trigger_value)
        check_boost(self.boost)

    def poison(
        self, key: jax.Array, batch: Batch, *, positions: jax.Array, num_examples: jax.Array, num_classes: int
    ) -> Batch:
        del key
        checks.count("target", self.target, 0, num_classes - 1)
        marked = in_fraction(positions, num_examples, self.fraction)
        return relabelled(batch, marked, with_trigger(batch.x, self.trigger_size, self.trigger_value), self.target)

    def forge(self, key: jax.Array, uplink: Uplink, malicious: jax.Array, *, valid: Any = None, **_: Any) -> Uplink:
        del key
        return boosted(self.boost, uplink, malicious, valid)

    def goal(self, x: jax.Array, y: jax.Array, num_classes: int) -> tuple[jax.Array, jax.Array]:
        del num_classes
        return with_trigger(x, self.trigger_size, self.trigger_value), jnp.full_like(y, self.target)


def with_trigger(
    x: Float[Array, "B H W C"], size: int, value: Any, part: Int[Array, ""] | int = 0, parts: int = 1
) -> Float[Array, "B H W C"]:
    """The images with a square of ``value`` in the lower right corner, or with one of ``parts`` bands of its rows.

    ``value`` is a number, or one for each pixel ``[size, size, 1]``.
    """
    if getattr(x, "ndim", None) != 4 or min(x.shape[1:3]) < size:
        shape = jax.tree.map(lambda leaf: leaf.shape[1:], x)
        raise checks.ArgumentError("trigger_size", f"needs images at least as large, not inputs {shape}", given=size)
    band = jnp.arange(size) * parts // size == part
    square = jnp.where(band[:, None, None], jnp.asarray(value, x.dtype), x[:, -size:, -size:])
    return x.at[:, -size:, -size:].set(square)


def relabelled(batch: Batch, marked: Bool[Array, " batch"], x: jax.Array, target: int) -> Batch:
    """The batch with inputs ``x`` and the label ``target`` in the place of the examples that are marked."""
    x = jnp.where(tree.expand(marked, batch.x), x, batch.x)
    return batch._replace(x=x, y=jnp.where(marked, target, batch.y))


def check_boost(boost: float | None) -> None:
    """Raises ValueError if ``boost`` is a number that is not positive."""
    if boost is not None:
        checks.positive("boost", boost)


def boosted(boost: float | None, uplink: Uplink, malicious: Bool[Array, " clients"], valid: Any) -> Uplink:
    """Malicious clients send ``boost`` times their message; None for the number of clients present divided by
    that of the malicious ones among them.
    """
    present = jnp.ones_like(malicious) if valid is None else valid
    replacing = present.sum() * tree.inverse((present & malicious).sum().astype(jnp.float32))
    return scale_malicious(uplink, malicious, replacing if boost is None else boost)
