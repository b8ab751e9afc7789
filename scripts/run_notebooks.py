#!/usr/bin/env python
"""Runs the notebooks and keeps their outputs, so that they can be read without running them.

Examples:
  python scripts/run_notebooks.py                # all, about a quarter of an hour on two cores
  python scripts/run_notebooks.py 04             # those whose names begin so

What is kept is text and PNG images; execution counts, times, ids of outputs and what goes to standard error are not.
Needs the extra ``notebooks``.
"""

import argparse
import os
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
KEPT = ("image/png", "text/html", "text/plain")
"""Forms of an output by preference; the first that there is, is kept."""


def executed(path: Path, folder: Path) -> nbformat.NotebookNode:
    """A notebook with the outputs of a run in ``folder``.

    Raises:
      nbclient.exceptions.CellExecutionError: a cell failed.
    """
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": folder}}
    client = NotebookClient(
        notebook, timeout=1800, kernel_name="python3", resources=resources, record_timing=False, coalesce_streams=True
    )
    client.execute(env=os.environ | {"TQDM_DISABLE": "1"})  # progress bars are no outputs to keep
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.execution_count = None
            cell.outputs = [_bare(output) for output in cell.outputs if output.get("name") != "stderr"]
    notebook.metadata = {key: notebook.metadata[key] for key in ("kernelspec",)}
    notebook.metadata["language_info"] = {"name": "python"}
    return notebook


def _bare(output: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """An output in one form, without what differs between runs that compute the same."""
    if "data" in output:
        kept = next(kind for kind in KEPT if kind in output.data)
        output.data = {kind: output.data[kind] for kind in {kept, *(["text/plain"] if kept == "text/html" else [])}}
        output.metadata = {}
    if "execution_count" in output:
        output.execution_count = None
    return output


def main() -> None:
    """Runs the notebooks that were asked for, in place."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="beginnings of their names; default all")
    wanted = tuple(parser.parse_args().names) or ("",)
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        if path.name.startswith(wanted):
            with tempfile.TemporaryDirectory() as folder:
                notebook = executed(path, Path(folder))
            nbformat.write(notebook, path)
            print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
