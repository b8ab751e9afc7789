"""Arenas by other criteria than accuracy, also where lower is better: choices, worst cases, ranks, tables, page."""

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest
from reports import Page
from standings import ARENA, standing

import fedjax_drag as fd
from fedjax_drag.experiment.arena import figures, page, requirements, tables
from fedjax_drag.experiment.arena.changes import changes
from fedjax_drag.experiment.arena.scores import score, withstood
from fedjax_drag.experiment.arena.trials import Trials, choose, criterion_of, mean_over_seeds
from fedjax_drag.experiment.sweep import sweep as sweeping
from fedjax_drag.experiment.sweep.outcome_table import Cell
from fedjax_drag.simulation.criterion import ACCURACY, LOSS, Criterion

PERPLEXITY = Criterion("perplexity", higher_is_better=False, is_share=False)
ERROR = Criterion("calibration_error", higher_is_better=False)
FIELDS = {"name": "perplexity", "higher_is_better": False, "is_share": False}
DASH = "-"


def protocol(metric, *metrics, **changes):
    return ARENA | {"base": ARENA["base"] | {"metrics": list(metrics), "metric": metric}} | changes


def entry(*worst, clean=10.0):
    """One task: without an attack, and these figures by seed with one."""
    return np.array([[[clean] * len(worst), worst]])


def test_the_worst_is_the_highest_where_lower_is_better():
    rows = {
        "far": entry(30.0, 31.0, 32.0),
        "near": entry(12.0, 13.0, 11.0),
        "like it": entry(12.1, 12.8, 11.2),
        "helped": entry(9.0, 8.0, 7.0),
    }
    found = score(rows, PERPLEXITY)
    assert list(found) == ["helped", "near", "like it", "far"]
    assert [one.worst.mean for one in found.values()] == pytest.approx([10.0, 12.0, 36.1 / 3, 31.0])
    assert [(one.rank, one.last_rank) for one in found.values()] == [(1, 2), (1, 3), (2, 3), (4, 4)]
    # The negative of a criterion, of which more is better, has the same places, ranks and intervals.
    turned = score({label: -x for label, x in rows.items()}, Criterion("r2", is_share=False))
    assert [(label, one.ranks, one.worst.half) for label, one in turned.items()] == [
        (label, one.ranks, one.worst.half) for label, one in found.items()
    ]


def test_no_figure_is_worse_than_any():
    found = score(
        {
            "never": entry(np.nan, np.nan, np.nan),
            "once": entry(11.0, np.nan, 11.0),
            "far": entry(1e9, 1.1e9, 1e9),
            "near": entry(12.0, 13.0, 11.0),
        },
        PERPLEXITY,
    )
    assert list(found) == ["near", "far", "never", "once"]
    ranks = {label: (one.rank, one.last_rank) for label, one in found.items()}
    assert ranks == {"near": (1, 2), "far": (2, 3), "once": (1, 4), "never": (3, 4)}
    assert np.isnan(found["once"].worst.mean)
    one_seed = score({"never": entry(np.nan), "near": entry(12.0)}, PERPLEXITY)
    assert {one.ranks for one in one_seed.values()} == {"1\N{EN DASH}2"}


@pytest.mark.parametrize(
    ("by", "clean", "held", "lost"),
    [(ACCURACY, 0.5, 0.46, 0.44), (PERPLEXITY, 10.0, 10.9, 11.1), (Criterion("r2", is_share=False), -1.0, -1.05, -1.2)],
)
def test_an_attack_is_withstood_that_takes_at_most_a_tenth(by, clean, held, lost):
    table = np.array([[[clean] * 2, [held] * 2, [lost] * 2, [clean, np.nan]]])
    assert withstood(table, by).tolist() == [True, False, False]


@pytest.mark.parametrize("seed", range(5))
def test_the_choice_has_the_lowest_worst_case(seed):
    """By brute force; some strengths make runs fail."""
    rng = np.random.default_rng(seed)
    values = [rng.integers(1, 9, (3, strengths, 2)).astype(float) for strengths in (1, 2)]
    values[1][rng.random(values[1].shape) < 0.2] = np.nan
    for task, chosen in enumerate(choose(values, PERPLEXITY)):
        of = [[[np.nan_to_num(x, nan=np.inf) for x in against[one, :, task]] for against in values] for one in range(3)]
        worst = [max(x for against in setting for x in against) for setting in of]
        assert chosen.setting == worst.index(min(worst))
        assert np.nan_to_num(chosen.worst_case, nan=np.inf) == min(worst)
        assert chosen.strengths == [against.index(max(against)) for against in of[chosen.setting]]


@pytest.mark.parametrize(("by", "failed"), [(ERROR, 1.0), (PERPLEXITY, np.nan), (Criterion("f1"), 0.0)])
def test_a_run_that_failed_has_the_worst_figure(by, failed):
    history = {f"validation_{by.name}": np.float32([0.5, 0.25])}
    infinite = {f"validation_{by.name}": np.float32([0.5, np.inf])}
    cells = [
        Cell({}, "done", "", history),
        Cell({}, "diverged", "", history),
        Cell({}, "failed", "no memory", {}),
        Cell({}, "done", "", infinite),
    ]
    found = [mean_over_seeds(np.array([[cell]], object), by).item() for cell in cells]
    np.testing.assert_array_equal(found, [0.25, failed, failed, failed])


@pytest.mark.parametrize(
    ("base", "criterion"),
    [
        ({}, ACCURACY),
        ({"metric": "loss"}, LOSS),
        ({"metrics": ["f1", "perplexity"]}, Criterion("f1")),
        ({"metrics": ["f1", "perplexity"], "metric": "perplexity"}, PERPLEXITY),
        ({"loss": "mse", "metrics": []}, LOSS),
    ],
)
def test_an_arena_compares_what_its_runs_choose_by(base, criterion):
    arena = fd.arena.load(ARENA | {"base": ARENA["base"] | base})
    assert criterion_of(Trials().config(arena, arena.entries[0])) == criterion


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (protocol("r2", "f1"), "metric='r2': must be one of f1, loss"),
        (ARENA | {"base": ARENA["base"] | {"loss": "mse"}}, "base.metric=None: must be given beside another loss"),
        (protocol(None, "f1", tasks={"metric": ["f1", "loss"]}), "tasks: are compared by f1 and loss; must be by the"),
    ],
)
def test_what_cannot_be_compared_is_one_line(changes, message):
    arena = fd.arena.load(changes)
    with pytest.raises(ValueError, match=message):
        Trials().check(arena, arena.entries[0])


FINAL = {"fedavg": np.nan, "root_only": 30.0, "median": 20.0}


@pytest.fixture
def played(monkeypatch):
    """Sweeps whose test perplexities are 8, and under the attack those of ``FINAL``, else 12; validation ones half."""

    def sweep(grid, **_):
        cells = []
        for point in grid.points:
            final = 8.0 if point.config.attack is None else FINAL.get(point.config.aggregator.name, 12.0)
            final += point.config.seed % 2 + 4.0 * (point.values.get("aggregator.max_norm") == 9.0)
            history = {"round": np.array([1]), "test_perplexity": np.float32([final])}
            cells.append(Cell(point.values, "done", "", history | {"validation_perplexity": np.float32([final / 2])}))
        return SimpleNamespace(cells=cells)

    monkeypatch.setattr(sweeping, "sweep", sweep)
    monkeypatch.setattr(requirements, "passes", lambda config, num_clients: 3.0)


@pytest.mark.usefixtures("played")
def test_an_arena_by_perplexity_is_played_read_back_and_entered(tmp_path):
    first = fd.arena.run(protocol("perplexity", "perplexity"), tmp_path, quiet=True)
    assert first.criterion == PERPLEXITY
    assert json.loads((tmp_path / "arena.json").read_text())["metric"] == FIELDS
    assert fd.arena.read(tmp_path) == first
    assert [line[0] for line in first.lines()] == ["entry", "median", "root_only", "fedavg"]
    assert first.rows["median"].accuracy == [[[8.0, 9.0], [20.0, 21.0]]]
    assert first.rows["fedavg"].accuracy == [[[8.0, 9.0], [None, None]]]
    assert first.rows["fedavg"].choices[0]["validation_perplexity"] is None
    grid = {"max_norm": [9.0, 1.0]}
    last = fd.arena.enter(lambda max_norm=1.0: fd.aggregators.norm_clipping(max_norm), grid, arena=first, label="mine")
    row = last.rows["mine"]
    assert row.choices[0]["setting"] == {"aggregator.max_norm": 1.0}
    assert row.choices[0]["validation_perplexity"] == 6.0
    assert list(last.scores()) == ["mine", "median", "root_only", "fedavg"]
    assert [one.rank for one in last.scores().values()] == [1, 2, 3, 4]
    with pytest.raises(ValueError, match="another protocol"):
        fd.arena.run(protocol("loss", "perplexity"), tmp_path, quiet=True)


@pytest.fixture(scope="module")
def shown():
    made = standing({"krum": 0.2, "mine": 0.1, "fedavg": 0.6}, protocol=None, metric=FIELDS)
    for label, row in made.rows.items():
        table = 8 + 100 * (0.9 - row.figures)  # 8 without an attack
        rows = table.tolist()
        if label == "fedavg":
            rows[0][1] = [None] * 3
        made.rows[label] = dataclasses.replace(row, accuracy=rows, failures=["no data"] if label == "fedavg" else [])
    return made


def test_tables_go_by_the_criterion(shown):
    text = tables.page(shown)
    assert "Test perplexity (lower is better), mean over 3 seeds" in text
    assert "paired difference is below zero" in text
    assert "Runs that failed count as worse than any:" in text
    lines = [[cell.strip() for cell in line.split("|")[1:6]] for line in text.splitlines() if line.startswith("| ")]
    assert lines[2:5] == [
        ["krum", "1", "1", "8 \N{PLUS-MINUS SIGN} 0", "78 \N{PLUS-MINUS SIGN} 2.484"],
        ["mine", "2", "2", "8 \N{PLUS-MINUS SIGN} 0", "88 \N{PLUS-MINUS SIGN} 2.484"],
        ["fedavg", "3", "3", "8 \N{PLUS-MINUS SIGN} 0", DASH],
    ]
    assert shown.by_attack()[0] == ["krum", "mine", "fedavg"]
    assert shown.by_attack(1)[0] == ["fedavg", "krum", "mine"]
    assert "best worst case: krum 78" in repr(shown)
    assert "test perplexity (lower is better), 2 tasks" in shown._repr_html_()
    assert "nan" not in shown._repr_html_()


def test_page_and_figures_go_by_the_criterion(shown, tmp_path):
    found = Page(page.write(shown, tmp_path / "a.html"))
    words = " ".join(found.shown.split())
    for text in (
        "Test perplexity (lower is better), mean over the seeds",
        "leave it at most 110 % of its own perplexity without one",
        "Withstands alie; not ipm. Most harm: ipm, which leaves 78.",
        "Perplexity against knowledge",
    ):
        assert text in words
    assert "nan" not in words
    head, *rows = found.file("standing")
    assert [row[head.index("worst")] for row in rows][2] == ""
    texts = {path.name: path.read_text() for path in figures.write(shown, tmp_path)}
    assert "worst-case test perplexity (lower is better)" in texts["knowledge.svg"]
    assert "fedavg" in texts["heat_map.svg"]
    assert "fedavg" not in texts["knowledge.svg"]


def test_an_entry_that_has_a_figure_now_has_moved(shown):
    rows = shown.rows | {"fedavg": dataclasses.replace(shown.rows["fedavg"], accuracy=shown.rows["krum"].accuracy)}
    now = dataclasses.replace(shown, rows=rows)
    moved = "fedavg: ranks 3 to 1\N{EN DASH}2, worst case - to 78 \N{PLUS-MINUS SIGN} 2.484."
    assert changes(shown, now)[0] == moved


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ({"name": "f1"}, "metric={'name': 'f1'}: must have name, higher_is_better, is_share"),
        ({"name": "f1", "higher_is_better": 1, "is_share": True}, "must have name, higher_is_better, is_share"),
        ({"name": "f1", "higher_is_better": True, "is_share": True}, "accuracy=.*: must be in"),
    ],
)
def test_a_file_says_what_is_compared(shown, tmp_path, metric, message):
    dataclasses.replace(shown, metric=metric).write(tmp_path)
    with pytest.raises(ValueError, match=message):
        fd.arena.read(tmp_path)


def test_older_files_are_of_accuracies(tmp_path):
    one = standing({"krum": 0.6}, protocol=None)
    one.write(tmp_path)
    content = json.loads((tmp_path / "arena.json").read_text())
    del content["metric"]
    (tmp_path / "arena.json").write_text(json.dumps(content))
    assert fd.arena.read(tmp_path) == one
    assert fd.arena.read("digits").criterion == ACCURACY


@pytest.mark.slow
def test_a_loss_is_played(tmp_path):
    found = fd.arena.run(protocol("loss", "accuracy"), tmp_path, entries=["fedavg", "root_only"], quiet=True)
    assert found.criterion == LOSS
    for row in found.rows.values():
        assert not row.failures
        assert ((row.figures > 0.1) & (row.figures < 10)).all()
    best, other = found.scores().values()
    assert best.worst.mean <= other.worst.mean
