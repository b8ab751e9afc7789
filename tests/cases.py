"""Every builder of the package once or more, with small valid arguments: what the general tests run over.

A builder that is in some ``__all__`` and not here fails ``contracts/test_cases.py``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_drag import aggregators, algorithms, attacks, clients, data, graphs
from fedjax_drag.testing._promises import made_up_model
from fedjax_drag.types import PER_CLIENT_EXTRAS, Batch
from fedjax_drag.types._part import Function

NUM_CLIENTS = 8
"""Clients of the federation in every case that needs to know."""


@dataclass(frozen=True, eq=False)
class Case:
    """One way to call a builder.

    Attributes:
      label: name of the test case.
      builder: the public function.
      settings: its keyword arguments.
      sweeps: float hyperparameters that may be traced, with equally many values to try.
      requires: extras that ``apply`` or ``aggregate`` cannot do without.
      smallest: the smallest cohort that it accepts.
      keyed: whether a draw from ``key`` groups the clients by their place in the cohort, so that order matters.
      consensus: whether the delta that all clients agree on is the update.
      flat: whether the update has no gradient anywhere.
      forges: the halves of its message that a malicious client does not send as they are.
    """

    label: str
    builder: Callable[..., Any]
    settings: Mapping[str, Any] = field(default_factory=dict)
    sweeps: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    requires: frozenset[str] = frozenset()
    smallest: int = 1
    keyed: bool = False
    consensus: bool = True
    flat: bool = False
    forges: frozenset[str] = frozenset({"delta", "aux"})

    def build(self, **changes: Any) -> Any:
        """Calls the builder."""
        return self.builder(**{**self.settings, **changes})


def parametrize(
    cases: list[Case],
    slow: Callable[[Case], bool] = lambda case: False,
    fast: Callable[[Case], bool] = lambda case: True,
) -> pytest.MarkDecorator:
    """Runs a test with an argument ``case`` once for each.

    Args:
      cases: what to run it with.
      slow: those among the slow tests; so is every builder's case but its first.
      fast: those of the others that are in the fast tier: some, where each case compiles a program for this test alone.
    """
    first = {case.builder: case.label for case in reversed(cases)}

    def entry(case: Case) -> Any:
        # Programs are compiled once for all tests of a case, so these stay in one process.
        marks = [pytest.mark.xdist_group(case.label)]
        if slow(case) or first[case.builder] != case.label:
            marks.append(pytest.mark.slow)
        elif not fast(case):
            marks.append(pytest.mark.thorough)
        return pytest.param(case, id=case.label, marks=marks)

    return pytest.mark.parametrize("case", [entry(case) for case in cases])


def falling(round):
    """A schedule of the round for BR-DRAG's ``c``."""
    return 0.5 / (1.0 + round)


ROOT = frozenset({"root_delta"})
IDS = frozenset({"client_ids"})
KEY = frozenset({"key"})
LOSS = frozenset({"start_loss"})

AGGREGATORS = [
    Case("fedavg", aggregators.fedavg),
    Case("fedavg-examples", aggregators.fedavg, {"weighting": "examples"}, requires=frozenset({"num_examples"})),
    Case(
        "fedavg-unbiased",
        aggregators.fedavg,
        {"weighting": "unbiased"},
        requires=frozenset({"selection_weight"}),
        consensus=False,
    ),
    Case("drag", aggregators.drag, {"c": 0.25, "alpha": 0.25}, {"c": (0.0, 0.25, 1.0), "alpha": (0.0, 0.5, 1.0)}),
    Case("drag-angle", aggregators.drag, {"c": 0.5, "alpha": 0.6, "divergence": "angle"}, {"c": (0.1, 0.5, 1.0)}),
    Case("br_drag", aggregators.br_drag, {"c": 0.5}, {"c": (0.0, 0.5, 1.0)}, ROOT, consensus=False),
    Case("br_drag-schedule", aggregators.br_drag, {"c": falling}, requires=ROOT | {"round"}, consensus=False),
    Case("br_drag-oracle", aggregators.br_drag, {"oracle": True}, requires=ROOT | {"malicious"}, consensus=False),
    Case("fltrust", aggregators.fltrust, requires=ROOT, consensus=False),
    Case("fltrust-projection", aggregators.fltrust, {"projection": True}, requires=ROOT, consensus=False),
    Case("root_only", aggregators.root_only, requires=ROOT, consensus=False, flat=True),
    Case(
        "geometric_median",
        aggregators.geometric_median,
        {"smoothing": 1e-6, "tolerance": 1e-7, "max_iterations": 300},
        {"smoothing": (1e-6, 1e-2, 1.0), "tolerance": (1e-7, 1e-2, 1e-5)},
    ),
    Case("median", aggregators.median),
    Case("trimmed_mean", aggregators.trimmed_mean, {"trim_fraction": 0.2}, {"trim_fraction": (0.0, 0.2, 0.45)}),
    Case(
        "signsgd_majority",
        aggregators.signsgd_majority,
        {"step_size": 0.01},
        {"step_size": (0.0, 0.01)},
        consensus=False,
        flat=True,
    ),
    Case("krum", aggregators.krum, {"num_byzantine": 1}, smallest=4),
    Case("multi_krum", aggregators.multi_krum, {"num_byzantine": 1, "num_selected": 3}, smallest=4),
    Case("bulyan", aggregators.bulyan, {"num_byzantine": 1}, smallest=7),
    Case("mda", aggregators.mda, {"num_byzantine": 2}, smallest=5),
    Case("meamed", aggregators.meamed, {"num_byzantine": 2}, smallest=5),
    Case("monna", aggregators.monna, {"num_byzantine": 2}, requires=ROOT, smallest=5),
    Case("monna-trusted", aggregators.monna, {"num_byzantine": 2, "trusted": 3}, smallest=5, keyed=True),
    Case("smea", aggregators.smea, {"num_byzantine": 2}, smallest=5),
    Case("caf", aggregators.caf, {"num_byzantine": 2}, smallest=5),
    Case(
        "dnc",
        aggregators.dnc,
        {"num_byzantine": 1, "filter_fraction": 1.0, "iterations": 2, "num_coordinates": 6},
        {"filter_fraction": (0.0, 1.0, 2.0)},
        KEY,
        smallest=3,
    ),
    Case("robust_lr", aggregators.robust_lr, {"threshold": 3.0}, {"threshold": (0.0, 3.0, 5.0)}, consensus=False),
    Case(
        "crfl",
        aggregators.crfl,
        {"clip": 20.0, "sigma": 0.0},
        {"clip": (20.0, 1.0, 3.0), "sigma": (0.0, 0.01, 0.1)},
        KEY,
    ),
    Case(
        "lasa",
        aggregators.lasa,
        {"sparsity": 0.5, "lambda_norm": 1.0, "lambda_sign": 1.0},
        {"sparsity": (0.5, 0.0, 0.9), "lambda_norm": (1.0, 0.5, 2.0), "lambda_sign": (1.0, 2.0, 0.5)},
        consensus=False,
    ),
    Case("foundationfl-median", aggregators.foundationfl, {"aggregator": aggregators.median()}),
    Case(
        "foundationfl-trimmed_mean",
        aggregators.foundationfl,
        {"aggregator": aggregators.trimmed_mean(0.4), "num_synthetic": 1},
    ),
    Case(
        "fldetector-median",
        aggregators.fldetector,
        {"aggregator": aggregators.median(), "window": 1, "num_clients": NUM_CLIENTS},
        requires=IDS | KEY,
    ),
    Case("nnm-drag", aggregators.nnm, {"aggregator": aggregators.drag(), "num_byzantine": 1}, smallest=2),
    Case("bucketing-median", aggregators.bucketing, {"aggregator": aggregators.median()}, requires=KEY, keyed=True),
    Case(
        "clipping-fedavg",
        aggregators.clipping,
        {"aggregator": aggregators.fedavg(), "max_norm": 2.0},
        {"max_norm": (0.1, 2.0, 1e3)},
        consensus=False,
    ),
    Case("arc-median", aggregators.arc, {"aggregator": aggregators.median(), "num_byzantine": 2}, smallest=3),
    Case(
        "fedbuff-median",
        aggregators.fedbuff,
        {"aggregator": aggregators.median(), "exponent": 0.5, "server_step_size": 1.0},
        {"exponent": (0.0, 0.5, 2.0), "server_step_size": (0.5, 1.0, 2.0)},
        frozenset({"staleness"}),
        consensus=False,
    ),
    Case(
        "fedasync-hinge",
        aggregators.fedasync,
        {"staleness": "hinge", "alpha": 0.6, "slope": 10.0, "grace": 4.0},
        {"alpha": (0.1, 0.6, 1.0), "slope": (0.5, 1.0, 10.0), "grace": (0.0, 2.0, 4.0)},
        frozenset({"staleness", "starts"}),
        consensus=False,
    ),
    Case("fedexp", aggregators.fedexp, {"eps": 1e-3}, {"eps": (1e-3, 1.0)}),
    Case("qffl", aggregators.qffl, {"q": 1.0}, {"q": (0.0, 1.0, 5.0)}, LOSS | {"step_size"}, consensus=False),
    Case("term", aggregators.term, {"t": 1.0}, {"t": (-1.0, 0.0, 5.0)}, LOSS),
    Case(
        "afl",
        aggregators.afl,
        {"gamma": 0.1, "num_clients": NUM_CLIENTS},
        {"gamma": (0.0, 0.1, 1.0)},
        LOSS | IDS,
        consensus=False,
    ),
    Case("norm_clipping", aggregators.norm_clipping, {"max_norm": 2.0}, {"max_norm": (0.1, 2.0, 1e3)}, consensus=False),
    Case(
        "centered_clipping",
        aggregators.centered_clipping,
        {"radius": 2.0, "iterations": 2},
        {"radius": (0.1, 2.0, 1e3)},
        consensus=False,
    ),
    Case("rfa", aggregators.rfa, {"smoothing": 1e-6}, {"smoothing": (1e-6, 1.0)}),
    Case("raga", aggregators.raga),
    Case("geomed", aggregators.geomed, {"num_groups": 3}, requires=KEY, keyed=True),
    Case("autogm", aggregators.autogm, {"lam": 2.0}, {"lam": (0.5, 2.0, 50.0)}),
    Case("clustering", aggregators.clustering),
    Case("clipped_clustering", aggregators.clipped_clustering, {"history": 50}),
    Case(
        "signguard",
        aggregators.signguard,
        {"lower": 0.1, "upper": 3.0, "sign_fraction": 0.5},
        {"lower": (0.0, 0.1, 0.9), "upper": (3.0, 1.0, 1.5), "sign_fraction": (0.2, 0.5, 1.0)},
        KEY,
    ),
    Case("flame", aggregators.flame, {"noise_factor": 0.01}, {"noise_factor": (0.0, 0.01, 0.1)}, KEY, consensus=False),
    Case("flame-models", aggregators.flame, {"noise_factor": 0.0, "directions": "models"}, requires=KEY),
    Case(
        "deepsight",
        aggregators.deepsight,
        {"head": "[!s]*", "threshold": 0.5, "num_seeds": 2, "num_samples": 8, "min_cluster_size": 2, "min_samples": 1},
        {"threshold": (0.5, 0.0, 1.0)},
        KEY | {"predict", "example"},
    ),
    Case(
        "rfl_bat",
        aggregators.rfl_bat,
        {"outer": 10.0, "inner": 4.0, "max_clusters": 3},
        {"outer": (10.0, 1.5), "inner": (4.0, 1.2)},
        KEY,
    ),
    Case(
        "flare",
        aggregators.flare,
        {"temperature": 1.0, "num_examples": 5},
        {"temperature": (0.3, 1.0, 4.0)},
        frozenset({"predict", "root_data"}),
    ),
    Case("clusterguard", aggregators.clusterguard, requires=KEY | {"dissimilarity"}),
    Case(
        "clusterguard-standardised",
        aggregators.clusterguard,
        {"num_clusters": 3, "use_num_examples": True, "standardise": True},
        requires=KEY | {"dissimilarity", "num_examples"},
    ),
    Case("foolsgold", aggregators.foolsgold, {"num_clients": NUM_CLIENTS}, requires=IDS),
    Case("foolsgold_taco", aggregators.foolsgold_taco),
    Case("rescaled_mean", aggregators.rescaled_mean, {"aggregator": aggregators.drag()}),
    Case(
        "hierarchical",
        aggregators.hierarchical,
        {"groups": 2, "inner": aggregators.trimmed_mean(), "outer": aggregators.fedavg(), "num_clients": NUM_CLIENTS},
        requires=IDS,
    ),
]

CLIENTS = [
    Case("sgd", clients.sgd),
    Case("fedprox", clients.fedprox, {"mu": 0.2}, {"mu": (0.0, 0.2, 1.0)}),
    Case("fedsam", clients.fedsam, {"rho": 0.05}, {"rho": (0.0, 0.05, 0.5)}),
    Case("moon", clients.moon, {"mu": 1.0}, {"mu": (0.0, 1.0), "temperature": (0.1, 0.5)}),
    Case("fedlc", clients.fedlc, {"tau": 1.0}, {"tau": (0.0, 1.0)}),
    Case("fedntd", clients.fedntd, {"beta": 1.0}, {"beta": (0.0, 1.0), "temperature": (0.5, 3.0)}),
    Case("momentum_sgd", clients.momentum_sgd, {"beta": 0.9}, {"beta": (0.0, 0.5, 0.9)}),
    Case(
        "dp_sgd",
        clients.dp_sgd,
        {"clip": 1.0, "noise_multiplier": 0.5},
        {"clip": (0.1, 1.0), "noise_multiplier": (0.0, 0.5)},
    ),
    Case("robust_sgd", clients.robust_sgd, {"reducer": aggregators.median()}),
]

ALGORITHMS = [
    Case("from_aggregator", algorithms.from_aggregator, {"aggregator": aggregators.fedavg()}),
    Case(
        "from_aggregator-drag-fedprox",
        algorithms.from_aggregator,
        {"aggregator": aggregators.drag(c=0.25, alpha=0.25), "client": clients.fedprox(mu=0.2)},
    ),
    Case("from_aggregator-br_drag", algorithms.from_aggregator, {"aggregator": aggregators.br_drag(c=0.5)}, {}, ROOT),
    Case("scaffold", algorithms.scaffold, {"num_clients": NUM_CLIENTS}, {"a": (0.0, 0.5, 1.0)}, IDS),
    Case(
        "scaffold-krum",
        algorithms.scaffold,
        {"num_clients": NUM_CLIENTS, "aggregator": aggregators.krum(num_byzantine=1)},
        requires=IDS,
        smallest=4,
    ),
    Case(
        "scaffold-first",
        algorithms.scaffold,
        {"num_clients": NUM_CLIENTS, "variate": "first"},
        {"a": (0.0, 0.5, 1.0)},
        IDS,
    ),
    Case("scaffold-tailored", algorithms.scaffold, {"num_clients": NUM_CLIENTS, "tailored": True}, requires=IDS),
    Case(
        "adabest",
        algorithms.adabest,
        {"num_clients": NUM_CLIENTS},
        {"mu": (0.0, 0.02, 0.5), "beta": (0.0, 0.2, 0.8)},
        IDS | {"round"},
    ),
    Case("feddyn", algorithms.feddyn, {"num_clients": NUM_CLIENTS, "a": 0.1}, {"a": (0.01, 0.1, 1.0)}, IDS),
    Case("feddc", algorithms.feddc, {"num_clients": NUM_CLIENTS, "a": 0.1}, {"a": (0.01, 0.1, 1.0)}, IDS),
    Case("fedadmm", algorithms.fedadmm, {"num_clients": NUM_CLIENTS, "rho": 0.1}, {"rho": (0.0, 0.1, 1.0)}, IDS),
    Case("fedacg", algorithms.fedacg, {}, {"lam": (0.0, 0.5, 0.85), "beta": (0.0, 0.001, 0.2)}),
    Case("fedacg-global", algorithms.fedacg, {"start": "global"}, {"lam": (0.0, 0.5, 0.85), "beta": (0.0, 0.2)}),
    Case("stem", algorithms.stem, {"a": 0.2}, {"a": (0.0, 0.2, 1.0)}),
    Case(
        "stem-carry-median",
        algorithms.stem,
        {"carry_momentum": True, "aggregator": aggregators.median()},
        {"a": (0.0, 0.2, 1.0)},
    ),
    Case("taco", algorithms.taco, {"num_clients": NUM_CLIENTS, "gamma": 0.5}, {"gamma": (0.0, 0.5, 1.0)}, IDS),
    Case("taco-expels", algorithms.taco, {"num_clients": NUM_CLIENTS, "max_strikes": 2}, requires=IDS),
    Case("tailored_fedprox", algorithms.tailored_fedprox, {"num_clients": NUM_CLIENTS}, {"mu": (0.0, 0.1, 1.0)}, IDS),
    Case("fednova", algorithms.fednova, {"rho": 0.9, "mu": 0.1}, {"rho": (0.0, 0.5, 0.9), "mu": (0.0, 0.1, 1.0)}),
    Case("mime", algorithms.mime, {"b": 0.9}, {"b": (0.0, 0.5, 0.9)}),
    Case("ifca", algorithms.ifca, {"num_clients": NUM_CLIENTS}, requires=IDS),
    Case(
        "ifca-gradients-median",
        algorithms.ifca,
        {"num_clients": NUM_CLIENTS, "averaging": "gradients", "aggregator": aggregators.median()},
        requires=IDS,
    ),
    Case("hypcluster", algorithms.hypcluster, {"num_clients": NUM_CLIENTS}, requires=IDS | {"num_examples"}),
    Case(
        "mime-first-krum",
        algorithms.mime,
        {"gradient": "first", "aggregator": aggregators.krum(num_byzantine=1)},
        smallest=4,
    ),
    Case("ditto", algorithms.ditto, {}, {"lam": (0.0, 0.1, 2.0)}),
    Case("ditto-krum", algorithms.ditto, {"aggregator": aggregators.krum(num_byzantine=1)}, smallest=4),
    Case("fedper", algorithms.fedper, {"layers": "scale"}),
    Case("fedrep", algorithms.fedrep, {"layers": "scale", "head_steps": 1}),
    Case("lg_fedavg", algorithms.lg_fedavg, {"layers": "dense"}),
    Case("fedbn", algorithms.fedbn, {"layers": "scale"}),
    Case("pfedme", algorithms.pfedme, {}, {"lam": (1.0, 15.0), "inner_step_size": (0.01, 0.05)}),
    Case("per_fedavg", algorithms.per_fedavg, {"alpha": 0.1}, {"alpha": (0.0, 0.1, 0.5)}),
    Case("per_fedavg-hessian", algorithms.per_fedavg, {"variant": "hessian_free"}, {"delta": (1e-3, 1e-2)}),
    Case("apfl", algorithms.apfl, {"adaptive": True}, {"alpha": (0.0, 0.5, 1.0)}),
    Case("fine_tune", algorithms.fine_tune, {"steps": 3, "step_size": 0.01}, {"step_size": (0.01, 0.1)}),
    Case("local_only", algorithms.local_only),
    Case(
        "decentralised",
        algorithms.decentralised,
        {"graph": graphs.ring(), "num_clients": NUM_CLIENTS},
        requires=IDS | KEY | {"malicious", "exchange"},
    ),
    Case(
        "decentralised-clippedgossip",
        algorithms.decentralised,
        {
            "graph": graphs.erdos_renyi(0.6),
            "mixing": graphs.mixing.clippedgossip(),
            "client": clients.momentum_sgd(),
            "num_clients": NUM_CLIENTS,
        },
        requires=IDS | KEY | {"malicious", "exchange"},
    ),
    Case(
        "decentralised-changing-median",
        algorithms.decentralised,
        {
            "graph": graphs.changing(graphs.torus(2)),
            "mixing": graphs.mixing.from_rule(aggregators.median()),
            "num_clients": NUM_CLIENTS,
        },
        requires=IDS | KEY | {"malicious", "exchange"},
    ),
]


def images(number: int = 12) -> data.FederatedDataset:
    """Random images of three classes."""
    x, y = np.random.default_rng(0).normal(size=(number, 8, 8, 1)), np.arange(number) % 3
    return data.from_arrays(x, y, x, y, mean=(0.0,), std=(1.0,))


IMAGES = images()

ATTACKS = [
    Case("sign_flip", attacks.sign_flip, {"scale": 1.0}, {"scale": (0.5, 1.0, 4.0)}),
    Case("scale_noise", attacks.scale_noise, {"variance": 3.0}, {"variance": (0.5, 3.0)}),
    Case("dissensus", attacks.dissensus, {"strength": 1.5}, {"strength": (0.5, 1.5)}, forges=frozenset()),
    Case("label_flip", attacks.label_flip, {"fraction": 0.5}),
    Case("label_flip-numbers", attacks.label_flip, {"target_mean": 1.5}, {"fraction": (0.0, 0.5)}),
    Case("feature_noise", attacks.feature_noise, {"sigma": 2.0}, {"sigma": (0.5, 2.0), "fraction": (0.0, 0.5)}),
    Case("freeloader", attacks.freeloader, forges=frozenset({"delta"})),
    Case("gaussian", attacks.gaussian, {"sigma": 2.0}, {"sigma": (0.5, 2.0)}),
    Case("gaussian-additive", attacks.gaussian, {"sigma": 2.0, "additive": True}, {"sigma": (0.5, 2.0)}),
    Case("alie", attacks.alie),
    Case("alie-partial", attacks.alie, {"z": 1.5, "knowledge": "partial"}, {"z": (0.5, 1.5)}),
    Case("ipm", attacks.ipm, {"epsilon": 0.1}, {"epsilon": (0.1, 10.0)}),
    Case("min_max", attacks.min_max),
    Case("min_max-sign-partial", attacks.min_max, {"perturbation": "sign", "knowledge": "partial"}),
    Case("min_sum-unit", attacks.min_sum, {"perturbation": "unit"}),
    Case("mimic", attacks.mimic),
    Case("rop", attacks.rop, {}, {"radius": (0.5, 2.0), "angle": (90.0, 180.0)}, forges=frozenset({"delta"})),
    Case("poisonedfl", attacks.poisonedfl, forges=frozenset({"delta"})),
    Case("krum_attack", attacks.krum_attack, forges=frozenset({"delta"})),
    Case("krum_attack-partial", attacks.krum_attack, {"knowledge": "partial"}, forges=frozenset({"delta"})),
    Case("trim_attack", attacks.trim_attack, {}, {"b": (1.5, 2.0, 10.0)}),
    Case("trim_attack-partial", attacks.trim_attack, {"knowledge": "partial"}),
    Case("optimised", attacks.optimised, {"steps": 3}, {"budget": (0.5, 1.0, 4.0)}, forges=frozenset({"delta"})),
    Case("optimised-distance", attacks.optimised, {"objective": "distance", "steps": 3}, forges=frozenset({"delta"})),
    Case("optimal_alie", attacks.optimal_alie, {"evaluations": 5}, {"step": (1.0, 10.0), "ratio": (0.5, 0.8)}),
    Case("optimal_ipm", attacks.optimal_ipm, {"evaluations": 5, "starts": (0.1, 0.5)}, {"step": (1.0, 10.0)}),
    Case("backdoor", attacks.backdoor, {"target": 1}),
    Case("dba", attacks.dba, {"target": 1}),
    Case("edge_case", attacks.edge_case, {"fed": IMAGES, "share": 0.5}),
    Case("a3fl", attacks.a3fl, {"target": 1}),
    Case("constrain_and_scale", attacks.constrain_and_scale, {"attack": attacks.dba(1), "alpha": 0.4}),
    Case("alter_min", attacks.alter_min, {"attack": attacks.backdoor(1, boost=2.0), "stealth_steps": 1}),
    Case("chameleon", attacks.chameleon, {"attack": attacks.backdoor(1), "head": "*kernel", "contrastive_steps": 1}),
    Case("neurotoxin", attacks.neurotoxin, {"share": 0.4}, {"share": (0.0, 0.4, 1.0)}),
    Case("neurotoxin-sign_flip", attacks.neurotoxin, {"attack": attacks.sign_flip(), "share": 0.4}),
    Case("stealth", attacks.stealth, {"attack": attacks.sign_flip(3.0)}, {"norm": (0.5, 1.0)}),
    Case(
        "stealth-cosine",
        attacks.stealth,
        {"attack": attacks.min_max(), "norm": None, "cosine": 0.5},
        {"cosine": (0.0, 0.5)},
    ),
    Case(
        "during", attacks.during, {"attack": attacks.sign_flip(), "start": 2}, {"start": (0.0, 2.0), "stop": (3.0, 4.0)}
    ),
]

SECTIONS = {
    "aggregators": (aggregators, AGGREGATORS),
    "clients": (clients, CLIENTS),
    "algorithms": (algorithms, ALGORITHMS),
    "attacks": (attacks, ATTACKS),
}


def nested_params(dtype: Any = jnp.float32, seed: int = 0) -> dict[str, Any]:
    """Parameters of nine numbers in leaves of three ranks, one of them a scalar."""
    rng = np.random.default_rng(seed)
    leaves = {"dense": {"kernel": rng.normal(size=(3, 2)), "bias": rng.normal(size=2)}, "scale": rng.normal(size=())}
    return jax.tree.map(lambda x: jnp.asarray(x, dtype), leaves)


SIZE = 9
"""Numbers in :func:`nested_params`."""


def unflatten(matrix: np.ndarray, dtype: Any = jnp.float32) -> dict[str, Any]:
    """Vectors ``[..., 9]`` as a pytree like :func:`nested_params`, leading axes kept."""
    matrix, lead = np.asarray(matrix), np.shape(matrix)[:-1]
    parts = {
        "dense": {"kernel": matrix[..., 2:8].reshape(*lead, 3, 2), "bias": matrix[..., :2]},
        "scale": matrix[..., 8],
    }
    return jax.tree.map(lambda x: jnp.asarray(x, dtype), parts)


def flatten(tree: Any, lead: int = 0) -> np.ndarray:
    """Inverse of :func:`unflatten`, in float64; ``lead`` leading axes are kept."""
    leaves = [np.asarray(leaf.astype(jnp.float32), np.float64) for leaf in jax.tree.leaves(tree)]
    return np.concatenate([leaf.reshape(*leaf.shape[:lead], -1) for leaf in leaves], axis=-1)


def extras(cohort: int, round: int = 0, seed: int = 0) -> dict[str, Any]:
    """Every extra that some rule may ask for, but ``valid``."""
    rng = np.random.default_rng([seed, round])
    return {
        "client_ids": jnp.asarray(rng.permutation(max(cohort, NUM_CLIENTS))[:cohort], jnp.int32),
        "round": jnp.asarray(round, jnp.int32),
        "key": jax.random.key(round),
        "root_delta": unflatten(rng.normal(size=SIZE).astype(np.float32)),
        "num_examples": jnp.asarray(rng.integers(1, 90, cohort), jnp.int32),
        "dissimilarity": jnp.asarray(rng.uniform(size=cohort), jnp.float32),
        "malicious": jnp.arange(cohort) % 3 == 1,
        "start_loss": jnp.asarray(rng.uniform(0.1, 3.0, cohort), jnp.float32),
        "selection_weight": jnp.asarray(rng.uniform(0.5, 2.0, cohort), jnp.float32),
        "step_size": jnp.asarray(0.1, jnp.float32),
        "staleness": jnp.asarray(rng.integers(0, 6, cohort), jnp.int32),
        "starts": unflatten(rng.normal(size=(cohort, SIZE)).astype(np.float32)),
        "predict": Function(made_up_model),
        "example": jnp.zeros(3),
        "root_data": Batch(jnp.asarray(rng.normal(size=(6, 3)), jnp.float32), jnp.arange(6) % 2),
    }


def assert_like(tree: Any, other: Any, lead: tuple[int, ...] = ()) -> None:
    """Same structure, dtypes and shapes, but for leading axes."""
    assert jax.tree.structure(tree) == jax.tree.structure(other)
    for x, y in zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True):
        assert (x.shape, x.dtype) == ((*lead, *y.shape), y.dtype)


def select(extras: dict[str, Any], rows: Any) -> dict[str, Any]:
    """The extras of some of the clients, in the order given."""
    of_rows = lambda value: jax.tree.map(lambda x: x[rows], value)
    return {name: of_rows(value) if name in PER_CLIENT_EXTRAS else value for name, value in extras.items()}
