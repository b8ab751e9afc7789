"""Statements of the papers that need no run: what they prove, and what they say about communication."""

from reproduction.judging.claims import Claim
from reproduction.targets.target import BR_DRAG, CLUSTERGUARD, DRAG, TACO
from theorem_checks import statements
from theorem_checks.bounds import XIAO, ZHU
from theorem_checks.statements import Check

_RATE = "with a step size of order 1/sqrt(T), and a fixed c, DRAG converges at the rate 1/sqrt(T)"
_STEP = "with a step size up to 1/(8LU) there is a positive gamma"


def _claim(paper: str, place: str, text: str, check: Check) -> Claim:
    return Claim(paper, place, text, "", check=check)


CLAIMS = (
    _claim(DRAG, "Theorem 1", _STEP, statements.largest_step(ZHU)),
    _claim(DRAG, "Theorem 1", _RATE, statements.drag_at_the_rate(ZHU)),
    _claim(BR_DRAG, "Section VI-A", "DRAG needs no communication beyond FedAvg's", statements.traffic),
    _claim(BR_DRAG, "Theorem 1", _STEP, statements.largest_step(XIAO)),
    _claim(BR_DRAG, "Theorem 1", _RATE, statements.drag_at_the_rate(XIAO)),
    _claim(
        BR_DRAG,
        "Section V-A",
        "with a step size of order 1/U what the variances add stays bounded as U grows",
        statements.step_by_local_steps,
    ),
    _claim(
        BR_DRAG,
        "Equation 44",
        "no modified update is longer than the reference, with c from 1/2 to 1",
        statements.never_longer,
    ),
    _claim(BR_DRAG, "Theorem 2", "first case: its step size makes chi positive", statements.oracle_steps),
    _claim(
        BR_DRAG, "Theorem 2", "second case: its conditions on c and step size make chi positive", statements.fixed_steps
    ),
    _claim(
        BR_DRAG,
        "Section V-B",
        "with a step size of order 1/sqrt(T), BR-DRAG keeps the rate 1/sqrt(T) under attack",
        statements.attacked_at_the_rate,
    ),
    _claim(
        BR_DRAG,
        "Section V-B",
        "Theorem 2's first case has a bound for any share of malicious clients below 1",
        statements.every_share,
    ),
    _claim(CLUSTERGUARD, "Lemma 1", "one constant U bounds the clients' gradients", statements.dissimilarity),
    _claim(CLUSTERGUARD, "Lemma 2", "the change of the loss in a round is bounded", statements.one_round),
    _claim(CLUSTERGUARD, "Lemma 3", "the loss after T rounds is bounded", statements.many_rounds),
    _claim(TACO, "Lemma 1", "the aggregated gradient is a moving average", statements.moving_average),
    _claim(TACO, "Lemma 2", "the output z moves by the mean gradient", statements.final_output),
    _claim(TACO, "Corollary 1", "the squared gradient goes to 0 as T grows", statements.taco_at_the_rate),
    _claim(
        TACO, "Corollary 2", "its order of the coefficients minimizes the error term", statements.order_of_coefficients
    ),
)
