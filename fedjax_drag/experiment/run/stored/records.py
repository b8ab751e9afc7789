"""What a checkpoint is: its round, its run, its configuration and how good it is, in a file beside its state.

The file has a checksum of its own, and that of the state: nothing by which a checkpoint is chosen can change, and no
state can take the place of another, without being noticed.
"""

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_drag.experiment.build.experiment import load
from fedjax_drag.experiment.build.resolve import resolve
from fedjax_drag.experiment.config.config import Config
from fedjax_drag.experiment.config.own import as_text
from fedjax_drag.experiment.plain import plain
from fedjax_drag.experiment.run.errors import MismatchError
from fedjax_drag.experiment.run.folders import first_difference
from fedjax_drag.files import read_json, write_text

FILE = "record.json"


class Record(NamedTuple):
    """What a checkpoint is.

    Attributes:
      round: rounds done.
      accuracy: by which the best is chosen, the highest: the run's metric, its negative where lower is better; None if
        it is not finite.
      state: checksum of its state.
      run: the name of its run, or None.
      config: the configuration of its run as plain values, or empty.
      dtypes: names of those of the columns of its history.
    """

    round: int
    accuracy: float | None
    state: int
    run: str | None
    config: dict[str, Any]
    dtypes: Mapping[str, str] = {}


def write(folder: Path, record: Record) -> None:
    """Writes the record of a checkpoint into its folder."""
    content = record._asdict()
    write_text(folder / FILE, json.dumps(content | {"crc32": _checksum(content)}, indent=1) + "\n")


def read(folder: Path) -> Record:
    """Reads the record of a checkpoint, whose folder is named after its round.

    Raises:
      ValueError: it cannot be read, or does not match its checksum.
      MismatchError: it is that of another round.
    """
    try:
        content = read_json(folder / FILE)
        checksum = content.pop("crc32")
        record = Record(**content)
        if checksum != _checksum(content):
            raise ValueError("does not match its checksum")
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{FILE}: {error}") from error
    if str(record.round) != folder.name:
        raise MismatchError(f"is that of round {record.round}")
    return record


def plain_mapping(config: Config) -> dict[str, Any]:
    """A configuration as a file holds it."""
    return plain(as_text(config.to_mapping()))


def difference(stored: Mapping[str, Any], config: Config) -> str:
    """The first key, with its value, in which a stored configuration decides otherwise; empty if there is none.

    A checkpoint that was written without a configuration has an empty one, which is not compared.
    """
    if not stored or stored == plain_mapping(config):
        return ""
    found = first_difference(resolve(load(stored)), config)
    return "" if found is None else f"{found[0]}={found[1]!r}, and this one has {found[2]!r}"


def _checksum(content: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())
