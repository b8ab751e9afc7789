"""A metric against rounds as an image: one line per method with a band over seeds."""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from tqdm import tqdm

from fedjax_drag.experiment.figures import apart
from fedjax_drag.experiment.figures.contents import Contents
from fedjax_drag.experiment.figures.labels import clean, data_title, method, shared
from fedjax_drag.experiment.figures.series import curves, given_labels, measured
from fedjax_drag.experiment.run import metric_kinds, results
from fedjax_drag.experiment.run.results import Run

FORMATS = (".png", ".pdf", ".svg")
"""File name suffixes that can be drawn."""


def plot(
    runs: Iterable[str | Path],
    path: str | Path,
    *,
    metric: str = "test_accuracy",
    labels: Sequence[str] = (),
    title: str | None = None,
) -> Path:
    """Draws a metric against communication rounds.

    Runs that differ only by seed share a line, their mean, in a band from their minimum to their
    maximum. The folder of a comparison stands for all the runs in it.

    Args:
      runs: results folders.
      path: image to write; its suffix (``.png``, ``.pdf`` or ``.svg``) is the format.
      metric: a column of the histories with one number for each evaluation.
      labels: names of the lines, one for each folder or ``LABEL=DIR``; default what differs between the runs. The
        label of a comparison precedes those of its runs.
      title: the headline; default the metric and the data set.

    What is missing, because a run has no evaluation yet, lacks the metric or a line of its file cannot be read, is
    said on standard error.

    Returns:
      The path of the image.

    Raises:
      FileNotFoundError: a folder or its configuration does not exist.
      ValueError: no runs, another suffix, a configuration that is not valid, a metric that no run has, or another
        number of labels than of runs.
    """
    target = Path(path)
    if target.suffix.lower() not in FORMATS:
        raise ValueError(f"output {str(target)!r}: must end in {', '.join(FORMATS)}")
    folders = [Path(run) for run in runs]
    read: list[Run] = []
    given: list[str | None] = []
    for folder, label in zip(folders, given_labels(labels, folders), strict=True):
        found = results.read(folder)
        read += found
        given += [label and f"{label}, {run.config.name}" for run in found] if len(found) > 1 else [label]
    if not read:
        raise ValueError("runs=[]: must name at least one results folder")
    shown = contents(read, metric, given, title)
    for run in read:
        lacking = f"{str(run.folder)!r}: has no {metric}" if run.history and metric not in run.history else ""
        for note in filter(None, (run.note, lacking)):
            tqdm.write(note, file=sys.stderr)
    target.parent.mkdir(parents=True, exist_ok=True)
    apart.save(shown, target)
    return target


def contents(
    runs: Sequence[Run],
    metric: str = "test_accuracy",
    given: Sequence[str | None] | None = None,
    title: str | None = None,
) -> Contents:
    """What the image of :func:`plot` shows, from runs already read; runs without an evaluation have no line.

    Args:
      runs: the runs.
      metric: a column of their histories.
      given: the label of each run, or None for one that says what differs.
      title: the headline, or None for one made from the runs.

    Raises:
      ValueError: no run has such a metric.
    """
    drawn = measured(runs, metric)
    if not drawn:
        return Contents([], metric, axis="", headline="", shared="")
    chosen = {id(run): label for run, label in zip(runs, given or [None] * len(runs), strict=True)}
    lines = curves(drawn, metric, [chosen[id(run)] for run in drawn])
    name = metric_kinds.title(metric)
    axis = clean(name[:1].upper() + name[1:], 60)
    configs = [run.config for run in drawn]
    if title is None:
        names = ", ".join(dict.fromkeys(map(data_title, configs)))
        title = f"{axis}{f' of {method(configs[0])}' if len(lines) == 1 else ''} on {names}"
    return Contents(lines, metric, axis, clean(title, 80), clean(shared(configs), 180))
