"""The notebooks run from top to bottom, and keep outputs that are small and say nothing of a machine."""

import operator
import re

import nbformat
import pytest

import fedjax_drag as fd
from run_notebooks import NOTEBOOKS, executed

PATHS = sorted(NOTEBOOKS.glob("*.ipynb"))
QUICK = "05_import_the_rules_only"
MOST_BYTES = 400_000
"""Of a notebook, pictures included."""
WIDEST = 88
"""Characters of a line of code that are seen without scrolling."""
OF_A_MACHINE = re.compile(r"/(home|root|tmp|usr|work|Users|private|var)/|site-packages|[A-Z]:\\\\|\b20\d\d-\d\d-\d\d\b")
"""Paths and dates."""


def read(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    return notebook


def code_of(path):
    return [cell for cell in read(path).cells if cell.cell_type == "code"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.stem, marks=[pytest.mark.slow] * (path.stem != QUICK)) for path in PATHS],
)
# Jupyter's own: it tells that its kernel talks over unencrypted local sockets, and closes some of them late.
@pytest.mark.filterwarnings("default")
def test_runs_from_top_to_bottom_to_the_same_kinds_of_outputs(path, tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # compiling is what takes time, as in most tests
    made = [cell for cell in executed(path, tmp_path).cells if cell.cell_type == "code"]
    assert [_kinds(cell) for cell in made] == [_kinds(cell) for cell in code_of(path)]


def _kinds(cell):
    return [(output.output_type, *sorted(output.get("data", {}))) for output in cell.outputs]


def test_all_notebooks_begin_alike():
    assert len(PATHS) == 6
    badges = [read(path).cells[0].source.splitlines()[2] for path in PATHS]
    assert all(badge.startswith("[![Open in Colab](") for badge in badges)
    assert all(badge.endswith(f"/notebooks/{path.name})") for badge, path in zip(badges, PATHS, strict=True))
    (install,) = {code_of(path)[0].source for path in PATHS}
    assert len(re.findall(r"^SOURCE = ", install, re.MULTILINE)) == 1
    assert 'find_spec("fedjax_drag") is None' in install


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_names_in_the_text_are_there(path):
    roots = {"fd": fd, "entered": fd.arena.Standing}
    text = "".join(cell.source for cell in read(path).cells if cell.cell_type == "markdown")
    for root, names in re.findall(r"`(fd|entered)((?:\.\w+)+)", text):
        assert operator.attrgetter(names[1:])(roots[root])


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_outputs_are_there_small_and_of_no_machine(path):
    assert path.stat().st_size < MOST_BYTES
    code = code_of(path)
    outputs = [output for cell in code for output in cell.outputs]
    assert sum(bool(cell.outputs) for cell in code) > len(code) / 2, "run scripts/run_notebooks.py"
    for cell in code:
        assert max(map(len, cell.source.splitlines())) <= WIDEST
        assert cell.execution_count is None
        printing = any(word in cell.source for word in ("plt.show(", "\nprint(", "\n    print("))
        assert cell.outputs or not printing, "run scripts/run_notebooks.py"
    for output in outputs:
        assert output.output_type in ("stream", "display_data", "execute_result")
        assert output.get("name") != "stderr"
        texts = [output.get("text", ""), *(x for kind, x in output.get("data", {}).items() if kind != "image/png")]
        assert not [text for text in texts if OF_A_MACHINE.search(text)]
