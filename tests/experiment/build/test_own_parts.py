"""Parts of one's own in a configuration: Python objects, code that it refers to, other packages' entry points."""

import functools
import importlib.metadata
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import fedjax_drag as fd
from fedjax_drag.experiment.build import build, catalog, own_parts
from fedjax_drag.experiment.build.experiment import load, load_experiment
from fedjax_drag.experiment.build.resolve import resolve
from fedjax_drag.experiment.config.own import OwnName, is_reference, short, with_own_names
from fedjax_drag.experiment.config.yaml_text import written
from fedjax_drag.experiment.run import folders, results
from fedjax_drag.types import Aggregator

SHORT = {
    "data": "digits",
    "partition": {"name": "iid", "num_clients": 8},
    "model": {"name": "mlp", "hidden": [4]},
    "rounds": 2,
    "cohort_size": 4,
    "local_steps": 2,
    "time_clients": False,
}

RULES = '''
"""Rules of one's own."""

import fedjax_drag as fd

with open("ran", "a") as log:
    log.write("x")


def scaled(factor: float = 1.0):
    """Moves by a multiple of the mean."""

    def weigh(clients, state, **_):
        return fd.aggregators.Weights(own=factor * clients.valid, mass=clients.valid)

    return fd.aggregators.weighted_rule(weigh)


def needing(size):
    return scaled(size)


middle = fd.aggregators.median()
'''


def doubled():
    """The mean, twice."""
    rule = fd.aggregators.fedavg()

    def apply(params, deltas, state, **extras):
        return rule.apply(params, jax.tree.map(lambda d: 2 * d, deltas), state, **extras)

    return Aggregator(rule.init, apply)


class Net(nn.Module):
    """One hidden layer."""

    num_classes: int
    hidden: int = 4

    @nn.compact
    def __call__(self, x):
        return nn.Dense(self.num_classes)(nn.relu(nn.Dense(self.hidden)(x.reshape(len(x), -1))))


class NetX(nnx.Module):
    """The same in NNX."""

    def __init__(self, num_classes, rngs):
        self.layer = nnx.Linear(64, num_classes, rngs=rngs)

    def __call__(self, x):
        return self.layer(x.reshape(len(x), -1))


def squared(logits, labels):
    """A loss."""
    return jnp.square(jax.nn.softmax(logits) - jax.nn.one_hot(labels, logits.shape[-1])).sum(-1)


def sharpened(power):
    """Builds a loss."""

    def loss(logits, labels):
        return squared(logits, labels) ** power

    return loss


def _settings(given):
    config = load_experiment(given).config
    return build.settings(config, build.federation(config, build.dataset(config)))


def final(result):
    return result.history["test_loss"][-1]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working directory with a file of rules."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_rules.py").write_text(RULES)
    return tmp_path


def times_run(folder):
    return len((folder / "ran").read_text()) if (folder / "ran").exists() else 0


@pytest.mark.thorough
def test_an_object_is_the_part_itself():
    twice = {**SHORT, "aggregator": doubled()}
    config = load_experiment(twice).config
    assert config.aggregator.name == "python:doubled"
    assert build.method(config, 8).aggregate is not None
    by_name = fd.run(SHORT, quiet=True)
    same = fd.run({**SHORT, "aggregator": fd.aggregators.fedavg()}, quiet=True)
    np.testing.assert_array_equal(by_name.history["test_loss"], same.history["test_loss"])
    assert final(fd.run(twice, quiet=True)) != final(by_name)


def test_every_kind_of_part_can_be_an_object():
    split = fd.data.partition.iid(fd.data.load("digits"), num_clients=8, seed=0)
    parts = {
        "data": split,
        "model": Net(10),
        "loss": squared,
        "attack": {"name": fd.attacks.sign_flip, "scale": 2.0},
        "byzantine_fraction": 0.25,
        "client": fd.clients.fedprox(0.1),
        "root_client": fd.clients.sgd(),
        "local_optimizer": optax.trace(0.5),
        "step_size": optax.linear_schedule(0.1, 0.01, 2),
        "algorithm": fd.algorithms.from_aggregator,
    }
    config = load_experiment({key: value for key, value in SHORT.items() if key != "partition"} | parts).config
    assert config.partition.name == "python:as_given"
    settings = build.settings(config, build.federation(config, build.dataset(config)))
    assert settings.data.rows is split.rows
    assert settings.loss is squared
    assert settings.model == Net(10)
    assert settings.step_size is parts["step_size"]
    assert settings.algorithm.client is parts["client"]
    assert settings.local_optimizer is parts["local_optimizer"]
    method = fd.algorithms.scaffold(num_clients=8)
    own = load_experiment({**SHORT, "algorithm": method}).config
    assert build.method(own, 8) is method


def test_a_builder_takes_arguments_and_what_the_experiment_supplies():
    settings = _settings({**SHORT, "model": {"name": Net, "hidden": 3}, "loss": {"name": sharpened, "power": 2.0}})
    assert settings.model == Net(num_classes=10, hidden=3)
    logits, labels = jnp.ones((2, 10)), jnp.zeros(2, int)
    np.testing.assert_allclose(settings.loss(logits, labels), squared(logits, labels) ** 2)
    nested = {"name": "nnm", "num_byzantine": 1, "aggregator": {"name": doubled}}
    assert build.method(load_experiment({**SHORT, "aggregator": nested}).config, 8)


def test_arguments_of_a_builder_may_be_objects_of_any_type():
    received: dict[str, Any] = {}

    def kept(table: np.ndarray, parts: list, by_name=None):
        received.update(table=table, parts=parts, by_name=by_name)
        return doubled()

    table, parts = np.eye(2), [fd.attacks.alie(), fd.attacks.ipm()]
    given = {"name": kept, "table": table, "parts": parts, "by_name": {"a": jnp.tanh, "b": [jnp.sin, 1.0]}}
    config = load_experiment({**SHORT, "aggregator": given}).config
    build.method(config, 8)
    assert received["table"] is table
    assert all(own is part for own, part in zip(received["parts"], parts, strict=True))
    assert received["by_name"] == {"a": jnp.tanh, "b": [jnp.sin, 1.0]}
    assert "python:ndarray" in written(config.to_mapping())


def test_defaults_that_no_file_can_hold_stay_with_their_builder():
    class Layers(nn.Module):
        num_classes: int
        hidden: int = 4
        act: Callable[..., Any] = nn.gelu
        dtype: Any = jnp.bfloat16

    def around(inner=fd.aggregators.median(), factor=2.0):  # noqa: B008
        assert isinstance(inner, Aggregator)
        return inner

    given = {"model": {"name": Layers}, "aggregator": {"name": around}}
    config = load_experiment({**SHORT, **given}).config
    assert config.model.arguments == {"hidden": 4}
    assert config.aggregator.arguments == {"factor": 2.0}
    assert "hidden: 4" in written(config.to_mapping())
    settings = build.settings(config, build.federation(config, build.dataset(config)))
    assert settings.model == Layers(10)


def pair(width):
    """A model as functions, and as the one that makes them."""
    init = lambda key: jax.random.normal(key, (width, 10)) / 8
    return init, lambda params, x: x.reshape(len(x), -1) @ params


@pytest.mark.thorough
@pytest.mark.parametrize("model", [NetX, pair(64), {"name": pair, "width": 64}])
def test_nnx_modules_and_pairs_are_models(model):
    """A class of nnx modules makes its parameters from the run's seed."""
    runs = [fd.run(SHORT | {"model": model, "seed": seed}, quiet=True) for seed in (0, 0, 1)]
    losses = [run.history["test_loss"][-1] for run in runs]
    assert losses[0] == losses[1] != losses[2]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (
            "aggregator",
            fd.attacks.alie(),
            "aggregator: alie is an Attack; must be an Aggregator; it belongs under 'att",
        ),
        ("algorithm", fd.aggregators.median(), "must be an Algorithm; it belongs under 'aggregator'"),
        ("attack", lambda: 3, "attack: lambda is an int; must be an Attack"),
        ("model", {"name": Net, "width": 3}, "unknown key 'width' of model Net; allowed: num_classes, hidden"),
        ("data", np.ones(3), "data: ndarray is a ndarray; must be a FederatedDataset"),
        ("availability", np.ones(8), "availability=array float64[8]: must be plain values, such as numbers"),
        ("aggregator", {"name": doubled(), "label": 3}, "aggregator.label=3: must be a text"),
        ("aggregator", "python:doubled", "was given as a Python object"),
    ],
)
def test_a_wrong_object_is_one_line(key, value, message):
    with pytest.raises(ValueError) as caught:
        _settings({**SHORT, "num_byzantine": 1 if key == "attack" else None, key: value})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("part", "label"),
    [
        (doubled(), "doubled"),
        (doubled, "doubled"),
        (fd.aggregators.drag(c=0.25, alpha=0.25), "drag"),
        (fd.algorithms.scaffold(num_clients=8), "scaffold"),
        (fd.aggregators.rfa(), "rfa"),
        (fd.algorithms.from_aggregator(fd.aggregators.median()), "median"),
        (fd.attacks.alie(), "alie"),
        (fd.attacks.label_flip(), "label_flip"),
        (fd.clients.fedprox(0.1), "fedprox"),
        (Net(10), "Net"),
        (functools.partial(doubled), "doubled"),
        (lambda: None, "lambda"),
        (fd.data.from_arrays(np.ones((2, 3)), [0, 1], np.ones((2, 3)), [0, 1], name="mine"), "mine"),
    ],
)
def test_a_part_is_called_after_its_builder(part, label):
    assert with_own_names({"model": part})["model"]["name"] == f"python:{label}"


@pytest.mark.parametrize("number", [np.bool_(True), np.array(0.5), jnp.float32(0.5), jnp.int32(2)], ids=repr)
def test_numbers_of_arrays_are_plain(number):
    found = with_own_names({"x": number, "axes": {"y": [number]}})
    assert found == {"x": number.item(), "axes": {"y": [number.item()]}}
    assert type(found["x"]) is type(number.item())


def test_labels_and_texts():
    mapping = with_own_names({"aggregator": {"name": doubled(), "label": "mine"}, "x": (1, np.float32(0.5))})
    assert mapping["x"] == [1, 0.5]
    assert isinstance(mapping["aggregator"]["name"], OwnName)
    assert "name: python:mine" in written(mapping)
    assert [short(name) for name in ("python:mine", "a/my_rules.py:rule", "my.module:rule", "krum")] == [
        "mine",
        "rule",
        "rule",
        "krum",
    ]
    assert [is_reference(name) for name in ("krum", "a.py:b", "a.b:c", "C:/data", "python:x", "a:b c")] == [
        False,
        True,
        True,
        False,
        False,
        False,
    ]


def test_code_is_run_only_if_it_is_allowed(here):
    given = {**SHORT, "aggregator": {"path": "my_rules.py", "name": "scaled", "factor": 2.0}}
    with pytest.raises(ValueError, match=r"aggregator.name='my_rules.py:scaled': is code .* --allow-code"):
        load_experiment(given)
    assert times_run(here) == 0
    allowed = load_experiment(given, allow_code=True).config
    assert allowed.aggregator.to_mapping() == {"name": "my_rules.py:scaled", "factor": 2.0}
    assert build.method(allowed, 8)
    trusted = load_experiment(SHORT, ["aggregator=my_rules.py:scaled", "aggregator.factor=2.0"]).config
    assert trusted == allowed
    with pytest.raises(ValueError, match=r"attack.name='my_rules.py:middle': is code"):
        load_experiment(
            {**SHORT, "attack": "my_rules.py:middle", "num_byzantine": 1}, ["aggregator=my_rules.py:scaled"]
        )
    assert times_run(here) == 1  # once for all
    assert resolve(load(given)).aggregator.builder is None  # to be read, not to be run
    assert build.method(load_experiment(SHORT, ["aggregator=my_rules.py:middle"]).config, 8)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("my_rules.py:scale", "aggregator.name='scale': must be one of those in my_rules.py: scaled, needing"),
        ("rules.py:scaled", "aggregator.path='rules.py': must be a Python file; there is none in"),
        ("not_there.rules:scaled", "aggregator: module 'not_there.rules' cannot be imported: ModuleNotFoundError"),
        ("broken.py:scaled", "aggregator.path='broken.py': cannot be run: line 3: ZeroDivisionError: division by zero"),
        ("my_rules.py:needing", "aggregator.size: missing; needing needs it (a value)"),
        ("fedjax_drag.attacks:alie", "aggregator: alie is an Attack; must be an Aggregator; it belongs under 'attack'"),
    ],
)
def test_wrong_references_are_one_line(here, reference, message):
    (here / "broken.py").write_text("x = 0\n\ny = 1 / x\n")
    with pytest.raises(ValueError) as caught:
        build.method(load_experiment(SHORT, [f"aggregator={reference}"]).config, 8)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_changed_file_is_loaded_anew(here):
    def label():
        return load_experiment(SHORT, ["aggregator=my_rules.py:scaled"]).config.aggregator.builder.__doc__

    assert label() == "Moves by a multiple of the mean."
    (here / "my_rules.py").write_text(RULES.replace("a multiple", "twice"))
    assert label() == "Moves by twice of the mean."


def test_a_resumed_run_warns_of_an_object_that_is_another(tmp_path):
    first, other = (load_experiment(SHORT | {"aggregator": fd.aggregators.drag(c)}).config for c in (0.1, 0.2))
    results.begin(tmp_path, first)
    folders.check_same(tmp_path, first)
    with pytest.warns(UserWarning, match=r"^python:drag has changed since the run in '.*' began$"):
        folders.check_same(tmp_path, other)


def test_installed_packages_offer_builders(monkeypatch):
    points = [importlib.metadata.EntryPoint("doubled", f"{__name__}:doubled", "fedjax_drag.aggregators")]
    points += [importlib.metadata.EntryPoint("krum", "os:system", "fedjax_drag.aggregators")]
    points += [importlib.metadata.EntryPoint("gone", "not_there:rule", "fedjax_drag.aggregators")]
    monkeypatch.setattr(own_parts, "entry_points", lambda group: [p for p in points if p.group == group])
    own_parts.installed_points.cache_clear()
    try:
        config = load_experiment({**SHORT, "aggregator": "doubled"}).config
        assert config.aggregator.builder is doubled
        assert load_experiment({**SHORT, "aggregator": "krum"}).config.aggregator.builder is fd.aggregators.krum
        with pytest.raises(ValueError, match="'gone' of not_there:rule: cannot be imported: No module"):
            load_experiment({**SHORT, "aggregator": "gone"})
        points.pop()
        own_parts.installed_points.cache_clear()
        assert "The mean, twice." in catalog.describe("aggregators")
    finally:
        own_parts.installed_points.cache_clear()
