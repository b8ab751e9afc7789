import dataclasses
import itertools

import numpy as np
import pytest
import yaml
from claim_cells import m, seeds, steady

from fedjax_drag.experiment.build.experiment import read
from fedjax_drag.experiment.sweep.outcome_table import Cell
from reproduction import running
from reproduction.judging import questions
from reproduction.judging.claims import Claim
from reproduction.judging.margins import FAILS, HOLDS, UNDECIDED
from reproduction.judging.outcome import Outcome
from reproduction.papers import taco
from reproduction.publishing import verdicts
from reproduction.storing import settings, stored
from reproduction.storing.stored import Origin, Stored
from reproduction.targets.all_targets import TARGETS
from reproduction.targets.target import Scale, Target
from theorem_checks.statements import Checked

QUESTION = questions.ahead(m("DRAG"), m("FedAvg"))


def results(*cells, under=None):
    return Stored(tuple(cells), (Origin(),) * len(cells), under or {"": {}})


def test_every_claim_is_judged_by_a_target_that_there_is_or_says_why_not():
    for claim in verdicts.CLAIMS:
        assert bool(claim.target) + bool(claim.reason) + (claim.check is not None) == 1
        assert not claim.target or (claim.target in TARGETS and claim.question)
    judging = {target.name for claim in verdicts.CLAIMS for target in verdicts.targets_of(claim)}
    assert judging == {name for name, target in TARGETS.items() if target.folder == "paper"}
    texts = [(claim.paper, claim.place, claim.text) for claim in verdicts.CLAIMS]
    assert len(set(texts)) == len(texts)


def claim_of(**about):
    """The one claim with these fields; ``text`` and ``paper`` by their beginnings."""
    fits = lambda one: all(getattr(one, name).startswith(value) for name, value in about.items())
    (claim,) = filter(fits, verdicts.CLAIMS)
    return claim


def verdict_of(claim, *panels):
    """The verdict where every method has one level throughout, on three seeds; panels are ``(axes, levels)``."""
    cells = [
        one
        for where, levels in panels
        for label, level in levels.items()
        for one in seeds(label, *steady(level, level, level), **where)
    ]
    return claim.question(Outcome(tuple(cells))).verdict


@pytest.mark.parametrize(
    ("text", "better", "than", "gain", "verdict"),
    [
        ("FedACG is better", "FedACG", "FedProx", -0.01, FAILS),
        ("FedACG is better", "FedACG", "FedProx", 0.09, HOLDS),
        ("FedExP ends as", "FedExP", "FedAvg", -0.009, HOLDS),
        ("FedExP ends as", "FedExP", "FedAvg", 0.011, FAILS),
        ("FedProx is no better", "FedProx", "FedAvg", -0.1, HOLDS),
        ("FedProx is no better", "FedProx", "FedAvg", 0.0, HOLDS),
        ("FedProx is no better", "FedProx", "FedAvg", 0.02, FAILS),
    ],
)
def test_better_no_better_and_as_good(text, better, than, gain, verdict):
    panels = [({"partition.beta": beta}, {than: 0.6, better: 0.6 + gain}) for beta in (0.1, 0.5)]
    assert verdict_of(claim_of(place="Fig. 4", text=text), *panels) == verdict


OTHERS = ("FedAvg", "FedProx", "SCAFFOLD", "AdaBest")


@pytest.mark.parametrize(
    ("paper", "place", "text", "axis", "panels"),
    [
        ("Zhu", "Fig. 3", "DRAG's lead is", "cohort_size", {40: "DRAG (alpha=1)", 10: "DRAG (alpha=0.6)"}),
        ("Xiao", "Fig. 4", "DRAG's lead over", "partition.beta", {0.1: "DRAG (c=0.25)", 0.5: "DRAG (c=0.1)"}),
    ],
)
def test_the_lead_in_a_panel_is_that_of_its_own_drag(paper, place, text, axis, panels):
    """A paper sets DRAG's alpha or c by the panel; DRAG as the other panel has it does not count."""
    claim = claim_of(paper=paper, place=place, text=text)
    for leads, verdict in (((0.2, 0.1), HOLDS), ((0.1, 0.2), FAILS)):
        given = []
        for (panel, own), lead in zip(panels.items(), leads, strict=True):
            levels = dict.fromkeys(OTHERS, 0.6) | dict.fromkeys(panels.values(), 0.9 - lead) | {own: 0.6 + lead}
            given.append(({axis: panel}, levels))
        assert verdict_of(claim, *given) == verdict


@pytest.mark.parametrize("other", OTHERS)
def test_a_lead_is_one_over_every_other(other):
    levels = [dict.fromkeys(OTHERS, 0.6) | {other: 0.75, "DRAG (alpha=1)": 0.8}]
    levels.append(dict.fromkeys(OTHERS, 0.6) | {"DRAG (alpha=0.6)": 0.7})
    panels = zip(({"cohort_size": 40}, {"cohort_size": 10}), levels, strict=True)
    assert verdict_of(claim_of(text="DRAG's lead is"), *panels) == FAILS


def test_an_alpha_above_a_quarter_is_not_just_1():
    for half, verdict in ((0.7, HOLDS), (0.9, FAILS)):
        panels = [({"aggregator.alpha": x}, {"Dirichlet(0.1)": y}) for x, y in {0.25: 0.8, 0.5: half, 1.0: 0.6}.items()]
        assert verdict_of(claim_of(text="alpha above 0.25"), *panels) == verdict


def test_a_lead_has_the_size_that_the_paper_prints():
    claim = claim_of(theirs="+13.45 points")
    text = "ClusterGuardFL is that far above FedAvg, CIFAR-10, Gaussian noise"
    assert (claim.place, claim.text) == ("Table III", text)
    for lead, verdict in ((0.135, HOLDS), (0.134, FAILS)):
        levels = {"ClusterGuardFL": 0.5 + lead, "FedAvg": 0.5, "GeoMed": 0.7}
        assert verdict_of(claim, ({"data": "cifar10", "attack": "gaussian"}, levels)) == verdict


@pytest.mark.parametrize("other", taco.OTHERS)
def test_the_least_client_time_is_less_than_that_of_each_other(other):
    claim = claim_of(text=f"{taco.KEPT}, needs the least client time of all, FMNIST")
    cells = [one for label in (taco.KEPT, *taco.OTHERS) for one in seeds(label, *steady(0.8, 0.8, 0.8))]
    times = dict.fromkeys(taco.OTHERS, [2.0] * 10) | {taco.KEPT: [1.0] * 10}
    assert claim.question(Outcome(tuple(cells), times)).verdict == HOLDS
    assert claim.question(Outcome(tuple(cells), times | {other: [0.5] * 10})).verdict == FAILS


def test_the_readings_of_taco_are_not_compared_with_each_other():
    for target in TARGETS.values():
        own = [label for label in _known(target).get("method", ()) if label.startswith(("TACO", "correction alone"))]
        assert set(own) <= set(taco.VARIANTS)


def test_another_setting_has_the_axes_of_the_target_whose_claims_it_judges():
    for target in TARGETS.values():
        if target.setting_of:
            own, other = (_known(TARGETS[name]) for name in (target.name, target.setting_of))
            assert other.items() <= own.items()
            assert target.setting != TARGETS[target.setting_of].setting


@pytest.mark.parametrize("name", [name for name, target in TARGETS.items() if target.folder == "paper"])
def test_a_claim_asks_for_cells_that_its_target_has(name):
    """Every value that a question looks for is one of the configuration, and the whole sweep decides every claim."""
    known = _known(TARGETS[name])

    class Asked(Outcome):
        def at(self, values):
            for axis, value in values.items():
                assert value in known[axis], (axis, value)
            return super().at(values)

    names = {"test_accuracy": 10, "client_accuracy_worst_tenth": 10, "group_alpha": 4, "expelled": 2}
    history = {"round": np.arange(1, 11)} | {key: np.ones(length) for key, length in names.items()}
    cells = [
        Cell(dict(zip(known, values, strict=True)), "done", "", history)
        for values in itertools.product(*known.values())
    ]
    outcome = Asked(tuple(cells), {label: [1.0] for label in known.get("method", ())} if TARGETS[name].turns else {})
    for claim in verdicts.CLAIMS:
        if TARGETS[name] in verdicts.targets_of(claim):
            assert claim.question(outcome).verdict == UNDECIDED, "one seed"


def _known(target):
    """The labels of each axis but the seed."""
    config = read(target.config)
    known = {axis: [_label(value) for value in values] for axis, values in config["axes"].items() if axis != "seed"}
    compared = config.get("compare")
    return known | ({"method": list(compared)} if compared else {})


def _label(value):
    return "none" if value is None else value["name"] if isinstance(value, dict) else value


def test_missing_results_are_a_verdict():
    claim = Claim("a paper", "Fig. 1", "a claim", "", "x", QUESTION)
    target = Target("x", "a paper", "Fig. 1", "method", (), 1)
    assert verdicts.judge(claim, target, None)[1:3] == ("not measured", "about 1 minutes of two cores")
    nothing = verdicts.judge(claim, target, results(*seeds("DRAG", 0.9)))
    assert (nothing.verdict, nothing.target, nothing.scale) == ("not measured", "x", "")
    cannot = verdicts.judge(Claim("a paper", "Fig. 1", "a claim", "", reason="no data"), None, None)
    assert (cannot.verdict, cannot.ours, cannot.repeated) == ("cannot be run", "no data", "")


def test_a_claim_is_judged_in_each_setting_that_is_stored(tmp_path, monkeypatch):
    (tmp_path / "paper").mkdir()
    monkeypatch.setattr("reproduction.targets.target.CONFIGS", tmp_path)
    for name, of in (("x", ""), ("x_authors", "x"), ("x_others", "x")):
        config = {"name": name, "data": "digits", "rounds": 100, "axes": {"seed": [0, 1, 2]}}
        config |= {"partition": {"name": "iid", "num_clients": 4}, "compare": {"DRAG": {}, "FedAvg": {}}}
        (tmp_path / "paper" / f"{name}.yaml").write_text(yaml.safe_dump(config))
        made = Target(name, "A paper", "Fig. 1", "method", (), 1, setting_of=of, setting=name)
        monkeypatch.setitem(TARGETS, name, made)
    monkeypatch.setattr(verdicts, "CLAIMS", (Claim("A paper", "Fig. 1", "DRAG is ahead", "", "x", QUESTION),))
    worse, better = (seeds("DRAG", *a) + seeds("FedAvg", 0.8, 0.8, 0.8) for a in ([0.7] * 3, [0.9] * 3))
    assert [one.setting for one in verdicts.verdicts(tmp_path)] == ["x"]
    full = settings.of_scale(TARGETS["x"], Scale.FULL)
    shorter = full | {"": full[""] | {"rounds": 5}}
    stored.write(stored.path_of(tmp_path, "x"), results(*worse, under=shorter))
    stored.write(stored.path_of(tmp_path, "x_authors"), results(*better, under=full))
    own, authors = verdicts.verdicts(tmp_path)
    assert (own.verdict, own.scale, own.overrides) == ("does not hold", settings.OTHER, ("rounds=5",))
    assert (authors.setting, authors.verdict, authors.scale, authors.overrides) == ("x_authors", HOLDS, "full", ())


def test_a_statement_is_decided_by_its_calculation():
    for holds, verdict in ((True, HOLDS), (False, FAILS)):
        claim = Claim("a paper", "Lemma 1", "a lemma", "", check=lambda holds=holds: Checked(holds, "0.1"))
        found = verdicts.judge(claim, None, None)
        assert (found.verdict, found.ours, found.setting) == (verdict, "0.1", verdicts.CALCULATED)


def test_another_reading_takes_the_other_methods_from_the_paper_s_and_judges_what_it_changes(tmp_path, monkeypatch):
    (tmp_path / "paper").mkdir()
    monkeypatch.setattr("reproduction.targets.target.CONFIGS", tmp_path)
    config = {
        "name": "x",
        "data": "digits",
        "partition": {"name": "iid", "num_clients": 4},
        "axes": {"seed": [0, 1, 2]},
    }
    config["compare"] = {"DRAG": {"aggregator": {"name": "drag", "c": 0.1}}, "FedAvg": {}, "FLTrust": {}}
    (tmp_path / "paper" / "x.yaml").write_text(yaml.safe_dump(config))
    known = Target("x", "A paper", "Fig. 1", "method", (), 1)
    again = dataclasses.replace(
        known, name="x_c", setting_of="x", setting="c", reading=("compare.DRAG.aggregator.c=1",)
    )
    monkeypatch.setattr(verdicts, "TARGETS", {"x": known, "x_c": again})
    assert list(running._source(again)["compare"]) == ["DRAG"]
    ahead = lambda own: Claim("A paper", "Fig. 1", f"{own} is ahead", "", "x", questions.ahead(m(own), m("FedAvg")))
    monkeypatch.setattr(verdicts, "CLAIMS", (ahead("DRAG"), ahead("FLTrust")))
    others = seeds("FedAvg", 0.8, 0.8, 0.8) + seeds("FLTrust", 0.7, 0.7, 0.7)
    for target, drag in ((known, [0.7] * 3), (again, [0.9] * 3)):
        under = settings.of_scale(target, Scale.FULL)
        cells = seeds("DRAG", *drag) + (others if target is known else [])
        stored.write(stored.path_of(tmp_path, target.name), results(*cells, under=under))
    found = [(one.claim.text, one.setting, one.verdict, one.scale) for one in verdicts.verdicts(tmp_path)]
    assert found == [
        ("DRAG is ahead", "default", FAILS, "full"),
        ("DRAG is ahead", "c", HOLDS, "full"),
        ("FLTrust is ahead", "default", FAILS, "full"),
    ]


def test_a_verdict_is_a_line():
    claim = Claim("a paper", "Fig. 4", "DRAG is ahead", "+1 point", "x", QUESTION)
    target = Target("x", "a paper", "Fig. 1", "method", (), 1)
    judged = verdicts.judge(claim, target, results(*seeds("DRAG", 0.8), *seeds("FedAvg", 0.7)))
    figures = "80.0 % against 70.0 %; +10.0 points, 1 seed"
    assert verdicts.line(judged) == f"Fig. 4: DRAG is ahead: undecided, {figures} (the paper: +1 point)"
    assert verdicts.line(judged._replace(verdict="not measured", ours="", parts=())) == (
        "Fig. 4: DRAG is ahead: not measured (the paper: +1 point)"
    )
