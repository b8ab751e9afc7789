"""The verdicts on all claims of the papers, and the files that record them."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedjax_drag.experiment.run.results import write_text
from reproduction.claims import Claim, Verdict, judge
from reproduction.outcome import NOT_MEASURED, Outcome, read
from reproduction.papers import br_drag, clusterguard, drag, taco

CLAIMS: tuple[Claim, ...] = (*drag.CLAIMS, *br_drag.CLAIMS, *clusterguard.CLAIMS, *taco.CLAIMS)

JSON, MARKDOWN = "claims.json", "claims.md"
PUBLISHED = Path(__file__).parents[2] / "docs" / "results"
"""The folder whose record the documentation shows; ``--record`` updates it."""


def verdicts(out: Path, reasons: Mapping[str, str]) -> list[Verdict]:
    """Judges all claims by the results in a folder.

    Args:
      out: a folder that contains the results folders of the targets.
      reasons: by target, why it was not run.
    """
    names = dict.fromkeys(claim.target for claim in CLAIMS if claim.target)
    outcomes: dict[str, Outcome | None] = {name: read(out / name) for name in names}
    judged = [judge(claim, outcomes.get(claim.target)) for claim in CLAIMS]
    return [
        verdict._replace(ours=reasons.get(verdict.claim.target, "")) if verdict.holds == NOT_MEASURED else verdict
        for verdict in judged
    ]


def recorded(record: Path, judged: Sequence[Verdict]) -> list[Verdict]:
    """The verdicts, with those not measured taken from an earlier record.

    Args:
      record: a ``claims.json``, perhaps of another machine; a missing file counts as an empty one.
      judged: the verdicts on all claims.

    Raises:
      ValueError: the file is not such a record.
    """
    try:
        rows = json.loads(record.read_text()) if record.is_file() else []
        earlier = {(row["paper"], row["place"], row["text"]): (row["holds"], row["ours"]) for row in rows}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{record}: must be a {JSON} that this script wrote") from error

    def newest(verdict: Verdict) -> Verdict:
        claim, holds, ours = verdict
        if holds == NOT_MEASURED:
            holds, ours = earlier.get((claim.paper, claim.place, claim.text), (holds, ours))
        return Verdict(claim, holds, ours)

    return [newest(verdict) for verdict in judged]


def line(verdict: Verdict) -> str:
    """A verdict as one line: ``DRAG reaches 70 % in 50 % of FedAvg's rounds: yes, 0.46``."""
    theirs = f" (the paper: {verdict.claim.theirs})" if verdict.claim.theirs else ""
    return f"{verdict.claim.place}: {verdict.claim.text}: {verdict.holds}{verdict.ours and ', '}{verdict.ours}{theirs}"


def write(out: Path, judged: Sequence[Verdict], scale: str) -> None:
    """Writes ``claims.json`` and ``claims.md``.

    Args:
      out: the folder; made if it does not exist.
      judged: the verdicts on all claims.
      scale: the scale that the page names.
    """
    out.mkdir(parents=True, exist_ok=True)
    rows = [{**_plain(verdict.claim), "holds": verdict.holds, "ours": verdict.ours} for verdict in judged]
    write_text(out / JSON, json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    write_text(out / MARKDOWN, _page(judged, scale))


def _plain(claim: Claim) -> dict[str, str]:
    return {key: getattr(claim, key) for key in ("paper", "place", "text", "theirs", "target")}


def _page(judged: Sequence[Verdict], scale: str) -> str:
    counts = Counter(verdict.holds for verdict in judged)
    total = ", ".join(f"{word} {number}" for word, number in counts.most_common())
    how = f"`python scripts/reproduce.py paper --scale {scale}` runs and judges them; `--list` tells what it cuts."
    parts = [f"# Claims of the papers\n\n{len(judged)} claims: {total}. {how}"]
    for paper in dict.fromkeys(verdict.claim.paper for verdict in judged):
        rows = [
            (claim.place, claim.text, claim.theirs, ours, holds, claim.target)
            for claim, holds, ours in judged
            if claim.paper == paper
        ]
        lines = [" | ".join(cell.replace("|", "\\|") for cell in row) for row in rows]
        head = "| | claim | the paper | ours | holds | judged by |\n| --- | --- | --- | --- | --- | --- |"
        parts.append(f"## {paper}\n\n{head}\n" + "\n".join(f"| {row} |" for row in lines))
    return "\n\n".join(parts) + "\n"
