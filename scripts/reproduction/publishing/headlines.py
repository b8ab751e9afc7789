"""The page of the headline claims: figure, interval, setting, and a sentence for each."""

from collections.abc import Sequence
from typing import NamedTuple

from reproduction.judging.margins import FAILS, HOLDS, LEVEL, UNDECIDED
from reproduction.judging.outcome import NOT_MEASURED
from reproduction.publishing.verdicts import Verdict
from reproduction.targets.target import BR_DRAG, DRAG

MARKDOWN = "headlines.md"

MOST_IN_FULL = 2
"""Panels of which a row has all figures; of more it has the intervals alone."""

_VERBS = {
    HOLDS: "holds",
    LEVEL: "is level",
    FAILS: "does not hold",
    UNDECIDED: "is open",
    NOT_MEASURED: "was not measured",
}
_HEAD = """# Headline claims

What the two papers on DRAG promise first of all, and what a careful reader can take from our runs. Brackets hold 95 %
intervals over the seeds. `*`: open after Holm's correction for all claims of the figure. [All claims](claims.md),
[how they are judged](judging.md). `python scripts/reproduce.py --judge docs/results` makes this page.

| the paper says | ours | seeds, setting | what can be said |
| --- | --- | --- | --- |"""


class Headline(NamedTuple):
    """A claim of a paper, and the claims about its figures that make it up.

    Attributes:
      paper: short name.
      that: the claim, as the subject of a sentence.
      text: the beginning of the text of its claims.
      places: of its claims, and what each is called in a sentence.
    """

    paper: str
    that: str
    text: str
    places: dict[str, str]


_CLIENTS = ("with all clients in a round", "with some of them")
_SPLITS = ("at Dirichlet(0.1)", "at Dirichlet(0.5)")
_PANELS = {
    f"Fig. {figure}{panel}": f"in {figure}{panel}" for figure in (9, 11, 13, 15, 16, 17) for panel in ("(a)", "(b)")
}


def _ab(figure: str, names: Sequence[str]) -> dict[str, str]:
    return {f"{figure}{panel}": name for panel, name in zip(("(a)", "(b)"), names, strict=True)}


HEADLINES = (
    Headline(DRAG, "DRAG is first to 80 % on EMNIST", "DRAG reaches 80 % before", _ab("Fig. 3", _CLIENTS)),
    Headline(DRAG, "DRAG is first to 70 % on CIFAR-10", "DRAG reaches 70 % before", _ab("Fig. 4", _CLIENTS)),
    Headline(
        DRAG,
        "DRAG needs a quarter or half of FedAvg's rounds on CIFAR-10",
        "DRAG reaches 70 % in",
        _ab("Fig. 4", _CLIENTS),
    ),
    Headline(
        DRAG,
        "under attack DRAG converges and ends above FLTrust and FedAvg",
        "DRAG converges, and ends highest",
        {f"Fig. {figure}": f"in Fig. {figure}" for figure in (5, 6, 7, 8)},
    ),
    Headline(BR_DRAG, "DRAG ends above five others on EMNIST", "DRAG ends above", _ab("Fig. 3", _SPLITS)),
    Headline(BR_DRAG, "DRAG ends above five others on CIFAR-10", "DRAG ends above", _ab("Fig. 4", _SPLITS)),
    Headline(
        BR_DRAG,
        "DRAG reaches 70 % on CIFAR-10 within 600 rounds",
        "DRAG reaches 70 % within 600 rounds",
        {"Fig. 4(b)": "at Dirichlet(0.5)"},
    ),
    *(
        Headline(
            BR_DRAG,
            f"DRAG needs at most 600/1,400 of {label}'s rounds there",
            f"DRAG reaches 70 % in at most 600/1,400 of {label}'s rounds",
            {"Fig. 4(b)": "at Dirichlet(0.5)"},
        )
        for label in ("SCAFFOLD", "FedACG")
    ),
    Headline(BR_DRAG, "BR-DRAG ends above four others in twelve panels", "BR-DRAG ends above the four", _PANELS),
    Headline(
        BR_DRAG,
        "BR-DRAG is 13.4 and 9.8 points above FLTrust under sign flips",
        "BR-DRAG ends that far above FLTrust",
        _ab("Fig. 11", _SPLITS),
    ),
    Headline(
        BR_DRAG,
        "BR-DRAG converges with 60 % malicious clients",
        "BR-DRAG converges with 60 %",
        {"Figs. 15 to 17": "in all six panels together"},
    ),
)


def page(judged: Sequence[Verdict]) -> str:
    """The page of the verdicts on all claims."""
    rows = (_row(headline, verdicts) for headline in HEADLINES if (verdicts := found(headline, judged)))
    return "\n".join([_HEAD, *rows]) + "\n"


def found(headline: Headline, judged: Sequence[Verdict]) -> dict[str, Verdict]:
    """The verdict on each claim of a headline, by its name: that in the paper's own setting, if there is one."""
    verdicts: dict[str, Verdict] = {}
    for one in sorted(judged, key=lambda one: not one.is_papers):
        claim = one.claim
        if claim.paper == headline.paper and claim.text.startswith(headline.text) and claim.place in headline.places:
            verdicts.setdefault(headline.places[claim.place], one)
    return {name: verdicts[name] for name in headline.places.values() if name in verdicts}


def sentence(headline: Headline, verdicts: dict[str, Verdict]) -> str:
    """The claim with its verdicts: where it holds, where it does not, and where that is open."""
    groups: dict[str, list[str]] = {}
    for name, one in verdicts.items():
        star, needs = "*" if one.corrected not in ("", one.verdict) else "", f" ({one.needs})" if one.needs else ""
        groups.setdefault(one.verdict, []).append(f"{name}{star}{needs}")
    parts = [f"{_VERBS[verdict]} {_listed(groups[verdict])}" for verdict in _VERBS if verdict in groups]
    text = f"that {headline.that} {_listed(parts)}"
    return f"{text[0].upper()}{text[1:]}."


def _row(headline: Headline, verdicts: dict[str, Verdict]) -> str:
    shown = _parts if len(verdicts) > MOST_IN_FULL else _in_full
    figures = [f"{name}: {shown(one)}" for name, one in verdicts.items()]
    settings = dict.fromkeys(_setting(one) for one in verdicts.values())
    cells = (
        f"{headline.paper}: {headline.that}",
        "; ".join(figures),
        "; ".join(settings),
        sentence(headline, verdicts),
    )
    return f"| {' | '.join(cells)} |"


def _parts(verdict: Verdict) -> str:
    return ", ".join(map(str, verdict.shown))


def _in_full(verdict: Verdict) -> str:
    return verdict.ours


def _setting(verdict: Verdict) -> str:
    others = [*([verdict.instead] if verdict.instead else []), *verdict.overrides]
    return f"{verdict.repeated}, {verdict.scale}{': ' if others else ''}{', '.join(others)}"


def _listed(texts: Sequence[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"
