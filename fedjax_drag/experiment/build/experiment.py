"""A configuration that is ready to be built: read, merged, checked and resolved, once and in that order."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from fedjax_drag.experiment.build.own_parts import Code
from fedjax_drag.experiment.build.resolve import resolve
from fedjax_drag.experiment.config.config import Config
from fedjax_drag.experiment.config.fallbacks import warn_of_fallbacks
from fedjax_drag.experiment.config.loading import Source, merged_and_checked, read, variants
from fedjax_drag.experiment.config.own import references
from fedjax_drag.experiment.config.yaml_text import parse
from fedjax_drag.simulation.option_groups import check_adversary

T = TypeVar("T")


class Experiment(NamedTuple):
    """A valid experiment; later steps read it and change nothing.

    Attributes:
      config: the resolved configuration as a whole.
      runs: the resolved configuration of each run, by label: of the variants under ``compare``, or the whole one.
    """

    config: Config
    runs: dict[str, Config]

    def with_mesh(self, mesh: str) -> "Experiment":
        """The same on another mesh; a variant that sets ``mesh`` itself keeps its own."""
        compare: Mapping[str, Any] = self.config.compare or {}
        runs = {
            label: run if "mesh" in (compare.get(label) or {}) else dataclasses.replace(run, mesh=mesh)
            for label, run in self.runs.items()
        }
        return Experiment(dataclasses.replace(self.config, mesh=mesh), runs)


def load_experiment(
    source: Source, overrides: Iterable[str | Mapping[str, Any]] = (), allow_code: bool = False
) -> Experiment:
    """Reads, merges, checks and resolves a configuration and all its variants.

    Args and exceptions are those of :func:`~fedjax_drag.experiment.config.loading.load`; of a single run, the attack
    and the number of malicious clients must go together. Code that ``source`` refers to is loaded if ``allow_code``
    says so, code that ``overrides`` refer to in any case. Warns if the configuration gives no data or no partition.
    """
    mapping, changes = read(source), parse(overrides)
    code = Code(allow_code, frozenset(references(changes)))
    config = merged_and_checked(mapping, changes)
    warn_of_fallbacks(mapping, *changes, stacklevel=5)
    if config.compare is None:
        check_adversary(config.attack, config.byzantine_fraction, config.num_byzantine)
        whole = resolve(config, code)
        return Experiment(whole, {whole.name: whole})
    compared = variants(config)
    if not compared:
        raise ValueError("compare={}: must have at least one label, or be null")
    whole = resolve(config, code)
    return Experiment(whole, {label: labelled(label, resolve, run, code) for label, run in compared.items()})


def labelled(label: str, function: Callable[..., T], *args: Any) -> T:
    """Calls a function; its errors name the variant they are about."""
    try:
        return function(*args)
    except ValueError as error:
        raise ValueError(f"compare.{label}: {error}") from error
