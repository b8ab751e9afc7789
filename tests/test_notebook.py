"""What results and data sets show of themselves: short texts, and well-formed HTML in the colours of the page."""

import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import numpy as np
import pytest

import fedjax_drag as fd
from fedjax_drag import notebook
from fedjax_drag.simulation import Result
from fedjax_drag.simulation.criterion import LOSS
from fedjax_drag.simulation.planning.outline import ClientCost


def result(accuracy, **changes):
    rounds = np.arange(10, 10 * len(accuracy) + 1, 10)
    history = {"round": rounds, "test_accuracy": np.array(accuracy), "test_loss": np.linspace(2, 1, len(accuracy))}
    cost: ClientCost = None  # pyright: ignore[reportAssignmentType]
    return Result({"w": np.zeros((20, 5))}, history if len(accuracy) else {}, (), 1.25, 3.5, cost, None)._replace(
        **changes
    )


@pytest.fixture(scope="module")
def digits():
    return fd.data.partition.dirichlet(fd.data.load("digits"), num_clients=12, beta=0.3, seed=0)


def parsed(html):
    return ElementTree.fromstring(f"<html>{html}</html>")


def text(html):
    return " ".join(parsed(html).itertext())


def test_a_result_says_its_final_figures():
    assert repr(result([0.5, 0.75, 0.7])) == (
        "Result(rounds: 30, test accuracy: 70.0%, best: 75.0% at round 20, test loss: 1, parameters: 100, "
        "seconds: 1.2 and 3.5 of compilation)"
    )
    assert repr(result([0.5, np.nan], diverged_at=7)).startswith("Result(diverged at round: 7, ")
    history = {"round": np.array([10]), "attack_success_rate": np.array([np.nan])}
    assert "attack success rate: -" in repr(result([0.5], history=history))


@pytest.mark.parametrize("accuracy", [[0.5, 0.75, 0.7], [0.5], [np.nan], [0.2, np.nan, 0.4], [0.0, 0.0], []])
def test_a_result_is_a_curve_and_a_table(accuracy):
    page = result(accuracy)._repr_html_()
    lines = [line for line in parsed(page).iter() if line.tag.endswith("polyline")]
    points = [pair.split(",") for line in lines for pair in line.get("points").split()]
    assert len(points) == np.isfinite(accuracy).sum()
    assert all(0 <= float(x) <= 320 and 0 <= float(y) <= 160 for x, y in points)
    assert "parameters" in text(page)


def test_a_data_set_says_what_it_holds(digits):
    assert repr(digits) == (
        "FederatedDataset(digits: 1,442 + 355 examples uint8[8, 8, 1], 10 classes, 12 clients by "
        "dirichlet(beta=0.3, seed=0))"
    )
    assert repr(fd.data.load("digits")).endswith("10 classes, not split among clients)")


def test_a_loss_is_no_share():
    judged = result([0.5, 0.6], criterion=LOSS)
    page = text(judged._replace(history=judged.history | {"test_loss": np.array([23.0, 19.5])})._repr_html_())
    assert "19.5" in page
    assert "23" in page
    assert "2300%" not in page


def test_a_data_set_is_a_table_and_a_map_of_limited_size(digits):
    assert "12 clients" in text(digits._repr_html_())
    assert "svg" not in fd.data.load("digits")._repr_html_()
    many = fd.data.partition.iid(fd.data.load("digits"), num_clients=700, seed=0)._repr_html_()
    assert "60 of 700 clients" in text(many)
    assert len(many) < 30_000


def test_text_is_escaped_and_takes_the_colour_of_the_page(digits):
    page = replace(digits, name="<b>&")._repr_html_()
    assert "<b>&" not in page.replace("<b>&lt;b&gt;&amp;</b>", "")
    assert "<b>&" in text(page)
    assert "currentColor" in page
    assert "currentColor" in result([0.5, 0.6])._repr_html_()


def test_a_grid_marks_lines_and_shades_its_last_columns():
    page = notebook.grid(
        "<title>", [["a", "b", "c"], ["own", "1", "2"], ["<other>", "3", "4"]], ["own"], np.array([[0.5], [np.nan]])
    )
    styles = {cell.text: cell.get("style") for cell in parsed(page).iter() if cell.tag in ("td", "th")}
    assert ["bold" in styles[name] for name in ("own", "1", "2", "<other>", "3", "4", "a")] == [True] * 3 + [False] * 4
    assert [name for name, style in styles.items() if "background" in style] == ["2"]


def test_shades_grow_with_the_values():
    page = notebook.heat_map("map", np.array([[0, 1], [4, 100]]), "across", "down")
    shades = [float(path.get("fill-opacity")) for path in parsed(page).iter() if path.get("fill-opacity")]
    assert shades == sorted(shades)
    assert len(shades) == 3


@pytest.mark.parametrize(
    ("part", "shown"),
    [
        (fd.aggregators.drag(), "drag(c=0.25, alpha=0.25, divergence='cosine')"),
        (fd.aggregators.median(), "median()"),
        (
            fd.aggregators.rfa(),
            "rfa(smoothing=1e-06, tolerance=0.0, max_iterations=3, weighting='uniform', start='mean')",
        ),
        (
            fd.algorithms.from_aggregator(fd.aggregators.krum(1), fd.clients.fedprox(mu=0.1)),
            "from_aggregator(aggregator=krum(num_byzantine=1, distance_power=2), client=fedprox(mu=0.1))",
        ),
        (fd.algorithms.adabest(), "adabest(num_clients=None, mu=0.02, beta=0.8, aggregator=None)"),
        (fd.algorithms.mime(), "mime(b=0.9, gradient='average', aggregator=None)"),
        (fd.attacks.min_max(), "min_max(perturbation='std', knowledge='full')"),
        (fd.attacks.label_flip(), "label_flip(fraction=0.5, target_mean=None, keeps_state=True)"),
        (fd.clients.sgd(), "sgd()"),
    ],
)
def test_parts_say_their_names(part, shown):
    assert repr(part) == shown


def test_an_own_rule_has_the_name_of_the_function_that_makes_it():
    def inverse_norm():
        def apply(params, deltas, state, **_):
            return params, state

        return fd.types.Aggregator(lambda params: (), apply)

    assert repr(inverse_norm()) == "Aggregator(inverse_norm)"
