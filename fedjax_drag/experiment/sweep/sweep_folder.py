"""The results folder of a sweep: what is in it, who may write there, and how it is written and cleared."""

from collections.abc import Sequence
from pathlib import Path

from fedjax_drag.experiment.run import folders, results
from fedjax_drag.experiment.sweep import outcome_table
from fedjax_drag.experiment.sweep.grid import Grid
from fedjax_drag.experiment.sweep.outcome_table import Cell
from fedjax_drag.experiment.sweep.summary_page import summary
from fedjax_drag.files import check_kinds, write_text
from fedjax_drag.simulation.driver import reason

CONFIG, TABLE, PARQUET, SUMMARY = results.SWEEP, "table.csv", "table.parquet", "summary.md"
HEATMAP, CELLS, JOBS = "heatmap.png", results.CELLS, "jobs"
FILES = (CONFIG, TABLE, PARQUET, SUMMARY, HEATMAP)
WRITTEN = (*FILES, CELLS)
"""Everything that a sweep writes into its folder."""

MOST_DRAWN = 100
"""Rows of a heat map at most, and columns: one of more cannot be read, and would take minutes and gigabytes."""


def check_folder(folder: Path, *, resume: bool, overwrite: bool) -> None:
    """Refuses a folder in which a sweep may not write; changes nothing."""
    where = f"out={str(folder)!r}"
    if resume:
        check_kinds(folder, FILES, (CELLS,))
    if (folder / CONFIG).is_file() or (resume and (folder / CELLS).is_dir()):
        if not (resume or overwrite):
            raise ValueError(f"{where}: already holds a sweep; {folders.REMEDY}")
    elif resume and folders.holds_others(folder, JOBS):  # where there is nothing yet, a sweep starts
        raise ValueError(f"{where}: holds no sweep to resume")
    elif any((folder / name).exists() for name in (*WRITTEN, *results.WRITTEN, results.STANDING)):
        raise ValueError(f"{where}: holds something else than a sweep; choose another folder")


def record(folder: Path, grid: Grid, cells: Sequence[Cell]) -> None:
    """Writes the table and the summary of the cells that have an outcome."""
    table = outcome_table.table(grid, cells)
    write_text(folder / TABLE, outcome_table.to_csv(table))
    write_text(folder / SUMMARY, summary(grid, cells))
    outcome_table.write_parquet(folder / PARQUET, table)


def draw(folder: Path, grid: Grid, cells: Sequence[Cell]) -> None:
    """Draws the heat map, if there are two axes beside the seed and no more than :data:`MOST_DRAWN` rows or columns."""
    (folder / HEATMAP).unlink(missing_ok=True)
    drawn = outcome_table.matrix(grid, cells)
    if len([axis for axis in grid.axes if axis != "seed"]) < 2 or max(drawn.mean.shape) > MOST_DRAWN:
        return
    from fedjax_drag.experiment.figures import style  # imported here: matplotlib is slow
    from fedjax_drag.experiment.sweep import heatmap

    style.save(heatmap.draw(drawn, grid.base.name), folder / HEATMAP)


def finished(folder: Path) -> list[results.StoredRun]:
    """The runs of the cells at their end: after all rounds, or where ``stop_when`` or ``patience`` ended them."""
    runs = [run for cell in sorted((folder / CELLS).iterdir()) for run in results.read(cell) if run.history]
    over = lambda run: run.history["round"][-1] == run.config.rounds
    return [run for run in runs if over(run) or reason(run.history, run.config, run.criterion)]


def clear(folder: Path) -> None:
    """Removes what a sweep wrote in ``folder``, and nothing else."""
    folders.clear(folder / CELLS, None)
    if (folder / CELLS).is_dir() and not any((folder / CELLS).iterdir()):
        (folder / CELLS).rmdir()
    for name in (*FILES, results.REPORT):
        (folder / name).unlink(missing_ok=True)
