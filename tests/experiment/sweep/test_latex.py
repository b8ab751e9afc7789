"""Final figures of a sweep as a LaTeX table and as a table of pandas."""

import io
import shutil
import subprocess
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from fedjax_drag.experiment.sweep import outcome_table
from fedjax_drag.experiment.sweep.latex import latex
from fedjax_drag.experiment.sweep.outcome_table import Cell
from fedjax_drag.experiment.sweep.sweep import Sweep

FINAL = {("fed_avg", "alie"): [0.5, 0.6], ("fed_avg", "none"): [0.9, 0.8], ("krum", "alie"): [0.62, 0.64]}


def cell(rule, attack, seed, accuracy, status="done"):
    history = {"round": [1, 3], "test_accuracy": np.float32([0.7, accuracy]), "test_loss": [1.0, 1 - accuracy]}
    history = {name: np.asarray(x) for name, x in history.items()} if status == "done" else {}
    return Cell({"aggregator": rule, "attack": attack, "seed": seed}, status, "" if status == "done" else "no", history)


CELLS = (
    *(cell(*setting, seed, x) for setting, found in FINAL.items() for seed, x in enumerate(found)),
    cell("krum", "none", 0, 0.84),
    cell("krum", "none", 1, 0.0, "failed"),
)

TABLE = r"""% test accuracy in % at the end of the run, mean over 2 seeds and 95% interval; needs booktabs
\begin{tabular}{lrr}
\toprule
aggregator & alie & attack=none \\
\midrule
fed\_avg & $\underline{55.0 \pm 63.5}$ & $\mathbf{85.0 \pm 63.5}$ \\
krum & $\mathbf{63.0 \pm 12.7}$ & $\underline{84.0}^{*}$ \\
\bottomrule
\end{tabular}
"""


def test_means_intervals_bold_and_ties():
    half = stats.t.ppf(0.975, 1) * np.std([50, 60], ddof=1) / np.sqrt(2)
    assert f"{half:.1f}" == "63.5"
    assert latex(CELLS, ties=True) == TABLE
    assert r"\underline" not in latex(CELLS)


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex and booktabs")
def test_tables_are_typeset(tmp_path):
    special = cell(r"a&b%c$d#e{f}g~h^i\j_k", "alie", 0, 0.7)
    shapes = [{"ties": True}, {"rows": ["aggregator", "attack"]}, {"columns": ["aggregator", "attack"]}]
    head = [r"\documentclass{article}", r"\usepackage{booktabs}", r"\begin{document}"]
    tables = [latex([*CELLS, special], **shape) for shape in shapes]
    text = "\n".join([*head, *tables, r"\end{document}"])
    (tmp_path / "tables.tex").write_text(text)
    words = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "tables.tex"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "Output written on tables.pdf (1 page" in done.stdout.replace("\n", "")


def test_rows_and_columns_are_axes_and_a_loss_is_best_where_it_is_low():
    lines = latex(CELLS, rows=["aggregator", "attack"], metric="test_loss").splitlines()
    assert lines[0].startswith("% test loss at the end")
    assert lines[3] == r"aggregator & attack & test loss \\"
    assert [line.split(" & ")[:2] for line in lines[5:9]] == [
        [a, b] for a in (r"fed\_avg", "krum") for b in ("alie", "none")
    ]
    assert lines[5].endswith(r"& $0.45 \pm 0.6353$ \\")
    assert lines[6].endswith(r"& $\mathbf{0.15 \pm 0.6353}$ \\")
    head = latex(CELLS, columns=["aggregator", "attack"]).splitlines()[3:5]
    assert head == [
        r"\multicolumn{2}{c}{fed\_avg} & \multicolumn{2}{c}{krum} \\",
        r"alie & attack=none & alie & attack=none \\",
    ]


@pytest.mark.parametrize(
    "metric",
    [
        *("test_calibration_error", "output_perplexity", "own_f1_std", "attack_success_rate", "bytes_up"),
        *("own_loss_mean", "client_seconds"),
    ],
)
def test_the_lowest_is_bold_where_less_is_better(metric):
    cells = [Cell({"aggregator": x}, "done", "", {"test_accuracy": np.ones(1), metric: np.array([x])}) for x in (1, 2)]
    marked = [line for line in latex(cells, metric=metric).splitlines() if "mathbf" in line]
    assert [line.split()[0] for line in marked] == ["1"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": ["attak"]}, "rows='attak': must be one of aggregator, attack"),
        ({"metric": "test_f1"}, "metric='test_f1': must be one of round, test_accuracy, test_loss"),
        ({"rows": ["attack"], "columns": ["attack"]}, "must have each of"),
        ({"rows": "attack"}, "^rows='attack': must be a list$"),
        ({"columns": ["seed"]}, "must be one of aggregator, attack; the seeds are averaged over$"),
    ],
)
def test_wrong_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        latex(CELLS, **options)


def test_a_sweep_over_seeds_alone_has_no_axis_for_rows():
    cells = [Cell({"seed": one.values["seed"]}, one.status, "", one.history) for one in CELLS[:2]]
    assert "55.0" in latex(cells)
    with pytest.raises(ValueError, match=r"^rows='seed': must be left out; the seeds are averaged over$"):
        latex(cells, rows=["seed"])


def test_a_metric_that_some_methods_have_is_a_dash_for_the_others():
    plain, own = cell("fedavg", "alie", 0, 0.5), cell("ditto", "alie", 0, 0.5)
    own.history["own_accuracy_mean"] = np.array([0.7, 0.8])
    for cells in ([plain, own], [own, plain]):
        table = latex(cells, metric="own_accuracy_mean")
        assert r"fedavg & $\textrm{--}$ \\" in table
        assert r"ditto & $\mathbf{80.0}$ \\" in table


def test_costs_that_count_since_the_evaluation_before_are_added_up():
    pytest.importorskip("pandas", reason="needs pandas")
    cells = [cell("fedavg", "alie", seed, 0.5) for seed in (0, 1)]
    for one in cells:
        one.history["bytes_up"] = np.array([100, 300])
    assert r"fedavg & $\mathbf{400 \pm 0}$ \\" in latex(cells, metric="bytes_up")
    cells.append(cell("krum", "alie", 0, 0.0, "failed"))
    table = outcome_table.table(SimpleNamespace(axes=list(cells[0].values)), cells)
    final = Sweep(tuple(cells), table, {}).to_pandas()
    np.testing.assert_array_equal(final["bytes_up"], [400, 400, np.nan])
    np.testing.assert_array_equal(final["round"], [3, 3, np.nan])


def test_large_and_small_figures_have_powers_of_ten():
    cells = [cell("fedavg", "alie", seed, 0.5) for seed in (0, 1)]
    for one, value in zip(cells, (1.0e6, 1.4e6), strict=True):
        one.history.update(bytes_up=np.array([0, value]), own=np.array([1.0, 1e-6 * value / 1e6]))
    assert r"fedavg & $\mathbf{1.2 \cdot 10^{6} \pm 2.541 \cdot 10^{6}}$ \\" in latex(cells, metric="bytes_up")
    assert r"fedavg & $\mathbf{1.2 \cdot 10^{-6} \pm 2.541 \cdot 10^{-6}}$ \\" in latex(cells, metric="own")


def test_a_sweep_without_results_has_no_table():
    with pytest.raises(ValueError, match="no cell of this sweep has come to an end"):
        latex(CELLS[-1:])


def test_a_table_of_pandas_has_a_row_for_each_cell():
    pandas = pytest.importorskip("pandas", reason="needs pandas")
    table = outcome_table.table(SimpleNamespace(axes=list(CELLS[0].values)), CELLS)
    result = Sweep(CELLS, table, {})
    read = pandas.read_csv(io.StringIO(outcome_table.to_csv(table)), keep_default_na=False, na_values=[""])
    pandas.testing.assert_frame_equal(
        result.to_pandas(histories=True).drop(columns="message"), read.drop(columns="message"), check_dtype=False
    )
    cells = result.to_pandas()
    expected = [[*one.values.values(), one.status] for one in CELLS]
    assert cells[["aggregator", "attack", "seed", "status"]].to_numpy().tolist() == expected
    finals = np.array([x for found in FINAL.values() for x in found] + [0.84, np.nan])
    np.testing.assert_allclose(cells["test_accuracy"], finals)
    np.testing.assert_allclose(cells["best_test_accuracy"], np.maximum(finals, 0.7))
    assert cells["best_round"].tolist()[:-1] == [1, 1, 3, 3, 1, 1, 3]
