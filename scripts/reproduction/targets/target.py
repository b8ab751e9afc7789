"""A target: the configuration of a figure or table, and the changes that each scale makes to it.

A scale shortens the rounds first, then leaves out seeds and data sets, then takes a smaller model or easier data;
``scripts/reproduce.py --list`` shows the changes.
"""

import dataclasses
import enum
from pathlib import Path

CONFIGS = Path(__file__).parents[3] / "configs"

DRAG = "Zhu et al., DRAG"
BR_DRAG = "Xiao et al., BR-DRAG"
CLUSTERGUARD = "ClusterGuardFL"
TACO = "Liu et al., TACO"
WHY = "Why it works"
"""Questions of this project that no paper asks; no claim is judged by them."""

WORST = "client_accuracy_worst_tenth"
"""A metric: the accuracy of the worst tenth of the clients."""

ONE_SEED = "axes.seed=[0]"
_QUICK = ("rounds=10", "eval_every=5", "local_steps=5")
"""Changes of the quick scale in every target, besides running one seed: a test that everything runs."""


class Scale(enum.StrEnum):
    """How much of a configuration is run."""

    QUICK = "quick"
    MEDIUM = "medium"
    FULL = "full"


@dataclasses.dataclass(frozen=True)
class Target:
    """A figure or table.

    Attributes:
      name: name of the configuration, without the suffix.
      paper: short name of the paper.
      place: the figure or table, or the question that is asked.
      lines: axis whose values are the lines of the figure.
      panels: axes whose values are its panels; the figure averages over the seeds.
      minutes: time at the medium scale on two free CPU cores, or at full length if there is no medium scale; measured,
        or estimated if the header of the configuration says so.
      medium: changes at the medium scale; None if even a part takes hours, so that only the full scale runs it.
      quick: changes at the quick scale, besides those of every target.
      y: metric that the figure shows.
      x: ``round``, or an axis of numbers over which the figure shows the final value.
      turns: how often the clients of its methods are also timed in turn, for claims about their time.
      folder: folder of the configuration in ``configs``.
      setting_of: name of the target by whose claims this one is judged too, as another setting of the same experiment:
        axes and labels must be the same.
      setting: what the record calls the setting.
      reading: changes of the configuration of ``setting_of``, at every scale, which make another reading of the paper:
        such a target has no configuration of its own, and runs the methods that change.
      instead: of the paper's data or network, what stands in their place at every scale; empty if nothing does.
      paired: metrics of which the methods' paired differences over the seeds are shown, against the first method.
      tuned: axis from whose values validation data choose one for each method.
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
    turns: int = 0
    folder: str = "paper"
    setting_of: str = ""
    setting: str = "default"
    reading: tuple[str, ...] = ()
    instead: str = ""
    paired: tuple[str, ...] = ()
    tuned: str = ""

    @property
    def config(self) -> Path:
        """The configuration file."""
        return CONFIGS / self.folder / f"{self.setting_of if self.reading else self.name}.yaml"

    def overrides(self, scale: Scale) -> tuple[str, ...] | None:
        """Changes of the configuration at a scale, or None if it is not run at it."""
        if scale == Scale.FULL:
            return self.reading
        if scale == Scale.MEDIUM:
            return None if self.medium is None else (*self.medium, *self.reading)
        from fedjax_drag.experiment.build.experiment import read  # here: --list needs no JAX

        return (*_QUICK, *([ONE_SEED] if "seed" in read(self.config)["axes"] else []), *self.quick, *self.reading)
