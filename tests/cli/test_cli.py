import dataclasses
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import typer
import yaml

import fedjax_drag
from fedjax_drag.cli.app import app
from fedjax_drag.cli.folders import default_folder, folder_name
from fedjax_drag.experiment.build import catalog
from fedjax_drag.experiment.config import shipped
from fedjax_drag.experiment.config.config import Config
from fedjax_drag.experiment.run.checkpoints import Checkpoints

SOURCE = os.environ | {"PYTHONPATH": str(Path(fedjax_drag.__file__).parents[1])}


def one_line(result, status):
    """The single line on standard error of a call that ended with this status."""
    assert result.exit_code == status, result.output
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("fedjax-drag: error: ")
    return line.removeprefix("fedjax-drag: error: ")


def test_run_writes_the_folder_draws_the_curve_and_tells(command, tiny_file, tmp_path):
    result = command("run", tiny_file)
    assert result.exit_code == 0, result.output
    assert result.stderr == "", "no progress bar where there is no terminal"
    head, row = [line for line in result.stdout.splitlines() if line][:2]
    assert head.split()[:2] == ["final", "best"]
    assert row.startswith("tiny")
    assert "runs/tiny" in result.stdout
    assert (tmp_path / "runs" / "tiny" / "accuracy.png").stat().st_size > 5000


@pytest.mark.thorough
def test_quiet_says_nothing(command, tiny_file):
    result = command("run", tiny_file, "rounds=2", "--out", "x", "--quiet")
    assert (result.exit_code, result.output) == (0, "")


@pytest.mark.thorough
def test_comparison_is_drawn_together(command, tiny_file, tmp_path):
    result = command("run", tiny_file, "compare={A: {aggregator: fedavg}, B: {}}", "rounds=2", "--out", tmp_path / "x")
    assert result.exit_code == 0, result.output
    assert [line.split()[0] for line in result.stdout.splitlines()[2:4]] == ["A", "B"]
    assert (tmp_path / "x" / "accuracy.png").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["round=5"], "unknown key 'round'; did you mean 'rounds'?"),
        (["out=x y"], "out=x y: an option, not a key of the configuration; did you mean --out 'x y'?"),
        (["debug_nans=1"], "did you mean --debug-nans?"),
        (["rounds"], "override 'rounds': must be key=value"),
        (["[=0"], "override '[=0': must be key=value"),
        (["rounds=many"], "rounds='many': must be an integer"),
        (["data=cifar"], "data.name='cifar': must be one of"),
        (["aggregator=drga"], "aggregator.name='drga': must be one of"),
        (["model=MLP"], "; did you mean 'mlp'?"),
        (["num_clients=4"], "unknown key 'num_clients'; did you mean 'partition.num_clients'?"),
        (["aggregator=nnm", "aggregator.c=0.5"], "unknown key 'c' of aggregator nnm; did you mean 'aggregator.c'?"),
        (["byzantine=0.3"], "unknown key 'byzantine'; did you mean 'byzantine_fraction'?"),
        (["algorithm=fedprox"], "did you mean client=fedprox?"),
        (["aggregator=scaffold"], "did you mean algorithm=scaffold?"),
        (["aggregator=nnm", "aggregator.aggregator=sign_flip"], "did you mean attack=sign_flip?"),
        (["seed=[0,1]"], "a sweep takes lists: fedjax-drag sweep CONFIG 'axes.seed=[0, 1]'"),
        (["local_epochs=1", "local_steps=7"], "local_epochs=1, local_steps=7: must be exactly one of the two"),
        (["aggregator.gamma=1"], "unknown key 'gamma' of aggregator drag"),
        (["aggregator=br_drag", "aggregator.c.nam=x"], "aggregator.c.name=None: must be the name of one"),
        (["root_client={name: robust_sgd, reducer: krumm}"], "root_client.reducer.name='krumm': must be one of"),
        (["seed=???"], "seed='???': missing; must be given"),
        (["model.hidden=[4, '???']"], "model.hidden='???': missing; must be given"),
        (["byzantine_fraction=1.5"], "byzantine_fraction=1.5: must be in [0, 1]"),
        (["cohort_size=9"], "cohort_size=9: must be an integer in [1, 8]"),
        (["aggregator=krum", "aggregator.num_byzantine=2"], "num_byzantine=2"),
        (["partition={name: dirichlet, num_clients: 500, beta: 0.001, max_tries: 5}"], "dirichlet"),
        (["data=fashion_mnist", "data.data_dir=nowhere"], "nowhere"),
        (["compare={A: {rund: 1}}"], "compare.A: unknown key 'rund'"),
        (["--resume", "--overwrite"], "only one of them"),
        (["--overwrite", "--out", "."], "not a results folder"),
        (["--out", ""], "--out='': must be the path of a folder"),
    ],
)
def test_misuse_is_one_line_with_status_2_before_anything_is_written(command, tiny_file, tmp_path, arguments, message):
    assert message in one_line(command("run", tiny_file, *arguments), 2)
    assert list(tmp_path.iterdir()) == [tiny_file]


@pytest.mark.parametrize("name", ["run", "sweep", "plan"])
def test_no_option_has_the_name_of_a_configuration_key(name):
    """Changes that name an option are refused."""
    options = typer.main.get_command(app).commands[name].params
    assert {option.name for option in options} & {field.name for field in dataclasses.fields(Config)} == set()


@pytest.mark.thorough
def test_run_with_components_inside_components(command, tiny_file, tmp_path):
    """Overridden by dots, written out whole, and refused to go on otherwise."""
    schedule = "{name: linear_schedule, init_value: 0.5, end_value: 0.1, transition_steps: 2}"
    root = ["root_client=robust_sgd", "root_client.reducer.name=krum", "root_client.reducer.num_byzantine=1"]
    first = command("run", tiny_file, "rounds=2", "aggregator=br_drag", f"aggregator.c={schedule}", *root, "--out", "a")
    assert first.exit_code == 0, first.output
    written = yaml.safe_load((tmp_path / "a" / "config.yaml").read_text())
    assert written["aggregator"]["c"]["transition_begin"] == 0
    krum = {"name": "krum", "num_byzantine": 1, "distance_power": 2}
    assert written["root_client"] == {"name": "robust_sgd", "reducer": krum}
    other = command("run", "a/config.yaml", "--out", "a", "--resume", "rounds=4", "aggregator.c.end_value=0.2")
    assert "aggregator.c.end_value=0.2: the run to resume in 'a' has aggregator.c.end_value=0.1" in one_line(other, 2)


def test_configurations_of_the_package_have_names(command, tmp_path):
    """They are listed, found by name wherever one is, and copied; a file of that path wins; close names are told."""
    listed = command("configs").stdout.splitlines()
    assert [line.split()[0] for line in listed] == list(shipped.paths())
    digits = next(line for line in listed if line.startswith("arena/digits  "))
    assert "arena run  An arena that is played in minutes" in digits
    assert (
        command("data", "skew", "quickstart").exit_code
        == command("data", "skew", "configs/quickstart.yaml").exit_code
        == 0
    )
    assert "axes: belong to a sweep" in one_line(command("run", "sweeps/robustness_matrix"), 2)
    assert command("configs", "copy", "quickstart", "-o", "quickstart").stdout == "quickstart\n"
    assert "is there already" in one_line(command("configs", "copy", "arena/digits", "-o", "quickstart"), 2)
    Path("quickstart").write_text("rounds: 0", encoding="utf-8")
    assert "rounds=0" in one_line(command("run", "quickstart"), 2)
    wrong = "no such file, and none of the package"
    for name, close in (("quikstart", "'quickstart'"), ("drag000_fig3", "'paper/drag000_fig3_emnist'")):
        assert f"configuration '{name}': {wrong}; did you mean {close}" in one_line(command("plan", name), 2)
    assert f"configuration '../x': {wrong}; 'fedjax-drag configs' lists them" in one_line(command("sweep", "../x"), 2)


def test_mistakes_that_need_no_jax_are_told_without_it(tmp_path):
    """Of a command, an option, a configuration's name, the form of a change, a kind: imports take seconds."""
    mistakes = [["runn"], ["run", "--wrong"], ["run", "none"], ["run", "quickstart", "rounds"], ["list", "rules"]]
    code = [
        "import sys",
        "from typer.testing import CliRunner",
        "from fedjax_drag.cli.app import app",
        *(f"assert CliRunner().invoke(app, {mistake}).exit_code == 2" for mistake in mistakes),
        "assert 'jax' not in sys.modules",
    ]
    subprocess.run([sys.executable, "-c", "\n".join(code)], check=True, cwd=tmp_path, env=SOURCE)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["run", "sweep", "plan"])
def test_devices_that_are_not_here_are_one_line(tmp_path, name):
    """JAX raises an assertion without a text where the driver is missing."""
    given = ["axes.seed=[0,1]"] if name == "sweep" else []
    done = subprocess.run(
        [sys.executable, "-m", "fedjax_drag", name, "quickstart", *given],
        cwd=tmp_path,
        env=SOURCE | {"JAX_PLATFORMS": "cuda"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        pytest.skip("there is a GPU")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("fedjax-drag: error: JAX_PLATFORMS=cuda: JAX finds no such device")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("run quick", "quickstart"),
        ("sweep why/", "why/worst_clients"),
        ("run quickstart roun", "rounds="),
        ("list at", "attacks"),
    ],
)
def test_the_shell_completes_names_and_keys(command, monkeypatch, typed, completed):
    monkeypatch.setenv("_FEDJAX_DRAG_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"fedjax-drag {typed}")
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split())))
    assert completed in command().stdout.splitlines()


@pytest.mark.thorough
def test_folder_with_a_run_is_refused_until_told_what_to_do(command, tiny_file):
    arguments = ["run", tiny_file, "rounds=2", "--out", "x", "--quiet"]
    assert command(*arguments).exit_code == 0
    line = one_line(command(*arguments), 2)
    assert line.startswith("out='x': already holds a run; choose --resume, --overwrite or another --out (in Python ")
    assert command(*arguments, "--overwrite").exit_code == 0
    assert command(*arguments, "rounds=4", "--resume").exit_code == 0


def folders(tmp_path):
    return sorted(path.name for path in (tmp_path / "runs").iterdir())


def rounds_in(folder):
    return json.loads((folder / "summary.json").read_text())["rounds"]


@pytest.mark.thorough
def test_overrides_have_a_folder_of_their_own(command, tiny_file, tmp_path):
    assert command("run", tiny_file, "rounds=2").exit_code == 0
    changes = ["rounds=2", "aggregator=krum", "aggregator.num_byzantine=1"]
    done = command("run", tiny_file, *changes)
    assert done.exit_code == 0
    assert "results in runs/tiny-rounds_2-aggregator_krum-aggregator.num_byzantine_1," in done.stdout
    assert folders(tmp_path) == ["tiny-rounds_2", "tiny-rounds_2-aggregator_krum-aggregator.num_byzantine_1"]
    assert "already holds a run" in one_line(command("run", tiny_file, *changes), 2)
    assert command("run", tiny_file, *changes, "--resume").exit_code == 0


@pytest.mark.thorough
def test_resume_finds_the_run_that_had_fewer_rounds(command, tiny_file, tmp_path):
    for arguments in (["seed=1"], ["seed=1", "--resume", "rounds=8", "keep_checkpoints=1"]):
        done = command("run", tiny_file, *arguments)
        assert done.exit_code == 0, done.output
    assert folders(tmp_path) == ["tiny-seed_1"]
    assert rounds_in(tmp_path / "runs" / "tiny-seed_1") == 8
    for _ in range(2):  # where there is none, it starts
        assert command("run", tiny_file, "seed=2", "--resume", "rounds=8").exit_code == 0
    assert folders(tmp_path) == ["tiny-seed_1", "tiny-seed_2-rounds_8"]


@pytest.mark.thorough
def test_resume_prefers_the_run_of_the_same_command(command, tiny_file, tmp_path, interrupt_after):
    assert command("run", tiny_file).exit_code == 0
    with interrupt_after(1):
        assert command("run", tiny_file, "rounds=8").exit_code == 130
    assert command("run", tiny_file, "rounds=8", "--resume").exit_code == 0
    assert [rounds_in(tmp_path / "runs" / name) for name in folders(tmp_path)] == [6, 8]


@pytest.mark.parametrize(
    ("there", "overrides", "taken"),
    [
        (["rounds=4"], ["rounds=8"], 0),
        (["rounds=4"], ["rounds=4", "rounds=8"], 0),
        (["rounds=4,rounds=8"], ["rounds=4", "rounds=8"], 0),
        (["rounds=4,rounds=8"], ["rounds=8"], 0),
        (["seed=1,rounds=4"], ["rounds=8", "seed=1"], 0),
        (["rounds=4,seed=1"], ["rounds=4", "seed=1", "rounds=6", "rounds=8"], 0),
        (["rounds=4,keep_best=false"], ["keep_best=true", "rounds=8"], 0),
        (["", "rounds=4"], ["rounds=8"], 0),
        (["", "rounds=4"], ["rounds=4", "rounds=8"], 1),
        (["rounds=4", "rounds=4,rounds=6"], ["rounds=4", "rounds=6", "rounds=8"], 1),
        (["rounds=8", "rounds=4"], ["rounds=8"], 0),
    ],
)
def test_resume_finds_the_folder_whatever_the_number_of_rounds(tmp_path, monkeypatch, there, overrides, taken):
    monkeypatch.chdir(tmp_path)
    made = [Path("runs", folder_name("tiny", name.split(",") if name else [])) for name in there]
    for folder in [*made, Path("runs/tiny-seed_7-rounds_4"), Path("runs/tiny2-rounds_4")]:
        folder.mkdir(parents=True)
    assert default_folder("tiny", overrides, resume=True) == made[taken]


def test_resume_does_not_choose_between_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for rounds in (4, 6):
        Path(f"runs/tiny-rounds_{rounds}").mkdir(parents=True)
    with pytest.raises(ValueError, match="rounds_4, runs/tiny-rounds_6 could go on; name one by --out"):
        default_folder("tiny", ["rounds=8"], resume=True)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["run", "sweep"])
def test_more_rounds_continue_a_run_of_given_rounds(command, tiny_file, tmp_path, name):
    more = ["axes.seed=[0,1]"] if name == "sweep" else []
    for rounds in (["rounds=2"], ["rounds=2", "rounds=4", "--resume"], ["rounds=6", "--resume"]):
        done = command(name, tiny_file, *rounds, *more)
        assert done.exit_code == 0, done.output
    (folder,) = (tmp_path / "runs").iterdir()
    assert [rounds_in(path.parent) for path in folder.rglob("summary.json")] == [6] * (1 + len(more))


@pytest.mark.thorough
def test_a_sweep_resumes_the_folder_of_its_overrides(command, tiny_file, tmp_path):
    axes = ["axes.seed=[0,1]", "rounds=2", "data={name: synthetic, num_examples: 60, dim: 8}"]
    first = command("sweep", tiny_file, *axes)
    assert first.exit_code == 0, first.output
    (folder,) = folders(tmp_path)
    assert folder == "tiny-axes.seed_0-1-rounds_2-data_name-synthetic-num_examples-60-dim-8"
    line = one_line(command("sweep", tiny_file, *axes), 2)
    assert f"out='runs/{folder}': already holds a sweep; choose --resume, --overwrite or another --out" in line
    assert command("sweep", tiny_file, *axes, "--resume").exit_code == 0


@pytest.mark.thorough
def test_interrupt_says_how_to_go_on(command, tiny_file, tmp_path, monkeypatch, interrupt_after):
    monkeypatch.setattr(sys, "argv", ["fedjax-drag", "run", str(tiny_file), "rounds=8", "--out", "a b", "--overwrite"])
    with interrupt_after(1):
        result = command(*sys.argv[1:])
    assert result.exit_code == 130
    assert result.stderr == f"stopped; to go on: fedjax-drag run {tiny_file} rounds=8 --out 'a b' --resume\n"
    assert command("run", tiny_file, "rounds=8", "--out", "a b", "--resume").exit_code == 0
    assert len((tmp_path / "a b" / "metrics.jsonl").read_text().splitlines()) == 4


def test_failure_is_one_line_with_status_1(command, tiny_file, monkeypatch):
    def fail(self, *_):
        raise RuntimeError("disk full\nand more")

    monkeypatch.setattr(Checkpoints, "save", fail)
    line = one_line(command("run", tiny_file, "checkpoint_every_seconds=3600", "--out", "x"), 1)
    reason = "disk full at round 6 in 'x'; put that right and run again with --resume"
    assert line == f"the run failed: OSError: {reason} (--debug shows where)"
    assert "Traceback" in command("run", tiny_file, "--out", "y", "--debug").stderr


@pytest.mark.parametrize("kind", catalog.KINDS)
def test_list(command, kind):
    result = command("list", kind)
    assert result.exit_code == 0
    assert result.stdout.strip() == catalog.describe(kind)


def test_list_of_kinds_and_as_markdown(command):
    assert command("list").stdout.split() == list(catalog.KINDS)
    said = command("list", "--help").output
    assert [kind for kind in catalog.KINDS if kind not in said] == []
    assert command("list", "aggregators", "--markdown").stdout.strip() == catalog.table("aggregators")
    for unknown in (["aggregator"], ["aggregator", "--markdown"]):
        assert "kind='aggregator': must be one of" in one_line(command("list", *unknown), 2)


def test_plot(command, finished, tmp_path):
    folder, _ = finished
    result = command("plot", folder, "-o", "new/a.png")
    assert result.exit_code == 0
    assert (tmp_path / "new" / "a.png").read_bytes().startswith(b"\x89PNG")
    assert "no such results folder" in one_line(command("plot", "none", "-o", "a.png"), 2)
    assert "must end in .png, .pdf, .svg" in one_line(command("plot", folder, "-o", "a.gif"), 2)
    (tmp_path / "file").touch()
    assert "output='file/a.png': cannot be written (" in one_line(command("plot", folder, "-o", "file/a.png"), 2)
    assert "out='file/a.html': cannot be written (" in one_line(command("report", folder, "-o", "file/a.html"), 2)
    chosen = ("--metric", "test_loss", "--label", f"ours={folder}", "--title", "Mine")
    assert command("plot", folder, "-o", "b.png", *chosen).exit_code == 0
    assert "metric='x': must be one of " in one_line(command("plot", folder, "-o", "c.png", "--metric", "x"), 2)
    assert "label='b': must be" in one_line(command("plot", folder, "-o", "c.png", *("--label", "b") * 2), 2)


def test_a_warning_is_one_line(command, tmp_path):
    (tmp_path / "short.yaml").write_text(yaml.safe_dump({"rounds": 1, "attack": "sign_flip"}))
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        result = command("run", "short.yaml")
    warned, refused = result.stderr.splitlines()
    assert warned.startswith("fedjax-drag: warning: data and partition not given: takes data=digits, partition=")
    assert refused.startswith("fedjax-drag: error: byzantine_fraction=None: must be given with an attack")


@pytest.mark.parametrize("arguments", [[], ["--help"], ["run", "--help"], ["plot", "--help"], ["list", "--help"]])
def test_help_teaches_with_examples(command, arguments):
    assert "  fedjax-drag " in command(*arguments).output.partition("Example")[2]


@pytest.mark.parametrize("arguments", [["run"], ["runn"], ["run", "a", "--wrong"], ["plot", "a"]])
def test_bad_usage_is_plain(command, arguments):
    result = command(*arguments)
    assert result.exit_code == 2
    assert "Error: " in result.stderr
    assert "\N{BOX DRAWINGS LIGHT HORIZONTAL}" not in result.stderr


def test_version(command):
    assert command("--version").stdout == f"fedjax-drag {fedjax_drag.__version__}\n"


@pytest.mark.slow
def test_as_a_process(tiny_file, tmp_path):
    """The entry point itself: streams, exit status, and no warnings or log lines of the libraries."""
    program = [sys.executable, "-m", "fedjax_drag"]

    def call(*arguments):
        command = [*program, *arguments]
        return subprocess.run(command, cwd=tmp_path, env=SOURCE, capture_output=True, text=True, check=False)

    done = call("run", str(tiny_file), "rounds=2")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads((tmp_path / "runs" / "tiny-rounds_2" / "summary.json").read_text())["rounds"] == 2
    refused = call("run", str(tiny_file), "rounds=2")
    assert refused.returncode == 2
    assert refused.stdout == ""
    assert len(refused.stderr.splitlines()) == 1
