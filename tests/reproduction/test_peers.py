"""The script that sets the sweeps of configs/peers beside what their authors have printed."""

import dataclasses

import numpy as np
import pytest
from omegaconf import OmegaConf

import peer_runs
import peers
from fedjax_drag.experiment.run import metrics_file, results
from fedjax_drag.experiment.run.metrics_file import METRICS
from fedjax_drag.experiment.run.results import StoredRun
from fedjax_drag.experiment.sweep import sweep_folder
from fedjax_drag.experiment.sweep.grid import load_grid

CONFIGS = sorted(peer_runs.CONFIGS.glob("*.yaml"))


def cells_of(path):
    """Those of a configuration, and of what its header says is another command."""
    grids = (load_grid(path, overrides) for overrides in ((), peer_runs.FURTHER.get(path.stem, ())))
    return [point.config for grid in grids for point in grid.points]


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name in peer_runs.READERS if name != "bucketing"])
def test_the_configurations_run_every_setting_that_is_printed(name):
    runs = [StoredRun(peer_runs.CONFIGS, cell, {}) for cell in cells_of(peer_runs.CONFIGS / f"{name}.yaml")]
    published = peers.theirs()
    for reader in peer_runs.READERS[name]:
        data = peer_runs._DATA.values() if reader.table == "flower" else ()
        own = {f"{shown} " for shown in data if any(shown in reader.setting(run) for run in runs)} or {""}
        wanted = {setting for setting in published[reader.table] if setting.startswith(tuple(own))}
        assert wanted
        assert wanted <= {reader.setting(run) for run in runs}


@pytest.mark.thorough
def test_every_setting_of_bucketing_has_three_seeds():
    logged = peers.logged()
    assert all(len(accuracies) == 3 for accuracies in logged.values())
    assert len(logged) == 20 + 80 - 8
    paths = [path for path in CONFIGS if "bucketing" in path.name]
    assert {peer_runs.setting_of(cell) for path in paths for cell in cells_of(path)} == set(logged)


def write(folder, config, accuracies, seed=0, every=10):
    """A run of a sweep, without running anything."""
    cell = folder / sweep_folder.CELLS / f"{len(list(folder.glob('*/*')))}"
    cell.mkdir(parents=True)
    OmegaConf.save(OmegaConf.create(config.to_mapping() | {"seed": seed}), cell / results.CONFIG)
    rounds = [every * (place + 1) for place in range(len(accuracies))]
    lines = [{"round": x, "test_accuracy": y, "test_loss": 1.0} for x, y in zip(rounds, accuracies, strict=True)]
    (cell / METRICS).write_bytes(b"".join(map(metrics_file.line_of, lines)))


def points_of(name, folder, *overrides):
    (path,) = [path for path in CONFIGS if path.stem == name]
    OmegaConf.save(OmegaConf.create({"name": name}), folder / "sweep.yaml")
    return [point.config for point in load_grid(path, overrides).points]


def test_a_row_sets_both_means_beside_each_other(tmp_path):
    config = points_of("bucketing_attacks", tmp_path, "rounds=60")[0]
    write(tmp_path, config, [0.1, 0.0, 0.01, 0.01, 0.01, 0.01], 0)
    write(tmp_path, config, [0.1, 0.0, 0.02, 0.02, 0.02, 0.02], 1)
    write(tmp_path, config, [0.1, 0.0], 2)  # is not finished
    ours = peers.by_setting(peer_runs.measured([tmp_path]))["bucketing"]
    name = "Krum s=0 LF momentum=0"
    assert ours == {name: pytest.approx({0: 0.8, 1: 1.6})}
    table = peers.rows(peers.theirs()["bucketing"], ours, "bucketing")
    (row,) = [row for row in table if row[0] == name]
    assert row[2:4] == [f"1.2 ± {12.706 * np.sqrt(0.32) / np.sqrt(2):.1f}", "2"]
    assert row[-1] == "yes"
    assert sum(row[2] == "missing" for row in table) == 91
    assert peers.count(table) == "1 of 92 settings run; 1 of the 1 with an interval overlap."


def test_the_worst_case_of_byzfl_is_the_best_evaluation_under_the_worst_attack(tmp_path):
    """The mean over the seeds comes first: its best evaluation is 0.5 under ipm, though both seeds reach 0.7."""
    configs = points_of("byzfl", tmp_path, "rounds=150", "axes.seed=[0]", "axes.partition.gamma=[0.0]")[:3]
    for config, curves in zip(configs, ([[0.7, 0.3], [0.3, 0.7]], [[0.6, 0.6]] * 2, [[0.9, 0.9]] * 2), strict=True):
        for seed, curve in enumerate(curves):
            write(tmp_path, config, [0.1, *curve], seed, every=50)
    assert peers.by_setting(peer_runs.measured([tmp_path]))["byzfl"] == {
        "trimmed mean gamma=0 f=1": pytest.approx({0: 70.0, 1: 30.0})
    }


def test_rounds_are_counted_until_the_accuracy_is_reached(tmp_path):
    config = points_of("fedlab", tmp_path)[0]
    write(tmp_path, config, [0.9, 0.96, 0.97], every=1)
    assert peers.by_setting(peer_runs.measured([tmp_path]))["fedlab"] == {"IID": {0: 3.0}}
    row = peers.rows(peers.theirs()["fedlab"], {"IID": {0: 3.0}}, "fedlab")[1]
    assert row == ["IID", "43.0", "3.0", "1", "-40.0", ""]


@pytest.mark.parametrize(
    ("printed", "verdict"),
    [
        (peers.Published(peers.Estimate(41.4, np.nan), 1), "yes"),  # 36 +- 2.48 as a mean, +- 4.97 for one more run
        (peers.Published(peers.Estimate(41.6, np.nan), 1), "no"),
        (peers.Published(peers.Estimate(40.1, np.nan), 3), "no"),  # +- 3.51 for a mean over three
        (peers.Published(peers.Estimate(40.1, 2.0), 3), "yes"),
    ],
)
def test_a_figure_without_a_deviation_is_taken_for_runs_like_ours(printed, verdict):
    assert peers.rows({"IID": printed}, {"IID": {0: 35.0, 1: 36.0, 2: 37.0}}, "fedlab")[1][-1] == verdict


@pytest.mark.parametrize(("accuracy", "verdict"), [(43.9, "yes"), (44.1, "no")])
def test_a_single_run_is_taken_for_one_that_varies_as_theirs(accuracy, verdict):
    """40 +- 2 is a mean over three: +- 4 for one more run."""
    printed = peers.Published(peers.Estimate(40.0, 2.0), 3)
    row = peers.rows({"IID": printed}, {"IID": {0: accuracy}}, "bucketing")[1]
    assert row[2:] == [f"{accuracy}", "1", f"+{accuracy - 40:.1f} ± 4.0", verdict]


def test_runs_that_are_kept_read_back_and_newer_ones_take_their_place(tmp_path, monkeypatch):
    monkeypatch.setattr(peer_runs, "RUNS", tmp_path / "runs.csv")
    older = peer_runs.Measured("byzfl", "trimmed mean gamma=0 f=1", "ipm", 0)
    other = peer_runs.Measured("fedlab", "IID", "", 1)
    peer_runs.keep({other: [43.0], older: [9.87, 30.125]})
    assert peer_runs.kept() == {other: [43.0], older: [9.87, 30.125]}
    write(tmp_path, points_of("byzfl", tmp_path, "rounds=100")[0], [0.1, 0.5], every=50)
    peer_runs.keep(peer_runs.kept() | peer_runs.measured([tmp_path]))
    assert peer_runs.kept() == {other: [43.0], older: [10.0, 50.0]}


def test_a_run_that_its_patience_has_ended_is_finished(tmp_path):
    config = dataclasses.replace(points_of("fedlab", tmp_path)[0], stop_when=None, patience=1)
    write(tmp_path, config, [0.9, 0.96], every=1)
    assert sweep_folder.finished(tmp_path) == []
    write(tmp_path, config, [0.9, 0.96, 0.95], every=1)
    assert len(sweep_folder.finished(tmp_path)) == 1


def test_a_run_with_another_setting_is_not_kept(tmp_path):
    """As for what a deviation changes, see docs/results/peers.md; another seed is welcome."""
    config = points_of("fedlab", tmp_path)[0]
    write(tmp_path, config, [0.9, 0.97], seed=7, every=1)
    peer_runs.check_settings(tmp_path)
    write(tmp_path, dataclasses.replace(config, step_size=0.1), [0.9, 0.97], every=1)
    with pytest.raises(ValueError, match=r"cells.1: is no cell of configs/peers/fedlab\*.yaml"):
        peer_runs.check_settings(tmp_path)
    OmegaConf.save(OmegaConf.create({"name": "mine"}), tmp_path / "sweep.yaml")
    with pytest.raises(ValueError, match="is a sweep 'mine'; must be one of configs/peers, bucketing, byzfl"):
        peer_runs.measured([tmp_path])


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("name", "override"),
    [
        ("fedlab", "data.data_dir=elsewhere"),
        ("nvflare", "partition.beta=0.5"),
        ("bucketing_mimic", "attack.target=17"),
        ("bucketing_momentum", "axes.attack=[{name: mimic, target: 1}]"),
        ("flower_niid", *peer_runs.FURTHER["flower_niid"]),
    ],
)
def test_a_run_of_another_command_of_the_header_is_kept(name, override, tmp_path):
    config = points_of(name, tmp_path, override)[0]
    write(tmp_path, config, [0.98], every=config.rounds)
    peer_runs.check_settings(tmp_path)


def test_runs_of_different_settings_are_not_taken_for_seeds_of_one(tmp_path):
    config = points_of("fedlab", tmp_path)[0]
    write(tmp_path, config, [0.9, 0.97], seed=0, every=1)
    write(tmp_path, dataclasses.replace(config, step_size=0.04), [0.97], seed=1, every=1)
    with pytest.raises(ValueError, match=r"cells.1: step_size: must be as in .*cells.0, to be seeds of one setting"):
        peer_runs.measured([tmp_path])


def test_a_run_that_has_not_reached_the_accuracy_has_no_rounds_to_it(tmp_path):
    config = points_of("mcmahan", tmp_path)[0]
    write(tmp_path, config, [0.9, 0.96], every=500)
    with pytest.raises(ValueError, match=r"cells.0: has not reached 97% in 1000 rounds"):
        peer_runs.measured([tmp_path])


def test_the_page_has_the_tables_of_the_runs_that_are_kept():
    text = peers.PAGE.read_text(encoding="utf-8")
    assert peers.paged(text, peers.tables_of(peer_runs.kept())) == text


def test_the_runs_of_the_page_are_of_settings_that_are_printed():
    published = peers.theirs()
    assert all(about.setting in published[about.table] for about in peer_runs.kept())
