import numpy as np
import pytest

from fedjax_drag.experiment.sweep.outcome_table import Cell
from reproduction.judging import freeloaders
from reproduction.judging.margins import FAILS, HOLDS, UNDECIDED
from reproduction.judging.outcome import MissingError, Outcome


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


def test_what_is_stored_of_the_clients():
    history = of_freeloaders([0.1, 0.3, 0.4, 0.4, 0.5, 0.9], [0, 0, 0, 0, 2, 2])
    found = freeloaders.reduced(history, {freeloaders.STRIKES: 2})
    np.testing.assert_allclose(found[freeloaders.ALPHA], [0.2, 0.4, 0.5, 0.9])
    np.testing.assert_allclose(found[freeloaders.EXPELLED], [1.0, 0.2])
    assert list(freeloaders.reduced(history, {})) == [freeloaders.ALPHA]
    assert freeloaders.reduced(history | {"malicious": np.zeros((3, 6))}, {}) == {}
    assert freeloaders.reduced({"alpha": np.ones((3, 6))}, {}) == {}, "alpha of another method"


def test_coefficients_are_ordered_on_the_seeds():
    def cells(*alphas):
        return Outcome(tuple(Cell({"data": "mnist", "seed": s}, "done", "", a) for s, a in enumerate(alphas)))

    alphas = [{freeloaders.ALPHA: np.array([0.1, 0.2, 0.3, 0.8]) + shift} for shift in (0.0, 0.01, 0.02)]
    ordered = freeloaders.ordered({"data": "mnist"})(cells(*alphas))
    assert (ordered.verdict, ordered.ours) == (HOLDS, "A 0.11, B 0.21, C 0.31, freeloaders 0.81")
    separated = freeloaders.separated({"data": "mnist"}, 0.6)(cells(*alphas))
    assert (separated.verdict, separated.ours) == (HOLDS, "0.81 against 0.31")
    assert freeloaders.separated({"data": "mnist"}, 0.9)(cells(*alphas)).verdict == FAILS
    assert freeloaders.ordered({"data": "mnist"})(cells(*alphas[:2])).verdict == UNDECIDED
    with pytest.raises(MissingError):
        freeloaders.ordered({"data": "mnist"})(cells({"round": np.arange(3)}))


def test_shares_are_written_as_they_are():
    shares = [(1.0, 0.125), (1.0, 0.0625), (0.2, 1 / 3)]
    assert freeloaders.rates_text(shares) == "100 % / 12.5 %, 100 % / 6.25 %, 20 % / 33.3 %"


def test_larger_thresholds_expel_fewer_on_each_seed():
    def cells(*rates):
        return Outcome(
            tuple(
                Cell({freeloaders.STRIKES: n, "algorithm.kappa": k, "seed": s}, "done", "", {"expelled": np.array(r)})
                for s, of_seed in enumerate(rates)
                for (k, n), r in zip([(0.6, 10), (0.6, 20), (0.8, 10), (0.8, 20)], of_seed, strict=True)
            )
        )

    fewer = [(1.0, 0.4), (1.0, 0.2), (1.0, 0.4), (0.5, 0.0)]
    honest, dishonest = [(1.0, 0.4), (1.0, 0.5), (1.0, 0.4), (0.5, 0.0)], [(0.5, 0.4), (0.5, 0.2), (1.0, 0.4), (0.5, 0)]
    found = freeloaders.fewer_by_larger_thresholds(cells(*[fewer] * 6))
    assert (found.verdict, found.text) == (HOLDS, "so on 6 of 6 seeds")
    for more in (honest, dishonest):
        assert freeloaders.fewer_by_larger_thresholds(cells(*[more] * 6)).verdict == FAILS
        assert freeloaders.fewer_by_larger_thresholds(cells(more, *[fewer] * 5)).verdict == UNDECIDED


def test_expulsions_are_judged_on_each_seed():
    def cells(*rates):
        return Outcome(
            tuple(
                Cell({freeloaders.STRIKES: n, "algorithm.kappa": 0.6, "seed": s}, "done", "", {"expelled": np.array(r)})
                for n in (20, 10)
                for s, r in enumerate(rates)
            )
        )

    question = freeloaders.detected(0.6, [(1.0, 0.25), (1.0, 0.25)])
    as_said, more = (1.0, 0.2), (1.0, 0.5)
    found = question(cells(*[as_said] * 6))
    assert (found.verdict, found.ours) == (HOLDS, "100 % / 20 %, 100 % / 20 %")
    assert question(cells(*[more] * 6)).verdict == FAILS
    assert question(cells(more, *[as_said] * 5)).verdict == UNDECIDED
    assert question(cells(as_said)).verdict == UNDECIDED
    with pytest.raises(MissingError, match="2 of 3 counts"):
        freeloaders.detected(0.6, [(1.0, 0.0)] * 3)(cells(as_said))
