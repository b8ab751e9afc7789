import numpy as np
import pytest
from claim_cells import FAST, LATER, SLOW, answer, cell, m, seeds, steady

from fedjax_drag.experiment.intervals import estimate
from reproduction.judging import outcome, questions
from reproduction.judging.margins import FAILS, HOLDS, LEVEL, UNDECIDED, of_turns
from reproduction.judging.outcome import MissingError


@pytest.mark.parametrize(("at_most", "verdict"), [(0.8, HOLDS), (0.2, HOLDS), (0.12, FAILS)])
def test_rounds_to_the_papers_accuracy(at_most, verdict):
    cells = [*seeds("DRAG", FAST, FAST, FAST), *seeds("FedAvg", SLOW, SLOW, LATER)]
    found = answer(questions.faster(m("DRAG"), m("FedAvg"), 0.7, at_most), *cells)
    mean, half = estimate(np.log([20 / 40, 20 / 40, 20 / 60]))
    part, one_run = found.parts
    assert (part.mean, part.low, part.high) == pytest.approx(tuple(np.exp([mean, mean - half, mean + half])))
    assert (one_run.low, one_run.high) == pytest.approx(tuple(np.exp([mean - 2 * half, mean + 2 * half])))
    assert found.verdict == verdict
    assert found.ours == "0.44 (20 against 47 rounds to 70 %)"


def test_an_accuracy_that_all_seeds_reach_takes_the_place_of_one_that_they_do_not():
    question = questions.faster(m("DRAG"), m("FedAvg"), 0.9)
    cells = [*seeds("DRAG", FAST, FAST, FAST), *seeds("FedAvg", SLOW, SLOW, SLOW)]
    assert answer(question, *cells).text == (
        "0.50 (30 against 60 rounds to 75 %, as on some seed neither reaches 90 %); 0.50 [0.50, 0.50] times"
    )
    slower = [*cells[:5], cell("FedAvg", [0.1] * 9 + [0.52], seed=2)]
    assert "rounds to 50 %" in answer(question, *slower).ours
    with pytest.raises(MissingError, match="no accuracy that all seeds reach"):
        answer(question, *cells[:5], cell("FedAvg", [0.01] * 10, seed=2))


def test_an_accuracy_equal_to_the_target_reaches_it_also_as_it_is_stored():
    """As float32, 70 % is 0.69999999, and 8,000 of 10,000 divided in a compiled program are 0.79999995."""
    stored = [float(np.float32(0.7)), *[0.75] * 9]
    cells = [*seeds("DRAG", stored, stored, stored), *seeds("FedAvg", SLOW, SLOW, SLOW)]
    assert answer(questions.faster(m("DRAG"), m("FedAvg"), 0.7), *cells).ours == "0.25 (10 against 40 rounds to 70 %)"
    quotient = [0.1, 0.5, *[0.79999995] * 8]
    both = [*seeds("DRAG", quotient, quotient, quotient), *seeds("FedAvg", quotient, quotient, quotient)]
    for wanted in (0.8, 0.9):  # the paper's accuracy, and one in its place
        found = answer(questions.faster(m("DRAG"), m("FedAvg"), wanted), *both)
        assert found.ours.startswith("1.00 (30 against 30 rounds to 80 %")


def test_a_run_that_never_reaches_the_accuracy_counts_with_the_round_after_the_last():
    never = [0.1] * 9 + [0.5]
    cells = [*seeds("DRAG", FAST, FAST, FAST), *seeds("FedAvg", never, never, LATER)]
    found = answer(questions.faster(m("DRAG"), m("FedAvg"), 0.7), *cells)
    mean, half = estimate(np.log([20 / 110, 20 / 110, 20 / 60]))
    assert (found.parts[0].mean, found.parts[0].high) == pytest.approx(tuple(np.exp([mean, mean + half])))
    assert found.verdict == HOLDS
    assert found.parts[0].low == 0, "how many rounds FedAvg would need is not known"
    first = questions.first_to("method", "FedAvg", 0.7, {})
    other_way = answer(first, *cells)
    assert other_way.parts[0].high == np.inf
    assert (other_way.verdict, other_way.ours) == (
        FAILS,
        "round at least 93 (never on 2 of 3 seeds), DRAG round 20, to 70 %",
    )
    short = [*cells[:4], cell("FedAvg", [0.1, 0.1], "diverged", seed=1), cells[5]]
    assert answer(first, *short).ours.startswith("round at least 93 (never on 2 of 3 seeds), DRAG round 20, to 70 %")


def test_the_p_of_a_rank_counts_the_others():
    """Behind one of three others, whichever it is; ahead of all, by the least certain."""
    cells = [*seeds("DRAG", *steady(0.70, 0.71, 0.72)), *seeds("A", *steady(0.60, 0.62, 0.61))]
    cells += seeds("B", *steady(0.60, 0.60, 0.61))
    question = questions.highest("method", "DRAG", {})
    ahead = answer(question, *cells)
    assert len(ahead.parts) == 2
    assert ahead.p == max(part.p for part in ahead.parts)
    behind = answer(question, *cells, *seeds("C", *steady(0.75, 0.77, 0.76)))
    assert behind.verdict == FAILS
    assert behind.p == pytest.approx(3 * behind.parts[0].p)
    assert behind.text.count("points") == 1, "the others have no place in the text"


def test_the_time_of_a_round_widens_the_interval():
    cells = [*seeds("DRAG", FAST, FAST, FAST), *seeds("FedAvg", SLOW, SLOW, SLOW)]
    turns = {"DRAG": list(np.linspace(0.9, 1.1, 20)), "FedAvg": [1.0] * 20}
    found = answer(questions.quicker("DRAG", "FedAvg", 0.7, 1.0), *cells, times=turns).parts[0]
    of_times = of_turns(turns["DRAG"])
    assert found.high / found.low == pytest.approx(of_times.high / of_times.low), "rounds are equal on all seeds"


def test_a_factor_that_a_run_may_still_show_does_not_fail():
    """70 % in round 60, the other not within 100: it may take 110 rounds or 1,000."""
    never = [0.1] * 9 + [0.5]
    cells = [*seeds("DRAG", LATER, LATER, LATER), *seeds("FedAvg", never, never, never)]
    found = answer(questions.faster(m("DRAG"), m("FedAvg"), 0.7, 0.25), *cells)
    assert (found.verdict, found.text) == (
        UNDECIDED,
        "0.55 (60 against at least 110 (never on 3 of 3 seeds) rounds to 70 %); "
        "0.55 [0.00, 0.55] times, one run [0.00, 0.55] beside 0.25 times",
    )
    times = {"DRAG": [1.0] * 10, "FedAvg": [1.0] * 10}
    assert answer(questions.quicker("DRAG", "FedAvg", 0.7, 0.25), *cells, times=times).verdict == UNDECIDED
    assert answer(questions.faster(m("DRAG"), m("FedAvg"), 0.7, 0.6), *cells).verdict == HOLDS
    assert answer(questions.faster(m("FedAvg"), m("DRAG"), 0.7, 0.6), *cells).verdict == FAILS
    mostly = [*seeds("A", *[FAST] * 9, never), *seeds("B", *[LATER] * 9, SLOW)]
    found = answer(questions.faster(m("A"), m("B"), 0.7, 0.8), *mostly)
    assert (found.verdict, found.parts[0].high) == (UNDECIDED, np.inf), "one run never reaches it"


def test_seeds_are_paired():
    """Three points ahead on each seed is ahead, however much the seeds differ; unpaired seeds do not count."""
    cells = [
        *seeds("DRAG", [0.33] * 10, [0.63] * 10, [0.93] * 10),
        *seeds("FedAvg", [0.3] * 10, [0.6] * 10, [0.9] * 10),
    ]
    found = answer(questions.ahead(m("DRAG"), m("FedAvg"), by=0.02), *cells)
    assert found.verdict == HOLDS
    assert found.text == "63.0 % against 60.0 %; +3.0 [+3.0, +3.0] points"
    more = [*cells, cell("DRAG", [0.0] * 10, seed=7)]
    assert answer(questions.ahead(m("DRAG"), m("FedAvg"), by=0.02), *reversed(more)) == found
    assert answer(questions.ahead(m("DRAG"), m("FedAvg"), by=0.02), *cells[:4]).verdict == UNDECIDED, "one seed"
    with pytest.raises(MissingError, match="no seed in common"):
        answer(questions.ahead(m("DRAG"), m("FedAvg")), cell("DRAG", FAST, seed=0), cell("FedAvg", FAST, seed=1))
    with pytest.raises(ValueError, match="must differ in the seed"):
        answer(questions.ahead(m("DRAG"), m("FedAvg")), *cells, cell("DRAG", FAST, seed=0, beta=0.1))


def test_a_range_has_two_boundaries():
    cells = [
        *seeds("DRAG", [0.33] * 10, [0.63] * 10, [0.94] * 10),
        *seeds("FedAvg", [0.3] * 10, [0.6] * 10, [0.9] * 10),
    ]
    for by, at_most, verdict in ((0.0, 0.06, HOLDS), (0.0, 0.03, UNDECIDED), (-0.02, 0.01, FAILS), (0.08, 0.1, FAILS)):
        assert answer(questions.ahead(m("DRAG"), m("FedAvg"), by, at_most), *cells).verdict == verdict


def test_who_is_first_among_the_methods_of_a_panel():
    cells = seeds("DRAG", FAST, FAST, FAST, beta=0.1) + seeds("other DRAG", *[[0.99] * 10] * 3, beta=0.1)
    cells += seeds("FedAvg", SLOW, SLOW, LATER, beta=0.1) + seeds("FedProx", *[[0.2] * 10] * 3, beta=0.1)
    cells += seeds("FedAvg", 0.95, 0.95, 0.95, beta=0.5)
    question = questions.highest("method", "DRAG", {"beta": 0.1}, beside=["other DRAG"])
    found = answer(question, *cells)
    assert (found.verdict, found.ours) == (HOLDS, "80.0 %, best of 2 others FedAvg 76.0 %")
    assert answer(questions.highest("method", "DRAG", {"beta": 0.1}), *cells).verdict == FAILS
    soonest = questions.first_to("method", "DRAG", 0.7, {"beta": 0.1}, beside=["other DRAG"])
    found = answer(soonest, *cells)
    assert (found.verdict, found.ours) == (HOLDS, "round 20, FedAvg round 47, to 70 %")
    assert found.parts[0].mean == pytest.approx((20 / 40 * 20 / 40 * 20 / 60) ** (1 / 3))
    level = [*seeds("DRAG", FAST, FAST, FAST, beta=0.1), *seeds("FedAvg", FAST, FAST, FAST, beta=0.1)]
    assert answer(question, *level).verdict == answer(soonest, *level).verdict == LEVEL, "as high is not above"


def test_who_learns_fastest_is_not_who_ends_highest():
    late = [0.1] * 5 + [0.9] * 5
    cells = [*seeds("DRAG", FAST, FAST, FAST), *seeds("FedAvg", late, late, late), *seeds("FedProx", SLOW, SLOW, SLOW)]
    found = answer(questions.fastest("method", "DRAG", {}), *cells)
    ours = f"{100 * np.mean(FAST):.1f} %, best of 2 others FedProx {100 * np.mean(SLOW):.1f} %"
    assert (found.verdict, found.ours) == (HOLDS, f"mean over the run: {ours}")
    assert answer(questions.highest("method", "DRAG", {}), *cells).verdict == FAILS
    ahead = seeds("FedACG", *[[0.8] * 10] * 3)
    assert answer(questions.fastest("method", "DRAG", {}), *cells, *ahead).verdict == FAILS
    assert answer(questions.fastest("method", "DRAG", {}, beside=["FedACG"]), *cells, *ahead).verdict == HOLDS


def test_first_of_all_is_not_said_before_all_others_have_run():
    cells = [*seeds("DRAG", FAST, FAST, FAST), *seeds("FedAvg", SLOW, SLOW, LATER)]
    wanted = {"method": ["DRAG", "FedAvg", "FedACG", "FedExP"]}
    missing = "not measured: FedACG, FedExP$"
    first = questions.first_to("method", "DRAG", 0.7, {})
    for question in (questions.highest("method", "DRAG", {}), questions.fastest("method", "DRAG", {}), first):
        assert answer(question, *cells).verdict == HOLDS
        with pytest.raises(MissingError, match=missing):
            answer(question, *cells, wanted=wanted)
        with pytest.raises(MissingError, match=missing):  # nor on the seeds of another method
            answer(question, *cells, *(cell(name, SLOW, seed=9) for name in wanted["method"][2:]), wanted=wanted)
        others = [*seeds("FedACG", LATER, LATER), *seeds("FedExP", LATER, LATER, LATER)]
        with pytest.raises(MissingError, match=r"not measured: FedACG$"):  # on two seeds
            answer(question, *cells, *others, wanted=wanted)
    last = questions.highest("method", "FedAvg", {})
    assert answer(last, *cells, wanted=wanted).verdict == FAILS, "one that is ahead is enough"


def test_the_runner_up_is_the_best_by_the_mean_over_the_seeds():
    cells = [*seeds("DRAG", *[[0.8] * 10] * 3), *seeds("A", *steady(0.72, 0.66, 0.66))]
    cells += seeds("B", *[[0.7] * 10] * 3)
    found = answer(questions.highest("method", "DRAG", {}), *cells)
    assert (found.verdict, found.ours) == (HOLDS, "80.0 %, best of 2 others B 70.0 %")


def test_the_runner_up_is_not_one_that_ran_on_easier_seeds_alone():
    """B is ahead of DRAG on every seed; A is behind it, but ran only where all are better than elsewhere."""
    cells = seeds("DRAG", *steady(0.4, 0.4, 0.4, 0.9, 0.9, 0.9)) + seeds("B", *steady(0.5, 0.5, 0.5, 0.95, 0.95, 0.95))
    cells += [cell("A", [0.85] * 10, seed=seed) for seed in (3, 4, 5)]
    found = answer(questions.highest("method", "DRAG", {}), *cells)
    assert (found.verdict, found.ours) == (FAILS, "65.0 %, best of 2 others B 72.5 %")


def test_to_be_first_is_to_be_ahead_of_every_other():
    """Not of the one with the highest mean alone: A is 8 points behind on average, from 3 ahead to 19 behind."""
    cells = [*seeds("DRAG", *steady(0.8, 0.8, 0.8)), *seeds("B", *steady(0.73, 0.73, 0.73))]
    unsteady = seeds("A", *steady(0.83, 0.61, 0.72))
    question = questions.highest("method", "DRAG", {})
    assert answer(question, *cells).verdict == HOLDS
    found = answer(question, *cells, *unsteady)
    assert (found.verdict, found.ours) == (UNDECIDED, "80.0 %, of 2 others A 72.0 % (the highest is B)")
    ahead = seeds("C", *steady(0.81, 0.81, 0.81))
    found = answer(question, *cells, *unsteady, *ahead, *seeds("D", *steady(0.99, 0.99, 0.7)))
    assert (found.verdict, found.ours) == (FAILS, "80.0 %, of 4 others C 81.0 % (the highest is D)"), (
        "D has the highest mean"
    )
    two = [cell("C", [0.9] * 10, seed=seed) for seed in (0, 1)]
    assert answer(question, *cells, *two, *seeds("E", *steady(0.81, 0.81, 0.81))).verdict == FAILS, "by E"


def test_leads_orders_and_swings():
    cells = seeds("DRAG", 0.8, 0.8, 0.8, beta=0.1) + seeds("FedAvg", 0.5, 0.5, 0.52, beta=0.1)
    cells += seeds("DRAG", 0.8, 0.8, 0.8, beta=0.5) + seeds("FedAvg", 0.75, 0.75, 0.75, beta=0.5)
    strong, moderate = ((m("DRAG", beta=beta), m("FedAvg", beta=beta)) for beta in (0.1, 0.5))
    wider = answer(questions.wider(strong, moderate), *cells)
    assert (wider.verdict, wider.ours) == (HOLDS, "+29.3 against +5.0 points")
    assert answer(questions.wider(moderate, strong), *cells).verdict == FAILS
    rising = answer(questions.rising("method", ("FedAvg", "DRAG"), {"beta": 0.5}), *cells)
    assert rising.text == "FedAvg 75.0 %, DRAG 80.0 %; +5.0 [+5.0, +5.0] points"
    falling = questions.rising("method", ("DRAG", "FedAvg", "DRAG"), {"beta": 0.5})
    assert [part.verdict for part in answer(falling, *cells).parts] == [FAILS, HOLDS]
    flat = [*seeds("DRAG", 0.8, 0.8, 0.8), *seeds("FedAvg", 0.8, 0.8, 0.8)]
    assert answer(questions.rising("method", ("FedAvg", "DRAG"), {}), *flat).verdict == LEVEL, "as high is no rise"
    sooner = answer(questions.sooner("method", ("FedAvg", "DRAG"), {"beta": 0.5}), *cells)
    assert (sooner.verdict, sooner.ours) == (HOLDS, "mean over the run: FedAvg 42.5 %, DRAG 45.0 %")
    restless = seeds("FedAvg", *[[0.5, 0.7] * 5] * 3)
    steadier = answer(questions.steadier(m("DRAG"), m("FedAvg")), *seeds("DRAG", 0.9, 0.9, 0.9), *restless)
    assert (steadier.verdict, steadier.ours) == (HOLDS, "8.9 against 20.0")
    gone = seeds("DRAG", *[[0.1, 0.2]] * 3, status="diverged")
    assert answer(questions.steadier(m("FedAvg"), m("DRAG")), *restless, *gone).verdict == HOLDS, "it swings by all"


def test_convergence_is_to_end_near_the_best_and_well_above_guessing():
    question = questions.converges(m("DRAG"), guessing=0.1)
    rising, fallen = np.linspace(0.1, 0.6, 10), [0.1, 0.8, *[0.3] * 8]
    curves = {HOLDS: (FAST, rising, [*[0.5] * 9, 0.46], [*[0.12] * 9, 0.21])}
    curves[FAILS] = (fallen, [0.12] * 10, [*[0.5] * 9, 0.44], [*[0.12] * 9, 0.19])
    for curve, verdict in [(one, verdict) for verdict, found in curves.items() for one in found]:
        assert answer(question, *seeds("DRAG", *[curve] * 6)).verdict == verdict
        assert answer(question, *seeds("DRAG", *[curve] * 5)).verdict == UNDECIDED
    mixed = answer(question, *seeds("DRAG", *[FAST] * 5, [0.12] * 10))
    assert (mixed.verdict, mixed.parts[0].yes) == (UNDECIDED, 5)
    assert answer(question, *seeds("DRAG", *[FAST] * 6, status="diverged")).verdict == FAILS
    unwanted = questions.converges(m("DRAG"), 0.1, wanted=False)
    assert answer(unwanted, *seeds("DRAG", *[[0.12] * 10] * 6)).verdict == HOLDS
    with pytest.raises(MissingError, match="9 evaluations do not show"):
        answer(question, *seeds("DRAG", *[FAST[:9]] * 6))


def test_a_rule_gives_way_on_a_seed_if_it_does_not_converge_in_one_panel():
    question = questions.gives_way("method", "RFA", [{"attack": "noise"}, {"attack": "flip"}], 0.1)
    lost = [0.12] * 10

    def cells(*flipped):
        return [*seeds("RFA", *[FAST] * 6, attack="noise"), *seeds("RFA", *flipped, attack="flip")]

    found = answer(question, *cells(*[lost] * 6))
    assert (found.verdict, found.text) == (HOLDS, "RFA; so on 6 of 6 seeds")
    assert answer(question, *cells(*[FAST] * 6)).verdict == FAILS
    mixed = answer(question, *cells(*[lost] * 3, *[FAST] * 3))
    assert (mixed.verdict, mixed.parts[0].yes) == (UNDECIDED, 3)
    with pytest.raises(MissingError):
        answer(question, *seeds("RFA", *[FAST] * 6, attack="noise"))


def test_a_lead_that_a_paper_has_of_one_run():
    cells = [*seeds("DRAG", *steady(0.58, 0.61, 0.64)), *seeds("FedAvg", *steady(0.5, 0.5, 0.5))]
    for lead, verdict in ((0.134, HOLDS), (0.05, HOLDS), (0.3, FAILS)):
        found = answer(questions.ahead(m("DRAG"), m("FedAvg"), lead=lead), *cells)
        assert found.verdict == verdict
    assert found.text == "61.0 % against 50.0 %; +11.0 [+3.5, +18.5] points, one run [-3.9, +25.9] beside +30.0 points"
    unsure = [*seeds("DRAG", *steady(0.4, 0.61, 0.8)), *seeds("FedAvg", *steady(0.5, 0.5, 0.5))]
    assert answer(questions.ahead(m("DRAG"), m("FedAvg"), lead=0.134), *unsure).verdict == UNDECIDED, "it may be behind"
    near = [*seeds("DRAG", *steady(0.5, 0.502, 0.501)), *seeds("FedAvg", *steady(0.5, 0.5, 0.5))]
    assert answer(questions.level_with(m("DRAG"), m("FedAvg")), *near).verdict == HOLDS
    assert answer(questions.level_with(m("DRAG"), m("FedAvg")), *cells).verdict == FAILS


def test_the_end_of_a_run_is_its_last_tenth():
    few, many = (np.arange(1, number + 1) * 100 / number for number in (5, 40))
    assert [int(outcome.at_the_end(rounds).sum()) for rounds in (few, many, np.array([100.0]))] == [1, 4, 1]


def test_time_of_the_clients():
    cells = [*seeds("TACO", FAST, FAST, FAST), *seeds("FedAvg", SLOW, SLOW, SLOW)]
    quicker, costlier = questions.quicker("TACO", "FedAvg", 0.7, 0.744), questions.costlier("TACO", "FedAvg", 1.03)
    for question in (quicker, costlier):
        with pytest.raises(MissingError, match="not timed"):
            answer(question, *cells)
    turns = 10
    times = {"TACO": [1.2, 6.0, 2.6] + [1.2] * turns, "FedAvg": [1.0, 5.0, 1.0] + [1.0] * turns}  # some were disturbed
    found = answer(quicker, *cells, times=times)
    assert (found.verdict, found.ours) == (HOLDS, "0.60 of its time to 70 %")
    found = answer(costlier, times=times)
    assert (found.verdict, found.ours, found.parts[0].repeated) == (HOLDS, "1.20 times", "turns")
    assert answer(questions.costlier("TACO", "FedAvg", 0.0, 1.07), times=times).verdict == FAILS


def test_what_did_not_run_to_its_end_is_missing():
    question = questions.highest("method", "DRAG", {})
    for cells in (
        [cell("FedAvg", 0.5)],
        [cell("DRAG", 0.9)],
        [cell("DRAG", 0.9, status="interrupted"), cell("FedAvg", 0.5)],
        [cell("DRAG", 0.9, status="failed"), cell("FedAvg", 0.5)],
    ):
        with pytest.raises(MissingError):
            answer(question, *cells)


def test_a_method_that_diverged_counts_as_accuracy_0_from_there_on():
    question = questions.highest("method", "DRAG", {})
    fallen = seeds("FedAvg", *[[0.1, 0.2, 0.9]] * 3, status="diverged")
    found = answer(question, *seeds("DRAG", 0.9, 0.9, 0.9), *fallen)
    assert (found.verdict, found.ours) == (HOLDS, "90.0 %, FedAvg 0.0 %")
    ahead = answer(
        questions.ahead(m("DRAG"), m("FedAvg")), *seeds("DRAG", 0.9, 0.9, 0.9), *fallen[:2], cell("FedAvg", 0.9, seed=2)
    )
    assert ahead.ours.endswith("; FedAvg diverged on 2 of 3 seeds")
    assert ahead.verdict == UNDECIDED
    more = [cell("FedAvg", 0.9, "diverged", seed=3), cell("FedAvg", 0.9, seed=4)]
    compared = answer(questions.ahead(m("DRAG"), m("FedAvg")), *seeds("DRAG", 0.9, 0.9, 0.9), *fallen, *more)
    assert compared.ours.endswith("; FedAvg diverged on 3 of 3 seeds"), "of those compared"


def test_a_claim_that_speaks_well_of_a_method_that_diverged_on_every_seed_does_not_hold():
    good, gone = seeds("FedAvg", 0.5, 0.5, 0.5), seeds("DRAG", 0.9, 0.9, 0.9, status="diverged")
    well = [
        questions.highest("method", "DRAG", {}),
        questions.ahead(m("DRAG"), m("FedAvg"), by=-1.0),
        questions.faster(m("DRAG"), m("FedAvg"), 0.4, at_most=9.0),
        questions.first_to("method", "DRAG", 0.4, {}),
        questions.steadier(m("DRAG"), m("FedAvg")),
        questions.rising("method", ("FedAvg", "DRAG"), {}),
        questions.wider((m("DRAG"), m("FedAvg")), (m("FedAvg"), m("FedAvg"))),
    ]
    for question in well:
        found = answer(question, *good, *gone)
        assert (found.verdict, found.ours) == (FAILS, "DRAG diverged on 3 of 3 seeds")
        assert answer(question, good[0], gone[0]).verdict == UNDECIDED, "one seed"
    some = answer(well[1], *good, *gone[:1], *seeds("DRAG", 0.9, 0.9, 0.9)[1:])
    assert some.ours.endswith("DRAG diverged on 1 of 3 seeds")


def test_of_many_settings_those_are_told_that_are_not_as_said():
    cells = [*seeds("DRAG", 0.8, 0.8, 0.8), *seeds("FedAvg", 0.7, 0.7, 0.7)]
    first, second = questions.ahead(m("DRAG"), m("FedAvg")), questions.ahead(m("FedAvg"), m("DRAG"))
    both = answer(questions.every(first, second), *cells)
    lead, lag = (
        "80.0 % against 70.0 %; +10.0 [+10.0, +10.0] points",
        "70.0 % against 80.0 %; -10.0 [-10.0, -10.0] points",
    )
    assert (both.verdict, both.text) == (FAILS, f"holds 1, does not hold 1: {lead} / {lag}")
    assert answer(questions.every(*[first] * 5), *cells).text == "holds 5"
    assert answer(questions.every(*[first] * 5, second), *cells).text == f"holds 5, does not hold 1: {lag}"
    nowhere = questions.ahead(m("nobody"), m("FedAvg"))
    assert answer(questions.every(second, nowhere), *cells).text == f"does not hold 1, not measured 1: {lag}"
    with pytest.raises(MissingError, match="1 of 2 parts are missing"):
        answer(questions.every(first, nowhere), *cells)
