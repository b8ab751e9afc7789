"""What can be reproduced: a configuration for each figure or table, and what its scales change.

A scale shortens first the rounds, then leaves out seeds and data sets, then takes a smaller model or easier data; what
is left out is what ``scripts/reproduce.py --list`` shows.
"""

import dataclasses
import enum
from pathlib import Path

from fedjax_drag.experiment.config.loading import read

CONFIGS = Path(__file__).parents[2] / "configs"
_QUICK = ("rounds=10", "eval_every=5", "local_steps=5")
"""What the quick scale changes in every target, beside leaving one seed: to see that all works, not to measure."""


class Scale(enum.StrEnum):
    """How much of a configuration is run."""

    QUICK = "quick"
    MEDIUM = "medium"
    FULL = "full"


DRAG = "Zhu et al., DRAG"
BR_DRAG = "Xiao et al., BR-DRAG"
CLUSTERGUARD = "ClusterGuardFL"
TACO = "Liu et al., TACO"
WHY = "Why it works"
"""Questions of our own, which no paper asks; no claim is judged by their answers."""

_SEED = "axes.seed=[0]"
_ALONE = (_SEED, "mesh=auto")
"""One seed, where cells then have nobody to share a program with: the cores share the clients instead."""
_GREY = "axes.data=[mnist,fashion_mnist]"
_SMALL = "model={name: cnn, variant: small}"
_PERCEPTRON = ("data=fashion_mnist", "model=mlp")


@dataclasses.dataclass(frozen=True)
class Target:
    """A figure or table.

    Attributes:
      name: its configuration, without the suffix.
      paper: whose it is.
      place: where it is in the paper, or what is asked.
      lines: axis whose values are the lines of the figure.
      panels: axes whose values are its panels; over the seeds the mean is taken.
      minutes: at the medium scale on two free CPU cores, or in full where there is none; measured, or estimated
        where the header of the configuration says so.
      medium: changes at the medium scale; None where even a part of it takes hours, so that it is run in full only.
      quick: changes at the quick scale, beside those of every target.
      y: what the figure shows.
      x: over what: the rounds, or an axis of numbers, over which it shows the level at the end.
      timed: whether the clients of its methods are timed in turn besides, for claims about their time.
      folder: where its configuration is, in ``configs``.
    """

    name: str
    paper: str
    place: str
    lines: str
    panels: tuple[str, ...]
    minutes: int
    medium: tuple[str, ...] | None = ()
    quick: tuple[str, ...] = ()
    y: str = "test_accuracy"
    x: str = "round"
    timed: bool = False
    folder: str = "paper"

    @property
    def config(self) -> Path:
        """Its configuration."""
        return CONFIGS / self.folder / f"{self.name}.yaml"

    def overrides(self, scale: Scale) -> tuple[str, ...] | None:
        """Changes of the configuration at a scale, or None if it is not run there."""
        if scale != Scale.QUICK:
            return self.medium if scale == Scale.MEDIUM else ()
        return (*_QUICK, *([_SEED] if "seed" in read(self.config)["axes"] else []), *self.quick)


TARGETS = {
    target.name: target
    for target in (
        # The cheapest and most telling first: the order in which all are run.
        Target("drag000_fig7_8_emnist", DRAG, "Figs. 7, 8", "method", ("partition.q",), 6, ("rounds=500",)),
        Target("taco004_table6_adult", TACO, "Table VI, adult", "method", ("partition.beta",), 8),
        Target(
            *("taco004_table2", TACO, "Table II", "data", (), 8),
            medium=("rounds=30", *_ALONE, _GREY),
            quick=(_GREY,),
        ),
        Target(
            *("brdrag003_fig6_participation", BR_DRAG, "Fig. 6", "cohort_size", ("method",), 8),
            medium=(*_PERCEPTRON, "rounds=300"),
            quick=_PERCEPTRON,
        ),
        Target(
            *("brdrag003_fig7_alpha", BR_DRAG, "Fig. 7", "aggregator.alpha", ("method",), 10),
            medium=(*_PERCEPTRON, "rounds=600"),
            quick=_PERCEPTRON,
        ),
        Target(
            *("brdrag003_fig8_c", BR_DRAG, "Fig. 8", "aggregator.c", ("method",), 11),
            medium=(*_PERCEPTRON, "rounds=600"),
            quick=_PERCEPTRON,
        ),
        Target("taco004_table5_adult", TACO, "Table V, adult", "method", (), 4, timed=True),
        Target(
            *("drag000_fig5_6_cifar10", DRAG, "Figs. 5, 6", "method", ("partition.q",), 15),
            medium=("rounds=200",),
        ),
        Target("drag000_fig3_emnist", DRAG, "Fig. 3", "method", ("cohort_size",), 16, ("rounds=300",)),
        Target(
            *("brdrag003_robustness_mlp", BR_DRAG, "Figs. 9, 11, 13, 15 to 17", "aggregator"),
            *(("attack", "byzantine_fraction", "partition.beta"), 35),
        ),
        Target(
            *("taco004_table8", TACO, "Table VIII", "algorithm.kappa", ("algorithm.max_strikes",), 22),
            medium=("rounds=30", "local_steps=20", "axes.algorithm.max_strikes=[3,6,15]"),
            quick=("axes.algorithm.kappa=[0.4,0.6,1.0]", "axes.algorithm.max_strikes=[1,2,5]"),
            y="num_expelled",
        ),
        Target(
            *("clusterguard002_table2", CLUSTERGUARD, "Table II", "method", ("data", "attack"), 50),
            medium=("rounds=30", "eval_every=5", _SMALL, *_ALONE, _GREY),
            quick=(_SMALL, "axes.data=[fashion_mnist]"),
        ),
        Target(
            *("clusterguard002_table3", CLUSTERGUARD, "Table III", "method", ("data", "attack"), 29),
            medium=("rounds=60", "model=mlp", *_ALONE, _GREY),
            quick=(_SMALL, "axes.data=[fashion_mnist]"),
        ),
        Target(
            *("drag000_fig4_cifar10", DRAG, "Fig. 4", "method", ("cohort_size",), 9),
            medium=("rounds=200", *_ALONE),
        ),
        Target(
            *("brdrag003_fig3_emnist", BR_DRAG, "Fig. 3", "method", ("partition.beta",), 15),
            medium=("rounds=600", _SMALL, _SEED),
            quick=(_SMALL,),
        ),
        Target(
            *("taco004_table5_fmnist", TACO, "Table V, FMNIST", "method", (), 36),
            medium=("rounds=25", "compare.TACO.algorithm.max_strikes=5", *_ALONE),
            timed=True,
        ),
        Target("taco004_table7_adult", TACO, "Table VII, adult", "method", (), 11),
        Target(
            *("taco004_fig6", TACO, "Fig. 6", "method", ("data",), 24),
            medium=("rounds=16", "local_steps=50", *_ALONE),
        ),
        Target(
            *("taco004_fig7_gamma", TACO, "Fig. 7", "algorithm.gamma", ("data",), 23),
            medium=("rounds=12", _SEED, _GREY),
            quick=(_GREY,),
        ),
        Target(
            *("taco004_table6_emnist", TACO, "Table VI, FEMNIST", "method", ("partition.beta",), 16),
            medium=("rounds=12", _SEED),
        ),
        Target(
            *("brdrag003_fig4_cifar10", BR_DRAG, "Fig. 4", "method", ("partition.beta",), 20),
            medium=("rounds=600", _SMALL, _SEED),
            quick=(_SMALL,),
        ),
        Target(
            *("brdrag003_signflip_cnn", BR_DRAG, "Figs. 11, 16", "aggregator", ("byzantine_fraction",), 300),
            medium=None,
            quick=(_SMALL,),
        ),
        Target(
            *("brdrag003_fig5_cifar100", BR_DRAG, "Fig. 5", "method", ("partition.beta",), 17),
            medium=("data=fashion_mnist", "rounds=200", _SEED),
        ),
        Target(
            *("brdrag003_fig9_17_cifar10", BR_DRAG, "Figs. 9, 11, 13, 15 to 17", "aggregator"),
            *(("attack", "byzantine_fraction", "partition.beta"), 6000),
            medium=None,
            quick=(_SMALL,),
        ),
        Target(
            *("drag_or_longer_step", WHY, "is DRAG more than a longer step?", "method", ("partition.beta",), 7),
            folder="why",
        ),
        Target(
            *("br_drag_or_root_data", WHY, "is BR-DRAG more than its root data?", "aggregator", ("root_bias",), 14),
            x="root_size",
            folder="why",
        ),
        Target(
            *("br_drag_strength", WHY, "which c does BR-DRAG want?", "method"),
            *(("attack", "byzantine_fraction"), 13),
            folder="why",
        ),
        Target(
            *("corrections_with_robust_rules", WHY, "do corrections of drift survive an attack?", "algorithm"),
            *(("attack", "aggregator"), 19),
            folder="why",
        ),
    )
}
"""By name, in the order in which all are run."""
