"""An attack around another one."""

from fedjax_drag.types._attack import Attack
from fedjax_drag.types._part import forwards


@forwards(
    "inner",
    *("keeps_state", "needs", "needs_labels", "is_targeted", "poisons", "has_loss", "has_gradient", "forges"),
    *("forges_for_each", "rehearses", "poison", "loss", "gradient", "forge", "forge_for", "goal", "attackers"),
    *("init", "rehearse", "observe"),
)
class WrappedAttack(Attack):
    """Another attack with something changed: a subclass overrides what differs."""

    @property
    def inner(self) -> Attack:
        """The attack inside, by default the field ``attack``."""
        return self.attack  # type: ignore[attr-defined]
