"""Methods that divide a model's layers: some are averaged, the others stay with each client."""

# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false

from collections.abc import Sequence
from typing import Any, cast

from fedjax_drag.algorithms.personal._personal import PersonalMethod
from fedjax_drag.checks import ArgumentError
from fedjax_drag.ops.paths import check_patterns, joined
from fedjax_drag.types import DISSIMILARITIES, Params


class LayeredMethod(PersonalMethod):
    """A method whose clients keep some layers; a subclass has fields ``layers`` and ``aggregator``.

    The server has these layers as they began, and nobody receives them: its own model, that of ``test_accuracy``, is
    the averaged layers with those.
    """

    layers = cast("Any", None)  # no annotation: a field of a subclass

    def __post_init__(self) -> None:
        if isinstance(self.layers, Sequence) and not isinstance(self.layers, str):
            object.__setattr__(self, "layers", tuple(self.layers))
        super().__post_init__()

    def check(self) -> None:
        super().check()
        if self.layers != ():
            check_patterns("layers", self.layers)
        if bare := sorted(self.rule.needs & {"predict", "start_loss", *DISSIMILARITIES}):
            what = "losses" if bare[0] == "start_loss" else "predictions"
            needs = f"needs {bare[0]}, the {what} of whole models, of which clients send a part"
            raise ArgumentError(f"aggregator={self.rule.name}", f"{needs}; must be a rule of the deltas alone")

    @property
    def personal_layers(self) -> str | Sequence[str]:
        return self.layers

    def own(self, params: Params, layers: Params) -> Params:
        del params
        return layers

    def trained(self, w: Any) -> Params:
        return joined(w.shared, w.own)

    def own_model(self, params: Params, own: Params) -> Params:
        return joined(params, own)
