"""What has been measured, in one JSON file that a later call continues."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.accelerator.part import Outcome
from benchmarks.timing import Row

FILE = "accelerator.json"


class Record:
    """The measurements in a folder, written after every one of them.

    Args:
      folder: where :data:`FILE` is, or will be.
      machine: what the measurements are of: the size and the device.

    Raises:
      ValueError: the file is of another size, another device or another version of JAX, or cannot be read.
    """

    def __init__(self, folder: Path, machine: Mapping[str, Any]):
        self.path = folder / FILE
        self.machine = dict(machine)
        self.parts: dict[str, dict[str, Outcome]] = {}
        if not self.path.exists():
            return
        kept = read(folder)
        if kept.machine != self.machine:
            raise ValueError(f"{self.path}: is of {kept.machine}, this is {self.machine}; name another --out")
        self.parts = kept.parts

    def outcome(self, part: str, case: str) -> Outcome | None:
        """What came of a case; None before it was measured."""
        return self.parts.get(part, {}).get(case)

    def keep(self, part: str, case: str, outcome: Outcome) -> None:
        """Records a case. The file is replaced as a whole: a call that is killed leaves the old one or the new one."""
        self.parts.setdefault(part, {})[case] = outcome
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text(json.dumps({"machine": self.machine, "parts": self.parts}, indent=1))
        os.replace(temporary, self.path)

    def rows(self, part: str) -> list[Row]:
        """All rows of a part, in the order in which they were measured."""
        return [row for outcome in self.parts.get(part, {}).values() for row in outcome.get("rows", ())]

    def failures(self, part: str) -> dict[str, str]:
        """The reason of every case that failed."""
        return {case: one["failed"] for case, one in self.parts.get(part, {}).items() if "failed" in one}


def read(folder: Path) -> Record:
    """The record in a folder.

    Raises:
      ValueError: there is none, or it cannot be read.
    """
    path = folder / FILE
    try:
        content = json.loads(path.read_text())
        record = Record.__new__(Record)
        record.path, record.machine, record.parts = path, content["machine"], content["parts"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: cannot be read ({type(error).__name__}); name another --out") from error
    return record
