import numpy as np

from fedjax_drag.experiment.sweep.outcome_table import Cell
from reproduction.judging.outcome import Outcome
from reproduction.showing import figures
from reproduction.storing import settings
from reproduction.targets.all_targets import TARGETS


def test_a_figure_over_an_axis_has_the_level_of_each_seed():
    target = TARGETS["br_drag_or_root_data"]
    runs = [(30, 0.5), (30, 0.7), (3000, 0.9)]
    rounds = np.arange(10)
    cells = [
        Cell(
            {"aggregator": "fltrust", "root_size": n, "root_bias": 0.0},
            "done",
            "",
            {"round": rounds, "test_accuracy": np.full(10, accuracy)},
        )
        for n, accuracy in runs
    ]
    cells.append(Cell({"aggregator": "fltrust", "root_size": 3000, "root_bias": 0.0}, "failed", "no data", {}))
    (panel,) = figures.draw(target, Outcome(tuple(cells))).axes
    (line,) = panel.get_lines()
    np.testing.assert_allclose(line.get_xydata(), [[30, 0.6], [3000, 0.9]])
    (band,) = panel.collections
    np.testing.assert_allclose(band.get_datalim(panel.transData).intervaly, [0.5, 0.9])
    assert (line.get_label(), panel.get_xlabel(), panel.get_xscale()) == ("FLTrust", "Root examples", "log")
    assert [tick.get_text() for tick in panel.get_xticklabels()] == ["30", "3,000"]


def test_what_the_paper_prints_is_marked_in_the_colour_of_its_line():
    target = TARGETS["taco004_table5_adult_authors"]
    history = {"round": np.arange(1, 51), "test_accuracy": np.linspace(0.7, 0.8, 50)}
    cells = [Cell({"method": label, "seed": 0}, "done", "", history) for label in ("FedAvg", "TACO, nobody expelled")]
    (panel,) = figures.draw(target, Outcome(tuple(cells))).axes
    curve, end, reached, other = panel.get_lines()
    assert [line.get_xydata().tolist() for line in (end, reached)] == [[[50, 0.7888]], [[24, 0.78]]]
    assert curve.get_color() == end.get_color() == reached.get_color() != other.get_color()
    assert end.get_marker() == "D"


def test_a_method_has_one_colour_in_all_panels():
    """Also where one panel lacks another method."""
    history = {"round": np.arange(10), "test_accuracy": np.full(10, 0.5)}
    ran = {40: ("FedAvg", "AdaBest", "DRAG (alpha=1)"), 10: ("AdaBest", "DRAG (alpha=0.6)")}
    cells = [
        Cell({"method": label, "cohort_size": size, "seed": 0}, "done", "", history)
        for size, labels in ran.items()
        for label in labels
    ]
    panels = figures.draw(TARGETS["drag000_fig3_emnist"], Outcome(tuple(cells))).axes
    colours = [{line.get_label(): line.get_color() for line in panel.get_lines()} for panel in panels]
    assert [tuple(own) for own in colours] == list(ran.values())
    both = colours[0] | colours[1]
    assert colours[0]["AdaBest"] == colours[1]["AdaBest"]
    assert len(set(both.values())) == len(both)


def test_the_band_has_all_runs_of_which_the_line_is_the_mean():
    """Also one that diverged and ended early, which keeps its last accuracy."""
    runs = [("done", np.full(10, 0.8)), ("done", np.full(10, 0.6)), ("diverged", np.full(2, 0.1))]
    cells = [
        Cell({"method": "TACO", "seed": n}, status, "", {"round": np.arange(len(curve)), "test_accuracy": curve})
        for n, (status, curve) in enumerate(runs)
    ]
    (panel,) = figures.draw(TARGETS["taco004_table7_adult"], Outcome(tuple(cells))).axes
    (line,), (band,) = panel.get_lines(), panel.collections
    np.testing.assert_allclose(line.get_xydata()[-1], [9, 0.5])
    np.testing.assert_allclose(band.get_datalim(panel.transData).intervaly, [0.1, 0.8])


def test_stored_lines_are_drawn_in_the_order_of_the_configuration():
    """Stored cells are sorted by their names."""
    target = TARGETS["drag000_fig3_emnist"]
    history = {"round": np.arange(10), "test_accuracy": np.full(10, 0.5)}
    names = ["AdaBest", "DRAG (alpha=1)", "FedAvg", "another"]
    cells = tuple(Cell({"method": name, "cohort_size": 40, "seed": 0}, "done", "", history) for name in names)
    wanted = settings.labels_of(target)
    panel, *_ = figures.draw(target, Outcome(cells, wanted=wanted)).axes
    assert [line.get_label() for line in panel.get_lines()] == ["FedAvg", "AdaBest", "DRAG (alpha=1)", "another"]
