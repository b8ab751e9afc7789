"""Which rules and methods of the registry could run under secure aggregation.

``python tests/secure_aggregation.py > docs/secure_aggregation.md`` writes them as a page of the documentation.
"""

import sys
import textwrap

from cases import AGGREGATORS, ALGORITHMS, Case

from fedjax_drag.algorithms import from_aggregator
from fedjax_drag.experiment.build import registry
from fedjax_drag.simulation.planning.compatibility import check_secure_aggregation
from fedjax_drag.types import Aggregator

CONTRIBUTIONS = {
    "fedavg": "`p_m g_m`",
    "fedexp": "`g_m`, `‖g_m‖²`",
    "drag": "`(1 - λ_m) g_m`, `λ_m ‖g_m‖`; before the first update also `g_m`, in a pass of its own",
    "br_drag": "`(1 - λ_m) ‖r‖ g_m / ‖g_m‖`, `λ_m`",
    "fltrust": "`TS_m ‖r‖ g_m / ‖g_m‖`, `TS_m`",
    "root_only": "nothing",
    "norm_clipping": "`min(1, C / ‖g_m‖) g_m`",
    "signsgd_majority": "`sign(g_m)`",
    "scaffold": "those of the rule, `c_m' - c_m`",
    "adabest": "those of the rule",
    "feddyn": "those of the rule, `g_m`",
    "feddc": "those of the rule, `g_m`, `c_m' - c_m`",
    "fedacg": "those of the rule",
    "mime": "those of the rule, `∇f_m(θ)`",
}
"""What the server adds up over the clients, beside their number, by the rules and methods that pass."""

HEAD = """# Secure aggregation

`secure_aggregation=True` (`fd.simulate`, or the key of a configuration) is a check. Before anything is computed it
refuses, in one line, a method whose server must see single messages. And it leaves everything out of the history that
is of a single client, as `diagnostics=False` does. **There is no cryptography here.** A protocol such as that of
Bonawitz et al. (Practical secure aggregation for privacy-preserving machine learning, 2017) would show the server the
sums below and nothing else; the simulation computes these sums from messages in the clear.

What passes is a sum over clients. Each client adds a function of its own message, its own state and values that the
server may publish (the parameters, the state of the rule, the root delta). Three things follow.

- **Clients compute their weights.** Weights that depend on the message, such as DRAG's `λ_m`, FLTrust's `TS_m` or a
  clipping factor, are computed by the client itself. In a deployment a malicious client could send a wrong weight; in
  the simulation it cannot. So a rule that resists attacks in the clear resists them under secure aggregation only if
  clients prove that their contribution is what it must be.
- **Unusable messages.** Messages that are not finite or too long are left out one by one here. In a protocol over
  integers they cannot occur.
- **State of clients.** What the engine keeps for every client, such as SCAFFOLD's `c_m` or the error of a
  [compressor](compression.md), is the client's own. A protocol can add compressed messages only if they have a form
  that can be added; the simulation adds what is decompressed.

Attacks, which know more than the server, and evaluations of clients (`evaluate_clients`), which are the
experimenter's, do not change. The history has the mean, spread and worst tenth of such evaluations.

This page is written by `python tests/secure_aggregation.py`.
"""


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
    """The page as Markdown."""
    parts = [HEAD]
    for table, title in (("aggregator", "Rules"), ("algorithm", "Methods, with FedAvg inside")):
        verdicts = {name: refusal(case.build()) for name, case in cases()[table].items()}
        passing, refused = ([n for n, why in verdicts.items() if bool(why) is wrong] for wrong in (False, True))
        rows = [f"| `{name}` | {CONTRIBUTIONS[name]} |" for name in passing]
        parts.append(
            "\n".join([f"## {title}", "", "| passes | what a client adds to the sums |", "| --- | --- |", *rows])
        )
        parts.append(textwrap.fill(f"Refused: {', '.join(f'`{name}`' for name in refused)}.", 120))
    parts.append(
        "A rule inside another, such as `nnm`, or inside a method counts as part of it. A rule of your own passes if it"
        "\nhas [sums](api/types.md); that these are sums of single messages is then its author's word."
    )
    return "\n\n".join(part.strip() for part in parts) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
