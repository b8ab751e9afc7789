"""The types that every part of the package exchanges.

Shapes: ``S`` clients take part in a round, ``M`` belong to the federation, and ``[S, *p]`` is a
parameter pytree whose leaves have one more leading axis of length ``S``.

Sign convention: a **delta** is what a client's local pass added to its start point,
``delta = w_end - start``, so that a server moves *along* deltas.

A file has one contract: the protocols of its functions, then the named tuple that holds them.
"""

from fedjax_drag.types._aggregator import (
    DISSIMILARITIES,
    EXTRAS,
    PER_CLIENT_EXTRAS,
    STATIC_EXTRAS,
    AccumulateFn,
    Aggregator,
    ApplyFn,
    FinishFn,
    InitFn,
    PrepareFn,
    Sums,
    extras_of,
)
from fedjax_drag.types._algorithm import (
    Adaptation,
    AggregateFn,
    Algorithm,
    BroadcastFn,
    Clusters,
    ClustersFn,
    EligibleFn,
    OutputFn,
)
from fedjax_drag.types._attack import (
    POISON_NEEDS,
    ActiveFn,
    Attack,
    ForgeFn,
    GoalFn,
    LossOfModel,
    PoisonFn,
    WrappedAttack,
)
from fedjax_drag.types._client_rule import (
    BeginFn,
    ClientRule,
    DirectionFn,
    Examined,
    GradFn,
    KeyedDirectionFn,
    Predict,
    Prediction,
    ReportFn,
    SendFn,
    WrappedClientRule,
)
from fedjax_drag.types._guarantee import Guarantee
from fedjax_drag.types._loss import Loss
from fedjax_drag.types._messages import Batch, ClientParams, Deltas, Downlink, Exchange, Params, State, Uplink
from fedjax_drag.types._metric import Metric
from fedjax_drag.types._optimizer import Optimizer
from fedjax_drag.types._part import Part, Scalar, is_scalar

__all__ = [
    "DISSIMILARITIES",
    "EXTRAS",
    "PER_CLIENT_EXTRAS",
    "POISON_NEEDS",
    "STATIC_EXTRAS",
    "AccumulateFn",
    "ActiveFn",
    "Adaptation",
    "AggregateFn",
    "Aggregator",
    "Algorithm",
    "ApplyFn",
    "Attack",
    "Batch",
    "BeginFn",
    "BroadcastFn",
    "ClientParams",
    "ClientRule",
    "Clusters",
    "ClustersFn",
    "Deltas",
    "DirectionFn",
    "Downlink",
    "EligibleFn",
    "Examined",
    "Exchange",
    "FinishFn",
    "ForgeFn",
    "GoalFn",
    "GradFn",
    "Guarantee",
    "InitFn",
    "KeyedDirectionFn",
    "Loss",
    "LossOfModel",
    "Metric",
    "Optimizer",
    "OutputFn",
    "Params",
    "Part",
    "PoisonFn",
    "Predict",
    "Prediction",
    "PrepareFn",
    "ReportFn",
    "Scalar",
    "SendFn",
    "State",
    "Sums",
    "Uplink",
    "WrappedAttack",
    "WrappedClientRule",
    "extras_of",
    "is_scalar",
]
