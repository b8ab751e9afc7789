"""Claims of Xiao et al. (DRAG and BR-DRAG, Section VI)."""

import functools
from collections.abc import Iterator
from typing import Any

from reproduction.judging.claims import Claim, Question, Where, method, restricted
from reproduction.judging.questions import (
    ahead,
    converges,
    every,
    faster,
    fastest,
    gives_way,
    highest,
    level_with,
    reaches,
    rising,
    sooner,
    wider,
)
from reproduction.names import NAMES, percent
from reproduction.targets.target import BR_DRAG

BETAS = {0.1: ("(a)", "DRAG (c=0.25)"), 0.5: ("(b)", "DRAG (c=0.1)")}
"""By Dirichlet's beta, the panel and the label of DRAG that the paper shows in it."""

ROBUSTNESS, CIFAR10 = "brdrag003_robustness_mlp", "brdrag003_fig4_cifar10"

ATTACKS = {"scale_noise": (9, 10, 15), "sign_flip": (11, 12, 16), "label_flip": (13, 14, 17)}
"""Figures by attack: 30 % malicious on CIFAR-10 and on CIFAR-100, 60 % on CIFAR-10."""

_claim = functools.partial(Claim, BR_DRAG)


def _rule(label: str, **where: Any) -> Where:
    """The cells of one aggregation rule; keywords as for :func:`~reproduction.judging.claims.method`."""
    return {"aggregator": label} | restricted(where)


def _benign(target: str, place: str) -> list[Claim]:
    """Figs. 3 to 5: six methods without attackers."""
    claims = []
    for beta, (panel, drag) in BETAS.items():
        other_drag = [label for _, label in BETAS.values() if label != drag]
        question = highest("method", drag, {"partition.beta": beta}, other_drag)
        claims.append(_claim(f"{place}{panel}", "DRAG ends above the five others", "", target, question))
        question = fastest("method", drag, {"partition.beta": beta}, other_drag)
        claims.append(_claim(f"{place}{panel}", "DRAG converges faster than the five others", "", target, question))
    strong, moderate = (
        (method(drag, partition__beta=beta), method("FedAvg", partition__beta=beta))
        for beta, (_, drag) in BETAS.items()
    )
    text = "DRAG's lead over FedAvg is larger at Dirichlet(0.1) than at 0.5, each with its c"
    claims.append(_claim(place, text, "", target, wider(strong, moderate)))
    pairs = (
        ("FedProx is no better than FedAvg (by at most 1 point)", "FedAvg", "FedProx", -0.01),
        ("FedACG is better than FedProx", "FedACG", "FedProx", 0.0),
    )
    for text, above, below, by in pairs:
        both = [ahead(method(above, partition__beta=b), method(below, partition__beta=b), by) for b in BETAS]
        claims.append(_claim(place, text, "", target, every(*both)))
    both = [level_with(method("FedExP", partition__beta=b), method("FedAvg", partition__beta=b)) for b in BETAS]
    claims.append(_claim(place, "FedExP ends as FedAvg does (within 1 point)", "", target, every(*both)))
    return claims


def _seventy_percent() -> list[Claim]:
    """Fig. 4(b): "over 1,400 rounds are needed for other algorithms", of which the paper names two."""
    drag = method("DRAG (c=0.1)", partition__beta=0.5)
    soon = _claim("Fig. 4(b)", "DRAG reaches 70 % within 600 rounds", "600", CIFAR10, reaches(drag, 0.7, 600))
    claims = [soon]
    for label in ("SCAFFOLD", "FedExP", "FedAvg", "FedProx", "FedACG"):
        text = f"DRAG reaches 70 % in at most 600/1,400 of {label}'s rounds"
        question = faster(drag, method(label, partition__beta=0.5), 0.7, 600 / 1400)
        claims.append(_claim("Fig. 4(b)", text, "0.43", CIFAR10, question))
    return claims


def _cohorts_and_strength() -> list[Claim]:
    """Figs. 6 and 8: cohort size and c."""
    claims = []
    for beta, (panel, _) in BETAS.items():
        where = {"method": f"Dirichlet({beta})"}
        more = sooner("cohort_size", (5, 15, 25, 35), where)
        claims.append(
            _claim(f"Fig. 6{panel}", "the more clients take part, the faster", "", "brdrag003_fig6_participation", more)
        )
        own = 0.25 if beta == 0.1 else 0.1
        for text, c in ((f"too large a c impairs training (1 against {own})", 1.0), ("so does too small a c (0)", 0.0)):
            worse = rising("aggregator.c", (c, own), where)
            claims.append(_claim(f"Fig. 8{panel}", text, "", "brdrag003_fig8_c", worse))
    return claims


def _alpha() -> list[Claim]:
    """Fig. 7."""

    def slower(alpha: float, beta: float) -> Question:
        return sooner("aggregator.alpha", (alpha, 0.25), {"method": f"Dirichlet({beta})"})

    too_large = "alpha above 0.25 depends on the last update too much: slower than 0.25"
    claims = (
        ("(a)", "alpha=0.01 overuses the past: slower than 0.25", slower(0.01, 0.1)),
        ("(a)", too_large, every(slower(0.5, 0.1), slower(1.0, 0.1))),
        ("(b)", "alpha=0.01 is slower than 0.25", slower(0.01, 0.5)),
        ("(b)", "so is alpha=1", slower(1.0, 0.5)),
    )
    return [_claim(f"Fig. 7{panel}", text, "", "brdrag003_fig7_alpha", question) for panel, text, question in claims]


def _robust() -> list[Claim]:
    """Figs. 9, 11, 13 and 15 to 17: BR-DRAG against each rule."""
    claims = []
    for attack, (some, _, most) in ATTACKS.items():
        for figure, share in ((some, 0.3), (most, 0.6)):
            for beta, (panel, _) in BETAS.items():
                where = {"attack": attack, "byzantine_fraction": share, "partition.beta": beta}
                text = f"BR-DRAG ends above the four others, {percent(share, 0)} malicious, {NAMES[attack]}"
                question = highest("aggregator", "br_drag", where)
                claims.append(_claim(f"Fig. {figure}{panel}", text, "", ROBUSTNESS, question))
    for beta, gap in ((0.1, 0.134), (0.5, 0.098)):
        where = {"attack": "sign_flip", "byzantine_fraction": 0.3, "partition__beta": beta}
        question = ahead(_rule("br_drag", **where), _rule("fltrust", **where), lead=gap)
        text = "BR-DRAG ends that far above FLTrust under sign flips, 30 % malicious"
        claims.append(_claim(f"Fig. 11{BETAS[beta][0]}", text, f"{100 * gap:+.1f} points", ROBUSTNESS, question))
    return claims


def _medians() -> list[Claim]:
    """Figs. 9 to 17: whether the four others converge, and RFA and RAGA, which take a geometric median."""
    some, most = list(_settings(0.3)), list(_settings(0.6))
    medians, others = ("rfa", "raga"), ("fedavg", "fltrust")
    unstable = [
        gives_way("aggregator", rule, [restricted(where) for where in some], 0.1) for rule in (*others, *medians)
    ]
    near = [
        ahead(_rule(median, **where), _rule(other, **where)) for median in medians for other in others for where in some
    ]
    steady = [converges(_rule("br_drag", **where), 0.1) for where in most]
    degraded = [
        wider(*((_rule("br_drag", **where), _rule(median, **where)) for where in (more, less)))
        for median in medians
        for more, less in zip(most, some, strict=True)
    ]
    shares = [
        converges({"attack": attack, "byzantine_fraction": share}, 0.1) for attack in ATTACKS for share in (0.8, 0.9)
    ]
    any_share = "BR-DRAG converges with an arbitrary share of malicious clients (80 and 90 %)"
    few, many = "Figs. 9 to 14", "Figs. 15 to 17"
    stable = "none of the four others is stable under all attacks: each fails to converge in some panel"
    nearer = "RFA and RAGA come nearer to BR-DRAG than FedAvg and FLTrust do"
    further = "RFA and RAGA fall further behind BR-DRAG than with 30 % malicious clients"
    return [
        _claim(few, stable, "", ROBUSTNESS, every(*unstable)),
        _claim(few, nearer, "", ROBUSTNESS, every(*near)),
        _claim(many, "BR-DRAG converges with 60 % malicious clients", "", ROBUSTNESS, every(*steady)),
        _claim(many, further, "", ROBUSTNESS, every(*degraded)),
        _claim("Section V-B", any_share, "", "brdrag003_any_share", every(*shares)),
    ]


def _settings(share: float) -> Iterator[dict[str, Any]]:
    """Every attack and split with this share of malicious clients."""
    for attack in ATTACKS:
        for beta in BETAS:
            yield {"attack": attack, "byzantine_fraction": share, "partition__beta": beta}


def _not_run() -> list[Claim]:
    """Figs. 10, 12 and 14, and Section IV-B's robust reducers, which cannot be run."""
    reason = "CIFAR-100 is not at hand; the claim is the one on CIFAR-10"
    reducers = "a robust reducer over the gradients of single root examples hedges against wrong labels among them"
    unclean = "not run: no configuration gives the root data wrong labels (client rule robust_sgd, half an hour)"
    return [
        _claim("Section IV-B", reducers, "", reason=unclean),
        *(
            _claim(
                f"Fig. {figures[1]}",
                f"BR-DRAG ends above the four others on CIFAR-100, 30 % malicious, {NAMES[attack]}",
                "",
                reason=reason,
            )
            for attack, figures in ATTACKS.items()
        ),
    ]


CLAIMS = (
    *_benign("brdrag003_fig3_emnist", "Fig. 3"),
    *_benign(CIFAR10, "Fig. 4"),
    *_seventy_percent(),
    *_benign("brdrag003_fig5_cifar100", "Fig. 5"),
    *_cohorts_and_strength(),
    *_alpha(),
    *_robust(),
    *_medians(),
    *_not_run(),
)
