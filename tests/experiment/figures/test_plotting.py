import dataclasses
import itertools
import json

import numpy as np
import pytest
from matplotlib import image
from omegaconf import OmegaConf

from fedjax_drag.experiment.build.experiment import load, variants
from fedjax_drag.experiment.figures import plotting
from fedjax_drag.experiment.figures.labels import shared
from fedjax_drag.experiment.figures.series import given_labels
from fedjax_drag.experiment.run import metrics_file, results
from fedjax_drag.experiment.run.metrics_file import METRICS
from fedjax_drag.experiment.sweep import sweep_folder
from fedjax_drag.experiment.sweep.grid import load_grid


@pytest.fixture
def write(tiny, tmp_path):
    """Makes a results folder with given accuracies, without running anything."""

    def make(folder, *overrides, accuracies=(0.1, 0.5, 0.7)):
        folder = tmp_path / folder
        folder.mkdir(parents=True)
        config = load(tiny, overrides)
        OmegaConf.save(OmegaConf.create(config.to_mapping()), folder / results.CONFIG)
        rewrite(folder, round=[10 * (index + 1) for index in range(len(accuracies))], test_accuracy=accuracies)
        return folder

    return make


def labels(figure):
    (axes,) = figure.axes
    return [text.get_text().split("  ")[0] for text in axes.texts]


def draw(*folders, **options):
    return plotting.draw([run for folder in folders for run in results.read(folder)], **options)


def test_image_is_readable_and_not_blank(write, tmp_path):
    path = plotting.plot([write("a")], tmp_path / "a.png")
    pixels = image.imread(path)
    assert pixels.shape[0] > 600
    assert pixels.shape[1] > 1000
    assert len(np.unique(pixels.reshape(-1, pixels.shape[-1]), axis=0)) > 50


@pytest.mark.sample(1)
@pytest.mark.parametrize(("suffix", "start"), [(".png", b"\x89PNG"), (".pdf", b"%PDF"), (".svg", b"<?xml")])
def test_format_follows_the_suffix(write, tmp_path, suffix, start):
    assert plotting.plot([write("a")], tmp_path / f"a{suffix}").read_bytes().startswith(start)


def test_percent_labels_say_where_their_ticks_are(write):
    """Matplotlib puts ticks of a narrow range at 87.5 %, which is neither 87 nor 88."""
    figure = draw(write("narrow", accuracies=(0.8, 0.86, 0.9)))
    (axes,) = figure.axes
    ticks = axes.get_yticks()
    assert any(tick * 100 % 1 > 0.1 for tick in ticks.round(6))
    shown = axes.yaxis.get_major_formatter().format_ticks(ticks)
    assert [float(label.removesuffix("%")) / 100 for label in shown] == pytest.approx(ticks)


def test_runs_that_differ_by_seed_share_a_line_and_a_band(write):
    folders = [write(f"s{seed}", f"seed={seed}", accuracies=(0.1, 0.2 + 0.1 * seed)) for seed in range(3)]
    figure = draw(*folders, write("other", "aggregator=fedavg", "name=FedAvg"))
    assert labels(figure) == ["tiny", "FedAvg"]
    (axes,) = figure.axes
    assert len(axes.collections) == 1, "one band"
    band = axes.collections[0].get_paths()[0].vertices
    assert (band[:, 1].min(), band[:, 1].max()) == pytest.approx((0.1, 0.4))
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [0.1, 0.3])
    assert any("mean over up to 3 seeds; band: minimum to maximum" in text.get_text() for text in figure.texts)


def test_a_line_that_a_seed_cuts_short_says_so(write):
    """One seed has diverged, or is not that far yet: the evaluations of the others after it are not shown."""
    folders = [write(f"s{seed}", f"seed={seed}", accuracies=(0.1, 0.5, 0.7)[: 3 - seed]) for seed in range(2)]
    figure = draw(*folders)
    np.testing.assert_allclose(figure.axes[0].lines[0].get_ydata(), [0.1, 0.5])
    note = "line: mean over 2 seeds, up to the round that all of them have reached; band: minimum to maximum"
    assert note in [text.get_text() for text in figure.texts]


def test_runs_of_one_name_are_told_apart_by_what_differs(write):
    figure = draw(write("a"), write("b", "aggregator.c=0.5"), write("c", "aggregator=fedavg"))
    assert labels(figure) == ["drag, c=0.25", "drag, c=0.5", "fedavg"]


def test_title_says_what_all_runs_share(write):
    common = ("data=fashion_mnist", "attack=sign_flip", "byzantine_fraction=0.3")
    text = " ".join(t.get_text() for t in draw(write("a", *common), write("b", *common, "batch_size=5")).texts)
    assert "Fashion-MNIST" in text
    assert "8 clients" in text
    assert "IID" in text
    assert "30% malicious clients (sign flip)" in text
    assert "batch" not in text, "the runs differ in it"


def test_title_says_no_number_that_the_data_decide(write):
    split = "partition={name: natural, num_clients: null}"
    text = " ".join(t.get_text() for t in draw(write("a", "data=shakespeare", split)).texts)
    assert "natural split" in text
    assert "clients" not in text


def test_comparison_is_expanded_in_its_order(write, tmp_path, tiny):
    compare = load(tiny | {"compare": {"Zeta": {}, "Alpha": {}}})
    (tmp_path / "top").mkdir()
    OmegaConf.save(OmegaConf.create(compare.to_mapping()), tmp_path / "top" / results.CONFIG)
    for label in variants(compare):
        write(f"top/{results.slug(label)}", f"name={label}")
    assert labels(draw(tmp_path / "top")) == ["Zeta", "Alpha"]


def test_sweep_is_expanded_in_its_order(write, tmp_path, tiny):
    grid = load_grid(tiny | {"axes": {"aggregator": ["median", "fedavg", "krum"], "seed": [0, 1]}})
    (tmp_path / "top").mkdir()
    OmegaConf.save(OmegaConf.create(grid.to_mapping()), tmp_path / "top" / sweep_folder.CONFIG)
    with pytest.raises(ValueError, match=r"'.*top': no cell of this sweep has begun"):
        plotting.plot([tmp_path / "top"], tmp_path / "a.png")
    for point in grid.points[:4]:  # the other two have not begun
        write(f"top/{sweep_folder.CELLS}/{point.folder}", *(f"{key}={value}" for key, value in point.values.items()))
    drawn = plotting.read(tmp_path / "top")
    assert [(run.config.aggregator.name, run.config.seed) for run in drawn] == list(
        itertools.product(("median", "fedavg"), (0, 1))
    )
    figure = plotting.draw(drawn)
    assert len(figure.axes[0].collections) == 2, "a band over the seeds of each rule"


def test_labels_do_not_overlap(write):
    figure = draw(*[write(f"r{n}", f"name=run {n}", accuracies=(0.1, 0.5 + 0.001 * n)) for n in range(6)])
    (axes,) = figure.axes
    boxes = sorted((text.get_window_extent() for text in axes.texts), key=lambda box: box.y0)
    assert all(low.y1 <= high.y0 + 1 for low, high in itertools.pairwise(boxes))
    assert all(box.x1 <= figure.get_tightbbox().x1 * figure.dpi for box in boxes)


@pytest.mark.thorough
def test_eight_runs_have_their_names_below_and_the_axes_their_room(write):
    rules = ("fedavg", "drag", "geometric_median", "median")
    runs = [(rule, attack) for rule in rules for attack in ("sign_flip", "alie")]
    adversary = "byzantine_fraction=0.25"
    figure = draw(*[write(f"r{i}", f"aggregator={r}", f"attack={a}", adversary) for i, (r, a) in enumerate(runs)])
    (axes,) = figure.axes
    legend = axes.get_legend()
    assert [text.get_text().split("  ")[0] for text in legend.get_texts()] == [f"{r}, {a}" for r, a in runs]
    assert not axes.texts
    assert len(axes.lines) == 8
    assert axes.get_position().width > 0.8
    box, below = legend.get_window_extent(), axes.get_window_extent()
    assert 0 <= box.x0 < box.x1 <= figure.bbox.x1
    assert box.y1 < below.y0
    assert below.height > 0.6 * 4.8 * figure.dpi


def test_metric_is_any_column_with_one_number_for_each_evaluation(write, tmp_path, capsys):
    a, b = write("a"), write("b", "aggregator=fedavg")
    rewrite(a, round=[10, 20, 40], test_accuracy=[0.5] * 3, train_loss=[0.1, 0.01, 0.0001], weight=[[0.5, 0.5]] * 3)
    plotting.plot([a, b], tmp_path / "a.png", metric="train_loss")
    assert f"{str(b)!r}: has no train_loss" in capsys.readouterr().err
    (axes,) = draw(a, metric="train_loss").axes
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [0.1, 0.01, 0.0001])
    assert (axes.get_ylabel(), axes.get_yscale()) == ("Training loss", "log")
    for wrong in ("weight", "round", "loss"):
        with pytest.raises(ValueError, match=f"metric='{wrong}': must be one of test_accuracy, test_loss, train_loss$"):
            plotting.plot([a, b], tmp_path / "wrong.png", metric=wrong)
    assert not (tmp_path / "wrong.png").exists()


def rewrite(folder, **columns):
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    rows = [{"test_loss": 1.0} | row for row in rows]
    (folder / METRICS).write_bytes(b"".join(map(metrics_file.line_of, rows)))


def test_costs_are_added_up_along_the_horizontal_axis(write):
    folders = [write("a"), write("b", "aggregator=fedavg")]
    rewrite(folders[0], round=[1, 3], test_accuracy=[0.2, 0.4], bytes_up=[1e6, 2e6])
    rewrite(folders[1], round=[1, 3], test_accuracy=[0.3, 0.5], bytes_up=[1e3, 2e3])
    figure = draw(*folders, against="bytes_up")
    (axes,) = figure.axes
    np.testing.assert_array_equal(axes.lines[0].get_xdata(), [1e6, 3e6])
    np.testing.assert_array_equal(axes.lines[1].get_xdata(), [1e3, 3e3])
    assert (axes.get_xlabel(), axes.get_xscale()) == ("Bytes sent by clients", "log")
    assert axes.xaxis.get_major_formatter()(3e6) == "3 MB"
    assert len(axes.get_legend().get_texts()) == 2, (
        "names beside the right edge would be far from the end of the second line"
    )
    assert len(axes.lines) == 2


def test_half_a_second_is_500_ms(write):
    folder = write("a")
    rewrite(folder, round=[1, 2], test_accuracy=[0.2, 0.4], seconds=[0.25, 0.25])
    (axes,) = draw(folder, against="seconds").axes
    assert axes.xaxis.get_major_formatter()(0.5) == "500 ms"


def test_a_line_without_bound_on_its_cost_is_level(write):
    spent, unbounded = write("a"), write("b", "aggregator=fedavg")
    rewrite(spent, round=[1, 2, 3], test_accuracy=[0.2, 0.4, 0.6], epsilon=[1.0, 1.5, 2.0])
    rewrite(unbounded, round=[1, 2, 3], test_accuracy=[0.3, 0.5, 0.7], epsilon=[np.inf] * 3)
    (axes,) = draw(spent, unbounded, against="epsilon").axes
    np.testing.assert_array_equal(axes.lines[0].get_xdata(), [1.0, 1.5, 2.0])
    np.testing.assert_array_equal(axes.lines[1].get_ydata(), [0.7, 0.7])
    assert axes.get_xlim() == (1.0, 2.0)
    assert axes.get_xlabel() == "Epsilon spent"
    starts = [line.get_xdata()[0] for line in axes.lines[2:]]  # of the lines that lead to the names
    assert starts == [pytest.approx(1.003)] * 2


def test_what_is_negative_has_its_place_on_the_horizontal_axis(write):
    folder = write("a")
    rewrite(folder, round=[1, 2, 3], test_accuracy=[0.2, 0.4, 0.6], cosine_to_benign=[-0.5, -0.25, 0.75])
    (axes,) = draw(folder, against="cosine_to_benign").axes
    assert axes.get_xlim() == (-0.5, 0.75)


def test_what_it_is_drawn_against_is_a_column(write, tmp_path, capsys):
    a, b = write("a"), write("b", "aggregator=fedavg")
    rewrite(b, round=[1, 2], test_accuracy=[0.3, 0.5], bytes_up=[10, 20])
    plotting.plot([a, b], tmp_path / "a.png", against="bytes_up")
    assert f"{str(a)!r}: has no bytes_up" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"against='bytes': must be one of bytes_up, round, test_accuracy, test_loss$"):
        draw(a, b, against="bytes")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["A", "B", "c=1"], ["A", "B", "c=1"]),
        (["{folder}/one=A"], None),
        (["A={folder}/one/", "B", "C"], ["A", "B", "C"]),
        (["B={folder}/two"], ["drag", "B", "median"]),
    ],
)
def test_labels_are_given_in_order_or_for_a_folder(write, tmp_path, given, told):
    folders = [write("one"), write("two", "aggregator=fedavg"), write("three", "aggregator=median")]
    names = [label.format(folder=tmp_path) for label in given]
    if told is None:
        with pytest.raises(ValueError, match=r"must be LABEL=DIR, or one for each of the 3 runs"):
            given_labels(names, folders)
    else:
        assert labels(draw(*folders, given=given_labels(names, folders))) == told


def test_a_label_of_one_seed_is_that_of_the_line(write):
    folders = [write(f"s{seed}", f"seed={seed}") for seed in range(3)]
    assert labels(draw(*folders, given=["ours", None, None], title="Mine")) == ["ours"]
    assert labels(draw(*folders, given=["ours", "theirs", "ours"])) == ["ours", "theirs"]


def test_title_is_what_was_asked_for(write):
    assert draw(write("a"), title="Mine").texts[0].get_text() == "Mine"


@pytest.mark.thorough
def test_strange_labels_and_values_are_drawn(write, tmp_path):
    folders = [
        write("a", "name='$x_{ \\frac$ <b>'"),
        write("b", "name=" + "very " * 40),
        write("c", "name=diverged", accuracies=(0.1, float("nan"), float("nan"))),
        write("d", "name=one", accuracies=(0.4,)),
    ]
    assert plotting.plot(folders, tmp_path / "a.png").exists()


def test_other_suffix_and_no_runs(write, tmp_path):
    with pytest.raises(ValueError, match=r"must end in \.png, \.pdf, \.svg"):
        plotting.plot([write("a")], tmp_path / "a.jpeg")
    with pytest.raises(ValueError, match="at least one"):
        plotting.plot([], tmp_path / "a.png")


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON"),
        ("[1, 2]", "must be a JSON object"),
        ('{"round": 20, "test_accuracy": 0.5}', "has no 'test_loss'"),
        ('{"round": "x", "test_loss": 1, "test_accuracy": 0.5}', "must be a round number"),
        ('{"round": true, "test_loss": 1, "test_accuracy": 0.5}', "must be a round number"),
        ('{"round": 1e999, "test_loss": 1, "test_accuracy": 0.5}', "must be a round number"),
        ('{"round": 20, "test_loss": 1, "test_accuracy": "high"}', "'test_accuracy' must be a number"),
        ('{"round": 20, "test_loss": 1, "test_accuracy": {"a": 1}}', "'test_accuracy' must be a number"),
        ('{"round": 20, "test_loss": 1, "test_accuracy": [0.5]}', "its entries differ"),
        ('{"round": 20, "test_loss": 1, "test_accuracy": [0.5, [1]]}', "line 2"),
        ('{"round": 20, "test_loss": 1, "test_accuracy": 0.5, "more": 1}', "its entries differ"),
        ('{"round": 10, "test_loss": 1, "test_accuracy": 0.5}', "out of order: round 10"),
        ('{"round": 20, "test_loss": 1, "test_accuracy": NaN}', "NaN is not JSON"),
        ('{"round": 20, "test_loss": 1, "test_accuracy": ' + "[" * 100_000, "nested too deeply"),
        ('{"round": 20, "test_loss": 1, "test_accuracy": ' + "9" * 5000 + "}", "line 2"),
        ('{"round": 20, "test_loss": 1, "test_accuracy": ' + "9" * 400 + "}", "line 2"),
        ("\x00\ufffd", "not JSON"),
    ],
)
def test_malformed_line_is_named_and_costs_no_other(write, tmp_path, line, message, capsys):
    folder = write("a", accuracies=(0.1,))
    with (folder / METRICS).open("a") as stream:
        stream.write(f'{line}\n{{"round": 30, "test_loss": 1, "test_accuracy": 0.5}}\n')
    assert plotting.plot([folder], tmp_path / "a.png").is_file()
    (note,) = capsys.readouterr().err.splitlines()
    assert f"{str(folder / METRICS)!r}: line 2 (" in note
    assert message in note
    (run,) = results.read(folder)
    assert run.history["round"].tolist() == [10, 30]
    assert run.history["test_accuracy"].tolist() == [0.1, 0.5]


@pytest.mark.parametrize("step", ["fast", [1], 0.5])
def test_a_time_of_a_step_that_says_nothing_is_passed_over(write, step):
    folder = write("a")
    figures = {"rounds": 3, "seconds": 1.0, "interrupted": False, "seconds_per_local_step": step}
    (folder / results.SUMMARY).write_text(json.dumps(figures))
    (run,) = results.read(folder)
    assert run.history["round"].size
    assert "client_seconds" not in run.history


def test_lines_whose_round_does_not_follow_are_named(write):
    folder = write("a", accuracies=(0.1, 0.2, 0.3, 0.4))
    text = (folder / METRICS).read_text()
    (folder / METRICS).write_text(text.replace('"round": 20', '"round": 35'))
    (run,) = results.read(folder)
    assert run.history["round"].tolist() == [10, 35, 40]
    assert "line 3 (out of order: round 30)" in run.note


def test_incomplete_folders(write, tmp_path, capsys):
    folder = write("a", accuracies=())
    for content in (b"", b"\n", b'{"round": 10, "test_acc', None):
        if content is None:
            (folder / METRICS).unlink()
        else:
            (folder / METRICS).write_bytes(content)
        assert plotting.plot([folder], tmp_path / "a.png").is_file()
        assert capsys.readouterr().err == f"{str(folder)!r}: no evaluation yet\n"
    assert labels(draw(folder, write("begun"))) == ["tiny"]
    (folder / results.CONFIG).unlink()
    with pytest.raises(FileNotFoundError, match=r"it has no config\.yaml"):
        plotting.plot([folder], tmp_path / "a.png")
    with pytest.raises(FileNotFoundError, match="no such results folder"):
        plotting.plot([tmp_path / "none"], tmp_path / "a.png")
    bad = write("b")
    (bad / results.CONFIG).write_text("rounds: [")
    with pytest.raises(ValueError, match=r"config\.yaml"):
        plotting.plot([bad], tmp_path / "a.png")


def test_seeds_without_a_common_round(write, tmp_path):
    a, b = write("a"), write("b", "seed=1")
    (b / METRICS).write_text('{"round": 11, "test_accuracy": 0.5, "test_loss": 1.0}\n')
    with pytest.raises(ValueError, match="no evaluation in a round"):
        plotting.plot([a, b], tmp_path / "a.png")


def test_numbers_read_back_equal():
    values = np.random.default_rng(0).normal(size=100).astype(np.float32)
    metrics = {"round": 1, "test_accuracy": np.float32(0.1), "test_loss": 1.0}
    line = metrics_file.line_of(metrics | {"v": values, "n": np.int32(3)})
    history = metrics_file.parse(line).history
    np.testing.assert_array_equal(history["v"][0].astype(np.float32), values)
    assert b'"test_accuracy": 0.1,' in line


def test_not_a_number_is_null():
    line = metrics_file.line_of({"round": 1, "test_loss": np.float32(np.nan), "v": [np.inf, 1.0]})
    assert line == b'{"round": 1, "test_loss": null, "v": [null, 1.0]}\n'
    assert np.isnan(metrics_file.parse(line).history["test_loss"]).all()


def test_a_single_run_is_titled_by_its_method(write):
    folder = write("a")
    (run,) = results.read(folder)
    scaffold = dataclasses.replace(run, config=load(run.config, ["algorithm=scaffold"]))
    assert "of drag on" in plotting.draw([run]).texts[0].get_text()
    assert "of scaffold on" in plotting.draw([scaffold]).texts[0].get_text()


def test_what_all_runs_share_is_told_in_words(tiny):
    config = load(tiny, ["partition={name: dirichlet, num_clients: 8, beta: 0.1, balanced: true}", "batch_size=full"])
    assert "balanced Dirichlet(0.1) split" in shared([config])
    assert "full batches" in shared([config])
    assert "   Dirichlet(0.1) split" in shared([load(config, ["partition.balanced=false"])])
