"""What the papers prove or say about cost, calculated; and the loops and counts of that beside the package."""

import jax
import numpy as np
import pytest

import fedjax_drag as fd
from theorem_checks import loops, statements
from theorem_checks.bounds import XIAO, ZHU

EXPECTED = {
    "traffic": (statements.traffic, False),
    "step, Xiao": (statements.largest_step(XIAO), False),
    "step, Zhu": (statements.largest_step(ZHU), False),
    "rate, Xiao": (statements.drag_at_the_rate(XIAO), False),
    "rate, Zhu": (statements.drag_at_the_rate(ZHU), False),
    "step of order 1/U": (statements.step_by_local_steps, True),
    "equation 44": (statements.never_longer, False),
    "Theorem 2, first case": (statements.oracle_steps, True),
    "Theorem 2, second case": (statements.fixed_steps, False),
    "rate under attack": (statements.attacked_at_the_rate, False),
    "any share": (statements.every_share, True),
    "ClusterGuardFL, Lemma 1": (statements.dissimilarity, False),
    "ClusterGuardFL, Lemma 2": (statements.one_round, True),
    "ClusterGuardFL, Lemma 3": (statements.many_rounds, False),
    "TACO, Lemma 1": (statements.moving_average, False),
    "TACO, Lemma 2": (statements.final_output, False),
    "TACO, Corollary 1": (statements.taco_at_the_rate, False),
    "TACO, Corollary 2": (statements.order_of_coefficients, False),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_statement_holds_or_not_and_says_why(name):
    check, holds = EXPECTED[name]
    found = check()
    assert (found.holds, type(found.holds)) == (holds, bool)
    assert any(sign.isdigit() for sign in found.figures)


def test_without_pull_the_rate_and_the_end_are_those_of_fedavg():
    """So it is c that keeps DRAG's gradient from vanishing, and not the step size."""
    assert loops.drag(0.0, 0.1) < 1e-12
    small, tenth = loops.drag(0.25, 0.1), loops.drag(0.25, 0.01)
    assert min(small, tenth) > 1e-3
    assert tenth > small / 3


def test_drag_as_a_loop_is_the_package_s():
    rule, theta, squares = fd.aggregators.drag(0.25, 0.25), np.full(3, 3.0, np.float32), []
    state, apply = rule.init(theta), jax.jit(rule.apply)
    for _ in range(80):
        squares.append(loops.squared_gradient(theta))
        updates = (-0.5 * loops.gradients(theta)).astype(np.float32)
        theta, state = apply(theta, updates, state)
    assert loops.drag(0.25, 0.5) == pytest.approx(np.mean(squares[-20:]), rel=1e-3)


def test_the_longest_modified_update_is_the_rule_s():
    zeros, opposed = np.zeros(2, np.float32), np.array([[-1.0, 0.0], [-2.0, 0.0]], np.float32)

    @jax.jit
    def moved(c):
        rule = fd.aggregators.br_drag(c)
        return rule.apply(zeros, opposed, rule.init(zeros), root_delta=np.array([1.0, 0.0], np.float32))[0]

    for c, length in ((0.5, 1.0), (0.75, 2.0), (1.0, 3.0)):
        assert np.asarray(moved(c)) == pytest.approx([length, 0.0])


def test_lemma_1_of_taco_needs_gamma_1_and_equal_weights():
    for gamma, tailored, exact in ((1.0, False, True), (0.2, False, False), (1.0, True, False)):
        for one in list(loops.taco(5, gamma, tailored))[1:]:
            left = np.abs(one.after - one.plain - (1 - one.alpha) * one.before).max()
            assert (left < 1e-12) == exact


@pytest.mark.parametrize(
    ("method", "rule"),
    [
        ("FedAvg", fd.aggregators.fedavg()),
        ("DRAG at the server", fd.aggregators.drag(0.1)),
    ],
    ids=["fedavg", "drag"],
)
def test_the_messages_are_those_that_the_package_counts(method, rule):
    data = fd.data.partition.iid(fd.data.synthetic(num_examples=60, num_test_examples=20, dim=8), num_clients=4)
    model = fd.models.mlp(hidden=(), num_classes=data.num_classes)
    given = {"model": model, "data": data, "num_rounds": 1, "cohort_size": 2, "step_size": 0.1}
    given |= {"local_steps": 1, "batch_size": 4}
    cost = fd.simulation.prepare(rule, **given).cost
    size = 4 * (8 + 1) * data.num_classes
    assert (cost.bytes_down / size, cost.bytes_up / size) == statements.TRAFFIC[method]
