"""Every experimental claim of the papers as one row: what they say, our figures, whether it holds."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedjax_drag.experiment.run.results import write_text
from reproduction import claims_br_drag, claims_clusterguard, claims_drag, claims_taco
from reproduction.judging import NOT_MEASURED, Claim, Verdict, judge
from reproduction.outcome import Outcome, read

CLAIMS: tuple[Claim, ...] = (
    *claims_drag.CLAIMS,
    *claims_br_drag.CLAIMS,
    *claims_clusterguard.CLAIMS,
    *claims_taco.CLAIMS,
)

JSON, MARKDOWN = "claims.json", "claims.md"


def verdicts(out: Path, reasons: Mapping[str, str]) -> list[Verdict]:
    """All claims, judged by what lies in the folder.

    Args:
      out: with a sweep's folder for each target.
      reasons: by target, why it did not run.
    """
    names = dict.fromkeys(claim.target for claim in CLAIMS if claim.target)
    outcomes: dict[str, Outcome | None] = {name: read(out / name) for name in names}
    found = [judge(claim, outcomes.get(claim.target)) for claim in CLAIMS]
    return [
        verdict._replace(ours=reasons.get(verdict.claim.target, "")) if verdict.holds == NOT_MEASURED else verdict
        for verdict in found
    ]


def recorded(record: Path, found: Sequence[Verdict]) -> list[Verdict]:
    """All verdicts, those not measured as an earlier ``claims.json`` has them.

    Args:
      record: a ``claims.json``, perhaps of another machine; none there is as an empty one.
      found: all verdicts.

    Raises:
      ValueError: it is not such a file.
    """
    try:
        rows = json.loads(record.read_text()) if record.is_file() else []
        kept = {(row["paper"], row["place"], row["text"]): (row["holds"], row["ours"]) for row in rows}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{record}: must be a {JSON} that this script wrote") from error
    entries = [kept.get((claim.paper, claim.place, claim.text), (holds, ours)) for claim, holds, ours in found]
    return [
        verdict._replace(holds=holds, ours=ours) if verdict.holds == NOT_MEASURED else verdict
        for verdict, (holds, ours) in zip(found, entries, strict=True)
    ]


def line(verdict: Verdict) -> str:
    """A verdict as one line: ``DRAG reaches 70 % in 50 % of FedAvg's rounds: yes, 0.46``."""
    theirs = f" (the paper: {verdict.claim.theirs})" if verdict.claim.theirs else ""
    return f"{verdict.claim.place}: {verdict.claim.text}: {verdict.holds}{verdict.ours and ', '}{verdict.ours}{theirs}"


def write(out: Path, found: Sequence[Verdict], scale: str) -> None:
    """Writes ``claims.json`` and ``claims.md``.

    Args:
      out: folder.
      found: all verdicts.
      scale: at which the targets were run.
    """
    out.mkdir(parents=True, exist_ok=True)
    rows = [{**_plain(verdict.claim), "holds": verdict.holds, "ours": verdict.ours} for verdict in found]
    write_text(out / JSON, json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    write_text(out / MARKDOWN, _page(found, scale))


def _plain(claim: Claim) -> dict[str, str]:
    return {key: getattr(claim, key) for key in ("paper", "place", "text", "theirs", "target")}


def _page(found: Sequence[Verdict], scale: str) -> str:
    counts = Counter(verdict.holds for verdict in found)
    total = ", ".join(f"{word} {number}" for word, number in counts.most_common())
    how = f"`python scripts/reproduce.py paper --scale {scale}` runs and judges them; `--list` tells what it cuts."
    parts = [f"# Claims of the papers\n\n{len(found)} claims: {total}. {how}"]
    for paper in dict.fromkeys(verdict.claim.paper for verdict in found):
        rows = [
            (claim.place, claim.text, claim.theirs, ours, holds, claim.target)
            for claim, holds, ours in found
            if claim.paper == paper
        ]
        lines = [" | ".join(cell.replace("|", "\\|") for cell in row) for row in rows]
        head = "| | claim | the paper | ours | holds | judged by |\n| --- | --- | --- | --- | --- | --- |"
        parts.append(f"## {paper}\n\n{head}\n" + "\n".join(f"| {row} |" for row in lines))
    return "\n\n".join(parts) + "\n"
