"""Claims of Zhu et al. (DRAG, Section VI)."""

import functools
from typing import NamedTuple

from reproduction.judging.claims import Claim, Question, Where, method
from reproduction.judging.questions import ahead, converges, every, faster, first_to, highest, steadier, wider
from reproduction.names import percent
from reproduction.targets.target import DRAG

_claim = functools.partial(Claim, DRAG)


class Participation(NamedTuple):
    """A figure with all clients in a round (panel a) and with some of them (panel b).

    Attributes:
      target: its configuration.
      place: the figure.
      accuracy: target accuracy in the paper.
      full: number of all clients.
      partial: number of clients in a round of panel b.
      partial_drag: label of DRAG in panel b.
    """

    target: str
    place: str
    accuracy: float
    full: int
    partial: int
    partial_drag: str

    @property
    def cohorts(self) -> tuple[int, int]:
        """The cohort size of each panel."""
        return self.full, self.partial

    def drag(self, cohort: int) -> str:
        """Label of DRAG in the panel with this cohort size."""
        return FULL_DRAG if cohort == self.full else self.partial_drag


FULL_DRAG = "DRAG (alpha=1)"
EMNIST = Participation("drag000_fig3_emnist", "Fig. 3", 0.8, 40, 10, "DRAG (alpha=0.6)")
CIFAR10 = Participation("drag000_fig4_cifar10", "Fig. 4", 0.7, 20, 5, "DRAG (alpha=0.2)")

ADABEST = "AdaBest does relatively better with some clients in a round than with all"


def _first(figure: Participation) -> list[Claim]:
    """DRAG reaches the target accuracy first, in both panels."""
    claims = []
    panels = zip(("(a)", "(b)"), figure.cohorts, ("all clients in a round", "some clients in a round"), strict=True)
    for panel, cohort, participation in panels:
        label = figure.drag(cohort)
        other_drag = [figure.drag(other) for other in figure.cohorts if other != cohort]
        question = first_to("method", label, figure.accuracy, {"cohort_size": cohort}, other_drag)
        text = f"DRAG reaches {percent(figure.accuracy, 0)} before the four others, {participation}"
        claims.append(_claim(f"{figure.place}{panel}", text, "", figure.target, question))
    return claims


def _adabest(figure: Participation) -> Question:
    """Whether AdaBest's lead over FedAvg is larger in panel b than in panel a."""
    full, partial = ((method("AdaBest", cohort_size=n), method("FedAvg", cohort_size=n)) for n in figure.cohorts)
    return wider(partial, full)


def _emnist() -> list[Claim]:
    """Fig. 3, beside :func:`_first`."""
    target, place = EMNIST.target, EMNIST.place
    lead = every(
        *(
            wider(*((method(EMNIST.drag(n), cohort_size=n), method(label, cohort_size=n)) for n in EMNIST.cohorts))
            for label in ("FedAvg", "FedProx", "SCAFFOLD", "AdaBest")
        )
    )
    corrected = every(
        *(ahead(method("SCAFFOLD", cohort_size=n), method("FedAvg", cohort_size=n)) for n in EMNIST.cohorts)
    )
    worst = every(
        *(
            ahead(method(label, cohort_size=n), method(plain, cohort_size=n))
            for n in EMNIST.cohorts
            for label in ("SCAFFOLD", "AdaBest", EMNIST.drag(n))
            for plain in ("FedAvg", "FedProx")
        )
    )
    return [
        _claim(place, "DRAG's lead is largest with all clients in a round", "", target, lead),
        _claim(place, "SCAFFOLD stays good in both, above FedAvg", "", target, corrected),
        _claim(place, "FedAvg and FedProx are the worst of the five in both", "", target, worst),
        _claim(place, ADABEST, "", target, _adabest(EMNIST)),
    ]


def _cifar10() -> list[Claim]:
    """Fig. 4, beside :func:`_first`."""
    target, place, accuracy = CIFAR10.target, CIFAR10.place, CIFAR10.accuracy
    claims = []
    for panel, cohort, part in zip(("(a)", "(b)"), CIFAR10.cohorts, (0.25, 0.5), strict=True):
        pair = method(CIFAR10.drag(cohort), cohort_size=cohort), method("FedAvg", cohort_size=cohort)
        text = f"DRAG reaches {percent(accuracy, 0)} in {percent(part, 0)} of FedAvg's rounds"
        claims.append(_claim(f"{place}{panel}", text, f"{part:.2f}", target, faster(*pair, accuracy, part)))
    limited = [
        ahead(method(CIFAR10.drag(n), cohort_size=n), method(label, cohort_size=n))
        for label in ("SCAFFOLD", "FedProx")
        for n in CIFAR10.cohorts
    ]
    return [
        *claims,
        _claim(place, "SCAFFOLD and FedProx improve on FedAvg less than DRAG does", "", target, every(*limited)),
        _claim(place, ADABEST, "", target, _adabest(CIFAR10)),
    ]


class Attacked(NamedTuple):
    """A figure with malicious clients.

    Attributes:
      place: the figure.
      target: its configuration.
      q: the skew of the split.
      guessing: accuracy of guessing.
    """

    place: str
    target: str
    q: float
    guessing: float

    def cells(self, label: str) -> Where:
        """The cells of a method in this figure."""
        return method(label, partition__q=self.q)


ATTACKED = {
    figure.place: figure
    for figure in (
        Attacked("Fig. 5", "drag000_fig5_6_cifar10", 0.1, 0.1),  # one malicious client in ten
        Attacked("Fig. 6", "drag000_fig5_6_cifar10", 1.0, 0.1),
        Attacked("Fig. 7", "drag000_fig7_8_emnist", 0.1, 1 / 47),  # four in ten
        Attacked("Fig. 8", "drag000_fig7_8_emnist", 1.0, 1 / 47),
    )
}


def _above(place: str, text: str, label: str, other: str) -> Claim:
    """One method ends above another in a figure with malicious clients."""
    figure = ATTACKED[place]
    return _claim(place, text, "", figure.target, ahead(figure.cells(label), figure.cells(other)))


def _converging(place: str, text: str, label: str, wanted: bool = True) -> Claim:
    """A method converges, or does not, in a figure with malicious clients."""
    figure = ATTACKED[place]
    return _claim(place, text, "", figure.target, converges(figure.cells(label), figure.guessing, wanted))


def _attacked() -> list[Claim]:
    """Figs. 5 to 8."""
    steady = steadier(ATTACKED["Fig. 5"].cells("DRAG"), ATTACKED["Fig. 5"].cells("FLTrust"))
    low, high = ((ATTACKED[place].cells("DRAG"), ATTACKED[place].cells("FLTrust")) for place in ("Fig. 7", "Fig. 8"))
    claims = [
        _above("Fig. 5", "FedAvg falls: it ends below FLTrust", "FLTrust", "FedAvg"),
        _converging("Fig. 5", "FLTrust converges", "FLTrust"),
        _claim("Fig. 5", "DRAG is steadier than FLTrust", "", ATTACKED["Fig. 5"].target, steady),
        _converging("Fig. 6", "FLTrust does not converge", "FLTrust", wanted=False),
        _above("Fig. 6", "FedAvg is still impaired: it ends below DRAG", "DRAG", "FedAvg"),
        _converging("Fig. 7", "FedAvg does decently, converging", "FedAvg"),
        _converging("Fig. 7", "FLTrust does well, converging", "FLTrust"),
        _claim(
            "Fig. 8",
            "FLTrust is limited by heterogeneity: further behind DRAG than with q=1/10",
            "",
            ATTACKED["Fig. 8"].target,
            wider(high, low),
        ),
    ]
    for place, figure in ATTACKED.items():
        best = highest("method", "DRAG", {"partition.q": figure.q})
        question = every(best, converges(figure.cells("DRAG"), figure.guessing))
        claims.append(_claim(place, "DRAG converges, and ends highest of the three", "", figure.target, question))
    return claims


CLAIMS = (*_first(EMNIST), *_emnist(), *_first(CIFAR10), *_cifar10(), *_attacked())
