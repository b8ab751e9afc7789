"""Attacks of malicious clients: on their data (``poison``) or on what they send (``forge``)."""

from fedjax_drag.attacks._a3fl import a3fl
from fedjax_drag.attacks._alie import alie
from fedjax_drag.attacks._alter_min import alter_min
from fedjax_drag.attacks._backdoor import backdoor
from fedjax_drag.attacks._chameleon import chameleon
from fedjax_drag.attacks._constrain_and_scale import constrain_and_scale
from fedjax_drag.attacks._dba import dba
from fedjax_drag.attacks._dissensus import dissensus
from fedjax_drag.attacks._during import during
from fedjax_drag.attacks._edge_case import edge_case
from fedjax_drag.attacks._feature_noise import feature_noise
from fedjax_drag.attacks._freeloader import freeloader
from fedjax_drag.attacks._gaussian import gaussian
from fedjax_drag.attacks._ipm import ipm
from fedjax_drag.attacks._krum_attack import krum_attack
from fedjax_drag.attacks._label_flip import label_flip
from fedjax_drag.attacks._mimic import mimic
from fedjax_drag.attacks._min_max import min_max
from fedjax_drag.attacks._min_sum import min_sum
from fedjax_drag.attacks._neurotoxin import neurotoxin
from fedjax_drag.attacks._optimal_alie import optimal_alie
from fedjax_drag.attacks._optimal_ipm import optimal_ipm
from fedjax_drag.attacks._optimised import optimised
from fedjax_drag.attacks._poisonedfl import poisonedfl
from fedjax_drag.attacks._rop import rop
from fedjax_drag.attacks._scale_noise import scale_noise
from fedjax_drag.attacks._sign_flip import sign_flip
from fedjax_drag.attacks._stealth import stealth
from fedjax_drag.attacks._trim_attack import trim_attack

__all__ = [  # noqa: RUF022 - the order of lists
    "sign_flip",
    "scale_noise",
    "gaussian",
    "alie",
    "ipm",
    "min_max",
    "min_sum",
    "mimic",
    "rop",
    "poisonedfl",
    "krum_attack",
    "trim_attack",
    "optimal_alie",
    "optimal_ipm",
    "optimised",
    "dissensus",
    "label_flip",
    "feature_noise",
    "freeloader",
    "backdoor",
    "dba",
    "edge_case",
    "a3fl",
    "constrain_and_scale",
    "alter_min",
    "chameleon",
    "neurotoxin",
    "stealth",
    "during",
]
