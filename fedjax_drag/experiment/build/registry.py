"""Names become functions: the only tables from a configuration's strings to builders."""

from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import optax

from fedjax_drag import (
    aggregators,
    algorithms,
    attacks,
    clients,
    compression,
    data,
    losses,
    models,
    privacy,
    server_optimizers,
)
from fedjax_drag.compression import Compressor
from fedjax_drag.data import FederatedDataset, augmentation, partition
from fedjax_drag.experiment.build import optimizers
from fedjax_drag.models.modes import WithModes
from fedjax_drag.types import Aggregator, Algorithm, Attack, ClientRule, Optimizer

Builders = Mapping[str, Callable[..., Any]]

AGGREGATORS: Builders = {
    "fedavg": aggregators.fedavg,
    "fedexp": aggregators.fedexp,
    "drag": aggregators.drag,
    "br_drag": aggregators.br_drag,
    "fltrust": aggregators.fltrust,
    "root_only": aggregators.root_only,
    "geometric_median": aggregators.geometric_median,
    "rfa": aggregators.rfa,
    "raga": aggregators.raga,
    "geomed": aggregators.geomed,
    "autogm": aggregators.autogm,
    "median": aggregators.median,
    "trimmed_mean": aggregators.trimmed_mean,
    "krum": aggregators.krum,
    "multi_krum": aggregators.multi_krum,
    "bulyan": aggregators.bulyan,
    "mda": aggregators.mda,
    "meamed": aggregators.meamed,
    "monna": aggregators.monna,
    "smea": aggregators.smea,
    "caf": aggregators.caf,
    "dnc": aggregators.dnc,
    "centered_clipping": aggregators.centered_clipping,
    "norm_clipping": aggregators.norm_clipping,
    "signsgd_majority": aggregators.signsgd_majority,
    "clustering": aggregators.clustering,
    "clipped_clustering": aggregators.clipped_clustering,
    "signguard": aggregators.signguard,
    "flame": aggregators.flame,
    "clusterguard": aggregators.clusterguard,
    "foolsgold": aggregators.foolsgold,
    "foolsgold_taco": aggregators.foolsgold_taco,
    "nnm": aggregators.nnm,
    "bucketing": aggregators.bucketing,
    "clipping": aggregators.clipping,
    "arc": aggregators.arc,
    "rescaled_mean": aggregators.rescaled_mean,
}
CLIENTS: Builders = {
    "sgd": clients.sgd,
    "fedprox": clients.fedprox,
    "fedsam": clients.fedsam,
    "momentum_sgd": clients.momentum_sgd,
    "robust_sgd": clients.robust_sgd,
    "dp_sgd": clients.dp_sgd,
}
PRIVACY: Builders = {
    "central_dp": privacy.central_dp,
    "adaptive_dp": privacy.adaptive_dp,
    "local_dp": privacy.local_dp,
}
ALGORITHMS: Builders = {
    "from_aggregator": algorithms.from_aggregator,
    "scaffold": algorithms.scaffold,
    "adabest": algorithms.adabest,
    "feddyn": algorithms.feddyn,
    "feddc": algorithms.feddc,
    "fedacg": algorithms.fedacg,
    "stem": algorithms.stem,
    "taco": algorithms.taco,
    "tailored_fedprox": algorithms.tailored_fedprox,
    "fednova": algorithms.fednova,
    "mime": algorithms.mime,
}
ATTACKS: Builders = {
    "sign_flip": attacks.sign_flip,
    "scale_noise": attacks.scale_noise,
    "gaussian": attacks.gaussian,
    "alie": attacks.alie,
    "ipm": attacks.ipm,
    "min_max": attacks.min_max,
    "min_sum": attacks.min_sum,
    "mimic": attacks.mimic,
    "krum_attack": attacks.krum_attack,
    "trim_attack": attacks.trim_attack,
    "optimal_alie": attacks.optimal_alie,
    "optimal_ipm": attacks.optimal_ipm,
    "optimised": attacks.optimised,
    "label_flip": attacks.label_flip,
    "freeloader": attacks.freeloader,
    "backdoor": attacks.backdoor,
    "dba": attacks.dba,
    "edge_case": attacks.edge_case,
    "neurotoxin": attacks.neurotoxin,
    "during": attacks.during,
}
COMPRESSORS: Builders = {
    "top_k": compression.top_k,
    "random_k": compression.random_k,
    "qsgd": compression.qsgd,
    "sign": compression.sign,
    "low_rank": compression.low_rank,
}
PARTITIONS: Builders = {
    "iid": partition.iid,
    "dirichlet": partition.dirichlet,
    "label_affinity": partition.label_affinity,
    "label_groups": partition.label_groups,
    "shards": partition.shards,
    "gamma_similarity": partition.gamma_similarity,
    "quantity_skew": partition.quantity_skew,
    "dirichlet_quantity": partition.dirichlet_quantity,
    "natural": partition.natural,
}
MODELS: Builders = {
    "mlp": models.mlp,
    "cnn": models.cnn,
    "lenet": models.lenet,
    "resnet18": models.resnet18,
    "lstm": models.lstm,
}
OPTIMIZERS: Builders = {
    "sgd": optimizers.sgd,
    "adam": optimizers.adam,
    "yogi": optimizers.yogi,
    "adagrad": optimizers.adagrad,
    "fedavgm": server_optimizers.fedavgm,
    "fedadam": server_optimizers.fedadam,
    "fedyogi": server_optimizers.fedyogi,
    "fedadagrad": server_optimizers.fedadagrad,
}
LOCAL_OPTIMIZERS: Builders = {"sgd": optimizers.local_sgd}
SCHEDULES: Builders = {
    "linear_schedule": optimizers.linear_schedule,
    "cosine_decay_schedule": optimizers.cosine_decay_schedule,
    "exponential_decay": optimizers.exponential_decay,
}
LOSSES: Builders = {"cross_entropy": losses.cross_entropy}
AUGMENTATIONS: Builders = {"crop_flip": augmentation.crop_flip}
DATASETS: Builders = dict.fromkeys([name for name, _ in data.DATASETS], data.load) | {
    "synthetic": data.synthetic,
    "shakespeare": data.load_shakespeare,
}

TABLES: Mapping[str, Builders] = {
    "data": DATASETS,
    "partition": PARTITIONS,
    "model": MODELS,
    "algorithm": ALGORITHMS,
    "aggregator": AGGREGATORS,
    "client": CLIENTS,
    "privacy": PRIVACY,
    "root_client": CLIENTS,
    "local_optimizer": LOCAL_OPTIMIZERS,
    "loss": LOSSES,
    "augmentation": AUGMENTATIONS,
    "attack": ATTACKS,
    "compression": COMPRESSORS,
    "downlink_compression": COMPRESSORS,
    "optimizer": OPTIMIZERS,
    "schedule": SCHEDULES,
}
"""Builders of each component key of a configuration, and of the kinds that occur only inside another."""

PARTS: Mapping[str, tuple[type, ...]] = {
    "data": (FederatedDataset,),
    "partition": (FederatedDataset,),
    "model": (nn.Module, WithModes),
    "algorithm": (Algorithm,),
    "aggregator": (Aggregator,),
    "client": (ClientRule,),
    "privacy": (Aggregator, ClientRule),
    "root_client": (ClientRule,),
    "attack": (Attack,),
    "compression": (Compressor,),
    "downlink_compression": (Compressor,),
    "local_optimizer": (optax.GradientTransformation, Optimizer),
    "optimizer": (optax.GradientTransformation, Optimizer),
}
"""What the builders of a table make; of the tables that are left out, functions. Other forms of models are
those of :func:`~fedjax_drag.simulation.model.functions.is_model`."""

NESTED: Mapping[Any, str] = {
    Aggregator: "aggregator",
    Attack: "attack",
    ClientRule: "client",
    optax.GradientTransformation: "optimizer",
    Optimizer: "optimizer",
    Callable: "schedule",
}
"""Types of arguments that are components themselves, with the table that each is chosen from.

An argument that is a function is a schedule: a function of the round.
"""

SUPPLIED: Mapping[str, tuple[str, ...]] = {
    "data": ("name",),
    "partition": ("fed", "seed"),
    "model": ("num_classes", "rngs"),
    "algorithm": ("num_clients", "aggregator", "client"),
    "aggregator": ("num_clients", "num_byzantine"),
    "client": (),
    "privacy": ("aggregator", "client"),
    "root_client": (),
    "local_optimizer": (),
    "loss": (),
    "augmentation": (),
    "attack": ("fed", "num_classes", "num_clients"),
    "compression": (),
    "downlink_compression": (),
    "optimizer": (),
    "schedule": (),
}
"""Arguments of each component's builder that the experiment supplies where the configuration does not.

A component passes them on to the components inside it: an aggregator inside an aggregator gets the number of malicious
clients. One inside a client rule does not, since it reduces examples there.
"""
