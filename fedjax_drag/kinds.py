"""Checks that an argument is an object of the right kind: errors of one line that say what to give instead.

Layers below the simulation check rules, client rules and functions by the kinds here; the simulation adds those of
models, data sets and optimizers.
"""

import importlib
import sys
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

import optax

from fedjax_drag.checks import ArgumentError
from fedjax_drag.types import Aggregator, Algorithm, Attack, ClientRule, Optimizer, Part

_BUILDERS = (
    "aggregators",
    "algorithms",
    "attacks",
    "callbacks",
    "clients",
    "clocks",
    "compression",
    "data",
    "data.augmentation",
    "data.partition",
    "graphs",
    "graphs.mixing",
    "losses",
    "models",
    "privacy",
    "selection",
    "server_optimizers",
)
"""Modules of the package whose functions make the objects that arguments take."""

_PLACES = {
    Aggregator: "an aggregation rule is the first argument of fd.simulate",
    Algorithm: "an algorithm is the first argument of fd.simulate",
    Attack: "an attack is the argument attack of fd.simulate",
    ClientRule: "a client rule is the argument client of fd.algorithms.from_aggregator",
}
"""Where an object belongs that was given in another place."""


class Kind(NamedTuple):
    """What an argument may be.

    Attributes:
      type: its class, or a tuple of classes.
      phrase: what a message calls it, with an example.
      builders: the modules of the package whose functions make it, such as ``("attacks",)``.
      libraries: what to do with an object of another library, by the beginning of its class's full name.
      otherwise: what to do with any other object.
    """

    type: Any
    phrase: str
    builders: tuple[str, ...] = ()
    libraries: Mapping[str, str] = {}
    otherwise: str = ""

    def check(self, name: str, value: Any) -> None:
        """Raises ValueError, which says what to give instead, unless ``value`` is of this kind."""
        if not isinstance(value, self.type):
            raise ArgumentError(name, f"must be {self.phrase}{self._hint(value)}", given=value)

    def _hint(self, value: Any) -> str:
        if isinstance(value, str) and (name := _nearest(value, self.builders)):
            return f"; write {name}(...)"
        if builder := uncalled(value):
            return f"; call it, {builder}(...)"
        if isinstance(value, type) and issubclass(value, self.type):
            return f"; give an instance, {value.__name__}(...)"
        ancestors = value.__mro__ if isinstance(value, type) else type(value).__mro__
        advice = [text for kind, text in _PLACES.items() if kind in ancestors]
        for library, text in self.libraries.items():
            paths = [f"{ancestor.__module__}.{ancestor.__qualname__}" for ancestor in ancestors]
            advice += [text for path in paths if path.startswith(f"{library}.") or path == library]
        fallback = self.otherwise or ("mappings are for configurations, fd.run" if isinstance(value, Mapping) else "")
        return "".join(f"; {text}" for text in [*advice, fallback][:1] if text)


AGGREGATOR = Kind(Aggregator, "an aggregation rule, such as fd.aggregators.drag()", ("aggregators",))
ALGORITHM = Kind(Algorithm, "an algorithm, such as fd.algorithms.fedacg()", ("algorithms",))
CLIENT_RULE = Kind(ClientRule, "a client rule, such as fd.clients.fedprox(mu=0.1)", ("clients",))
ATTACK = Kind(Attack, "an attack, such as fd.attacks.sign_flip()", ("attacks",))
OF_ROUND = "be a function of the round in operations of JAX, as optax schedules are, or jnp.asarray(values)[round]"
"""What a schedule must be."""

OF_UPDATES = "be an optax transformation of updates, state and params alone"
"""What an optimizer must be: none that asks for the loss as well, such as ``optax.lbfgs()``."""

OPTIMIZER = Kind(
    (optax.GradientTransformation, optax.MultiSteps, Optimizer), "an optax transformation, such as optax.trace(0.9)"
)


def check_function(name: str, value: Any, phrase: str, *builders: str) -> None:
    """Raises ValueError unless ``value`` is a function, and none that makes such functions.

    Args:
      name: of the argument.
      value: to be checked.
      phrase: what a message calls it, with an example.
      *builders: the modules of the package whose functions make it.
    """
    if not callable(value) or isinstance(value, type) or uncalled(value):
        raise ArgumentError(name, f"must be {phrase}{Kind(object, phrase, builders)._hint(value)}", given=value)


def uncalled(value: Any) -> str | None:
    """The public name of what makes objects in the package, such as ``fd.attacks.alie``; else None."""
    name = getattr(value, "__name__", None)
    if name is None or (isinstance(value, type) and not issubclass(value, Part)):
        return None
    # What somebody has got hold of is in a module that is imported.
    owners = (owner for owner in _BUILDERS if getattr(sys.modules.get(f"fedjax_drag.{owner}"), name, None) is value)
    return next((f"fd.{owner}.{name}" for owner in owners), None)


def _nearest(name: str, builders: Iterable[str]) -> str | None:
    """The public name of the builder that is spelled most like ``name``."""
    for owner in builders:
        module = importlib.import_module(f"fedjax_drag.{owner}")  # now: who uses rules alone does not import the rest
        near = get_close_matches(name, [known for known, value in vars(module).items() if uncalled(value)], n=1)
        if near:
            return f"fd.{owner}.{near[0]}"
    return None
