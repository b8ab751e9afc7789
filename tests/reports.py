"""Results folders as runs and sweeps leave them, written by hand, and pages as browsers read them."""

import csv
import io
import json
import re
import urllib.parse
from html.parser import HTMLParser

import yaml

from fedjax_drag.experiment.run import environment, metrics_file, results
from fedjax_drag.experiment.sweep.grid import load_grid

BASE = {
    "data": "digits",
    "partition": {"name": "iid", "num_clients": 8},
    "model": {"name": "mlp", "hidden": [8]},
    "rounds": 3,
    "eval_every": 1,
    "cohort_size": 4,
}
ENVIRONMENT = {"python": "3.11", "packages": {"jax": "0.10"}, "seed": 0, "started": "now"}


def write_run(folder, accuracies, summary=None, config=None, **columns):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / results.CONFIG).write_text(yaml.safe_dump(BASE | {"name": folder.name} | (config or {})))
    rows = [
        {"round": i + 1, "test_accuracy": accuracy, "test_loss": 1.0 - (accuracy or 0)}
        | {name: column[i] for name, column in columns.items()}
        for i, accuracy in enumerate(accuracies)
    ]
    (folder / metrics_file.METRICS).write_text("".join(json.dumps(row) + "\n" for row in rows))
    if summary is not None:
        (folder / results.SUMMARY).write_text(json.dumps(summary))
    (folder / environment.ENVIRONMENT).write_text(json.dumps(ENVIRONMENT))
    return folder


def write_sweep(folder, axes, accuracies, base=None, validation=None):
    """A sweep whose cells, in order, have these curves, on test and validation; None for a cell that was not begun."""
    folder.mkdir()
    written = BASE | (base or {}) | {"name": "matrix", "axes": axes}
    (folder / "sweep.yaml").write_text(yaml.safe_dump(written, sort_keys=False))
    grid = load_grid(written)
    for place, (point, curve) in enumerate(zip(grid.points, accuracies, strict=True)):
        if curve is not None:
            more = {} if validation is None else {"validation_accuracy": validation[place]}
            write_run(folder / "cells" / point.folder, curve, {"interrupted": False}, {"name": point.label}, **more)
    return folder, grid


class Page(HTMLParser):
    """What a browser makes of a page: its elements with their attributes, texts, and the data of the charts."""

    def __init__(self, path):
        super().__init__()
        self.source = path.read_text()
        self.tags, self.scripts, self.text, self._hidden, self.charts = [], [], [], None, []
        self.feed(self.source)
        self.shown = " ".join(" ".join(self.text).split())

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._hidden = tag if tag in ("script", "style") else None

    def handle_endtag(self, tag):
        self._hidden = None

    def handle_data(self, data):
        if self._hidden is None:
            self.text.append(data)
        elif self.tags[-1] == ("script", {"type": "application/json"}):
            self.charts.append(json.loads(data))
        elif self._hidden == "script":
            self.scripts.append(data)

    def rows(self):
        """Texts of the cells of all tables."""
        found = re.findall(r"<tr[^>]*>(.*?)</tr>", self.source, flags=re.S)
        return [
            [" ".join(re.sub(r"<.*?>", "", cell).split()) for cell in re.findall(r"<t[hd].*?</t[hd]>", row, re.S)]
            for row in found
        ]

    def file(self, name):
        """The lines of the file that a link of this name saves."""
        (address,) = [a["href"] for _, a in self.tags if a.get("download") == f"{name}.csv"]
        text = urllib.parse.unquote(address.removeprefix("data:text/csv;charset=utf-8,"))
        return list(csv.reader(io.StringIO(text)))

    def chart(self, about):
        """The chart whose description starts so."""
        abouts = [a["aria-label"] for _, a in self.tags if a.get("class") == "chart"]
        (place,) = [place for place, text in enumerate(abouts) if text.startswith(about)]
        return self.charts[place]
