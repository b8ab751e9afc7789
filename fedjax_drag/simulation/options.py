"""How options are declared and checked: dataclasses whose fields have a check, and functions that take their fields.

A function (:func:`takes`) shows every option in its signature, and refuses names that are wrong with the right one.
"""

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from typing import Any, ParamSpec, TypeVar, dataclass_transform

import numpy as np

from fedjax_drag import checks
from fedjax_drag.checks import shown

LARGEST = 2**31 - 1
"""Largest count: those on the device are int32."""

Check = Callable[[str, Any], None]
"""``(name, value) -> None``; raises ValueError naming both and what is allowed."""

Options = TypeVar("Options")


def option(check: Check, default: Any = dataclasses.MISSING, *, kw_only: bool = True) -> Any:
    """A dataclass field with a check, which :func:`check_options` calls; without a default it must be given.

    Where the default is None, None is no value to be checked.
    """

    def checked(name: str, value: Any) -> None:
        if value is not None or default is not None:
            check(name, value)

    return dataclasses.field(default=default, kw_only=kw_only, metadata={"check": checked})


def with_default(group: type, name: str, default: Any) -> Any:
    """The option ``name`` of a group with another default and the same check."""
    return dataclasses.field(default=default, metadata=group.__dataclass_fields__[name].metadata)


# So that type checkers and editors know which options must be given.
@dataclass_transform(kw_only_default=True, frozen_default=True, eq_default=False, field_specifiers=(option,))
def options(cls: type[Options]) -> type[Options]:
    """Makes a frozen dataclass of options, which are given by keyword."""
    return dataclasses.dataclass(frozen=True, kw_only=True, eq=False)(cls)


def check_options(options: Any) -> None:
    """Checks every option of a dataclass by itself; the ValueError names the option, its value and what is allowed."""
    for field in dataclasses.fields(options):
        if "check" in field.metadata:
            field.metadata["check"](field.name, getattr(options, field.name))


def documented(cls: type[Options]) -> type[Options]:
    """Appends the attributes of a class's groups to its docstring, which ends with its own attributes, if any."""
    entries = [(inspect.getdoc(group) or "").partition("\nAttributes:\n")[2] for group in _groups(cls)]
    own = inspect.cleandoc(cls.__doc__ or "")
    cls.__doc__ = "\n".join([own, *([] if "\nAttributes:\n" in own else ["\nAttributes:"]), *entries])
    return cls


def _groups(cls: Any) -> list[type]:
    """The dataclasses that a class of options is made of, the first of them first."""
    return [base for base in reversed(cls.__mro__[1:]) if base.__bases__ == (object,) and base.__doc__]


count: Check = partial(checks.count, low=1, high=LARGEST)


def one_of(*allowed: str) -> Check:
    """The check of an option that is one of some names."""
    return partial(checks.one_of, allowed=allowed)


def positive_number(name: str, value: Any) -> None:
    """Refuses anything but a plain number above 0: a traced one could not decide how long a pass is."""
    if not checks.is_concrete(value):
        raise ValueError(f"{name}={checks.shown(value)}: must be a number > 0")
    checks.positive(name, value)


def or_pair(check: Check) -> Check:
    """The check of an option that may also be a pair of counts in ascending order."""

    def checked(name: str, value: Any) -> None:
        if isinstance(value, list | tuple):
            whole = all(isinstance(entry, int | np.integer) and not isinstance(entry, bool) for entry in value)
            if len(value) != 2 or not whole or not 1 <= value[0] <= value[1] <= LARGEST:
                allowed = "a pair [low, high] of integers, 1 <= low <= high"
                raise ValueError(f"{name}={checks.shown(value)}: must be {allowed}")
            return
        try:
            check(name, value)
        except ValueError as error:
            raise ValueError(f"{error}, or a pair [low, high]") from None

    return checked


def span(length: float | Sequence[int] | None) -> tuple[int | None, Any]:
    """The least and the largest value of an option that may be a pair; the least is None where there is only one."""
    if not isinstance(length, Sequence):
        return None, length
    low, high = length
    return (None if low == high else low), high


Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")

ELSEWHERE = {
    "aggregator": "the rule is the first argument",
    "rule": "the rule is the first argument",
    "method": "the algorithm is the first argument",
    "client": "a client rule goes into the algorithm, fd.algorithms.from_aggregator(rule, client=...)",
    "partition": "data is split before, fd.data.partition.dirichlet(data, num_clients=..., beta=...)",
    "num_clients": "their number is that of the data, fd.data.partition.dirichlet(data, num_clients=..., beta=...)",
    "server_lr": "the server's step belongs to the rule, fd.aggregators.fedavg(server_optimizer=optax.sgd(...))",
    "server_optimizer": "it belongs to the rule, fd.aggregators.fedavg(server_optimizer=...)",
    "momentum": "momentum of the clients is local_optimizer=optax.trace(0.9)",
    "name": "configurations have names, for fd.run",
    "out": "results folders are written by fd.run",
}
"""Names that are no option of a run, and where the thing is said instead."""

WATCHING = {
    "callbacks": "fd.simulate takes it, and so does run of what fd.simulation.prepare returns",
    "initial": "fd.simulate takes it, and so does run of what fd.simulation.prepare returns",
    "progress": "only fd.simulate shows it",
    "patience": "fd.simulate takes it",
    "stop_when": "fd.simulate takes it",
}
"""Options of ``fd.simulate`` that the functions which run nothing do not take."""

SAME = {"rounds": "num_rounds"}
"""Options that have another name in a configuration; either is taken in both."""

_OTHER_NAMES = {
    "step_size": ("lr", "learning_rate", "client_lr"),
    "local_epochs": ("epochs", "num_epochs"),
    "local_steps": ("steps",),
    "cohort_size": ("clients", "clients_per_round", "num_clients_per_round", "participation"),
    "data": ("dataset",),
    "local_optimizer": ("optimizer", "client_optimizer"),
    "loss": ("criterion", "loss_fn"),
    "model": ("net",),
    "num_byzantine": ("num_malicious", "num_attackers"),
    "byzantine_fraction": ("malicious_fraction", "attack_fraction", "malicious", "byzantine"),
    "seed": ("rng", "key", "random_state"),
    "callbacks": ("callback",),
    "compression": ("compressor",),
    "progress": ("verbose",),
    "patience": ("early_stopping",),
    "stop_when": ("target_accuracy",),
    "eval_every": ("eval_interval", "eval"),
    "initial_params": ("params", "init_params", "pretrained"),
    "initial": ("state", "initial_state"),
    "compute_dtype": ("dtype",),
}
ALIASES = {alias: name for name, aliases in _OTHER_NAMES.items() for alias in aliases}
"""Options by the names that they have elsewhere."""

_LONGEST = 100
"""Letters of an option's line in a docstring, if a comma lets it be so short."""

EITHER = ("local_steps", "local_epochs")
"""Options of which one must be given."""


def takes(options: Callable[Arguments, Any]) -> Callable[[Callable[..., Returned]], Callable[Arguments, Returned]]:
    """Declares that a function ``(algorithm, **options)`` takes the arguments of a dataclass.

    ``help``, ``inspect.signature`` and, by the type of this decorator, editors show every option with its type and its
    default. The docstring has a line for each.

    Args:
      options: the dataclass.
    """
    parameters = inspect.signature(options).parameters.values()
    parameters = sorted(parameters, key=lambda one: (one.kind, one.default is not one.empty))  # required ones first

    def decorate(function: Callable[..., Returned]) -> Callable[Arguments, Returned]:
        signature = inspect.Signature(parameters, return_annotation=inspect.signature(function).return_annotation)

        @functools.wraps(function)
        def checked(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Returned:
            named: Any = renamed(kwargs, SAME)
            check_names(signature, args, named)
            return function(*args, **named)

        checked.__signature__ = signature  # pyright: ignore[reportAttributeAccessIssue]
        checked.__doc__ = _with_options(function.__doc__, options)
        return checked

    return decorate


def renamed(given: Mapping[str, Any], same: Mapping[str, str]) -> dict[str, Any]:
    """What was given, by the names that are used here.

    Args:
      given: values by name.
      same: names that are used here by those that are not.

    Raises:
      ValueError: one is given by both of its names.
    """
    for name in given.keys() & same.keys():
        if same[name] in given:
            raise ValueError(f"{same[name]}, {name}: are one setting; give it once")
    return {same.get(name, name): value for name, value in given.items()}


def check_names(signature: inspect.Signature, args: Iterable[Any], given: dict[str, Any]) -> None:
    """Refuses names that a function does not have, arguments without a name, and a call that lacks some.

    Args:
      signature: of the function: one argument without a name, the algorithm, and others by keyword.
      args: given without a name.
      given: by name.

    Raises:
      ValueError: one line that names the nearest argument, or all that are missing.
    """
    for name, value in given.items():
        if name not in signature.parameters:
            raise ValueError(f"{name}={shown(value)}: unknown setting; {_advice(name, signature.parameters)}")
    algorithm, *others = signature.parameters.values()
    if len(list(args)) > 1:
        raise ValueError(f"{shown(list(args)[1])}: must have a name; only {algorithm.name} is given without")
    required = [one.name for one in others if one.default is one.empty]
    if not args:
        required.insert(0, algorithm.name)
    missing = [name for name in required if name not in given]
    if not given.keys() & EITHER:
        missing.append(" or ".join(EITHER))
    if missing:
        raise ValueError(f"{', '.join(missing)}: must be given")


def _advice(name: str, known: Iterable[str]) -> str:
    """What to write in the place of an unknown name."""
    known, spelled = list(known), name.lower().replace("-", "_")
    if spelled in ELSEWHERE:
        return ELSEWHERE[spelled]
    alias = ALIASES.get(spelled)
    if (option := alias or spelled) in WATCHING and option not in known:
        return WATCHING[option]
    near = [alias] if alias in known else get_close_matches(spelled, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"must be one of {', '.join(known)}"


def _with_options(doc: str | None, options: Any) -> str | None:
    """A docstring with the options of a dataclass after its arguments: by groups, a line for each."""
    if doc is None:  # python -OO
        return None
    head, *rest = re.split(r"(?<=\S)\n\n(?=(?:Returns|Raises):)", inspect.cleandoc(doc))
    known = re.findall(r"^  (\w+): ", head, flags=re.MULTILINE)
    parts = [head]
    for group in _groups(options):
        title, _, entries = (inspect.getdoc(group) or "").partition("\nAttributes:\n")
        lines = [_in_brief(entry) for entry in re.split(r"\n(?=  \w)", entries.rstrip())]
        lines = [line for line in lines if line.split(":")[0].strip() not in known]
        parts += ["\n".join([f"{_first_clause(title)}:", *lines])] if lines else []
    return "\n\n".join([*parts, *rest])


def _in_brief(entry: str) -> str:
    """An entry of a docstring in one line: its name and its first clause, without what follows a late comma."""
    name, _, text = entry.strip().partition(": ")
    clause = _first_clause(text)
    while len(clause) > _LONGEST and ", " in clause:
        clause = clause.rpartition(", ")[0]
    if clause.count("(") > clause.count(")"):
        clause = clause.rpartition(" (")[0]
    return f"  {name}: {clause}."


def _first_clause(text: str) -> str:
    plain = re.sub(r":\w+:`~?(?:\w+\.)*(\w+)`", r"``\1``", " ".join(text.split()))
    return re.split(r"[.;:](?:\s|$)", plain)[0]
