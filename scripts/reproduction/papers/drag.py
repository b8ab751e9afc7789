"""What Zhu et al. (DRAG, Section VI) say about their experiments."""

from typing import Any

from reproduction.judging import (
    Claim,
    Question,
    Where,
    ahead,
    converges,
    every,
    faster,
    first_to,
    highest,
    steadier,
    wider,
)
from reproduction.names import percent
from reproduction.targets import DRAG

FULL, PARTIAL = "DRAG (alpha=1)", {40: "DRAG (alpha=0.6)", 20: "DRAG (alpha=0.2)"}
COHORTS = {"drag000_fig3_emnist": (40, 10), "drag000_fig4_cifar10": (20, 5)}


def method(label: str, **where: Any) -> Where:
    """The cells of one method, in a part of a sweep; ``__`` stands for a dot."""
    return {"method": label} | {axis.replace("__", "."): value for axis, value in where.items()}


def _claim(place: str, text: str, theirs: str, target: str, question: Question) -> Claim:
    return Claim(DRAG, place, text, theirs, target, question)


def _drift(target: str, place: str, accuracy: float) -> list[Claim]:
    """Of a figure with (a) all clients and (b) some of them in a round."""
    full, partial = COHORTS[target]
    drag = {full: FULL, partial: PARTIAL[full]}
    claims = []
    for panel, cohort in (("(a)", full), ("(b)", partial)):
        beside = [label for label in drag.values() if label != drag[cohort]]
        question = first_to("method", drag[cohort], accuracy, {"cohort_size": cohort}, beside)
        who = "all clients in a round" if cohort == full else "some clients in a round"
        text = f"DRAG reaches {percent(accuracy, 0)} before the four others, {who}"
        claims.append(_claim(f"{place}{panel}", text, "", target, question))
    more, less = {"cohort_size": full}, {"cohort_size": partial}
    corrected = [ahead(method("SCAFFOLD", cohort_size=n), method("FedAvg", cohort_size=n)) for n in (full, partial)]
    if full == 40:
        lead = every(*(wider(method(FULL), method(label), more, less) for label in ("FedAvg", "SCAFFOLD")))
        claims += [
            _claim(place, "DRAG's lead is largest with all clients in a round", "", target, lead),
            _claim(place, "SCAFFOLD stays good in both, above FedAvg", "", target, every(*corrected)),
            _claim(
                place,
                "FedAvg and FedProx are the worst of the five in both",
                "",
                target,
                every(
                    *(
                        ahead(method(label, cohort_size=n), method(plain, cohort_size=n))
                        for n in (full, partial)
                        for label in ("SCAFFOLD", "AdaBest", drag[n])
                        for plain in ("FedAvg", "FedProx")
                    )
                ),
            ),
            _claim(
                place,
                "AdaBest helps, and more with one number of participants than with the other",
                "",
                target,
                wider(method("AdaBest"), method("FedAvg"), less, more),
            ),
        ]
    else:
        halves = (("(a)", full, 0.25), ("(b)", partial, 0.5))
        claims += [
            _claim(
                f"{place}{panel}",
                f"DRAG reaches {percent(accuracy, 0)} in {percent(part, 0)} of FedAvg's rounds",
                f"{part:.2f}",
                target,
                faster(method(drag[n], cohort_size=n), method("FedAvg", cohort_size=n), accuracy, part),
            )
            for panel, n, part in halves
        ]
        near = [
            ahead(method(label, cohort_size=n), method("FedAvg", cohort_size=n), by=-1.0, at_most=0.02)
            for label in ("SCAFFOLD", "FedProx")
            for n in (full, partial)
        ]
        claims += [
            _claim(
                place, "SCAFFOLD and FedProx improve little on FedAvg (by at most 2 points)", "", target, every(*near)
            ),
            _claim(
                place,
                "AdaBest does relatively better with some clients in a round than with all",
                "",
                target,
                wider(method("AdaBest"), method("FedAvg"), less, more),
            ),
        ]
    return claims


def _attacked() -> list[Claim]:
    """Of the figures with malicious clients: CIFAR-10 (one of ten) and EMNIST (four of ten), q=1/10 and q=1."""
    cifar, emnist, guess, guess_letter = "drag000_fig5_6_cifar10", "drag000_fig7_8_emnist", 0.1, 1 / 47
    low, high = {"partition__q": 0.1}, {"partition__q": 1.0}
    claims = [
        _claim(
            "Fig. 5",
            "FedAvg falls: it ends below FLTrust",
            "",
            cifar,
            ahead(method("FLTrust", **low), method("FedAvg", **low)),
        ),
        _claim("Fig. 5", "FLTrust converges", "", cifar, converges(method("FLTrust", **low), guess)),
        _claim(
            "Fig. 5",
            "DRAG is steadier than FLTrust",
            "",
            cifar,
            steadier(method("DRAG", **low), method("FLTrust", **low)),
        ),
        _claim(
            "Fig. 6", "FLTrust does not converge", "", cifar, converges(method("FLTrust", **high), guess, wanted=False)
        ),
        _claim(
            "Fig. 6",
            "FedAvg is still impaired: it ends below DRAG",
            "",
            cifar,
            ahead(method("DRAG", **high), method("FedAvg", **high)),
        ),
        _claim(
            "Fig. 7", "FedAvg does decently, converging", "", emnist, converges(method("FedAvg", **low), guess_letter)
        ),
        _claim(
            "Fig. 7", "FLTrust does well, converging", "", emnist, converges(method("FLTrust", **low), guess_letter)
        ),
        _claim(
            "Fig. 8",
            "FLTrust is limited by heterogeneity: further behind DRAG than with q=1/10",
            "",
            emnist,
            wider(method("DRAG"), method("FLTrust"), {"partition.q": 1.0}, {"partition.q": 0.1}),
        ),
    ]
    for place, target, q, guessing in (
        ("Fig. 5", cifar, 0.1, guess),
        ("Fig. 6", cifar, 1.0, guess),
        ("Fig. 7", emnist, 0.1, guess_letter),
        ("Fig. 8", emnist, 1.0, guess_letter),
    ):
        question = every(
            highest("method", "DRAG", {"partition.q": q}), converges(method("DRAG", partition__q=q), guessing)
        )
        claims.append(_claim(place, "DRAG converges, and ends highest of the three", "", target, question))
    return claims


CLAIMS = (
    *_drift("drag000_fig3_emnist", "Fig. 3", 0.8),
    *_drift("drag000_fig4_cifar10", "Fig. 4", 0.7),
    *_attacked(),
)
