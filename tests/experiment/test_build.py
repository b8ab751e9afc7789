import inspect
from pathlib import Path
from typing import Any

import jax
import pytest

from fedjax_drag import aggregators, algorithms, attacks, clients, models
from fedjax_drag.data import partition
from fedjax_drag.experiment import build, catalog
from fedjax_drag.experiment.config import Component, load
from fedjax_drag.types import Aggregator


@pytest.mark.parametrize(
    ("table", "module"),
    [
        (build.AGGREGATORS, aggregators),
        (build.CLIENTS, clients),
        (build.ALGORITHMS, algorithms),
        (build.ATTACKS, attacks),
        (build.MODELS, models),
        (build.PARTITIONS, partition),
    ],
)
def test_every_public_builder_has_a_name(table, module):
    functions = {name: entry for name, entry in vars(module).items() if inspect.isfunction(entry)}
    builders = {name: f for name, f in functions.items() if f.__module__.startswith(module.__name__) and name[0] != "_"}
    assert dict(table) == builders


@pytest.mark.parametrize("kind", catalog.KINDS)
def test_list_mentions_every_builder_and_its_arguments(kind):
    text = catalog.describe(kind)
    for name, builder in build.TABLES[catalog.KINDS[kind]].items():
        (entry,) = [part for part in text.split("\n\n") if part.startswith(f"{name}(")]
        head, *about = entry.splitlines()
        assert about, f"{name} has no description"
        for argument in build.arguments(catalog.KINDS[kind], builder):
            assert argument in head


def test_list_shows_defaults_papers_and_what_is_supplied():
    text = catalog.describe("aggregators")
    assert "drag(c=0.25, alpha=0.25" in text
    assert "krum(num_byzantine=auto" in text
    assert "Blanchard" in text
    assert "server_optimizer" not in text


def test_defaults_are_written_out():
    config = build.resolve(load({"aggregator": "drag", "partition": {"name": "iid", "num_clients": 8}}))
    assert config.aggregator.arguments["alpha"] == 0.25
    assert build.resolve(config) == config
    assert "num_byzantine" not in build.resolve(load({"aggregator": "krum"})).aggregator.arguments


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("aggregator=drga", "aggregator.name='drga': must be one of"),
        ("data=digit", "data.name='digit': must be one of digits"),
        ("aggregator={name: drag, cc: 1}", "unknown key 'cc' of aggregator drag; did you mean 'c'?"),
        ("partition.bta=1", "unknown key 'bta' of partition dirichlet; did you mean 'beta'?"),
        ("data.datadir=x", "unknown key 'datadir' of data digits; did you mean 'data_dir'?"),
        ("client={name: sgd, mu: 1}", "unknown key 'mu' of client sgd; allowed: no arguments"),
        ("partition=iid", "partition.num_clients: missing; iid needs it (an integer)"),
        ("partition.num_clients=4.5", "partition.num_clients=4.5: must be an integer"),
        ("aggregator={name: fltrust, projection: 3}", "aggregator.projection=3: must be true or false"),
        ("aggregator={name: fedavg, server_optimizer: adam}", "aggregator.server_optimizer: not an argument that"),
        ("algorithm={name: scaffold, aggregator: krum}", "algorithm.aggregator: not an argument that a configuration"),
        ("data.source=web", "data.source='web': must be one of auto, files"),
    ],
)
def test_bad_component_is_refused_before_anything_is_built(override, message):
    with pytest.raises(ValueError) as caught:
        build.resolve(load({}, [override]))
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("aggregator={name: drag, c: -1}", "aggregator.c=-1: must be in"),
        ("aggregator={name: drag, c: abc}", "aggregator.c='abc': must be a number"),
        ("aggregator={name: krum, num_byzantine: -1}", "aggregator.num_byzantine=-1: must be"),
        ("client={name: fedprox, mu: -1}", "client.mu=-1: must be in"),
    ],
)
def test_error_of_a_builder_names_the_key(override, message):
    with pytest.raises(ValueError) as caught:
        build.method(build.resolve(load({}, [override])), num_clients=40)
    assert str(caught.value).startswith(message)


def test_scaffold_takes_the_configured_aggregator_but_no_client_rule():
    config = build.resolve(load({"algorithm": "scaffold", "aggregator": "br_drag"}))
    assert "root_delta" in build.method(config, num_clients=40).needs
    with pytest.raises(ValueError, match=r"client.name='fedprox': algorithm scaffold has its own; leave it at sgd"):
        build.method(build.resolve(load({"algorithm": "scaffold", "client": "fedprox"})), num_clients=40)


def test_what_the_experiment_knows_is_supplied(monkeypatch):
    given = {}

    def rule(num_byzantine: int, num_clients: int) -> Aggregator:
        """Records its arguments."""
        given.update(num_byzantine=num_byzantine, num_clients=num_clients)
        return aggregators.fedavg()

    monkeypatch.setitem(build.TABLES, "aggregator", {"rule": rule})
    base = {"aggregator": "rule", "byzantine_fraction": 0.3, "cohort_size": 10}
    build.method(build.resolve(load(base)), num_clients=40)
    assert given == {"num_byzantine": 3, "num_clients": 40}
    build.method(build.resolve(load(base, ["aggregator.num_byzantine=1"])), num_clients=40)
    assert given == {"num_byzantine": 1, "num_clients": 40}


def test_partition_follows_the_seed_unless_it_has_its_own(tiny):
    def rows(*overrides):
        return build.federation(build.resolve(load(tiny, overrides))).rows.tolist()

    assert rows("seed=1") != rows("seed=2")
    assert rows("seed=1", "partition.seed=0") == rows("seed=2", "partition.seed=0")


def test_lists_are_checked_and_become_tuples(monkeypatch):
    def rule(sizes: tuple[int, ...] = (1, 2)) -> Any:
        """Gives its argument back."""
        return sizes

    monkeypatch.setitem(build.TABLES, "aggregator", {"rule": rule})
    monkeypatch.setitem(build.TABLES, "algorithm", {"from_aggregator": lambda aggregator: aggregator})
    assert build.resolve(load({"aggregator": "rule"})).aggregator.arguments == {"sizes": [1, 2]}
    assert build.method(build.resolve(load({}, ["aggregator={name: rule, sizes: [3]}"])), num_clients=40) == (3,)
    with pytest.raises(ValueError, match=r"aggregator.sizes=\['a'\]: must be a list, each entry an integer"):
        build.resolve(load({}, ["aggregator={name: rule, sizes: [a]}"]))


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        (int, "an integer"),
        (float | None, "a number or null"),
        (tuple[int, ...], "a list, each entry an integer"),
        (jax.Array, ""),
        (Aggregator | None, "null"),
    ],
)
def test_phrase_of_a_type(hint, words):
    assert build.phrase(hint) == words


def test_named_tuples_are_not_lists():
    assert build.phrase(Component) == ""


@pytest.mark.parametrize("path", sorted(Path(__file__).parents[2].glob("configs/*.yaml")), ids=lambda path: path.stem)
def test_shipped_configurations_are_valid_and_say_how_to_run_them(path):
    config = load(path)
    assert config.name == path.stem
    for single in [config, *config.variants().values()]:
        build.resolve(single)
    header = path.read_text().partition("\nname:")[0]
    assert f"fedjax-drag run configs/{path.name}" in header
    assert "Expected:" in header
