"""Figure 3 of He, Karimireddy and Jaggi, ClippedGossip, 2022: how near robust mixing brings honest nodes to their mean.

Four honest nodes in a row, 2 - 3 - 4 - 5, hold the numbers 0, 0, 200, 200. The edge in the middle weighs ``bridge``,
the outer ones 1/3. Two malicious nodes, 0 at node 3 and 1 at node 4, weigh ``malicious`` and send dissensus of strength
0.05. There is nothing to learn: nodes only mix, and the error is the mean over the honest nodes of the squared distance
to the mean at the start, 10,000 then.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

import fedjax_drag as fd
from fedjax_drag.graphs import mixing

START = (100.0, 100.0, 0.0, 0.0, 200.0, 200.0)
HONEST = slice(2, 6)
OUTER = 1 / 3
MALICIOUS = (0.05, 0.1, 0.2, 0.3)
BRIDGES = (0.267, 0.12, 0.04, 0.01)
RULES = ("clippedgossip", "median", "trimmed mean")


class Errors(NamedTuple):
    """What is measured.

    Attributes:
      gap: spectral gap of the honest nodes' graph, by bridge.
      error: over the rounds, by rule, malicious weight and bridge; the first is that of the start.
    """

    gap: dict[float, float]
    error: dict[tuple[str, float, float], np.ndarray]


def measure(rounds: int = 100) -> Errors:
    """All rules on all graphs."""
    gap = {bridge: fd.graphs.spectral_gap(fd.graphs.from_edges(_honest(bridge, first=0)), 4) for bridge in BRIDGES}
    cases = [(rule, malicious, bridge) for rule in RULES for malicious in MALICIOUS for bridge in BRIDGES]
    return Errors(gap, {case: errors(*case, rounds) for case in cases})


def errors(rule: str, malicious: float, bridge: float, rounds: int) -> np.ndarray:
    """The error at the start and after each round, ``[rounds + 1]``."""
    near = fd.graphs.from_edges([*_honest(bridge, first=2), (0, 3, malicious), (1, 4, malicious)]).at(
        6, jax.random.key(0)
    )
    forged = (near.nodes < 2) & (near.weight > 0)
    attack = fd.attacks.dissensus(strength=0.05)

    def mix(own: jax.Array, index: jax.Array, weight: jax.Array, bad: jax.Array, x: jax.Array) -> jax.Array:
        others = attack.forge_for(own, x[index], weight, bad)
        apart = jnp.where(bad, 0, weight) @ (others - own) ** 2
        theorem = jnp.sqrt(apart / jnp.where(bad, weight, 0).sum())  # infinite where nobody is malicious
        rules = {
            "clippedgossip": lambda: mixing.clippedgossip(theorem),
            "median": lambda: mixing.from_rule(fd.aggregators.median()),
            "trimmed mean": lambda: mixing.from_rule(fd.aggregators.trimmed_mean(0.25)),
        }
        return rules[rule]().mix(own, others, weight, jax.random.key(0))[0]

    def round_(x: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        x = x.at[HONEST].set(jax.vmap(mix, (0, 0, 0, 0, None))(x, *near, forged, x)[HONEST])
        return x, x

    start = jnp.array(START)
    _, rows = jax.jit(lambda x: jax.lax.scan(round_, x, length=rounds))(start)
    honest = np.concatenate([start[None], rows])[:, HONEST]
    return ((honest - honest[0].mean()) ** 2).mean(1)


def _honest(bridge: float, first: int) -> list[tuple[int, int, float]]:
    weights = (OUTER, bridge, OUTER)
    return [(first + i, first + i + 1, weight) for i, weight in enumerate(weights)]


def report(measured: Errors) -> str:
    """The errors after the last round, a row for each graph."""
    lines = ["  ".join(f"{name:>14}" for name in ("malicious", "spectral gap", *RULES))]
    for malicious in MALICIOUS:
        for bridge in BRIDGES:
            ends = [measured.error[rule, malicious, bridge][-1] for rule in RULES]
            lines.append("  ".join(f"{value:14.4g}" for value in (malicious, measured.gap[bridge], *ends)))
    return "\n".join(lines)


def draw(measured: Errors) -> Figure:
    """The errors over the rounds, a panel for each graph."""
    figure = Figure(figsize=(10, 7), facecolor="white", layout="constrained")
    panels = figure.subplots(len(BRIDGES), len(MALICIOUS), sharex=True, sharey=True)
    for row, bridge in zip(panels, BRIDGES, strict=True):
        for panel, malicious in zip(row, MALICIOUS, strict=True):
            for rule, style in zip(RULES, ("-", "--", ":"), strict=True):
                panel.plot(measured.error[rule, malicious, bridge], style, label=rule)
            panel.set_title(f"weight {malicious:g}, gap {measured.gap[bridge]:.2g}", fontsize=9)
    panels[0, 0].legend(fontsize=8)
    figure.suptitle("ClippedGossip, Figure 3, by weight of the malicious node and spectral gap")
    figure.supxlabel("rounds")
    figure.supylabel("mean squared distance to the first mean")
    return figure
