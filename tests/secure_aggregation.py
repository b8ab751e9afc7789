"""Which rules and methods of the registry could run under secure aggregation.

``python tests/secure_aggregation.py`` writes the tables of ``docs/secure_aggregation.md``.
"""

import textwrap
from pathlib import Path

from cases import AGGREGATORS, ALGORITHMS, Case

from fedjax_drag.algorithms import from_aggregator
from fedjax_drag.experiment.build import registry
from fedjax_drag.simulation.planning.compatibility import check_secure_aggregation
from fedjax_drag.types import Aggregator

CONTRIBUTIONS = {
    "fedavg": "`p_m g_m`",
    "fedexp": "`g_m`, `‖g_m‖²`",
    "qffl": "`F_m^q g_m`, `F_m^q + q F_m^(q-1) L ‖g_m‖²`",
    "term": "`e^(t F_m) g_m`, `e^(t F_m)`",
    "drag": "`(1 - λ_m) g_m`, `λ_m ‖g_m‖`; before the first update also `g_m`, in a pass of its own",
    "br_drag": "`(1 - λ_m) ‖r‖ g_m / ‖g_m‖`, `λ_m`",
    "fltrust": "`TS_m ‖r‖ g_m / ‖g_m‖`, `TS_m`",
    "root_only": "nothing",
    "norm_clipping": "`min(1, C / ‖g_m‖) g_m`",
    "crfl": "`g_m`",
    "signsgd_majority": "`sign(g_m)`",
    "robust_lr": "`g_m`, `sign(g_m)`",
    "scaffold": "those of the rule, `c_m' - c_m`",
    "adabest": "those of the rule",
    "feddyn": "those of the rule, `g_m`",
    "feddc": "those of the rule, `g_m`, `c_m' - c_m`",
    "fedadmm": "those of the rule, on `D_m`",
    "fedacg": "those of the rule",
    "mime": "those of the rule, `∇f_m(θ)`",
    **dict.fromkeys(("ditto", "fedper", "fedrep", "lg_fedavg", "fedbn", "pfedme"), "those of the rule"),
    **dict.fromkeys(("per_fedavg", "apfl", "fine_tune"), "those of the rule"),
    "local_only": "nothing",
}
"""What the server adds up over the clients, beside their number, by the rules and methods that pass."""

PAGE = Path(__file__).parents[1] / "docs/secure_aggregation.md"
START, END = "<!-- tables: written by tests/secure_aggregation.py -->\n\n", "\n<!-- end of tables -->\n"


def cases() -> dict[str, dict[str, Case]]:
    """The first case of every rule and method of the registry."""
    found: dict[str, dict[str, Case]] = {"aggregator": {}, "algorithm": {}}
    for table, every in (("aggregator", AGGREGATORS), ("algorithm", ALGORITHMS)):
        names = {builder: name for name, builder in registry.TABLES[table].items()}
        for case in reversed(every):
            if case.builder in names and case.builder is not from_aggregator:
                found[table][names[case.builder]] = case
        found[table] = {name: found[table][name] for name in registry.TABLES[table] if name in found[table]}
    return found


def refusal(part: object) -> str:
    """What the error says; empty if the rule or method passes."""
    try:
        check_secure_aggregation(from_aggregator(part) if isinstance(part, Aggregator) else part)
    except ValueError as error:
        return str(error)
    return ""


def page() -> str:
    """The page of the documentation with its tables written anew."""
    parts = []
    for table, title in (("aggregator", "Rules"), ("algorithm", "Methods, with FedAvg inside")):
        verdicts = {name: refusal(case.build()) for name, case in cases()[table].items()}
        passing, refused = ([n for n, why in verdicts.items() if bool(why) is wrong] for wrong in (False, True))
        rows = [f"| `{name}` | {CONTRIBUTIONS[name]} |" for name in passing]
        parts.append(
            "\n".join([f"## {title}", "", "| passes | what a client adds to the sums |", "| --- | --- |", *rows])
        )
        parts.append(textwrap.fill(f"Refused: {', '.join(f'`{name}`' for name in refused)}.", 120))
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
    return before + START + "\n\n".join(parts) + "\n" + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
