import base64
import hashlib
import json
import re
import sys
import urllib.parse
from types import SimpleNamespace

import numpy as np
import pytest
from reports import Page, write_run, write_sweep

from fedjax_drag.experiment.config.config import slug
from fedjax_drag.experiment.intervals import estimate
from fedjax_drag.experiment.report import csv_files, reading, tables, write
from fedjax_drag.experiment.run import environment, metrics_file, results
from fedjax_drag.experiment.sweep.summary_page import summary
from fedjax_drag.simulation.criterion import Criterion


@pytest.fixture
def page(tmp_path, monkeypatch):
    """Writes a page, with next to nothing for plotly.js since that is long, and reads it."""
    monkeypatch.setattr("fedjax_drag.experiment.report.page.plotly_js", lambda: "/* plotly.js */")

    def make(folder, **options):
        return Page(write(folder, tmp_path / "page.html", **({"with_skew": False} | options)))

    return make


def test_run_tells_figures_costs_setup_and_nothing_from_outside(page, tmp_path):
    counters = {"slowest_steps": [5, 5, 5], "bytes_down": [2_000_000] * 3, "bytes_up": [1_000_000] * 3}
    figures = {"interrupted": False, "seconds": 12.5, "seconds_per_local_step": 0.1}
    found = page(write_run(tmp_path / "one", [0.2, 0.7, 0.6], figures, **counters), target=0.65)
    assert ["one", "done", "60.0", "70.0", "2", "1", "6", "12.5"] in found.rows()
    heads = ["final accuracy, %", "best accuracy, %", "rounds to 65 %", "client seconds to 65 %", "MB sent to 65 %"]
    assert ["what", "status", *heads, "wall clock, s"] in found.rows()
    line = found.chart("test accuracy")["data"][-1]
    assert (line["x"], line["y"]) == ([1, 2, 3], [0.2, 0.7, 0.6])
    assert found.chart("test loss")["data"][-1]["y"] == pytest.approx([0.8, 0.3, 0.4])
    assert all(word in found.shown for word in ("num_clients: 8", '"jax": "0.10"', "Not asked for."))
    for _, attributes in found.tags:
        assert not {"src", "srcset", "action"} & attributes.keys()
        assert attributes.get("href", "data:,").startswith("data:")


def test_header_tells_data_model_method_attack_and_what_was_overridden(page, tmp_path):
    attacked = {"name": "study", "attack": "sign_flip", "byzantine_fraction": 0.3, "aggregator": "krum"}
    for folder, title in (
        ("study-aggregator_krum-attack_sign_flip", "study aggregator_krum-attack_sign_flip"),
        ("elsewhere", "study elsewhere"),
        ("study", "study"),
    ):
        found = page(write_run(tmp_path / folder, [0.2], config=attacked))
        (heading,) = re.findall("<h1>(.*?)</h1>", found.source)
        assert re.sub("<.*?>", "", heading) == title
    facts = dict(re.findall("<div><dt>(.*?)</dt><dd>(.*?)</dd></div>", found.source))
    assert facts["data"] == "handwritten digits (8x8)"
    assert facts["partition"] == "IID split, 8 clients"
    assert (facts["model"], facts["method"]) == ("mlp 8", "krum")
    assert (facts["attack"], facts["malicious clients"]) == ("sign flip", "30%")


CLIENTS = {
    "client_ids": [[0, 1, 2]] * 3,
    "malicious": [[1, 0, 0]] * 3,
    "valid": [[1, 1, 0]] * 3,
    "cosine": [[-0.5, 0.4, 0.1], [-0.4, 0.2, 0.3], [-0.1, 0.5, None]],
}


def test_with_plotly_the_charts_are_interactive(tmp_path):
    found = Page(write(write_run(tmp_path / "run", [0.1, 0.5, 0.7], **CLIENTS)))
    library, _ = found.scripts
    assert "* plotly.js v" in library
    assert len(found.charts) == 5  # accuracy, loss, cosines as curves and as a map, the examples of the clients
    assert "still images" not in found.shown


def test_without_plotly_they_are_images_and_the_page_says_how_to_get_more(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    found = Page(write(write_run(tmp_path / "run", [0.1, 0.5, 0.7], **CLIENTS)))
    pictures = re.findall("<svg .*?</svg>", found.source, re.S)
    drawn = [picture for picture in pictures if "<title>" not in picture and "communication round" in picture]
    assert len(drawn) == 4
    assert all(f"stroke: var(--s{number})" in drawn[2] for number in (0, 1))
    assert drawn[3].count("data:image/png;base64,") >= 1
    assert "The charts are still images; where pip install 'fedjax-drag[report]' has been run" in found.shown
    assert not found.charts
    assert len(found.scripts) == 1
    assert all(a["xlink:href"].startswith(("#", "data:")) for _, a in found.tags if "xlink:href" in a)
    assert found.file("test-accuracy-over-communication-rounds")[1:] == [
        ["run", "1", "0.1", "", ""],
        ["run", "2", "0.5", "", ""],
        ["run", "3", "0.7", "", ""],
    ]


def test_wall_clock_of_seeds_in_one_program_has_no_spread(page, tmp_path):
    folder, grid = write_sweep(tmp_path / "seeds", {"step_size": [0.1, 0.2], "seed": [0, 1]}, [[0.5] * 3] * 4)
    for point in grid.points:
        (folder / "cells" / point.folder / results.SUMMARY).write_text(json.dumps({"seconds": 12.34}))
    assert [row[-2] for row in page(folder).rows() if "2 done" in row] == ["12.3", "12.3"]


def test_first_markers_are_whole_and_curves_stand_beside_small_maps_only(page, tmp_path):
    def drawn(number):
        columns = {"client_ids": [list(range(number))] * 3, "weight": np.arange(3 * number).reshape(3, number).tolist()}
        return page(write_run(tmp_path / f"c{number}", [0.2, 0.3, 0.4], **columns))

    small, large = drawn(4), drawn(60)
    for found, paired in ((small, True), (large, False)):
        curves, heat_map = (found.chart(f"weight in the aggregate{text}") for text in (":", " of each"))
        assert (curves["layout"]["height"] == heat_map["layout"]["height"]) == paired
        assert ('class="panels many pairs"' in found.source) == paired
        line = curves["data"][-1]
        assert line["cliponaxis"] is False
        assert curves["layout"]["xaxis"]["range"][0] < line["x"][0]


def test_target_is_chosen_from_what_half_of_the_lines_reach(page, tmp_path):
    variants = {"a": {"seed": 1}, "b": {"seed": 2}, "c": {"seed": 3}}
    folder = write_run(tmp_path / "many", [0.1], config={"compare": variants})
    (folder / metrics_file.METRICS).unlink()
    for label, best in (("a", 0.91), ("b", 0.78)):
        write_run(folder / label, [0.1, best, best], {"interrupted": False})
    found = page(folder)
    assert "Target: 90 % test accuracy, the largest multiple" in found.shown
    assert ["a", "done", "91.0", "91.0", "2", "seed 1"] in found.rows()
    assert ["b", "done", "78.0", "78.0", "not reached", "seed 2"] in found.rows()
    assert ["c", "not run", *["\N{EN DASH}"] * 3, ""] in found.rows()


@pytest.mark.parametrize(
    ("accuracies", "summary", "told"),
    [
        ([0.5, 0.6], {"interrupted": True}, "stopped after 2 of 3 rounds"),
        ([0.5, 0.6], None, "unfinished"),
        ([0.5, None], {"diverged_at": 2}, "parameters are not finite after round 2"),
    ],
)
def test_what_did_not_come_to_its_end_is_marked(page, tmp_path, accuracies, summary, told):
    assert told in page(write_run(tmp_path / "half", accuracies, summary)).shown


def test_sweep_has_bands_over_seeds_a_matrix_and_marks_what_went_wrong(page, tmp_path):
    axes = {"aggregator": ["fedavg", "krum"], "attack": [None, "sign_flip"], "seed": [0, 1]}
    curves = [
        [0.5, 0.7, 0.8],
        [0.3, 0.5, 0.6],
        None,
        [0.2, 0.2, 0.1],
        [0.5, 0.6, 0.7],
        [0.5, 0.6, 0.7],
        [0.4, 0.5, 0.6],
    ]
    folder, grid = write_sweep(tmp_path / "matrix", axes, [*curves, [0.4]])
    values = ",".join(str(value) for value in grid.points[2].values.values())
    message = "Krum <needs> more clients"
    (folder / "table.csv").write_text(f"aggregator,attack,seed,status,message,round\n{values},failed,{message},\n")
    found = page(folder)
    low, high, mean = found.chart("test accuracy over communication rounds, attack=none")["data"][:3]
    assert (low["y"], high["y"], mean["y"]) == ([0.3, 0.5, 0.6], [0.5, 0.7, 0.8], [0.4, 0.6, 0.7])
    assert "4 lines share a chart: their minimum to their maximum" in found.shown
    assert ["krum", "60.0", "70.0 ± 0.0", "60.0 (1 of 2)"] in found.rows()
    assert ["fedavg", "10.0", "70.0 ± 14.1", "10.0 (1 of 2)"] in found.rows()
    assert f"failed: {message} fedavg, sign_flip, seed=0" in found.shown
    assert "unfinished: 1 of 3 rounds so far krum, sign_flip, seed=1" in found.shown
    statuses = {tuple(row[:2]): row[2] for row in found.rows() if len(row) > 5}
    assert statuses["fedavg", "sign_flip"] == "1 failed, 1 done"


def test_seeds_without_a_round_in_common_have_no_line(page, tmp_path):
    folder, grid = write_sweep(tmp_path / "matrix", {"aggregator": ["krum"], "seed": [0, 1]}, [[0.5, 0.7], [0.3, 0.6]])
    for place, point in enumerate(grid.points):
        metrics = folder / "cells" / point.folder / metrics_file.METRICS
        metrics.write_text(metrics.read_text().splitlines(keepends=True)[place])
    found = page(folder)
    assert "unfinished: 1 of 3 rounds so far" in found.shown
    assert not found.charts


def test_many_lines_are_divided_among_charts_and_each_is_named(page, tmp_path):
    for number, alone in ((10, 2), (9, 1)):
        rates = [0.01 * (i + 1) for i in range(number)]
        folder, _ = write_sweep(tmp_path / f"{number}", {"step_size": rates}, [[0.1, 0.2, rate] for rate in rates])
        found = page(folder)
        _, *curves = found.charts  # after accuracy against the step size
        assert [len(chart["data"]) for chart in curves[:2]] == [8, alone]
        assert curves[0]["data"][0]["name"] == f"step_size={rates[-1]:g}"  # the best first
        names = [attributes for tag, attributes in found.tags if tag == "button" and "data-series" in attributes]
        assert names
        assert len(names) % number == 0


def test_small_costs_keep_their_digits(page, tmp_path):
    counters = {"bytes_down": [20_000] * 3, "bytes_up": [14_000] * 3}
    found = page(write_run(tmp_path / "one", [0.2, 0.7, 0.6], {"interrupted": False}, **counters), target=0.65)
    assert any("0.0680" in row for row in found.rows())


def test_every_client_is_on_a_sorted_curve_and_classes_are_compared(page, tmp_path):
    folder, grid = write_sweep(
        tmp_path / "own", {"aggregator": ["fedavg", "drag"], "seed": [0, 1]}, [None] * 4, {"rounds": 2}
    )
    accuracies = [[0.5, None, 0.1, 0.9, 0.3], [0.7, 0.2, 0.4, None, 0.6], [0.2] * 5]
    for point, own in zip(grid.points, accuracies, strict=False):  # the last cell has not run
        columns = {"client_accuracy": [[0.0] * 5, own], "client_accuracy_worst_tenth": [0.0, min(filter(None, own))]}
        columns |= {"class_accuracy": [[0.0] * 3, [0.9, None, 0.3]], "client_ids": [[0, 1, 2, 3, 4]] * 2}
        config = {"name": point.label, "rounds": 2}
        write_run(folder / "cells" / point.folder, [0.5, 0.6], {"interrupted": False}, config, **columns)
    found = page(folder)
    low, high, mean, other = found.chart("final client accuracy, the clients sorted")["data"]
    assert (low["y"][0], high["y"][0], mean["y"][0]) == (0.1, 0.2, 0.15)
    assert (mean["y"][50], mean["y"][-1]) == (0.45, 0.8), "medians and maxima, four clients in each seed"
    assert set(other["y"]) == {0.2}, "series of one seed has no band"
    classes = found.chart("final test accuracy by class")
    assert [trace["y"] for trace in classes["data"]][-1] == [0.9, None, 0.3]
    assert classes["layout"]["xaxis"]["dtick"] == 1
    assert ["fedavg", "2 done", "60.0 ± 0.0", "60.0 ± 0.0", "15.0 ± 7.1"] in [row[:5] for row in found.rows()]
    assert not any(about.startswith("client accuracy of each client") for about in _abouts(found)), "not of a cohort"
    assert "Every client" not in page(write_run(tmp_path / "plain", [0.5])).shown


def _abouts(found):
    return [attributes.get("aria-label", "") for _, attributes in found.tags]


def test_clients_are_drawn_with_malicious_ones_first_and_expelled_ones_painted_over(page, tmp_path):
    columns = {
        "client_ids": [[3, 5, 1], [1, 5, 3], [3, 1, 5]],
        "malicious": [[0, 1, 0], [0, 1, 0], [0, 0, 1]],
        "valid": [[1, 1, 1], [1, 1, 1], [1, 1, 0]],
        "alpha": [[0.3, 0.5, 0.1], [0.1, 0.5, 0.3], [0.3, 0.1, 0.9]],
        "weight": [[1, 1, 1]] * 3,
        "num_expelled": [0, 0, 1],
    }
    found = page(write_run(tmp_path / "taco", [0.2, 0.3, 0.4], **columns))
    chart = found.chart("correction coefficient alpha of each client")
    values, gone, border = chart["data"]
    assert values["z"] == [[0.5, 0.5, None], [0.1] * 3, [0.3] * 3]
    assert chart["layout"]["yaxis"]["ticktext"] == ["\N{MULTIPLICATION X} 5", "1", "3"]
    assert gone["z"] == [[None, None, 1], [None] * 3, [None] * 3]
    assert (border["x"], border["y"]) == ([0.5, 1.5, 2.5, 3.5], [0.5] * 4)  # from edge to edge
    benign = found.chart("correction coefficient alpha: mean")["data"][2]
    assert benign["y"] == pytest.approx([0.2] * 3)
    assert "marked \N{MULTIPLICATION X} and above the line: 5." in found.shown
    assert "no longer count: 5 (malicious, round 3)" in found.shown
    assert "weight in the aggregate" not in found.shown  # the same of all throughout
    del columns["num_expelled"]
    absent = page(write_run(tmp_path / "drag", [0.2, 0.3, 0.4], **columns))
    _, gone, _ = absent.chart("correction coefficient alpha of each client")["data"]
    assert "absent" in gone["hovertemplate"]
    assert "xpelled" not in absent.shown


def test_a_share_that_is_not_finite_is_the_worst():
    error = Criterion("calibration_error", higher_is_better=False)
    run = SimpleNamespace(
        history={"round": [1, 2], error.test: np.array([0.3, np.nan]), error.column: np.array([0.3, np.nan])}
    )
    best = [tables.at_best(run, error, column) for column in ("round", error.column, error.test)]
    assert best == [1, 0.3, 0.3]


def test_the_file_of_a_map_of_many_clients_names_each(page, tmp_path):
    """Of so many rows not all have a tick."""
    ids = list(range(0, 120, 2))
    columns = {
        "client_ids": [ids] * 2,
        "malicious": [[int(i == 118) for i in ids]] * 2,
        "alpha": [[i / 200 for i in ids]] * 2,
    }
    found = page(write_run(tmp_path / "taco", [0.2, 0.3], **columns))
    chart = found.chart("correction coefficient alpha of each client")
    assert len(chart["layout"]["yaxis"]["tickvals"]) < len(ids)
    lines = urllib.parse.unquote(csv_files.of_chart(chart)).splitlines()[1:]
    assert [line.split(",")[1] for line in lines[::2]] == ["\N{MULTIPLICATION X} 118", *map(str, ids[:-1])]


def test_malicious_clients_that_change_are_marked_by_place_in_the_cohort(page, tmp_path):
    columns = {
        "client_ids": [[3, 5, 1], [1, 5, 3]],
        "malicious": [[0, 1, 0], [1, 0, 1]],
        "cosine": [[0.3, -0.5, 0.1], [-0.1, 0.5, -0.3]],
    }
    found = page(write_run(tmp_path / "cohort", [0.2, 0.3], **columns))
    values, border = found.chart("cosine with the reference of each client")["data"]
    assert values["z"] == [[-0.5, -0.1], [0.3, -0.3], [0.1, 0.5]]
    assert values["customdata"] == [[5, 1], [3, 3], [1, 5]]
    assert border["y"] == [0.5, 1.5, 1.5]


def test_skew_is_made_again_from_the_configuration_where_the_data_are(page, tmp_path):
    found = page(write_run(tmp_path / "here", [0.2]), with_skew=True)
    counts = found.chart("examples by client and class")["data"][0]["z"]
    assert sum(count or 0 for row in counts for count in row) == 1442
    assert "8 clients. Examples per client: 180 to 181" in found.shown
    elsewhere = {"data": {"name": "adult", "data_dir": str(tmp_path)}}
    assert (
        "data cannot be had here: adult"
        in page(write_run(tmp_path / "gone", [0.2], config=elsewhere), with_skew=True).shown
    )


def sweep_of(tmp_path, finals, base=None, **axes):
    """A sweep with these final accuracies, in the order of the cells."""
    return write_sweep(tmp_path / "sweep", axes, [[0.1, final] for final in finals], {"rounds": 2} | (base or {}))[0]


def test_one_numeric_choice_is_a_line_of_the_final_accuracy(page, tmp_path):
    rates = [0.01, 0.1, 0.35000000000000003, 1.0]
    finals = [0.2, 0.4, 0.7, 0.9, 0.8, 0.9, 0.1, 0.1]
    found = page(sweep_of(tmp_path, finals, step_size=rates, seed=[0, 1]))
    chart = found.chart("final test accuracy by step_size")
    low, high, mean = chart["data"]
    assert (low["y"], high["y"]) == ([0.2, 0.7, 0.8, 0.1], [0.4, 0.9, 0.9, 0.1])
    assert mean["x"] == rates
    np.testing.assert_allclose(mean["y"], [0.3, 0.8, 0.85, 0.1])
    axis = chart["layout"]["xaxis"]
    assert (axis["type"], axis["title"]["text"]) == ("log", "step_size (log scale)")
    assert axis["ticktext"] == ["0.01", "0.1", "0.35", "1"]
    assert "orst case" not in found.shown, "step sizes are no adversary"
    assert "highest final accuracy 85.0 % step_size=0.35" in found.shown
    head, *lines = found.file("final-test-accuracy-by-step_size")
    assert head == ["line", "step_size (log scale)", "final test accuracy", "low", "high"]
    assert [[float(x) for x in line[1:]] for line in lines] == [
        [x, y, *ends] for x, y, ends in zip(mean["x"], mean["y"], mean["customdata"], strict=True)
    ]


def test_two_numeric_choices_are_a_map_and_differences_are_to_the_best_cell(page, tmp_path):
    finals = [0.6, 0.5, 0.6, 0.7, 0.9, 0.8, 0.4, 0.4]
    found = page(
        sweep_of(
            tmp_path,
            finals,
            {"aggregator": "drag"},
            step_size=[0.1, 0.2],
            **{"aggregator.c": [0.25, 0.5], "seed": [0, 1]},
        )
    )
    (head,) = [row for row in found.rows() if row[0].startswith("step_size ↓")]
    assert head == ["step_size ↓ aggregator.c →", "0.25", "0.5"]
    assert ["step_size=0.1", "55.0 ± 7.1", "65.0 ± 7.1"] in found.rows()
    assert ["step_size=0.2", "85.0 ± 7.1", "40.0 ± 0.0"] in found.rows()
    assert "orst case" not in found.shown
    head, *lines = found.file("parameters")
    assert head == ["step_size, by aggregator.c", "0.25", "0.5"]
    np.testing.assert_allclose(np.array(lines, float), [[0.1, 0.55, 0.65], [0.2, 0.85, 0.4]])
    head, *lines = found.file("differences")
    assert head == ["what", "setting", "less", "seeds", "mean", "half_width"]
    expected = estimate(np.array([0.6 - 0.9, 0.7 - 0.8]))
    (line,) = [line for line in lines if line[:2] == ["step_size=0.1", "c=0.5"]]
    assert line[2:4] == ["step_size=0.2, c=0.25", "2"]
    assert [float(x) for x in line[4:]] == pytest.approx([*expected])
    assert ["step_size=0.2", "best", "\N{MINUS SIGN}45.0 ± 63.5"] in found.rows()
    shown = re.findall(r'<td[^>]*class="( muted)?"[^>]*>\N{MINUS SIGN}([\d.]+) <small>', found.source)
    assert dict(map(reversed, shown)) == {"30.0": "", "20.0": " muted", "45.0": " muted"}


def test_headline_differences_and_summary_have_the_same_best_setting(page, tmp_path):
    """The one with the highest mean has a seed that was not run."""
    curves = [[0.1, final] for final in (0.5, 0.6, 0.7, 0.7, 0.9)]
    axes = {"step_size": [0.1, 0.2, 0.3], "seed": [0, 1]}
    folder, grid = write_sweep(tmp_path / "out", axes, [*curves, None], {"rounds": 2})
    assert "Best setting: step_size=0.2" in summary(grid, reading.read(folder).runs)
    found = page(folder)
    assert "highest final accuracy 70.0 % step_size=0.2, chosen on the test set" in found.shown
    _, *lines = found.file("differences")
    assert {line[2] for line in lines} == {"step_size=0.2"}


def test_a_choice_under_attacks_has_worst_cases_and_a_line_for_each_attack(page, tmp_path):
    base = {"aggregator": {"name": "centered_clipping", "radius": 0.1}, "byzantine_fraction": 0.25}
    axes = {"aggregator.radius": [0.1, 0.3], "attack": [None, "sign_flip"]}
    found = page(sweep_of(tmp_path, [0.9, 0.2, 0.8, 0.6], base, **axes))
    assert "best worst case 60.0 % radius=0.3, over 2 conditions" in found.shown
    assert ["radius=0.3", "60.0", "80.0", "60.0"] in found.rows()
    chart = found.chart("final test accuracy by aggregator.radius")
    assert {trace["name"]: trace["y"] for trace in chart["data"]} == {
        "attack=none": [0.9, 0.8],
        "sign_flip": [0.2, 0.6],
    }
    assert found.file("accuracies")[1:] == [["0.3", "0.6", "0.8", "0.6"], ["0.1", "0.2", "0.9", "0.2"]]
    assert found.source.count('<label class="range">') == 2, "of accuracy and of loss, a chart for each attack"


def test_attacks_alone_have_no_worst_case_and_no_parameter(page, tmp_path):
    base = {"byzantine_fraction": 0.25}
    found = page(sweep_of(tmp_path, [0.9, 0.2], base, attack=[None, "sign_flip"]))
    assert "orst case" not in found.shown
    assert 'id="parameters"' not in found.source
    assert [row[0] for row in found.rows() if "done" in row] == ["attack=none", "sign_flip"]


def test_results_lead_to_the_folders_of_the_runs_and_are_a_file_of_single_runs(page, tmp_path):
    folder, grid = write_sweep(
        tmp_path / "two", {"aggregator": ["fedavg", "krum"], "seed": [0, 1]}, [[0.5, 0.6, 0.7]] * 4
    )
    found = page(folder, target=0.6)
    links = [a["href"] for tag, a in found.tags if tag == "a" and a["href"].startswith("./")]
    assert links == [f"./two/cells/{point.folder}/" for point in grid.points]
    assert all((tmp_path / link).is_dir() for link in links)
    head, *lines = found.file("results")
    assert head[:5] == ["what", "setting", "seed", "status", "folder"]
    assert [line[:4] for line in lines] == [[rule, "", seed, "done"] for rule in ("fedavg", "krum") for seed in "01"]
    column = {name: [float(line[place]) for line in lines] for place, name in enumerate(head) if place > 4}
    assert (column["final accuracy"], column["rounds to 60 %"]) == ([0.7] * 4, [2.0] * 4)
    elsewhere = Page(write(folder, tmp_path / "elsewhere" / "page.html", with_skew=False))
    assert not [a for tag, a in elsewhere.tags if tag == "a" and a["href"].startswith(".")]


def test_many_bands_are_whiskers(page, tmp_path):
    rules = ["fedavg", "krum", "median", "trimmed_mean", "drag"]
    for number in (4, 5):
        folder, _ = write_sweep(
            tmp_path / f"of{number}",
            {"aggregator": rules[:number], "seed": [0, 1]},
            [[0.1, 0.3, 0.5], [0.2, 0.4, 0.7]] * number,
        )
        traces = page(folder).chart("test accuracy over")["data"]
        named = [trace for trace in traces if "name" in trace]
        if number == 4:
            assert len(traces) == 12
            assert not any("error_y" in trace for trace in named)
        else:
            assert len(traces) == 5
            np.testing.assert_allclose(named[0]["error_y"]["array"], [0.05, 0.05, 0.1], atol=1e-9)
            np.testing.assert_allclose(named[0]["error_y"]["arrayminus"], [0.05, 0.05, 0.1], atol=1e-9)


EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\ud800{{ 7*7 }}<a href='javascript:alert(3)'>"


def test_nothing_that_files_say_becomes_markup_or_script(page, tmp_path):
    """Names, labels, messages, keys and values with markup; numbers that are huge, of the wrong type or not finite."""
    huge = int("9" * 300)
    compare = {f"<b>{EVIL}": {"aggregator": "krum"}, "&lt;b&gt;": {"client": {"name": EVIL}}, "%{y} $x$": {}}
    written = {"name": EVIL.replace("\ud800", ""), "compare": {k.replace("\ud800", ""): v for k, v in compare.items()}}
    written["compare"]["&lt;b&gt;"] = {"seed": 1}
    folder = write_run(tmp_path / "evil", [0.1], config=written)
    (folder / metrics_file.METRICS).unlink()
    for label in written["compare"]:
        columns = {
            EVIL: [huge, -1e308, 1e308],
            "train_loss": [1e308, 1e308, None],
            "slowest_steps": [None, huge, -1],
            "client_ids": [[1, 2], [2, 1], [1, 2]],
            "malicious": [[1, 0], [0, 1], [1, 0]],
            f"{EVIL} per client": [[1e308, -1e308], [None, 0], [1, 1]],
        }
        figures = {"seconds": EVIL, "seconds_per_local_step": huge, "interrupted": EVIL, "diverged_at": [EVIL]}
        variant = write_run(folder / slug(label), [1e308, -3, None], figures, {"name": label}, **columns)
        (variant / environment.ENVIRONMENT).write_text(json.dumps({EVIL: {EVIL: float("nan")}}))
    found = page(folder)
    plain = page(write_run(tmp_path / "plain", [0.1], columns=[0]))
    assert len(found.scripts) == 2
    assert found.scripts == plain.scripts
    addresses = [a["href"] for tag, a in found.tags if tag == "a"]
    assert all(address.startswith(("data:text/csv;charset=utf-8,", "./evil/")) for address in addresses)
    assert not any(set(address) & set('<>"') for address in addresses)
    assert not {"img", "iframe", "object", "embed", "form", "base"} & {tag for tag, _ in found.tags}
    assert not [a for _, a in found.tags if any(key.startswith("on") for key in a)]
    assert "{{ 7*7 }}" in found.shown
    texts = json.dumps([[trace.get("name", "") for trace in chart["data"]] for chart in found.charts]) + json.dumps(
        [chart["layout"] for chart in found.charts]
    )
    assert "<" not in texts  # plotly.js takes some tags for markup
    assert "&lt;script&gt;" in texts


def test_bad_input_is_one_line_and_nothing_is_written(page, command, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    good = write_run(tmp_path / "good", [0.1])
    telling = write_run(tmp_path / "telling", [0.1], config={"name": "${oc.env:HOME}"})
    for arguments, message in (
        ((tmp_path / "none",), "no such results folder"),
        ((empty,), "must be that of a run, a comparison or a sweep"),
        ((telling,), "must be the value itself, without '${'"),
        ((good, "--target", "1.5"), "target=1.5"),
        ((good, "--out", empty), "must be a file"),
        ((good, "--out", tmp_path / "page.pdf"), "page.pdf': must end in .html or .htm"),
    ):
        result = command("report", *arguments)
        assert result.exit_code == 2, result.output
        (line,) = result.stderr.splitlines()
        assert line.startswith("fedjax-drag: error: ")
        assert message in line
    assert not [*tmp_path.rglob("*.html"), *tmp_path.rglob("*.pdf")]


@pytest.mark.parametrize(
    ("content", "status"), [(b"", "no evaluation yet"), (b'{"round": 1}\n', "line 1 (has no 'test_loss') left out")]
)
def test_a_run_without_an_evaluation_is_a_page_that_says_so(page, tmp_path, content, status):
    folder = write_run(tmp_path / "run", [0.1])
    (folder / metrics_file.METRICS).write_bytes(content)
    shown = page(folder).shown
    assert "none has been evaluated" in shown
    assert status in shown


def test_a_run_with_neither_its_metric_nor_the_loss_has_no_evaluation(page, tmp_path):
    folder = write_run(tmp_path / "run", [0.1])
    criterion = {"name": "f1", "higher_is_better": True, "is_share": True}
    (folder / environment.ENVIRONMENT).write_text(json.dumps({"criterion": criterion}))
    (folder / metrics_file.METRICS).write_text('{"round": 1, "test_accuracy": 0.5}\n')
    assert "line 1 (has no 'test_loss') left out" in page(folder).shown


def test_a_target_of_a_loss_is_finite(page, tmp_path):
    folder = write_run(tmp_path / "run", [0.1])
    criterion = {"name": "loss", "higher_is_better": False, "is_share": False}
    (folder / environment.ENVIRONMENT).write_text(json.dumps({"criterion": criterion}))
    with pytest.raises(ValueError, match=r"^target=nan: must be in \(-inf, inf\)$"):
        page(folder, target=float("nan"))


def test_command_writes_the_page_of_a_real_run_into_its_folder(command, finished, tmp_path):
    folder, result = finished
    out = tmp_path / "real.html"
    told = command("report", folder, "-o", out)
    assert told.exit_code == 0, told.output
    assert told.stdout.strip() == str(out)
    found = Page(out)
    line = found.chart("test accuracy")["data"][-1]
    assert line["x"] == result.history["round"].tolist()
    np.testing.assert_allclose(line["y"], result.history["test_accuracy"], rtol=1e-4)  # five digits are written
    assert "degree of divergence (DoD)" in found.shown
    (policy,) = [a["content"] for _, a in found.tags if a.get("http-equiv") == "Content-Security-Policy"]
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in found.scripts]
    assert re.findall(r"'sha256-(.*?)'", policy) == digests
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
