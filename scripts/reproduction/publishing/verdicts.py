"""The verdicts on all claims of the papers, judged by stored results alone."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from reproduction.judging.claims import Claim
from reproduction.judging.margins import ALPHA, FAILS, HOLDS, LEVEL, UNDECIDED, Part, holm
from reproduction.judging.more_seeds import MOST, deciding
from reproduction.judging.outcome import NOT_MEASURED, MissingError
from reproduction.papers import br_drag, calculated, clusterguard, drag, taco
from reproduction.storing import settings, stored
from reproduction.storing.stored import Stored
from reproduction.targets.all_targets import TARGETS
from reproduction.targets.target import Scale, Target

CLAIMS: tuple[Claim, ...] = (
    *drag.CLAIMS,
    *br_drag.CLAIMS,
    *clusterguard.CLAIMS,
    *taco.CLAIMS,
    *calculated.CLAIMS,
)

CANNOT = "cannot be run"
"""The verdict on a claim that no target can judge."""

CALCULATED = "calculation"
"""The setting of a statement that needs no run."""


class Verdict(NamedTuple):
    """The result for a claim in one setting.

    Attributes:
      claim: what was judged.
      verdict: ``holds``, ``does not hold``, ``undecided``, ``not measured`` or ``cannot be run``.
      ours: our figures, or why there are none.
      parts: the comparisons that decide it, with their intervals.
      most_shown: as of :class:`~reproduction.judging.claims.Answer`.
      setting: of the target.
      target: name of the target; empty if none can be run.
      scale: of the stored results.
      overrides: how they differ from the full scale.
      instead: what stands in the place of the paper's data or network.
      p: how likely the verdict is by chance; 1 if nothing is decided.
      corrected: the verdict after Holm's correction for the claims of the same figure or table in this setting.
    """

    claim: Claim
    verdict: str
    ours: str
    parts: tuple[Part, ...] = ()
    setting: str = ""
    target: str = ""
    scale: str = ""
    overrides: tuple[str, ...] = ()
    instead: str = ""
    p: float = 1.0
    corrected: str = ""
    most_shown: int | None = None

    @property
    def shown(self) -> tuple[Part, ...]:
        """The parts that the text has."""
        return self.parts[: self.most_shown]

    @property
    def is_papers(self) -> bool:
        """Whether it was measured with the paper's data, network and rounds, as far as the paper tells them."""
        return self.scale == Scale.FULL and not self.instead

    @property
    def seeds(self) -> int:
        """Seeds of the part that has the fewest, of those shown; 0 for a timing."""
        return min((part.repetitions for part in self.shown if part.repeated == "seeds"), default=0)

    @property
    def needs(self) -> str:
        """What would decide it, as text, if it is undecided: ``9 seeds would decide``."""
        if self.verdict != UNDECIDED:
            return ""
        number = deciding(self.parts)
        if math.isinf(number):
            return "more rounds would decide"
        return f"{'more than ' if number >= MOST else ''}{number:,.0f} {self.parts[0].repeated} would decide"

    @property
    def repeated(self) -> str:
        """The repetitions as text: ``3 seeds``, ``1 seed``, ``20 turns``."""
        if not self.parts:
            return ""
        fewest = min(self.shown, key=lambda part: part.repetitions)
        word = fewest.repeated if fewest.repetitions > 1 else fewest.repeated.removesuffix("s")
        return f"{fewest.repetitions} {word}"


def judge(
    claim: Claim,
    target: Target | None,
    results: Stored | None,
    wanted: Mapping[str, Sequence[Any]] | None = None,
) -> Verdict:
    """Decides a claim, but for the scale; missing results give a verdict and no error.

    Args:
      claim: what to judge.
      target: the target that judges it; None if none can be run.
      results: what is stored of the target, or None.
      wanted: by axis, the values of which the target has cells; default those that are stored.
    """
    if claim.check is not None:
        found = claim.check()
        return Verdict(claim, HOLDS if found.holds else FAILS, found.figures, setting=CALCULATED)
    if claim.question is None or target is None:
        return Verdict(claim, CANNOT, claim.reason)
    instead = claim.instead or target.instead
    blank = Verdict(claim, NOT_MEASURED, "", setting=target.setting, target=target.name, instead=instead)
    if results is None:
        return blank._replace(ours=f"about {target.minutes} minutes of two cores")
    try:
        answer = claim.question(results.outcome(wanted))
    except MissingError as error:
        return blank._replace(ours=str(error))
    return blank._replace(
        verdict=answer.verdict,
        ours=answer.text,
        parts=answer.parts,
        p=answer.p,
        most_shown=answer.most_shown,
    )


def verdicts(folder: Path) -> list[Verdict]:
    """The verdicts on all claims by the results stored in a folder.

    A claim has a verdict in the default setting, and in each other setting of which results are stored.

    Raises:
      ValueError: a file of stored results is damaged.
    """
    known = {name: stored.read(stored.path_of(folder, name)) for name in TARGETS}
    for name, target in TARGETS.items():
        own, other = known[name], known.get(target.setting_of)
        if target.reading and own is not None and other is not None:
            known[name] = stored.completed(own, other)
    scales = {name: settings.scale_of(TARGETS[name], one.settings) for name, one in known.items() if one is not None}
    judged: list[Verdict] = []
    for claim in CLAIMS:
        targets = [one for one in targets_of(claim) if not one.setting_of or known[one.name] is not None]
        by_target = [judge(claim, one, known[one.name], settings.labels_of(one)) for one in targets]
        other = (  # another reading has no say in a claim that is not about the methods that it changes
            one
            for one, target in zip(by_target, targets, strict=True)
            if not target.reading or one.parts != by_target[0].parts
        )
        judged += list(other) or [judge(claim, None, None)]
    for index, one in enumerate(judged):
        if one.target and one.verdict != NOT_MEASURED:
            scale, overrides = scales[one.target]
            judged[index] = one._replace(scale=scale, overrides=tuple(overrides))
    return _corrected(judged)


def _corrected(judged: Sequence[Verdict]) -> list[Verdict]:
    """The verdicts with what Holm's correction leaves of them.

    Claims of one figure or table, all its panels together, are one family; what is undecided counts in it.
    """
    families: dict[tuple[str, ...], list[int]] = {}
    for index, one in enumerate(judged):
        if one.parts:
            figure = one.claim.place.split("(")[0]
            families.setdefault((one.claim.paper, figure, one.target), []).append(index)
    found = [one._replace(corrected=one.verdict) for one in judged]
    for family in families.values():
        for index, p in zip(family, holm([judged[index].p for index in family]), strict=True):
            if judged[index].verdict in (HOLDS, FAILS, LEVEL) and p > ALPHA:
                found[index] = found[index]._replace(corrected=UNDECIDED)
    return found


def targets_of(claim: Claim) -> list[Target]:
    """The target that a claim names, and those that are other settings of it."""
    return [target for name, target in TARGETS.items() if claim.target and claim.target in (name, target.setting_of)]


def line(verdict: Verdict) -> str:
    """A verdict as one line: ``DRAG reaches 70 % in 50 % of FedAvg's rounds: holds, 0.46 [0.41, 0.51] times``."""
    claim = verdict.claim
    theirs = f" (the paper: {claim.theirs})" if claim.theirs else ""
    figures = ", ".join(filter(None, [verdict.verdict, verdict.ours, verdict.repeated]))
    return f"{claim.place}: {claim.text}: {figures}{theirs}"
