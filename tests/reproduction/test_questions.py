import dataclasses
import json

import numpy as np
import pytest

from fedjax_drag.experiment.config.loading import read
from fedjax_drag.experiment.sweep.outcome_table import Cell
from reproduction import figures, freeloaders, paired, questions, timing, verdicts
from reproduction.claims import Claim, Verdict, judge
from reproduction.outcome import MissingError, Outcome
from reproduction.targets import TARGETS

ROUNDS = np.arange(10.0, 110.0, 10.0)


def cell(method, accuracy, status="done", **values):
    """A cell whose accuracy goes from a tenth to ``accuracy`` in ten evaluations, or is as given."""
    curve = np.linspace(0.1, accuracy, 10) if np.ndim(accuracy) == 0 else np.asarray(accuracy, float)
    history = {"round": ROUNDS[: len(curve)], "test_accuracy": curve}
    return Cell({"method": method, **values}, status, "", history if status != "failed" else {})


def outcome(*cells, folder=None):
    return Outcome(tuple(cells), folder)


def answer(question, *cells, folder=None):
    return judge(Claim("a paper", "Fig. 1", "a claim", "", "x", question), outcome(*cells, folder=folder))


def m(label, **where):
    return {"method": label, **where}


FAST = [0.1, 0.7, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8]
SLOW = [0.1, 0.2, 0.3, 0.7, 0.7, 0.75, 0.75, 0.75, 0.75, 0.76]


@pytest.mark.parametrize(("at_most", "holds"), [(0.5, "yes"), (0.4, "no")])
def test_rounds_to_the_papers_accuracy(at_most, holds):
    verdict = answer(questions.faster(m("DRAG"), m("FedAvg"), 0.7, at_most), cell("DRAG", FAST), cell("FedAvg", SLOW))
    assert (verdict.holds, verdict.ours) == (holds, "0.50 (20 against 40 rounds to 70 %)")


def test_an_accuracy_that_both_reach_takes_the_place_of_one_that_they_do_not():
    verdict = answer(questions.faster(m("DRAG"), m("FedAvg"), 0.9), cell("DRAG", FAST), cell("FedAvg", SLOW))
    assert verdict.ours == "0.50 (30 against 60 rounds to 75 %)"
    nothing = answer(questions.faster(m("DRAG"), m("FedAvg"), 0.9), cell("DRAG", FAST), cell("FedAvg", [0.01] * 10))
    assert nothing.holds == "not measured"


def test_seeds_are_averaged_before_anything_is_read_off():
    cells = [cell("DRAG", FAST, seed=0), cell("DRAG", SLOW, seed=1), cell("FedAvg", SLOW, seed=0)]
    assert outcome(*cells).at(m("DRAG")).level() == pytest.approx((0.8 + 0.752) / 2)
    assert outcome(*cells).at(m("DRAG")).first(0.7) == 40


def test_who_is_first_among_the_methods_of_a_panel():
    cells = [cell("DRAG", FAST, beta=0.1), cell("other DRAG", [0.99] * 10, beta=0.1), cell("FedAvg", SLOW, beta=0.1)]
    cells.append(cell("FedAvg", 0.95, beta=0.5))
    question = questions.highest("method", "DRAG", {"beta": 0.1}, beside=["other DRAG"])
    assert answer(question, *cells)[1:] == ("yes", "80.0 %, FedAvg 75.2 %")
    assert answer(questions.highest("method", "DRAG", {"beta": 0.1}), *cells).holds == "no"
    level = cell("FedAvg", FAST, beta=0.1)
    assert answer(question, *cells[:2], level)[1:] == ("no", "80.0 %, FedAvg 80.0 %")
    soonest = questions.first_to("method", "DRAG", 0.7, {"beta": 0.1}, beside=["other DRAG"])
    assert answer(soonest, *cells)[1:] == ("yes", "round 20, FedAvg round 40, to 70 %")
    as_soon = answer(soonest, *cells[:2], level)
    assert as_soon[1:] == ("no", "round 20, FedAvg round 20, to 70 %")


def test_leads_orders_and_swings():
    cells = [cell("DRAG", 0.8, beta=0.1), cell("FedAvg", 0.5, beta=0.1)]
    cells += [cell("DRAG", 0.8, beta=0.5), cell("FedAvg", 0.75, beta=0.5)]
    wider = questions.wider(m("DRAG"), m("FedAvg"), {"beta": 0.1}, {"beta": 0.5})
    assert answer(wider, *cells)[1:] == ("yes", "+23.3 against +3.9 points")
    assert answer(questions.wider(m("DRAG"), m("FedAvg"), {"beta": 0.5}, {"beta": 0.1}), *cells).holds == "no"
    ahead = questions.ahead(m("DRAG", beta=0.1), m("FedAvg", beta=0.1), by=0.25)
    assert answer(ahead, *cells)[1:] == ("no", "+23.3 points")
    rising = questions.rising("method", ("FedAvg", "DRAG"), {"beta": 0.5})
    assert answer(rising, *cells)[1:] == ("yes", "FedAvg 60.6 %, DRAG 64.4 %")
    restless = cell("FedAvg", [0.5, 0.7] * 5)
    steadier = questions.steadier(m("DRAG"), m("FedAvg"))
    assert answer(steadier, cell("DRAG", 0.9), restless)[1:] == ("yes", "8.9 against 20.0 points an evaluation")


def test_convergence_is_to_end_near_the_best_and_well_above_guessing():
    question = questions.converges(m("DRAG"), guessing=0.1)
    assert answer(question, cell("DRAG", FAST)).holds == "yes"
    assert answer(question, cell("DRAG", [0.1, 0.8, *[0.3] * 8])).holds == "no"
    assert answer(question, cell("DRAG", [0.12] * 10)).holds == "no"
    assert answer(question, cell("DRAG", FAST, status="diverged")).holds == "no"
    assert answer(questions.converges(m("DRAG"), 0.1, wanted=False), cell("DRAG", [0.12] * 10)).holds == "yes"


def test_time_of_the_clients(tmp_path):
    cells = [cell("TACO", FAST), cell("FedAvg", SLOW)]
    quicker, costlier = questions.quicker("TACO", "FedAvg", 0.7, 0.744), questions.costlier("TACO", "FedAvg", 1.03)
    assert answer(quicker, *cells).holds == answer(costlier, *cells).holds == "not measured"
    times = {"TACO": [1.2, 6.0, 2.6], "FedAvg": [1.0, 5.0, 1.0]}  # the second turn was disturbed, and half of the third
    (tmp_path / timing.FILE).write_text(json.dumps(times))
    assert answer(quicker, *cells, folder=tmp_path)[1:] == ("yes", "0.60 of its time to 70 %")
    assert answer(costlier, folder=tmp_path)[1:] == ("yes", "1.20 times")
    assert answer(questions.costlier("TACO", "FedAvg", 0.0, 1.07), folder=tmp_path).holds == "no"
    (tmp_path / timing.FILE).write_text("[]")
    assert answer(costlier, folder=tmp_path).holds == "not measured"


def test_what_is_missing_or_diverged_is_a_verdict():
    question = questions.highest("method", "DRAG", {})
    claim = Claim("a paper", "Fig. 1", "a claim", "", "x", question)
    assert judge(claim, None).holds == "not measured"
    assert answer(question, cell("FedAvg", 0.5)).holds == "not measured"
    assert answer(question, cell("DRAG", 0.9)).holds == "not measured"
    assert answer(question, cell("DRAG", 0.9, status="interrupted"), cell("FedAvg", 0.5)).holds == "not measured"
    assert answer(question, cell("DRAG", 0.9, status="failed"), cell("FedAvg", 0.5)).holds == "not measured"
    assert answer(question, cell("DRAG", 0.9, status="diverged"), cell("FedAvg", 0.5)).holds == "diverged"
    fallen = cell("FedAvg", [0.1, 0.2, np.nan], status="diverged")
    assert answer(question, cell("DRAG", 0.9), fallen)[1:] == ("yes", "72.2 %, FedAvg 10.0 %")
    cannot = judge(Claim("a paper", "Fig. 1", "a claim", "", reason="no data"), None)
    assert (cannot.holds, cannot.ours) == ("cannot be run", "no data")


def of_freeloaders(alpha, strikes):
    """A history of six clients, two of each group, of which the last is a freeloader and is expelled in the end."""
    malicious = np.tile([0, 0, 0, 0, 0, 1], (3, 1))
    valid = np.array([[1] * 6, [1] * 6, [1, 1, 1, 1, 1, 0]])
    rows = {"alpha": np.array([[9.0] * 6, alpha, alpha]), "strikes": np.array([strikes] * 3)}
    return rows | {
        "round": np.arange(1, 4),
        "client_ids": np.tile(range(6), (3, 1)),
        "malicious": malicious,
        "valid": valid,
    }


def test_coefficients_of_groups_are_of_the_rounds_with_freeloaders_but_the_first():
    history = of_freeloaders([0.1, 0.3, 0.4, 0.4, 0.5, 0.9], [0] * 6)
    np.testing.assert_allclose(freeloaders.coefficients(history), [0.2, 0.4, 0.5, 0.9])


def test_shares_of_the_expelled():
    history = of_freeloaders([0.5] * 6, [0, 0, 0, 0, 2, 2])
    assert freeloaders.expelled(history, 2) == (1.0, 0.2)
    assert freeloaders.expelled(history, 3) == (0.0, 0.0)


def test_what_is_kept_of_each_client_must_be_in_the_folder(tmp_path):
    question = freeloaders.ordered({"data": "mnist"})
    claim = Claim("a paper", "Table II", "a claim", "", "x", question)
    cells = (Cell({"data": "mnist"}, "done", "", {"round": ROUNDS}),)
    assert judge(claim, Outcome(cells)).holds == "not measured"
    assert judge(claim, Outcome(cells, tmp_path)).holds == "not measured"


def test_every_claim_is_judged_by_a_target_that_there_is_or_says_why_not():
    for claim in verdicts.CLAIMS:
        assert (claim.target in TARGETS and claim.question and not claim.reason) or (claim.reason and not claim.target)
    papers = {name for name, target in TARGETS.items() if target.folder == "paper"}
    unused = papers - {claim.target for claim in verdicts.CLAIMS}
    assert unused == {"brdrag003_fig9_17_cifar10"}  # its claims are judged by its stand-in on Fashion-MNIST
    texts = [(claim.paper, claim.place, claim.text) for claim in verdicts.CLAIMS]
    assert len(set(texts)) == len(texts)


def test_a_figure_over_an_axis_has_the_level_of_each_seed():
    target = TARGETS["br_drag_or_root_data"]
    runs = [(30, 0.5), (30, 0.7), (3000, 0.9)]
    cells = [Cell({"aggregator": "fltrust", "root_size": n, "root_bias": 0.0}, "done", "", steady(a)) for n, a in runs]
    cells.append(Cell({"aggregator": "fltrust", "root_size": 3000, "root_bias": 0.0}, "failed", "no data", {}))
    (panel,) = figures.draw(target, Outcome(tuple(cells))).axes
    (line,) = panel.get_lines()
    np.testing.assert_allclose(line.get_xydata(), [[30, 0.6], [3000, 0.9]])
    (band,) = panel.collections
    np.testing.assert_allclose(band.get_datalim(panel.transData).intervaly, [0.5, 0.9])
    assert (line.get_label(), panel.get_xlabel(), panel.get_xscale()) == ("FLTrust", "Root examples", "log")


def test_paired_differences_are_over_the_seeds():
    finals = {"FedAvg": (0.5, 0.6, 0.7), "DRAG": (0.52, 0.64, 0.76)}
    cells = [
        Cell({"method": method, "seed": seed}, "done", "", steady(accuracy))
        for method, own in finals.items()
        for seed, accuracy in enumerate(own)
    ]
    target = dataclasses.replace(TARGETS["worst_clients"], paired=("test_accuracy",))
    lines = paired.table(target, Outcome(tuple(reversed(cells))))
    assert lines[2:4] == ["| DRAG | 64.0 |", "| FedAvg | 60.0 (-4.0 \N{PLUS-MINUS SIGN} 5.0) |"]
    assert lines[-1] == "| DRAG | 64.0 |", "FedAvg is never as accurate"
    mean, half = paired.interval(np.array([2.0, 4.0, 6.0]))
    assert mean == 4.0
    assert half == pytest.approx(4.302653 * 2 / 3**0.5), "Student's t with two degrees of freedom, from a table"
    for fewer in (cells[:5], [*cells[:5], Cell(cells[5].values, "failed", "", {})], cells[::3]):
        with pytest.raises((MissingError, ValueError)):
            paired.table(target, Outcome(tuple(fewer)))


def test_a_metric_is_compared_at_the_same_test_accuracy():
    cells = [Cell({"method": "DRAG", "seed": s}, "done", "", steady(0.5) | {"worst": np.arange(10.0)}) for s in (0, 1)]
    for shift, one in enumerate(cells):
        one.history["test_accuracy"] = np.arange(10) / 10 + shift / 10
    # Running means over five evaluations: of the accuracy 0.2, 0.3, ... in the first seed, 0.3, 0.4, ... in the second.
    found = paired.when_as_accurate(Outcome(tuple(cells)), np.array([0.29, 0.59]), "worst")
    np.testing.assert_allclose(found, [3.0, 5.0])
    with pytest.raises(MissingError):
        paired.when_as_accurate(Outcome(tuple(cells)), np.array([0.29, 0.99]), "worst")


def steady(accuracy):
    return {"round": ROUNDS, "test_accuracy": np.full(10, accuracy)}


@pytest.mark.parametrize("name", TARGETS)
def test_a_claim_asks_for_cells_that_its_target_has(name, tmp_path):
    """Every value that a question looks for is one of the configuration."""
    config = read(TARGETS[name].config)
    known = {axis: [_label(value) for value in values] for axis, values in config["axes"].items()}
    known["method"] = list(config.get("compare", {}))

    class Asked(Outcome):
        def at(self, values):
            for axis, value in values.items():
                assert value in known[axis], (axis, value)
            return self

    history = {key: np.ones(2) for key in ("round", "test_accuracy")}
    if TARGETS[name].timed:
        (tmp_path / timing.FILE).write_text(json.dumps({label: [1.0] for label in known["method"]}))
    cells = (Cell({axis: values[0] for axis, values in known.items() if values}, "done", "", history),)
    for claim in verdicts.CLAIMS:
        if claim.target == name:
            verdict = judge(claim, Asked(cells, tmp_path))
            assert verdict.holds != "not measured" or not TARGETS[name].timed, claim


def _label(value):
    return "none" if value is None else value["name"] if isinstance(value, dict) else value


def test_a_verdict_is_a_line_and_a_row(tmp_path):
    claim = Claim("a paper", "Fig. 4", "A | B", "0.50", "x")
    assert verdicts.line(Verdict(claim, "yes", "0.46")) == "Fig. 4: A | B: yes, 0.46 (the paper: 0.50)"
    assert verdicts.line(Verdict(claim, "not measured", "")) == "Fig. 4: A | B: not measured (the paper: 0.50)"
    verdicts.write(tmp_path, [Verdict(claim, "yes", "0.46"), Verdict(claim, "not measured", "")], "medium")
    page = (tmp_path / verdicts.MARKDOWN).read_text()
    assert "2 claims: yes 1, not measured 1." in page
    assert "| Fig. 4 | A \\| B | 0.50 | 0.46 | yes | x |" in page


def test_a_record_keeps_what_is_not_measured_here(tmp_path):
    first, second = (Claim("a paper", "Fig. 4", text, "", "x") for text in ("A", "B"))
    unmeasured = [Verdict(first, "not measured", ""), Verdict(second, "not measured", "no data")]
    record = tmp_path / verdicts.JSON
    assert verdicts.recorded(record, unmeasured) == unmeasured
    verdicts.write(tmp_path, [Verdict(first, "yes", "0.46"), unmeasured[1]], "medium")
    here = [Verdict(first, "not measured", ""), Verdict(second, "no", "0.9")]
    assert verdicts.recorded(record, here) == [Verdict(first, "yes", "0.46"), here[1]]
    assert verdicts.recorded(record, [Verdict(first, "no", "0.60")]) == [Verdict(first, "no", "0.60")]
    for damaged in ("{", "[1]", '[{"paper": "a paper"}]'):
        record.write_text(damaged)
        with pytest.raises(ValueError, match="must be a claims"):
            verdicts.recorded(record, here)


def test_the_published_record_is_of_all_claims_and_its_page_is_made_from_it(tmp_path):
    unmeasured = [Verdict(claim, "not measured", "") for claim in verdicts.CLAIMS]
    verdicts.write(tmp_path, verdicts.recorded(verdicts.PUBLISHED / verdicts.JSON, unmeasured), "medium")
    for name in (verdicts.JSON, verdicts.MARKDOWN):
        assert (verdicts.PUBLISHED / name).read_text() == (tmp_path / name).read_text(), name


def test_of_many_settings_those_are_told_that_are_not_as_said():
    cells = [cell("DRAG", 0.8), cell("FedAvg", 0.7)]
    first, second = questions.ahead(m("DRAG"), m("FedAvg")), questions.ahead(m("FedAvg"), m("DRAG"))
    assert answer(questions.every(first, second), *cells)[1:] == ("no", "1 of 2: +7.8 points; -7.8 points")
    assert answer(questions.every(*[first] * 5), *cells)[1:] == ("yes", "5 of 5")
    assert answer(questions.every(*[first] * 5, second), *cells)[1:] == ("no", "5 of 6, but -7.8 points")
