"""Commands with wrong arguments, values, files and folders end in status 2 and one line, never in a traceback."""

import os
import random
import re
import shutil

import pytest
import typer
import yaml
from small_runs import ARENA
from tiny import SYNTHETIC, TINY
from typer.testing import CliRunner

import reproduce
from fedjax_drag.cli.app import app
from fedjax_drag.experiment.arena import play
from fedjax_drag.experiment.run import run
from fedjax_drag.experiment.sweep import sweep

SMALL = TINY | SYNTHETIC | {"rounds": 2}
GRID = SMALL | {"axes": {"seed": [0, 1]}}
PLAIN = """
- -- --- -o -x --out --nothing --resume = x= =x . .. /proc ~ * 0 -1 1e999 nan inf [ { ${rounds} ${oc.env:HOME} %s {0}
http://127.0.0.1:9/x /dev/null /dev/full /proc/self/mem none null true quickstart krum test_accuracy round digits
"""
STRANGE = (
    "",
    " ",
    "9" * 400,
    "a\nb",
    "\x1b[31m",
    "\0",
    "\N{LINE SEPARATOR}",
    "\udcff",
    "漢" * 90,
    "x" * 5000,
    "a/" * 300,
)
WORDS = (*PLAIN.split(), *STRANGE)
"""What somebody may have typed for anything."""

PLAIN_CHANGES = """
rounds=0 rounds=x rounds=??? round=3 rounds seed=1e30 aggregator=nobody aggregator.c=2 axes.seed=[] axes.seed=0 out=x
data.name=digits mesh=all a=b=c initial_params=nowhere availability=nowhere.npy model={ model=x.py:y attack=alie name=
rounds=
"""
CHANGES = (*PLAIN_CHANGES.split(), "aggregator={name: krum, f: x}")
OPTIONS = {
    "run": ("--out", "--log", "--coordinator", "--num-processes", "--process-id", "--resume", "--overwrite", "--quiet"),
    "sweep": ("--out", "--cells-per-program", "--launcher", "--jobs", "--job", "--resume", "--overwrite", "--quiet"),
    "plan": ("--target", "--json", "--cells-per-program", "--quiet"),
    "plot": ("--output", "-o", "--metric", "--against", "--label", "--title"),
    "report": ("--out", "-o", "--target", "--no-skew"),
    "list": ("--markdown",),
    "arena run": ("--entry", "--standing", "--out", "--quiet"),
    "arena table": ("--since", "--html", "--figures"),
    "configs": (),
    "configs copy": ("--output", "-o"),
    "data status": ("--data-dir",),
    "data skew": ("--output",),
    "reproduce": ("--scale", "--out", "--record", "--from", "--judge", "--quiet", "--list", "--resume"),
}
RIGHT = {
    **dict.fromkeys(("run", "plan", "data skew", "configs copy"), "(small|a b).yaml"),
    "sweep": "grid.yaml",
    "arena run": "arena.yaml",
    "arena table": "digits",
    "plot": r"(run|sweep)\d*",
    "report": r"(run|sweep)\d*",
    "list": "attacks",
    "configs": "copy",
    "data status": "nothing",
    "reproduce": "drag000_fig3_emnist",
}
"""What a command takes: a pattern for the name of a place, or a word."""
FLAGS = ("--resume", "--overwrite", "--quiet", "--json", "--no-skew", "--markdown", "--list")
TAKES_CHANGES = ("run", "sweep", "plan", "data skew")


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Files and folders of all kinds, among them whole results folders, and such in which one thing is wrong."""
    folder = tmp_path_factory.mktemp("fuzzed")
    for name, content in {"small": SMALL, "grid": GRID, "arena": ARENA}.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(content))
    for name, content in {
        "empty.yaml": b"",
        "text.yaml": b"hello",
        "list.yaml": b"- 1",
        "binary.yaml": bytes(range(256)),
        "unclosed.yaml": b"rounds: [",
        "arena.json": b'{"name": 3}',
        "numbers.npy": b"\x93NUMPY",
        "image.png": b"",
        "a b.yaml": yaml.safe_dump(SMALL).encode(),
    }.items():
        (folder / name).write_bytes(content)
    (folder / "folder.yaml").mkdir()
    (folder / "empty").mkdir()
    (folder / "loop").symlink_to("loop")
    (folder / "gone").symlink_to("nowhere")
    os.mkfifo(folder / "pipe")
    run.run(SMALL, out=folder / "run")
    sweep.sweep(GRID, out=folder / "sweep")
    chance = random.Random(0)
    for kind in ("run", "sweep"):
        for number, path in enumerate(sorted(path.relative_to(folder) for path in (folder / kind).rglob("*"))):
            wrong = folder / f"{kind}{number}"
            shutil.copytree(folder / kind, wrong)
            place = wrong / path.relative_to(kind)
            shutil.rmtree(place) if place.is_dir() else place.unlink()
            how = chance.choice(["gone", "empty", "text", "folder", "loop"])
            if how in ("empty", "text"):
                place.write_text("" if how == "empty" else '{"round": "x", ')
            elif how == "folder":
                place.mkdir()
            elif how == "loop":
                place.symlink_to(place.name)
    return sorted(str(path) for path in folder.iterdir())


def argument_lists(places, number, seed=0):
    """Commands, of which most begin as they should."""
    chance = random.Random(seed)
    inside = [f"{place}/{name}" for place in places for name in ("config.yaml", "checkpoints", "x.png", "new/er.html")]
    anything = lambda: chance.choice(chance.choice([WORDS, places, places, inside, [f"{p}.png" for p in places]]))
    for turn in range(number):
        command = [*OPTIONS][turn % len(OPTIONS)]
        arguments = [anything() for _ in range(chance.choice([0, 1, 1, 1, 1, 2, 3]))]
        if arguments and chance.random() < 0.6:
            right = RIGHT[command]
            arguments[0] = chance.choice([place for place in places if re.search(rf"/{right}$", place)] or [right])
        if command in TAKES_CHANGES:
            arguments[1:] = [chance.choice([*CHANGES, anything()]) for _ in range(chance.choice([0, 1, 2]))]
        for option in chance.choices(OPTIONS[command] or WORDS, k=chance.choice([0, 1, 1, 2])):
            arguments += [option] if option in FLAGS else [option, anything()]
        yield command, arguments


def asked(command, arguments):
    """The result of a command that is given these."""
    if command == "reproduce":
        script = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
        script.command()(reproduce.main)
        return CliRunner().invoke(script, arguments, prog_name="reproduce")
    return CliRunner().invoke(app, [*command.split(), *arguments], prog_name="fedjax-drag")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(int(os.environ.get("FEDJAX_DRAG_FUZZ_SEEDS", "1"))))
def test_wrong_arguments_end_in_one_line(places, tmp_path, monkeypatch, bounded, seed):
    """200 of them; what would compute stops at once, as if by Ctrl-C, which is a status of its own."""

    def stop(*_, **__):
        raise KeyboardInterrupt

    for owner, name in ((run, "execute"), (sweep, "execute"), (play, "play"), (reproduce, "_run")):
        monkeypatch.setattr(owner, name, stop)
    monkeypatch.setattr("fedjax_drag.cores.one_device_per_core", lambda: None)
    monkeypatch.chdir(tmp_path)
    faults, statuses = [], dict.fromkeys((0, 2, 130), 0)
    for command, arguments in argument_lists(places, 200, seed):
        with bounded(120, 4000):
            done = asked(command, arguments)
        what = f"{command} {[word[:80] for word in arguments]!r}: {done.exit_code}"
        lines = done.stderr.splitlines()
        if lines and lines[0].startswith("Usage: "):  # an option that there is not, a number that is none
            lines = [line for line in lines[1:] if line.strip() and not line.startswith("Try '")]
        lines = [line for line in lines if not line.startswith(("fedjax-drag: warning: ", "compiling "))]
        if "Traceback" in done.output or done.exit_code not in statuses:
            faults.append(f"{what}: {done.output[-600:]} {done.exception!r}")
        elif done.exit_code == 2 and (len(lines) != 1 or not lines[0].isprintable()):
            faults.append(f"{what}: {lines}")
        else:
            statuses[done.exit_code] += 1
    print(f"\ncommands: {statuses[0]} done, {statuses[130]} began to compute, {statuses[2]} refused in one line")
    assert not faults, "\n\n".join([f"{len(faults)} of 200", *faults])
