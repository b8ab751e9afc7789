"""An attack around another one."""

from fedjax_drag.types._attack import Attack
from fedjax_drag.types._part import forwards


@forwards("inner")
class WrappedAttack(Attack):
    """Another attack with something changed: a subclass overrides what differs."""

    @property
    def inner(self) -> Attack:
        """The attack inside, by default the field ``attack``."""
        return self.attack  # type: ignore[attr-defined]
