"""All targets, and the names that stand for them on the command line."""

import dataclasses
from typing import Any

from reproduction.targets.target import BR_DRAG, CLUSTERGUARD, DRAG, TACO, WHY, Scale, Target

_GREY_DATA = "axes.data=[mnist,fashion_mnist]"
AUTHORS = "the authors' references"
"""Setting of targets that take what the public code does on which the paper builds: inputs, first weights, splits."""
_SMALL_CNN = "model={name: cnn, variant: small}"
_MLP_ON_FASHION_MNIST = ("data=fashion_mnist", "model=mlp")

TARGETS = {
    target.name: target
    for target in (
        # In the order in which all are run: the quickest and most informative first.
        Target(
            name="drag000_fig7_8_emnist",
            paper=DRAG,
            place="Figs. 7, 8",
            lines="method",
            panels=("partition.q",),
            minutes=6,
            medium=("rounds=500",),
        ),
        Target(
            name="taco004_table6_adult",
            paper=TACO,
            place="Table VI, adult",
            lines="method",
            panels=("partition.beta",),
            minutes=15,
        ),
        Target(
            name="taco004_table2",
            paper=TACO,
            place="Table II",
            lines="data",
            panels=(),
            minutes=5,
            medium=("rounds=30", _GREY_DATA),
            quick=(_GREY_DATA,),
        ),
        Target(
            name="brdrag003_fig6_participation",
            paper=BR_DRAG,
            place="Fig. 6",
            lines="cohort_size",
            panels=("method",),
            minutes=8,
            medium=(*_MLP_ON_FASHION_MNIST, "rounds=300"),
            quick=_MLP_ON_FASHION_MNIST,
        ),
        Target(
            name="brdrag003_fig7_alpha",
            paper=BR_DRAG,
            place="Fig. 7",
            lines="aggregator.alpha",
            panels=("method",),
            minutes=10,
            medium=(*_MLP_ON_FASHION_MNIST, "rounds=600"),
            quick=_MLP_ON_FASHION_MNIST,
        ),
        Target(
            name="brdrag003_fig8_c",
            paper=BR_DRAG,
            place="Fig. 8",
            lines="aggregator.c",
            panels=("method",),
            minutes=11,
            medium=(*_MLP_ON_FASHION_MNIST, "rounds=600"),
            quick=_MLP_ON_FASHION_MNIST,
        ),
        Target(
            name="taco004_table5_adult",
            paper=TACO,
            place="Table V, adult",
            lines="method",
            panels=(),
            minutes=8,
            timed=True,
        ),
        Target(
            name="drag000_fig5_6_cifar10",
            paper=DRAG,
            place="Figs. 5, 6",
            lines="method",
            panels=("partition.q",),
            minutes=8,
            medium=("rounds=200",),
        ),
        Target(
            name="drag000_fig3_emnist",
            paper=DRAG,
            place="Fig. 3",
            lines="method",
            panels=("cohort_size",),
            minutes=5,
            medium=("rounds=300",),
        ),
        Target(
            name="brdrag003_robustness_mlp",
            paper=BR_DRAG,
            place="Figs. 9, 11, 13, 15 to 17",
            lines="aggregator",
            panels=("attack", "byzantine_fraction", "partition.beta"),
            minutes=105,
        ),
        Target(
            name="taco004_table8",
            paper=TACO,
            place="Table VIII",
            lines="algorithm.kappa",
            panels=("algorithm.max_strikes",),
            minutes=33,
            medium=("rounds=30", "local_steps=20", "axes.algorithm.max_strikes=[3,6,15]"),
            quick=("axes.algorithm.kappa=[0.4,0.6,1.0]", "axes.algorithm.max_strikes=[1,2,5]"),
            y="num_expelled",
        ),
        Target(
            name="clusterguard002_table2",
            paper=CLUSTERGUARD,
            place="Table II",
            lines="method",
            panels=("data", "attack"),
            minutes=70,
            medium=("rounds=40", "eval_every=5"),
            quick=("axes.data=[fashion_mnist]",),
        ),
        Target(
            name="clusterguard002_table3",
            paper=CLUSTERGUARD,
            place="Table III",
            lines="method",
            panels=("data", "attack"),
            minutes=70,
            medium=("rounds=40", "eval_every=5"),
            quick=("axes.data=[fashion_mnist]",),
        ),
        Target(
            name="drag000_fig4_cifar10",
            paper=DRAG,
            place="Fig. 4",
            lines="method",
            panels=("cohort_size",),
            minutes=14,
            medium=("rounds=200",),
        ),
        Target(
            name="brdrag003_fig3_emnist",
            paper=BR_DRAG,
            place="Fig. 3",
            lines="method",
            panels=("partition.beta",),
            minutes=45,
            medium=("rounds=600", _SMALL_CNN),
            quick=(_SMALL_CNN,),
        ),
        Target(
            name="taco004_table5_fmnist",
            paper=TACO,
            place="Table V, FMNIST",
            lines="method",
            panels=(),
            minutes=60,
            medium=("rounds=25", "compare.TACO.algorithm.max_strikes=5"),
            timed=True,
        ),
        Target(
            name="taco004_table7_adult", paper=TACO, place="Table VII, adult", lines="method", panels=(), minutes=30
        ),
        Target(
            name="taco004_fig6",
            paper=TACO,
            place="Fig. 6",
            lines="method",
            panels=("data",),
            minutes=36,
            medium=("rounds=16", "local_steps=50"),
        ),
        Target(
            name="taco004_fig7_gamma",
            paper=TACO,
            place="Fig. 7",
            lines="algorithm.gamma",
            panels=("data",),
            minutes=35,
            medium=("rounds=12", _GREY_DATA),
            quick=(_GREY_DATA,),
        ),
        Target(
            name="taco004_table6_emnist",
            paper=TACO,
            place="Table VI, FEMNIST",
            lines="method",
            panels=("partition.beta",),
            minutes=24,
            medium=("rounds=12",),
        ),
        Target(
            name="brdrag003_fig4_cifar10",
            paper=BR_DRAG,
            place="Fig. 4",
            lines="method",
            panels=("partition.beta",),
            minutes=60,
            medium=("rounds=600", _SMALL_CNN),
            quick=(_SMALL_CNN,),
        ),
        Target(
            name="brdrag003_fig5_cifar100",
            paper=BR_DRAG,
            place="Fig. 5",
            lines="method",
            panels=("partition.beta",),
            minutes=50,
            medium=("data=fashion_mnist", "rounds=200"),
        ),
        Target(
            name="brdrag003_fig9_17_cifar10",
            paper=BR_DRAG,
            place="Figs. 9, 11, 13, 15 to 17",
            lines="aggregator",
            panels=("attack", "byzantine_fraction", "partition.beta"),
            minutes=600,
            medium=None,
            quick=(_SMALL_CNN,),
            setting_of="brdrag003_robustness_mlp",
            setting="the paper's network, CIFAR-10",
        ),
        Target(
            name="drag_or_longer_step",
            paper=WHY,
            place="is DRAG more than a longer step?",
            lines="method",
            panels=("partition.beta",),
            minutes=7,
            folder="why",
        ),
        Target(
            name="br_drag_or_root_data",
            paper=WHY,
            place="is BR-DRAG more than its root data?",
            lines="aggregator",
            panels=("root_bias",),
            minutes=14,
            x="root_size",
            folder="why",
        ),
        Target(
            name="br_drag_strength",
            paper=WHY,
            place="which c does BR-DRAG want?",
            lines="method",
            panels=("attack", "byzantine_fraction"),
            minutes=13,
            folder="why",
        ),
        Target(
            name="corrections_with_robust_rules",
            paper=WHY,
            place="do corrections of drift survive an attack?",
            lines="algorithm",
            panels=("attack", "aggregator"),
            minutes=19,
            folder="why",
        ),
        Target(
            name="tuned_step_sizes",
            paper=WHY,
            place="does DRAG's lead survive tuned step sizes?",
            lines="method",
            panels=("partition.beta",),
            minutes=60,
            folder="why",
            x="step_size",
            tuned="step_size",
        ),
        Target(
            name="worst_clients",
            paper=WHY,
            place="does DRAG help the worst clients?",
            lines="method",
            panels=(),
            minutes=5,
            y="client_accuracy_worst_tenth",
            folder="why",
            paired=("test_accuracy", "client_accuracy_mean", "client_accuracy_worst_tenth", "client_accuracy_std"),
        ),
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
            medium=("rounds=30", "axes.data=[{name: fashion_mnist, normalize: unit}]"),
            quick=("axes.data=[{name: fashion_mnist, normalize: unit}]",),
        ),
        _in_the_authors_setting("taco004_table8", 33),
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
