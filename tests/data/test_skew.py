import threading

import matplotlib.image
import numpy as np
import pytest

from fedjax_drag.data import SkewReport, from_arrays, load, partition


def test_counts_are_those_of_the_clients():
    fed = partition.dirichlet(load("digits"), 9, 0.3)
    report = fed.skew_report()
    for client, (row, count) in enumerate(zip(fed.rows, fed.counts, strict=True)):
        labels = fed.train.y[row[:count]]
        np.testing.assert_array_equal(report.counts[client], np.bincount(labels, minlength=10))
        assert report.classes_per_client[client] == len(set(labels.tolist()))
    np.testing.assert_array_equal(report.sizes, fed.counts)


def test_classes_without_examples_have_columns():
    x, y = np.zeros((4, 1)), np.array([0, 1, 0, 1])
    fed = partition.iid(from_arrays(x, y, x, y, num_classes=5), 2)
    assert fed.skew_report().counts.shape == (2, 5)


def test_table():
    text = str(SkewReport(np.array([[3, 0, 12], [1, 1, 1]]), "mine, by hand"))
    assert text.splitlines() == [
        "mine, by hand",
        "2 clients, 18 examples, 3 classes",
        "",
        "                     min  median  max",
        "examples per client    3       9   15",
        "classes per client     2     2.5    3",
        "",
        "client  size  0  1   2",
        "0         15  3  .  12",
        "1          3  1  1   1",
    ]


def test_long_and_wide_tables_are_abbreviated():
    text = str(SkewReport(np.full((1000, 100), 7)))
    lines = text.splitlines()
    assert len(lines) < 30
    assert max(map(len, lines)) < 80
    assert lines[6].split()[-1] == "99"
    assert lines[-1].split()[0] == "999"
    assert any(line.startswith("...") for line in lines)


@pytest.mark.sample(1)
@pytest.mark.parametrize("shape", [(1, 1), (3, 10), (40, 10), (500, 62)])
def test_plot_draws_a_figure(tmp_path, shape):
    counts = np.random.default_rng(0).poisson(3.0, shape) + np.eye(*shape, dtype=int)
    path = tmp_path / "skew.png"
    SkewReport(counts, "a title").plot(path)
    assert matplotlib.image.imread(path).std() > 0


def test_plot_works_outside_the_main_thread_and_as_pdf(tmp_path):
    report = SkewReport(np.array([[3, 0], [1, 1]]))
    thread = threading.Thread(target=report.plot, args=(str(tmp_path / "skew.pdf"),))
    thread.start()
    thread.join()
    assert (tmp_path / "skew.pdf").read_bytes().startswith(b"%PDF")


def test_a_data_set_without_clients_has_no_skew():
    with pytest.raises(ValueError, match="digits: not yet split among clients"):
        load("digits").skew_report()
