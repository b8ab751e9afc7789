"""Sets the sweeps of configs/peers beside the figures that their authors have printed.

    python scripts/peers.py runs/bucketing_* runs/byzfl runs/fedlab

Prints a table of each peer; runs of one setting must be alike but for the seed. ``--page`` adds the runs to those of
docs/results/peers_runs.csv, in place of earlier ones of the same setting, attack and seed, and writes the tables of all
of them into docs/results/peers.md, and every setting into docs/results/peers_settings.csv; it refuses a run that is no
cell of its configuration, or of what its header says is another command. Figures are means over
the seeds with 95 % intervals (Student's t); two overlap where their difference is at most the sum of the half widths.
A figure that is printed without a deviation is taken for the mean of its runs (one, where their number is not said),
which vary as ours do: it overlaps if it is in the prediction interval, widened by half its last digit. So is a single
run of ours taken for one that varies as theirs. Published figures are in docs/results/bucketing_logs.csv, run by run,
and in peers_published.csv.
"""

import csv
import math
import re
from collections import defaultdict
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import typer
from scipy import stats

from fedjax_drag.experiment.intervals import Estimate, estimate
from fedjax_drag.experiment.sweep.summary_page import markdown
from peer_runs import RESULTS, Runs, Setting, check_settings, keep, kept, measured

LOGS, PUBLISHED = RESULTS / "bucketing_logs.csv", RESULTS / "peers_published.csv"
PAGE, SETTINGS = RESULTS / "peers.md", RESULTS / "peers_settings.csv"
BySeed = dict[int, float]
"""Figures of a setting."""


def logged() -> dict[Setting, BySeed]:
    """Bucketing's figures; of mimicry without momentum among clients that differ, which they ran twice, the first."""
    found: dict[Setting, BySeed] = defaultdict(dict)
    with LOGS.open(encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            *about, buckets, seed = row["setting"].split("_")
            if row["experiment"] == "exp2":
                setting = Setting(about[0], "mimic", 0.0, about[1] == "True", int(buckets[1:]))
            else:
                setting = Setting(about[0], about[1], float(about[2]), True, int(buckets[1:]))
            found[setting].setdefault(int(seed.removeprefix("seed")), float(row["mean_of_last_5"]))
    return found


class Published(NamedTuple):
    """A printed figure.

    Attributes:
      estimate: its half width is NaN where no deviation is printed.
      runs: of which it is the mean; 1 where that is not said.
    """

    estimate: Estimate
    runs: int


def theirs() -> dict[str, dict[str, Published]]:
    """Published figures, by table and setting."""
    found: dict[str, dict[str, Published]] = defaultdict(dict)
    for setting, by_seed in logged().items():
        found["bucketing"][str(setting)] = Published(estimate(np.array(list(by_seed.values()))), len(by_seed))
    with PUBLISHED.open(encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            half, runs = math.nan, int(row["runs"] or 1)
            if row["deviation"]:
                half = float(stats.t.ppf(0.975, runs - 1)) * float(row["deviation"]) / math.sqrt(runs)
            found[row["table"]][row["setting"]] = Published(Estimate(float(row["value"]), half), runs)
    return found


def by_setting(runs: Runs) -> dict[str, dict[str, BySeed]]:
    """Our figures, by table and setting; of ByzFL where a setting has runs under all three attacks."""
    found: dict[str, dict[str, BySeed]] = defaultdict(lambda: defaultdict(dict))
    curves: dict[str, dict[str, dict[int, list[float]]]] = defaultdict(lambda: defaultdict(dict))
    for (table, setting, attack, seed), figures in runs.items():
        if table == "byzfl":
            curves[setting][attack][seed] = figures
        else:
            (found[table][setting][seed],) = figures
    for setting, by_attack in curves.items():
        if len(by_attack) == 3:
            found["byzfl"][setting] = worst(by_attack)
    return found


def worst(by_attack: dict[str, dict[int, list[float]]]) -> BySeed:
    """ByzFL's figure: the best evaluation of the mean over the seeds, under the attack that leaves least of it."""
    means = {attack: np.mean(list(curves.values()), axis=0) for attack, curves in by_attack.items()}
    attack = min(means, key=lambda name: means[name].max())
    return {seed: curve[means[attack].argmax()] for seed, curve in by_attack[attack].items()}


_HALF_DIGIT = {"byzfl": 0.5, "fedlab": 0.5, "mcmahan": 0.5, "niid_bench": 0.05}
"""Of the last one printed, by table; 0.005 in the others."""


def _compared(printed: Published, by_seed: BySeed, table: str) -> tuple[Estimate, str]:
    """Our figure less theirs, and whether they overlap; empty where neither is of several runs."""
    (there, runs), here = printed, estimate(np.array(list(by_seed.values())))
    difference = here.mean - there.mean
    if np.isnan(there.half):
        spread = here.half * math.sqrt(1 + len(by_seed) / runs)
        furthest = spread + _HALF_DIGIT.get(table, 0.005)
    elif np.isnan(here.half):
        spread = furthest = there.half * math.sqrt(1 + runs)
    else:
        spread, furthest = math.hypot(there.half, here.half), there.half + here.half
    judged = "" if np.isnan(furthest) else "yes" if abs(difference) <= furthest else "no"
    return Estimate(difference, spread), judged


def rows(published: dict[str, Published], ours: dict[str, BySeed], table: str) -> list[list[str]]:
    """A row for each setting, also of those that have not been run, and the head."""
    lines = [["setting", "theirs", "ours", "seeds", "difference", "overlap"]]
    for setting, printed in published.items():
        there = _shown(printed.estimate)
        if setting not in ours:
            lines.append([setting, there, "missing", "0", "", ""])
            continue
        here = _shown(estimate(np.array(list(ours[setting].values()))))
        difference, overlap = _compared(printed, ours[setting], table)
        lines.append([setting, there, here, str(len(ours[setting])), _shown(difference, sign="+"), overlap])
    return lines


def _shown(value: Estimate, sign: str = "") -> str:
    return f"{value.mean:{sign}.1f}" + ("" if np.isnan(value.half) else f" \N{PLUS-MINUS SIGN} {value.half:.1f}")


def count(table: list[list[str]]) -> str:
    """How many settings of a table have been run, and how many of those with an interval overlap."""
    done = [row for row in table[1:] if row[2] != "missing"]
    judged = [row for row in done if row[-1]]
    overlapping = sum(row[-1] == "yes" for row in judged)
    return f"{len(done)} of {len(table) - 1} settings run; {overlapping} of the {len(judged)} with an interval overlap."


def tables_of(runs: Runs) -> dict[str, list[list[str]]]:
    """The rows of each table."""
    ours = by_setting(runs)
    return {name: rows(published, ours[name], name) for name, published in theirs().items()}


def paged(text: str, tables: dict[str, list[list[str]]]) -> str:
    """The text of the page with these tables in their places."""
    for name, table in tables.items():
        shown = [row for row in table if row[2] != "missing"]
        block = f"{count(table)}\n" + (f"\n{markdown(shown)}\n" if 1 < len(shown) <= 33 else "")
        text = re.sub(
            rf"(<!-- {name} -->\n).*?(<!-- end -->)", lambda m, b=block: m[1] + b + m[2], text, flags=re.DOTALL
        )
    return text


def main(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="DIR...", exists=True, file_okay=False, help="Results folders of the sweeps."),
    ] = None,
    page: Annotated[
        bool,
        typer.Option("--page", help="Keep the runs; write all that are kept into the page and the settings' file."),
    ] = False,
) -> None:
    """Set the sweeps beside the published figures."""
    folders = folders or []
    if not (folders or page):
        raise typer.BadParameter("DIR: missing; results folders of sweeps, or --page alone for the runs that are kept")
    try:
        if page:
            for folder in folders:
                check_settings(folder)
        runs = measured(folders)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if page:
        printed = theirs()
        runs = kept() | {about: figures for about, figures in runs.items() if about.setting in printed[about.table]}
        keep(runs)
    tables = tables_of(runs)
    if not page:
        for name, table in tables.items():
            if any(row[2] != "missing" for row in table[1:]):
                typer.echo(f"{name}\n\n{markdown([row for row in table if row[2] != 'missing'])}\n\n{count(table)}\n")
        return
    with SETTINGS.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["table", *next(iter(tables.values()))[0]])
        writer.writerows([name, *row] for name, table in tables.items() for row in table[1:])
    PAGE.write_text(paged(PAGE.read_text(encoding="utf-8"), tables), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
