"""Tools that receive the metrics of a run besides its folder, by name."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from fedjax_drag import callbacks, checks
from fedjax_drag.callbacks import Logger
from fedjax_drag.callbacks._trackers import connect_mlflow, log_in_wandb
from fedjax_drag.experiment.run.results import LOGS
from fedjax_drag.simulation.devices.processes import from_first, is_first

LOGGERS: dict[str, tuple[Callable[[Path, str, Mapping[str, Any]], Logger], Callable[[], Any]]] = {
    "tensorboard": (
        lambda folder, _, config: callbacks.tensorboard(folder, "tensorboard", config),
        lambda: callbacks.needed("tensorboard"),
    ),
    "wandb": (callbacks.wandb, log_in_wandb),
    "mlflow": (lambda _, name, config: callbacks.mlflow(name, config), connect_mlflow),
}
"""What makes each, from folder, label and configuration, and what fails where it cannot start."""


def check(names: Iterable[str], folder: Path | None) -> tuple[str, ...]:
    """Refuses names that cannot be logged to.

    Raises:
      ValueError: no such tool, there is no results folder, or the tool cannot start: its package is not installed, it
        asks for a login, or its server or store refuses.
    """
    names = tuple(checks.names("log", names, LOGGERS))
    if names and folder is None:
        raise ValueError(f"log={names[0]!r}: needs the results folder, and out is None")
    for name in names:
        from_first(_check_ready, name)
    return names


def _check_ready(name: str) -> None:
    try:
        LOGGERS[name][1]()
    except ImportError as error:
        raise ValueError(f"log={name!r}: {error}") from None
    except Exception as error:  # each tool has its own
        reason = " ".join(str(error).split())
        raise ValueError(f"log={name!r}: cannot start; {type(error).__name__}: {reason}") from error


@contextmanager
def opened(names: Iterable[str], folder: Path | None, label: str, config: Mapping[str, Any]) -> Iterator[list[Logger]]:
    """The loggers of a run, of which only the first of several processes has any."""
    with ExitStack() as stack:
        mine = [] if folder is None or not is_first() else [(LOGGERS[name][0], folder / LOGS) for name in names]
        yield [stack.enter_context(make(place, label, config)) for make, place in mine]
