"""A backdoor whose trigger is optimised against models that have unlearned it."""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_drag import checks, tree
from fedjax_drag.attacks._attack import in_fraction
from fedjax_drag.attacks._backdoor import backdoor, relabelled, with_trigger
from fedjax_drag.attacks._harm import along, unit
from fedjax_drag.types import Batch, LossOfModel, Params, Scalar


class a3fl(backdoor):
    """Malicious clients learn a trigger that they adapt to the global model, and to what this will make of it.

    In every round, before the local passes, the attackers optimise the trigger ``d`` on the global model ``w`` and true
    examples ``(x, y)`` of one of them, and on a model that has learned the right labels of images with the trigger::

        w' <- w' - unlearning_step grad L(w', x + d, y)            unlearning_steps times from w
        d <- clip(d - step sign(grad_d [ L(w, x + d, target) + weight cos(w, w') L(w', x + d, target) ]))

    ``steps`` times, ``w'`` anew in each, where ``x + d`` is the image with the trigger in the place of its pixels, and
    values are kept in ``[-bound, bound]``. Then malicious clients train with it as in :func:`backdoor`, and the success
    is measured with the trigger of the last round.

    Knows:
      what the server sent to it; if ``boost`` is None, how many clients take part and how many of them are malicious.

    Args:
      target: class that the model is to predict for images with the trigger, >= 0.
      fraction: of a malicious client's examples that carry the trigger, in [0, 1].
      trigger_size: side of the square in pixels, >= 1.
      trigger_value: of its pixels before the first round, after normalisation.
      boost: factor > 0 of what malicious clients send; None for the number of clients present divided by theirs,
        1 for no boost.
      steps: of the trigger in a round, >= 0; 0 is :func:`backdoor`.
      step: > 0, by which a pixel changes in one of them.
      bound: > 0, largest absolute value of a pixel, after normalisation.
      unlearning_steps: >= 0, each one gradient.
      unlearning_step: > 0, their step size.
      weight: >= 0, of the model that has unlearned the trigger; 0 leaves it out.

    Raises:
      ValueError: if an argument is out of range; while the run is built, if the data are not images or smaller than
        the trigger, or the target is not among the classes.

    References:
      Zhang et al., A3FL: Adversarially adaptive backdoor attacks to federated learning, NeurIPS 2023. Interpretations:
      a pixel has one value for all channels; its authors' code, github.com/hfzhang31/A3FL, makes 200 passes over a
      client's data for the trigger, 5 epochs of momentum SGD for each ``w'``, and takes the cosine of gradients of
      convolutions, here both take a batch of 64 examples and the cosine is that of the parameters; there images carry
      the trigger beside the upper left corner, here in the lower right one.
    """

    trigger_size: int = 5
    steps: int = 10
    step: Scalar = 0.05
    bound: Scalar = 2.0
    unlearning_steps: int = 5
    unlearning_step: Scalar = 0.01
    weight: Scalar = 0.01

    def check(self) -> None:
        super().check()
        checks.count("steps", self.steps)
        checks.count("unlearning_steps", self.unlearning_steps)
        for name in ("step", "bound", "unlearning_step"):
            checks.positive(name, getattr(self, name))
        checks.in_range("weight", self.weight, 0.0)

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"memory"})

    def init(self, key: jax.Array, params: Params) -> jax.Array:
        del key, params
        return jnp.full((self.trigger_size, self.trigger_size, 1), self.trigger_value, jnp.float32)

    def rehearse(self, key: jax.Array, memory: jax.Array, params: Params, batch: Batch, loss: LossOfModel) -> jax.Array:
        del key
        marked = lambda trigger: with_trigger(batch.x, self.trigger_size, trigger)
        wanted = jnp.full_like(batch.y, self.target)

        def unlearned(trigger: jax.Array) -> Params:
            x = marked(trigger)
            learn = lambda _, w: tree.move(w, tree.scale(-self.unlearning_step, jax.grad(loss)(w, x, batch.y)))
            return jax.lax.fori_loop(0, self.unlearning_steps, learn, params)

        def improve(_: Any, trigger: jax.Array) -> jax.Array:
            other = unlearned(trigger)
            weight = self.weight * along(unit(params), unit(other))
            misses = lambda d: loss(params, marked(d), wanted) + weight * loss(other, marked(d), wanted)
            ahead = trigger - self.step * jnp.sign(jax.grad(misses)(trigger))
            return jnp.clip(ahead, -self.bound, self.bound).astype(trigger.dtype)

        return jax.lax.fori_loop(0, self.steps, improve, memory)

    def poison(
        self,
        key: jax.Array,
        batch: Batch,
        *,
        positions: jax.Array,
        num_examples: jax.Array,
        num_classes: int,
        memory: Any = None,
    ) -> Batch:
        del key
        checks.count("target", self.target, 0, num_classes - 1)
        x = with_trigger(batch.x, self.trigger_size, memory)
        return relabelled(batch, in_fraction(positions, num_examples, self.fraction), x, self.target)

    def goal(self, x: jax.Array, y: jax.Array, num_classes: int, memory: Any = None) -> tuple[jax.Array, jax.Array]:
        del num_classes
        return with_trigger(x, self.trigger_size, memory), jnp.full_like(y, self.target)
