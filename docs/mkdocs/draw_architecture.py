"""Draws docs/architecture.svg, the map of the package: ``python docs/mkdocs/draw_architecture.py``."""

from pathlib import Path
from xml.sax.saxutils import escape

PICTURE = Path(__file__).parents[1] / "architecture.svg"
SIZE = 960, 528

STYLE = """
  .paper { fill: #ffffff } .frame { fill: #f3f4f6; stroke: #9ca3af } .box { fill: #ffffff; stroke: #4b5563 }
  text { font: 14px system-ui, sans-serif; fill: #111827; text-anchor: middle }
  .name { font-weight: 600 } .note { font-size: 12px; fill: #374151 } .arrow { stroke: #4b5563; fill: none }
  marker path { fill: #4b5563 }
  @media (prefers-color-scheme: dark) {
    .paper { fill: #111827 } .frame { fill: #1f2937; stroke: #6b7280 } .box { fill: #111827; stroke: #9ca3af }
    text { fill: #f9fafb } .note { fill: #d1d5db } .arrow { stroke: #9ca3af } marker path { fill: #9ca3af }
  }
"""

FRAMES = {
    (16, 60, 928, 108): "experiment: from a configuration to a results folder",
    (16, 192, 928, 200): "simulation: a run of T rounds, compiled once",
    (16, 416, 928, 96): "imported by all of the above; rules need nothing else",
}
BOXES = {
    (40, 8, 416, 44): ("cli, fd.run, fd.sweep", "a YAML file and key=value overrides"),
    (40, 92, 184, 60): ("config", "checked values"),
    (272, 92, 184, 60): ("build", "names become functions"),
    (504, 92, 184, 60): ("run, sweep", "one run, many runs"),
    (736, 92, 184, 60): ("figures, report", "read the results folder"),
    (40, 224, 184, 60): ("planning", "setup, cost, checks"),
    (272, 224, 184, 60): ("cohort and downlink", "who takes part, what is sent"),
    (504, 224, 184, 60): ("local passes and uplink", "clients, noise, compression"),
    (736, 224, 184, 60): ("attack", "forges messages"),
    (736, 316, 184, 60): ("screening", "leaves out invalid messages"),
    (504, 316, 184, 60): ("aggregation rule", "aggregators, ops"),
    (272, 316, 184, 60): ("new parameters", "and the rule's state"),
    (40, 316, 184, 60): ("evaluation", "history, callbacks"),
    (40, 452, 416, 44): (
        "aggregators, algorithms, clients, attacks",
        "data, models, privacy, compression, clocks, selection",
    ),
    (504, 452, 184, 44): ("ops", "arithmetic on deltas"),
    (736, 452, 184, 44): ("types, checks, tree", "contracts"),
}
ARROWS = [
    "M132 52 V90",
    "M224 122 H270",
    "M456 122 H502",
    "M688 122 H734",
    "M596 152 V180 H132 V222",
    "M224 254 H270",
    "M456 254 H502",
    "M688 254 H734",
    "M828 284 V314",
    "M736 346 H690",
    "M504 346 H458",
    "M272 346 H226",
    "M364 316 V286",
]
NOTES = {(858, 304): "deltas", (402, 304): "next round"}


def draw() -> str:
    """The picture as SVG."""
    width, height = SIZE
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        "<title>The package as a map: configuration, simulation, results, and what they import</title>",
        f"<style>{STYLE}</style>",
        '<defs><marker id="tip" markerWidth="8" markerHeight="8" refX="6" refY="4" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z"/></marker></defs>',
        f'<rect class="paper" width="{width}" height="{height}"/>',
    ]
    for (x, y, w, h), title in FRAMES.items():
        lines.append(f'<rect class="frame" x="{x}" y="{y}" width="{w}" height="{h}" rx="8"/>')
        lines.append(_text(x + w - 16, y + 20, title, "note", "end"))
    for path in ARROWS:
        lines.append(f'<path class="arrow" marker-end="url(#tip)" d="{path}"/>')
    for (x, y, w, h), (name, note) in BOXES.items():
        lines.append(f'<rect class="box" x="{x}" y="{y}" width="{w}" height="{h}" rx="6"/>')
        middle = y + h / 2
        lines += [_text(x + w / 2, middle - 4, name, "name"), _text(x + w / 2, middle + 14, note, "note")]
    lines += [_text(x, y, note, "note") for (x, y), note in NOTES.items()]
    return "\n".join([*lines, "</svg>\n"])


def _text(x: float, y: float, text: str, kind: str, anchor: str = "") -> str:
    style = f' style="text-anchor: {anchor}"' if anchor else ""
    return f'<text class="{kind}" x="{x:g}" y="{y:g}"{style}>{escape(text)}</text>'


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
