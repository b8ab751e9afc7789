"""Fingerprints of runs: other options have other ones, other inputs of the same programs have not."""

import dataclasses

import jax
import numpy as np
import optax
import pytest

import fedjax_drag as fd
from fedjax_drag.simulation.planning.fingerprint import fingerprint
from fedjax_drag.simulation.planning.setup import federate
from fedjax_drag.simulation.settings import Settings


def of(changed):
    asked = Settings(**changed)
    return fingerprint(asked, None, federate(asked))


@pytest.fixture
def base(settings):
    def make(**changes):
        rule = fd.algorithms.from_aggregator(fd.aggregators.drag(c=0.25, alpha=0.25))
        return settings(algorithm=rule, clients_axis="map", **changes)

    return make


@pytest.mark.parametrize("seed", [0, 1])
def test_data_seeds_and_lengths_are_inputs_of_the_same_programs(base, digits, seed):
    reordered = dataclasses.replace(digits, rows=digits.rows[::-1].copy(), counts=digits.counts[::-1].copy())
    changes = {"seed": seed, "num_rounds": 7, "eval_every": 2, "data": reordered, "time_clients": True}
    assert of(base()) is not None
    assert of(base(**changes)) == of(base())
    attacked = {"attack": fd.attacks.sign_flip(), "num_byzantine": 2}
    assert of(base(**attacked)) == of(base(**attacked | {"num_byzantine": 1}))
    assert of(base(**attacked)) != of(base(**attacked | {"num_byzantine": 3})), "rules are told another number"


def test_shares_of_absent_clients_are_inputs_and_their_existence_is_not(base):
    shares = [0.5, [0.3] * 12, np.full((1, 12), 0.9)]
    assert len({of(base(availability=share, dropout_rate=0.3)) for share in shares}) == 1
    assert of(base(dropout_rate=0.3)) == of(base(dropout_rate=0.1)) != of(base())
    assert of(base(availability=0.5)) not in {of(base()), of(base(availability=np.ones((2, 12), bool)))}


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm": fd.algorithms.from_aggregator(fd.aggregators.drag(c=0.5, alpha=0.25))},
        {"model": fd.models.mlp(10, hidden=(3,))},
        {"step_size": 0.2},
        {"step_size": np.float32(0.1)},
        {"step_size": optax.constant_schedule(0.1)},
        {"batch_size": 5},
        {"local_steps": 4},
        {"local_steps": (1, 3)},
        {"deadline": 2},
        {"local_steps": None, "local_epochs": 1},
        {"cohort_size": 4},
        {"attack": fd.attacks.sign_flip(), "num_byzantine": 2},
        {"attack": fd.attacks.sign_flip(), "num_byzantine": 2, "byzantine_of": "cohort"},
        {"nonfinite": "propagate"},
        {"aggregation": "stack"},
        {"clients_per_chunk": 2},
        {"compute_dtype": "bfloat16"},
        {"client_state": "host"},
        {"diagnostics": False},
        {"loss": lambda logits, labels: logits[:, 0]},
        {"local_optimizer": optax.trace(0.9)},
        {"local_optimizer_state": "keep"},
        {"augmentation": lambda key, x: x},
        {"root_client": fd.clients.fedprox(0.1)},
    ],
    ids=lambda changes: ",".join(changes),
)
def test_other_options_are_other_programs(base, changes):
    like = {"local_optimizer": optax.trace(0.9)} if "local_optimizer_state" in changes else {}
    assert of(base() | like | changes) != of(base() | like)


def as_float(examples):
    return examples._replace(x=np.float32(examples.x))


@pytest.mark.parametrize("change", ["mean", "std", "type", "classes", "examples", "validation", "rows"])
def test_other_data_are_another_program_where_they_decide_it(base, digits, change):
    changed = {
        "mean": {"mean": (0.25,)},
        "std": {"std": (0.25,)},
        "type": {"train": as_float(digits.train), "test": as_float(digits.test)},
        "classes": {"num_classes": 11},
        "examples": {"test": jax.tree.map(lambda x: x[1:], digits.test)},
        "validation": {"validation": digits.test},
        "rows": {"rows": np.pad(digits.rows, ((0, 0), (0, 1)))},
    }[change]
    assert of(base(data=dataclasses.replace(digits, **changed))) != of(base())


@dataclasses.dataclass(frozen=True, eq=False)
class Brightened(fd.data.FederatedDataset):
    by: float = 1.0

    def preprocess(self, x):
        return super().preprocess(x) + self.by


def test_constants_of_a_users_own_data_set_count(base, digits):
    fields = {field.name: getattr(digits, field.name) for field in dataclasses.fields(digits)}
    keys = [of(base(data=Brightened(**fields, by=by))) for by in (1.0, 2.0, 1.0)]
    assert keys[0] is not None
    assert keys[0] == keys[2] != keys[1]


def test_a_mesh_is_a_part_of_the_fingerprint(base):
    asked = Settings(**base(cohort_size=6))
    meshes = [None, *(jax.sharding.Mesh(jax.devices()[:number], ("clients",)) for number in (1, 2))]
    assert len({fingerprint(asked, mesh, federate(asked)) for mesh in meshes}) == 3


def test_what_chooses_the_walk_counts_where_it_is_chosen(base, monkeypatch):
    auto = base() | {"clients_axis": "auto"}
    assert of(auto) != of(auto | {"num_rounds": 7})
    before = of(auto)
    monkeypatch.setenv("FEDJAX_DRAG_CALIBRATE", "1")
    assert of(auto) != before
