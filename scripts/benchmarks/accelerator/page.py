"""The record as a section of a page."""

import textwrap
from collections.abc import Sequence
from pathlib import Path

from benchmarks.accelerator.part import Part
from benchmarks.accelerator.record import Record
from benchmarks.timing import Row, table

BEGIN, END = "<!-- accelerator benchmark: begin -->", "<!-- accelerator benchmark: end -->"
"""Between these lines of a page the section is written anew."""


def section(parts: Sequence[Part], record: Record, level: int = 3) -> str:
    """What has been measured: a heading, an explanation and a table for each part.

    Args:
      parts: in the order of the page.
      record: what has been measured.
      level: of the headings.
    """
    machine = record.machine
    lines = [f"Measured on {machine['device']} with JAX {machine['jax']}."]
    if machine["size"] != "full":
        lines[0] += f" **An example of the form alone:** sizes are *{machine['size']}*, and the figures say nothing."
    for part in parts:
        rows, failures = record.rows(part.name), record.failures(part.name)
        if not rows and not failures:
            continue
        seconds = sum(outcome["seconds"] for outcome in record.parts[part.name].values())
        lines += [
            "",
            f"{'#' * level} {part.title}",
            "",
            textwrap.fill(part.text, 120),
            "",
            f"Took {seconds / 60:.1f} minutes.",
        ]
        if rows:
            lines += ["", table(shown(rows))]
        if failures:
            lines += ["", *(f"- `{case}` failed: {_escaped(why)}" for case, why in failures.items())]
    return "\n".join(lines) + "\n"


def shown(rows: Sequence[Row]) -> list[Row]:
    """The rows with the columns that any of them has and fills, and with words as headings."""
    columns = dict.fromkeys(name for row in rows for name in row)
    filled = [name for name in columns if any(row.get(name) not in (None, "") for row in rows)]
    return [
        {name.replace("_", " "): _cell(row.get(name)) for name in filled if not name.startswith("_")} for row in rows
    ]


def write(path: Path, text: str) -> None:
    """Writes the section between its marks in a page; a page without them is replaced by the section alone.

    Raises:
      ValueError: the page has other text and no marks.
    """
    before, after = "", ""
    if path.exists():
        page = path.read_text()
        before, begin, rest = page.partition(BEGIN)
        _, end, after = rest.partition(END)
        if not (begin and end):
            raise ValueError(f"{str(path)!r}: must be a new file, or one with the lines {BEGIN} and {END}")
    path.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after or chr(10)}")


def _cell(value: object) -> object:
    return _escaped(value) if isinstance(value, str) else value


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")
