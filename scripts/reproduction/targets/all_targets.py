"""All targets, and the names that stand for them on the command line."""

import dataclasses
from typing import Any

from reproduction.targets.target import BR_DRAG, CLUSTERGUARD, DRAG, TACO, WHY, WORST, Scale, Target

AUTHORS = "the authors' references"
"""Setting of targets that take what the public code does on which the paper builds: inputs, first weights, splits."""


def _with(change: str, rounds: int) -> dict[str, Any]:
    """A change at both smaller scales, and the rounds of the medium one."""
    return {"medium": (f"rounds={rounds}", change), "quick": (change,)}


def _on_mlp(rounds: int) -> dict[str, Any]:
    """Fashion-MNIST and a perceptron at both smaller scales, and the rounds of the medium one."""
    changes = ("data=fashion_mnist", "model=mlp")
    return {"medium": (*changes, f"rounds={rounds}"), "quick": changes}


_GREY_DATA = "axes.data=[mnist,fashion_mnist]"
_AUTHORS_IMAGES = "axes.data=[{name: fashion_mnist, normalize: unit}]"
_SMALL_CNN = "model={name: cnn, variant: small}"
_CLUSTERGUARD: dict[str, Any] = {
    "medium": ("rounds=40", "eval_every=5"),
    "quick": ("axes.data=[fashion_mnist]",),
}
_EMNIST = "EMNIST ByMerge's test images"
_ROBUSTNESS = ("Figs. 9, 11, 13, 15 to 17", "aggregator", ("attack", "byzantine_fraction", "partition.beta"))
_PAIRED = ("test_accuracy", "client_accuracy_mean", WORST, "client_accuracy_std")


def _why(name: str, place: str, lines: str, panels: tuple[str, ...], minutes: int, **more: Any) -> Target:
    """A question of this project's own."""
    return Target(name, WHY, place, lines, panels, minutes, folder="why", **more)


TARGETS = {
    target.name: target
    for target in (
        # Name, paper, place, axis of the lines, axes of the panels and minutes, in the order in which all are run: the
        # quickest and most informative first.
        Target(
            "drag000_fig7_8_emnist",
            DRAG,
            "Figs. 7, 8",
            "method",
            ("partition.q",),
            6,
            ("rounds=500",),
            instead=_EMNIST,
        ),
        Target("taco004_table6_adult", TACO, "Table VI, adult", "method", ("partition.beta",), 15),
        Target("taco004_table2", TACO, "Table II", "data", (), 5, **_with(_GREY_DATA, 30)),
        Target("brdrag003_fig6_participation", BR_DRAG, "Fig. 6", "cohort_size", ("method",), 8, **_on_mlp(300)),
        Target("brdrag003_fig7_alpha", BR_DRAG, "Fig. 7", "aggregator.alpha", ("method",), 10, **_on_mlp(600)),
        Target("brdrag003_fig8_c", BR_DRAG, "Fig. 8", "aggregator.c", ("method",), 11, **_on_mlp(600)),
        Target("taco004_table5_adult", TACO, "Table V, adult", "method", (), 8, turns=400),
        Target("drag000_fig5_6_cifar10", DRAG, "Figs. 5, 6", "method", ("partition.q",), 8, ("rounds=200",)),
        Target("drag000_fig3_emnist", DRAG, "Fig. 3", "method", ("cohort_size",), 5, ("rounds=300",), instead=_EMNIST),
        Target(
            "brdrag003_robustness_mlp",
            BR_DRAG,
            *_ROBUSTNESS,
            105,
            instead="Fashion-MNIST and a perceptron",
        ),
        Target(
            "brdrag003_any_share",
            BR_DRAG,
            "Section V-B",
            "attack",
            ("byzantine_fraction",),
            10,
            instead="Fashion-MNIST and a perceptron",
        ),
        Target(
            "taco004_table8",
            TACO,
            "Table VIII",
            "algorithm.kappa",
            ("algorithm.max_strikes",),
            33,
            medium=("rounds=30", "local_steps=20", "axes.algorithm.max_strikes=[3,6,15]"),
            quick=("axes.algorithm.kappa=[0.4,0.6,1.0]", "axes.algorithm.max_strikes=[1,2,5]"),
            y="num_expelled",
        ),
        Target("clusterguard002_table2", CLUSTERGUARD, "Table II", "method", ("data", "attack"), 70, **_CLUSTERGUARD),
        Target("clusterguard002_table3", CLUSTERGUARD, "Table III", "method", ("data", "attack"), 70, **_CLUSTERGUARD),
        Target(
            "clusterguard002_table1",
            CLUSTERGUARD,
            "Table I",
            "method",
            (),
            15,
            medium=("rounds=40", "eval_every=5"),
            y=WORST,
            instead="Fashion-MNIST and the worst tenth of the clients",
        ),
        Target("drag000_fig4_cifar10", DRAG, "Fig. 4", "method", ("cohort_size",), 14, ("rounds=200",)),
        Target(
            "brdrag003_fig3_emnist",
            BR_DRAG,
            "Fig. 3",
            "method",
            ("partition.beta",),
            45,
            instead=_EMNIST,
            **_with(_SMALL_CNN, 600),
        ),
        Target(
            "taco004_table5_fmnist",
            TACO,
            "Table V, FMNIST",
            "method",
            (),
            60,
            medium=("rounds=25", "compare.TACO.algorithm.max_strikes=5"),
            turns=100,
        ),
        Target("taco004_table7_adult", TACO, "Table VII, adult", "method", (), 30),
        Target(
            "taco004_fig6",
            TACO,
            "Fig. 6",
            "method",
            ("data",),
            36,
            ("rounds=16", "local_steps=50"),
            instead="Fashion-MNIST for SVHN",
        ),
        Target("taco004_fig7_gamma", TACO, "Fig. 7", "algorithm.gamma", ("data",), 35, **_with(_GREY_DATA, 12)),
        Target(
            "taco004_table6_emnist",
            TACO,
            "Table VI, FEMNIST",
            "method",
            ("partition.beta",),
            24,
            ("rounds=12",),
            instead="EMNIST",
        ),
        Target(
            "brdrag003_fig4_cifar10", BR_DRAG, "Fig. 4", "method", ("partition.beta",), 60, **_with(_SMALL_CNN, 600)
        ),
        Target(
            "brdrag003_fig5_cifar100",
            BR_DRAG,
            "Fig. 5",
            "method",
            ("partition.beta",),
            50,
            medium=("data=fashion_mnist", "rounds=200"),
        ),
        Target(
            "brdrag003_fig9_17_cifar10",
            BR_DRAG,
            *_ROBUSTNESS,
            600,
            medium=None,
            quick=(_SMALL_CNN,),
            setting_of="brdrag003_robustness_mlp",
            setting="the paper's network, CIFAR-10",
        ),
        _why("drag_or_longer_step", "is DRAG more than a longer step?", "method", ("partition.beta",), 7),
        _why(
            "br_drag_or_root_data",
            "is BR-DRAG more than its root data?",
            "aggregator",
            ("root_bias",),
            14,
            x="root_size",
        ),
        _why("br_drag_strength", "which c does BR-DRAG want?", "method", ("attack", "byzantine_fraction"), 13),
        _why(
            "corrections_with_robust_rules",
            "do corrections of drift survive an attack?",
            "algorithm",
            ("attack", "aggregator"),
            19,
        ),
        _why(
            "tuned_step_sizes",
            "does DRAG's lead survive tuned step sizes?",
            "method",
            ("partition.beta",),
            60,
            x="step_size",
            tuned="step_size",
        ),
        _why("worst_clients", "does DRAG help the worst clients?", "method", (), 5, y=WORST, paired=_PAIRED),
    )
}
"""By name, in the order in which all are run."""


def _in_the_authors_setting(name: str, minutes: int, **changes: Any) -> Target:
    """The same figure or table by the configuration ``NAME_authors``."""
    return dataclasses.replace(
        TARGETS[name], name=f"{name}_authors", minutes=minutes, setting_of=name, setting=AUTHORS, **changes
    )


TARGETS |= {
    target.name: target
    for target in (
        _in_the_authors_setting("taco004_table5_adult", 4),
        _in_the_authors_setting("taco004_table6_adult", 5),
        _in_the_authors_setting("taco004_table7_adult", 30),
        _in_the_authors_setting("taco004_table5_fmnist", 120, medium=()),
        _in_the_authors_setting(
            "taco004_fig7_gamma",
            50,
            medium=("rounds=30", _AUTHORS_IMAGES),
            quick=(_AUTHORS_IMAGES,),
        ),
        _in_the_authors_setting("taco004_table8", 33),
    )
}


def _another_reading(name: str, suffix: str, setting: str, change: str, minutes: int) -> Target:
    """The same figures with one argument of a method as the paper may mean it."""
    changes = {"setting_of": name, "setting": setting, "reading": (change,), "minutes": minutes}
    return dataclasses.replace(TARGETS[name], name=f"{name}_{suffix}", **changes)


_FIRST = "compare.SCAFFOLD.algorithm.variate=first"
_PRINTED = "compare.FedACG.algorithm={name: fedacg, lam: 0.85, beta: 0.2, start: global, moves_server: false}"

TARGETS |= {
    target.name: target
    for target in (
        *(
            _another_reading(name, f"c{c}", f"DRAG with c = {c}", f"compare.DRAG.aggregator.c={c}", minutes)
            for name, minutes in (("drag000_fig5_6_cifar10", 5), ("drag000_fig7_8_emnist", 2))
            for c in (0.5, 0.75, 1.0)  # with an attacker opposite to the reference, 1 - lambda < 0 needs c > 1/2
        ),
        *(
            _another_reading(name, "fedacg", "FedACG as the paper prints it", _PRINTED, minutes)
            for name, minutes in (
                ("brdrag003_fig3_emnist", 7),
                ("brdrag003_fig4_cifar10", 9),
                ("brdrag003_fig5_cifar100", 8),
            )
        ),
        *(
            _another_reading(name, "first", "SCAFFOLD with first gradients as variates", _FIRST, minutes)
            for name, minutes in (("drag000_fig3_emnist", 2), ("drag000_fig4_cifar10", 3))
        ),
    )
}


def matching(name: str) -> list[Target]:
    """The targets that a name on the command line stands for.

    Args:
      name: a target, the beginning of the names of several, ``paper``, ``why`` or ``all``.

    Raises:
      ValueError: no target matches.
    """
    if name in TARGETS:
        return [TARGETS[name]]
    matches = [target for known, target in TARGETS.items() if name in ("all", target.folder) or known.startswith(name)]
    if not matches:
        raise ValueError(f"{name!r}: must be all, paper, why, or the beginning of one of {', '.join(TARGETS)}")
    return matches


def listing() -> str:
    """A line for each target with the changes of the medium scale and its estimated time, and the total."""
    lines = []
    for target in TARGETS.values():
        changes = target.overrides(Scale.MEDIUM)
        shown = "only at full scale" if changes is None else " ".join(changes) or "unchanged"
        lines.append(f"{target.name:32}{target.paper + ', ' + target.place:56}{target.minutes:6} min  {shown}")
    total = sum(target.minutes for target in TARGETS.values() if target.medium is not None)
    return "\n".join([*lines, f"{'all --scale medium':88}{total:6} min"])
