"""A backdoor whose trigger is divided among the malicious clients."""

from typing import Any

import jax

from fedjax_drag import checks
from fedjax_drag.attacks._attack import in_fraction
from fedjax_drag.attacks._backdoor import backdoor, relabelled, with_trigger
from fedjax_drag.types import Batch


class dba(backdoor):
    """Distributed backdoor: each malicious client trains with a part of the trigger, which then works as a whole.

    The trigger is that of :func:`backdoor`, a square in the lower right corner. Its rows are divided into ``parts``
    bands, as equal as they can be; by default each is a row of four pixels. Malicious client number ``k``, in the order
    of the clients, has part ``k mod parts``. In every round the same ``floor(fraction * n_m)`` of its examples carry
    that part, labelled as the target. The attack succeeds on a test example with the whole trigger if the model
    predicts the target; examples of that class do not count. With fewer malicious clients than parts, nobody trains
    with the last ones. Where each cohort has malicious clients of its own, they are numbered anew in every round.

    Knows:
      which of the malicious clients it is; if ``boost`` is None, how many clients take part and how many of them are
      malicious.

    Args:
      target: class that the model is to predict for images with the trigger, >= 0.
      fraction: of a malicious client's examples that carry its part, in [0, 1].
      trigger_size: side of the square in pixels, >= 1.
      trigger_value: of its pixels, after normalisation.
      boost: factor > 0 of what malicious clients send; None for the number of clients present divided by theirs,
        1 for no boost.
      parts: in [1, trigger_size]; 1 is :func:`backdoor`.

    Raises:
      ValueError: if an argument is out of range; while the run is built, if the data are not images or smaller than
        the trigger, or the target is not among the classes.

    References:
      Xie et al., DBA: Distributed backdoor attacks against federated learning, ICLR 2020. Interpretations: the paper's
      parts are four bars with a gap between them in the upper left corner, one for each of four attackers; here they
      are next to each other, so that together they are the trigger of :func:`backdoor`. All malicious clients attack in
      every round, or in those of :func:`during`; the paper's attack in one round each (single-shot) is with ``boost``,
      its attack over many rounds without.
    """

    trigger_size: int = 4
    parts: int = 4

    def check(self) -> None:
        super().check()
        checks.count("parts", self.parts, 1, self.trigger_size)

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"attacker_index"})

    def poison(
        self,
        key: jax.Array,
        batch: Batch,
        *,
        positions: jax.Array,
        num_examples: jax.Array,
        num_classes: int,
        attacker_index: Any = 0,
    ) -> Batch:
        del key
        checks.count("target", self.target, 0, num_classes - 1)
        marked = in_fraction(positions, num_examples, self.fraction)
        part = with_trigger(batch.x, self.trigger_size, self.trigger_value, attacker_index % self.parts, self.parts)
        return relabelled(batch, marked, part, self.target)
