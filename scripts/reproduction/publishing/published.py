"""The record of the verdicts: ``claims.json``, and the page ``claims.md`` that is made from it."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fedjax_drag.files import write_text
from reproduction.judging.margins import FAILS, HOLDS, LEVEL, UNDECIDED
from reproduction.judging.outcome import NOT_MEASURED, TAIL
from reproduction.publishing import headlines
from reproduction.publishing.verdicts import CALCULATED, CANNOT, Verdict
from reproduction.storing import stored

JSON, MARKDOWN = "claims.json", "claims.md"
FOLDER = Path(__file__).parents[3] / "docs" / "results"
"""The folder whose record the documentation shows."""

EARLIER = "earlier.json"
"""Beside the stored results: what an earlier version said of each claim, without intervals."""

Row = dict[str, Any]

_ORDER = (HOLDS, FAILS, LEVEL, UNDECIDED, NOT_MEASURED, CANNOT)
PAPERS = "With the paper's data, network and rounds"
SCALED = "With other data, another network or fewer rounds"
PROVED = "Statements that a calculation decides"
_EARLIER_WORDS = {"yes": HOLDS, "no": FAILS}
_HEAD = """| | claim | the paper | ours, with 95 % intervals | seeds | scale and setting | verdict |
| --- | --- | --- | --- | --- | --- | --- |"""
_HOW = (
    "Each comparison is made seed by seed; a claim holds, or does not, if the whole 95 % interval of the difference "
    "(Student's t over the seeds) is on that side of what the paper says; two sides are level if the interval has "
    "nothing but small differences; all else, and what has fewer than three seeds, is undecided "
    "([how claims are judged](judging.md)). The accuracy at the end of a run is the mean over the last "
    f"{100 * TAIL:.0f} % of its rounds. Behind the verdict: what Holm's correction for all claims of the figure leaves "
    "of it, where that differs, or how many seeds would decide it, if mean and spread stay as they are. "
    f"`python scripts/reproduce.py --judge FOLDER` makes this page from `FOLDER/{stored.FOLDER}`."
)


def write(folder: Path, judged: Sequence[Verdict]) -> None:
    """Writes ``claims.json``, ``claims.md`` and ``headlines.md``.

    Args:
      folder: that has the stored results.
      judged: the verdicts on all claims.

    Raises:
      ValueError: the earlier verdicts in the folder are damaged.
    """
    earlier = _earlier(folder)
    rows = [_row(verdict, earlier) for verdict in judged]
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / JSON, json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    write_text(folder / MARKDOWN, page(rows, Counter(row["holds"] for row in earlier.values())))
    write_text(folder / headlines.MARKDOWN, headlines.page(judged))


def check(folder: Path) -> None:
    """Refuses a folder whose record cannot be written for what is in it.

    Raises:
      ValueError: the stored results or the earlier verdicts are damaged.
    """
    _earlier(folder)
    for path in (folder / stored.FOLDER).glob("*.parquet"):
        stored.read(path)


def page(rows: Sequence[Row], before: Counter[str] | None = None) -> str:
    """The page of a record.

    Args:
      rows: of ``claims.json``.
      before: how many claims had each verdict in an earlier version.
    """
    parts = [f"# Claims of the papers\n\n{_counts(rows, before or Counter())}\n\n{_HOW}"]
    for paper in dict.fromkeys(row["paper"] for row in rows):
        lines = [" | ".join(_escaped(_cells(row))) for row in rows if row["paper"] == paper]
        parts.append(f"## {paper}\n\n{_HEAD}\n" + "\n".join(f"| {line} |" for line in lines))
    return "\n\n".join(parts) + "\n"


def _row(verdict: Verdict, earlier: dict[tuple[str, ...], Row]) -> Row:
    """The row of a verdict; of what is not measured it says what an earlier version said."""
    claim, ours = verdict.claim, verdict.ours
    then = earlier.get((claim.paper, claim.place, claim.text))
    if verdict.verdict == NOT_MEASURED and verdict.target == claim.target and then and then["holds"] != NOT_MEASURED:
        said = f"{_EARLIER_WORDS.get(then['holds'], then['holds'])}{then['ours'] and ', '}{then['ours']}"
        ours = "; ".join(filter(None, [ours, f"an earlier version, without an interval: {said}"]))
    return {
        **{key: getattr(claim, key) for key in ("paper", "place", "text", "theirs")},
        **{key: getattr(verdict, key) for key in ("target", "setting", "scale")},
        "overrides": list(verdict.overrides),
        "instead": verdict.instead,
        "papers": verdict.is_papers,
        "repeated": verdict.repeated,
        "seeds": verdict.seeds,
        "verdict": verdict.verdict,
        "corrected": verdict.corrected or verdict.verdict,
        "p": round(verdict.p, 6),
        "needs": verdict.needs,
        "ours": ours,
        "intervals": [part.as_row() for part in verdict.shown],
    }


def _earlier(folder: Path) -> dict[tuple[str, ...], Row]:
    """What an earlier version said, by paper, place and text of the claim; empty if that is not kept."""
    path = folder / stored.FOLDER / EARLIER
    try:
        rows = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
        return {(row["paper"], row["place"], row["text"]): {"holds": row["holds"], "ours": row["ours"]} for row in rows}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{str(path)!r}: must be the claims of an earlier version") from error


def _counts(rows: Sequence[Row], before: Counter[str]) -> str:
    """How many claims have each verdict, and had in an earlier version.

    A claim counts by its result with the paper's data, network and rounds if there is one, else by that in the default
    setting. Its other results count by their setting.
    """
    by_claim: dict[tuple[str, ...], Row] = {}
    for row in sorted(rows, key=lambda row: not row["papers"]):
        by_claim.setdefault((row["paper"], row["place"], row["text"]), row)
    chosen = {id(row) for row in by_claim.values()}
    groups: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: (id(row) not in chosen, not row["papers"])):
        name = f"Besides, in the setting {row['setting']!r}"
        if id(row) in chosen:
            of_setting = {"": "The others", CALCULATED: PROVED}
            name = PAPERS if row["papers"] else of_setting.get(row["setting"], SCALED)
        groups.setdefault(name, []).append(row)
    lines = [f"{len(by_claim)} claims.", ""]
    for name, found in groups.items():
        counts, after = (Counter(row[key] for row in found) for key in ("verdict", "corrected"))
        corrected = "" if after == counts else f"; after Holm's correction {_listed(after, _ORDER)}"
        lines.append(f"- {name}, {len(found)}: {_listed(counts, _ORDER)}{corrected}.")
    if before:
        words = ("yes", "no", "diverged", NOT_MEASURED, CANNOT)
        lines.append(f"- An earlier version, by means over the seeds, most often one: {_listed(before, words)}.")
    return "\n".join(lines)


def _listed(counts: Counter[str], words: Iterable[str]) -> str:
    return ", ".join(f"{word} {counts[word]}" for word in words if counts[word])


def _cells(row: Row) -> list[str]:
    others = [*([row["instead"]] if row["instead"] else []), *row["overrides"]]
    changes = f": {', '.join(others)}" if others else ""
    setting = f"{row['setting']}, {row['scale']}{changes}" if row["scale"] else row["setting"]
    behind = row["needs"] or (row["corrected"] if row["corrected"] != row["verdict"] else "")
    verdict = row["verdict"] + (f" ({behind})" if behind else "")
    seeds = row["repeated"].removesuffix(" seeds").removesuffix(" seed")
    return [row["place"], row["text"], row["theirs"], row["ours"], seeds, setting, verdict]


def _escaped(cells: Iterable[str]) -> list[str]:
    return [cell.replace("|", "\\|") for cell in cells]
