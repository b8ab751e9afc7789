"""Rules on the roof: the time of each beside the shortest in which its bytes can be moved."""

from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.accelerator.record import Record


def draw(record: Record, path: Path) -> None:
    """Writes a picture of the rules that have been measured.

    Raises:
      ValueError: none has been measured.
    """
    rows = [row for part in ("rules", "large_rules") for row in record.rows(part) if row["planned_ms"]]
    if not rows:
        raise ValueError(f"{str(path)!r}: there are no rules to draw; measure the part rules first")
    picture = Figure(figsize=(8, 6), layout="constrained")
    axes = picture.subplots()
    for number, size in enumerate(dict.fromkeys(row["d"] for row in rows)):
        own = [row for row in rows if row["d"] == size]
        axes.scatter(
            [row["planned_ms"] for row in own], [row["ms"] for row in own], color=f"C{number}", label=f"d={size}"
        )
        for row in own:
            axes.annotate(
                row["rule"], (row["planned_ms"], row["ms"]), xytext=(4, 2), textcoords="offset points", fontsize=7
            )
    ends = [min(row["planned_ms"] for row in rows), max(row["ms"] for row in rows)]
    axes.plot(ends, ends, color="0.3", linewidth=1, label="as planned")
    axes.plot(ends, [2 * end for end in ends], color="0.7", linewidth=1, linestyle="--", label="twice that")
    axes.set(xscale="log", yscale="log", xlabel="planned (ms)", ylabel="measured (ms)")
    axes.set_title(f"Aggregation rules on {record.machine['device']}")
    axes.legend()
    picture.savefig(path)
