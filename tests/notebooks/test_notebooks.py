"""The notebooks run from top to bottom, and keep no output but pictures."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
QUICK = "05_import_the_rules_only"
MOST_BYTES = 1 << 20
"""Of all notebooks together, pictures included."""
WIDEST = 88
"""Characters of a line of code that are seen without scrolling."""


def read(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    return notebook


@pytest.mark.thorough
@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.stem, marks=[pytest.mark.slow] * (path.stem != QUICK)) for path in NOTEBOOKS],
)
# Jupyter's own: it tells that its kernel talks over unencrypted local sockets, and closes some of them late.
@pytest.mark.filterwarnings("default")
def test_runs_from_top_to_bottom(path, tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # compiling is what takes time, as in most tests
    notebook = read(path)
    client = NotebookClient(notebook, timeout=1800, kernel_name="python3", resources={"metadata": {"path": tmp_path}})
    client.execute()
    kept = [cell for cell in notebook.cells if "keep" in cell.metadata.get("tags", [])]
    assert all(any("image/png" in out.get("data", {}) for out in cell.outputs) for cell in kept)


def test_there_are_notebooks_and_they_are_small():
    assert len(NOTEBOOKS) == 5
    assert sum(path.stat().st_size for path in NOTEBOOKS) < MOST_BYTES


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_installs_first_and_keeps_pictures_only(path):
    code = [cell for cell in read(path).cells if cell.cell_type == "code"]
    assert 'find_spec("fedjax_drag") is None' in code[0].source
    for cell in code:
        assert max(map(len, cell.source.splitlines())) <= WIDEST
        assert cell.execution_count is None
        assert "keep" in cell.metadata.get("tags", []) or not cell.outputs
        assert all(set(out.data) == {"image/png"} for out in cell.outputs)
