"""What changed between two standings: entries, ranks and worst cases beyond the intervals, the protocol."""

from standings import PROTOCOL, standing

from fedjax_drag.experiment.arena.changes import NOTHING, changes

OLD = {"fedavg": 0.1, "median": 0.4, "krum": 0.6}


def test_nothing_has_changed():
    assert changes(standing(OLD), standing(OLD)) == [NOTHING]


def test_what_seeds_could_have_made_is_not_listed():
    assert changes(standing(OLD), standing({"fedavg": 0.105, "median": 0.395, "krum": 0.605})) == [NOTHING]


def test_entries_new_gone_and_moved():
    new = standing({"median": 0.8, "krum": 0.6, "mine": 0.7, "root_only": 0.5})
    assert changes(standing(OLD), new) == [
        "New: mine, root_only.",
        "Gone: fedavg.",
        "median: ranks 2 to 1, worst case 40.0 \N{PLUS-MINUS SIGN} 2.5 to 80.0 \N{PLUS-MINUS SIGN} 2.5.",
        "krum: ranks 1 to 2, worst case 60.0 \N{PLUS-MINUS SIGN} 2.5 to 60.0 \N{PLUS-MINUS SIGN} 2.5.",
    ]


def test_a_worst_case_that_has_left_its_interval_is_listed_though_ranks_are_equal():
    assert changes(standing(OLD), standing(OLD | {"krum": 0.8})) == [
        "krum: ranks 1 to 1, worst case 60.0 \N{PLUS-MINUS SIGN} 2.5 to 80.0 \N{PLUS-MINUS SIGN} 2.5."
    ]


def test_a_new_entry_moves_no_rank():
    assert changes(standing(OLD), standing({"mine": 0.95} | OLD)) == ["New: mine.", NOTHING]


def test_one_seed_tells_nothing():
    assert changes(standing(OLD, seeds=1), standing({"fedavg": 0.9, "median": 0.4, "krum": 0.1}, seeds=1)) == [NOTHING]


def test_the_protocol_is_compared():
    base = PROTOCOL | {"base": {"rounds": 5}}
    new = standing(OLD, version=2, opponents=["none", "ipm", "mimic"], protocol=base)
    assert changes(standing(OLD), new) == [
        "Protocol: version 2, before 1.",
        "Protocol: attacks none, ipm, mimic, before none, ipm, alie.",
        "Protocol: base.rounds=5, before 3.",
        NOTHING,
    ]
    assert changes(standing(OLD, protocol=None), standing(OLD)) == [NOTHING]


def test_settings_of_the_protocol_are_those_that_are_written():
    def with_attacks(attacks, **base):
        return standing(OLD, protocol=PROTOCOL | {"base": base, "attacks": attacks})

    plain = with_attacks({"flip": {"attack": "sign_flip", "strengths": {}}})
    assert changes(plain, with_attacks({"flip": {"attack": {"name": "sign_flip"}, "strengths": {}}})) == [NOTHING]
    tuned = {"attack": {"name": "sign_flip", "scale": 2.0}, "strengths": {"attack.scale": [1.0]}}
    assert changes(plain, with_attacks({"flip": tuned}, rounds=None)) == [
        "Protocol: base.rounds=None, before left out.",
        "Protocol: attacks.flip.attack.scale=2.0, before left out.",
        "Protocol: attacks.flip.strengths.attack.scale=[1.0], before left out.",
        NOTHING,
    ]
    assert changes(with_attacks({}, model="mlp"), with_attacks({})) == [
        "Protocol: base.model left out, before mlp.",
        NOTHING,
    ]
