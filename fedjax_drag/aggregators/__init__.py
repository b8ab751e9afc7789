"""Server-side aggregation rules: pure functions ``(params, deltas, state) -> (params, state)``.

Every builder returns an :class:`~fedjax_drag.types.Aggregator`; see there for the contract and the extras.
"""

from fedjax_drag.aggregators._afl import afl
from fedjax_drag.aggregators._arc import arc
from fedjax_drag.aggregators._autogm import autogm
from fedjax_drag.aggregators._br_drag import br_drag
from fedjax_drag.aggregators._bucketing import bucketing
from fedjax_drag.aggregators._bulyan import bulyan
from fedjax_drag.aggregators._caf import caf
from fedjax_drag.aggregators._centered_clipping import centered_clipping
from fedjax_drag.aggregators._clipped_clustering import clipped_clustering
from fedjax_drag.aggregators._clipping import clipping
from fedjax_drag.aggregators._clusterguard import clusterguard
from fedjax_drag.aggregators._clustering import clustering
from fedjax_drag.aggregators._crfl import crfl
from fedjax_drag.aggregators._deepsight import deepsight
from fedjax_drag.aggregators._dnc import dnc
from fedjax_drag.aggregators._drag import drag
from fedjax_drag.aggregators._fedasync import fedasync
from fedjax_drag.aggregators._fedavg import fedavg
from fedjax_drag.aggregators._fedbuff import fedbuff
from fedjax_drag.aggregators._fedexp import fedexp
from fedjax_drag.aggregators._flame import flame
from fedjax_drag.aggregators._flare import flare
from fedjax_drag.aggregators._fldetector import fldetector
from fedjax_drag.aggregators._fltrust import fltrust
from fedjax_drag.aggregators._foolsgold import foolsgold
from fedjax_drag.aggregators._foolsgold_taco import foolsgold_taco
from fedjax_drag.aggregators._foundationfl import foundationfl
from fedjax_drag.aggregators._geomed import geomed
from fedjax_drag.aggregators._geometric_median import geometric_median
from fedjax_drag.aggregators._hierarchical import hierarchical
from fedjax_drag.aggregators._krum import krum
from fedjax_drag.aggregators._lasa import lasa
from fedjax_drag.aggregators._mda import mda
from fedjax_drag.aggregators._meamed import meamed
from fedjax_drag.aggregators._median import median
from fedjax_drag.aggregators._monna import monna
from fedjax_drag.aggregators._multi_krum import multi_krum
from fedjax_drag.aggregators._nnm import nnm
from fedjax_drag.aggregators._norm_clipping import norm_clipping
from fedjax_drag.aggregators._qffl import qffl
from fedjax_drag.aggregators._raga import raga
from fedjax_drag.aggregators._rescaled_mean import rescaled_mean
from fedjax_drag.aggregators._rfa import rfa
from fedjax_drag.aggregators._rfl_bat import rfl_bat
from fedjax_drag.aggregators._robust_lr import robust_lr
from fedjax_drag.aggregators._root_only import root_only
from fedjax_drag.aggregators._signguard import signguard
from fedjax_drag.aggregators._signsgd_majority import signsgd_majority
from fedjax_drag.aggregators._smea import smea
from fedjax_drag.aggregators._term import term
from fedjax_drag.aggregators._trimmed_mean import trimmed_mean

# Not rules, but what a new rule is made with.
from fedjax_drag.ops.rules import ByzantineAggregator as ByzantineAggregator
from fedjax_drag.ops.rules import PlainAggregator as PlainAggregator
from fedjax_drag.ops.rules import SummedAggregator as SummedAggregator
from fedjax_drag.ops.rules import WrappingAggregator as WrappingAggregator
from fedjax_drag.ops.rules import cosine_to_sum as cosine_to_sum
from fedjax_drag.ops.rules import summed_rule as summed_rule
from fedjax_drag.ops.screening import MetricsOnly as MetricsOnly
from fedjax_drag.ops.screening import empty_metrics as empty_metrics
from fedjax_drag.ops.screening import screened as screened
from fedjax_drag.ops.screening import stateless as stateless
from fedjax_drag.ops.weighted import Clients as Clients
from fedjax_drag.ops.weighted import WeightedAggregator as WeightedAggregator
from fedjax_drag.ops.weighted import Weights as Weights
from fedjax_drag.ops.weighted import weighted_rule as weighted_rule

__all__ = [  # noqa: RUF022 - the order of lists
    "fedavg",
    "fedexp",
    "qffl",
    "term",
    "afl",
    "drag",
    "br_drag",
    "fltrust",
    "root_only",
    "geometric_median",
    "rfa",
    "raga",
    "geomed",
    "autogm",
    "median",
    "trimmed_mean",
    "krum",
    "multi_krum",
    "bulyan",
    "mda",
    "meamed",
    "monna",
    "smea",
    "caf",
    "dnc",
    "centered_clipping",
    "norm_clipping",
    "crfl",
    "signsgd_majority",
    "robust_lr",
    "clustering",
    "clipped_clustering",
    "signguard",
    "lasa",
    "flame",
    "deepsight",
    "rfl_bat",
    "flare",
    "clusterguard",
    "foolsgold",
    "foolsgold_taco",
    "fldetector",
    "nnm",
    "bucketing",
    "foundationfl",
    "clipping",
    "arc",
    "fedbuff",
    "fedasync",
    "rescaled_mean",
    "hierarchical",
]
