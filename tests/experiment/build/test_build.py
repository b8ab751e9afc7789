import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import yaml
from tiny import TINY

from fedjax_drag import aggregators, algorithms, attacks, checks, clients, models, server_optimizers
from fedjax_drag.data import partition
from fedjax_drag.experiment.arena.play import begin
from fedjax_drag.experiment.arena.protocol import load_arena
from fedjax_drag.experiment.arena.trials import Trials
from fedjax_drag.experiment.build import build, catalog, registry
from fedjax_drag.experiment.build.experiment import load, load_experiment, read
from fedjax_drag.experiment.build.resolve import arguments, phrase, resolve
from fedjax_drag.experiment.config.components import KIND_OF, Component
from fedjax_drag.experiment.run import results
from fedjax_drag.experiment.sweep.grid import load_grid
from fedjax_drag.simulation.program.federation import count_malicious, malicious_per_cohort
from fedjax_drag.types import Aggregator, Part, Uplink


@pytest.mark.parametrize(
    ("table", "module"),
    [
        (registry.TABLES["aggregator"], aggregators),
        (registry.TABLES["client"], clients),
        (registry.TABLES["algorithm"], algorithms),
        (registry.TABLES["attack"], attacks),
        (registry.TABLES["model"], models),
        (registry.TABLES["partition"], partition),
    ],
)
def test_every_public_builder_has_a_name(table, module):
    listed = {name: getattr(module, name) for name in module.__all__}
    functions = {name: f for name, f in listed.items() if inspect.isfunction(f) or issubclass(f, Part)}
    functions.pop("with_modes", None)  # it makes no model, but says how one is called
    builders = {name: f for name, f in functions.items() if f.__module__.startswith(module.__name__)}
    assert dict(table) == builders


@pytest.mark.parametrize("kind", catalog.KINDS)
def test_list_mentions_every_builder_and_its_arguments(kind):
    text = catalog.describe(kind)
    for name, builder in registry.TABLES[catalog.KINDS[kind]].items():
        (entry,) = [part for part in text.split("\n\n") if part.startswith(f"{name}(")]
        head, *about = entry.splitlines()
        assert about, f"{name} has no description"
        for argument in arguments(catalog.KINDS[kind], builder):
            assert argument in head


def test_list_shows_defaults_papers_and_what_is_supplied():
    text = catalog.describe("aggregators")
    assert "drag(c=0.25, alpha=0.25" in text
    assert "krum(num_byzantine=auto" in text
    assert "Blanchard" in text
    assert "server_optimizer=None" in text


def test_list_of_rules_tells_breakdown_point_and_cost():
    text = catalog.describe("aggregators")
    (entry,) = [part for part in text.split("\n\n") if part.startswith("fedavg(")]
    assert "    Breakdown point: 0: one client moves it anywhere\n    Cost: 3 passes over the deltas\n" in entry


@pytest.mark.parametrize("kind", catalog.KINDS)
def test_table_has_a_row_for_every_builder(kind):
    head, rule, *rows = catalog.table(kind).splitlines()
    assert set(rule) == set("| -")
    names = [row.split("`")[1] for row in rows]
    assert names == list(registry.TABLES[catalog.KINDS[kind]])
    bars = [len(re.findall(r"(?<!\\)\|", line)) for line in (head, rule, *rows)]
    assert set(bars) == {bars[0]}, "a bar inside a cell must be escaped"


def test_table_of_rules():
    head, _, *rows = catalog.table("aggregators").splitlines()
    assert head == "| Rule | Arguments | Paper | Breakdown point | Cost |"
    (krum,) = [row for row in rows if row.startswith("| `krum` |")]
    paper = "Blanchard et al., Machine learning with adversaries: Byzantine tolerant gradient descent, 2017"
    assert krum.startswith(f"| `krum` | `num_byzantine=auto, distance_power=2` | {paper} |")
    with pytest.raises(ValueError, match="kind='rules': must be one of"):
        catalog.table("rules")


def test_table_is_plain_text_with_bars_escaped(monkeypatch):
    def rule() -> Aggregator:
        """Says something.

        Cost:
          one ||g||, as
          :func:`~fedjax_drag.aggregators.median` has, and ``x``.

        References:
          A. Author et al. A title, 2020. And a reading.
        """
        return aggregators.fedavg()

    monkeypatch.setitem(registry.TABLES, "aggregator", {"rule": rule})
    row = catalog.table("aggregators").splitlines()[-1]
    assert row == r"| `rule` | A. Author et al. A title, 2020 | one \|\|g\|\|, as median has, and x |"


def test_an_attack_inside_an_attack():
    inside = {"name": "neurotoxin", "attack": "edge_case"}
    config = resolve(load({**TINY, "attack": {"name": "during", "attack": inside, "start": 1}, "num_byzantine": 2}))
    attack = build.part(config, "attack", {"fed": build.dataset(config), "num_classes": 10})
    assert (attack.name, attack.attack.name) == ("during", "neurotoxin")
    assert attack.is_targeted
    assert [bool(attack.attackers(jnp.ones((), bool), jnp.int32(t))) for t in range(3)] == [False, True, True]


def test_defaults_are_written_out():
    config = resolve(load({"aggregator": "drag", "partition": {"name": "iid", "num_clients": 8}}))
    assert config.aggregator.arguments["alpha"] == 0.25
    assert resolve(config) == config
    assert "num_byzantine" not in resolve(load({"aggregator": "krum"})).aggregator.arguments


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
        ("aggregator={name: drag, c: {name: x}}", "aggregator.c={'name': 'x'}: must be a number"),
        ("algorithm={name: scaffold, aggregator: krum}", "algorithm.aggregator: not an argument that a configuration"),
        ("data.source=web", "data.source='web': must be one of auto, files"),
    ],
)
def test_bad_component_is_refused_before_anything_is_built(override, message):
    with pytest.raises(ValueError) as caught:
        resolve(load({}, [override]))
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_scaffold_takes_the_configured_aggregator_but_no_client_rule():
    config = resolve(load({"algorithm": "scaffold", "aggregator": "br_drag"}))
    assert "root_delta" in build.method(config, num_clients=40).needs
    with pytest.raises(ValueError, match=r"client.name='fedprox': algorithm scaffold has its own; leave it at sgd"):
        build.method(resolve(load({"algorithm": "scaffold", "client": "fedprox"})), num_clients=40)


def test_what_the_experiment_knows_is_supplied(monkeypatch):
    given = {}

    def rule(num_byzantine: int, num_clients: int) -> Aggregator:
        """Records its arguments."""
        given.update(num_byzantine=num_byzantine, num_clients=num_clients)
        return aggregators.fedavg()

    monkeypatch.setitem(registry.TABLES, "aggregator", {"rule": rule})
    base = {"aggregator": "rule", "byzantine_fraction": 0.3, "cohort_size": 10}
    build.method(resolve(load(base)), num_clients=40)
    assert given == {"num_byzantine": 3, "num_clients": 40}
    build.method(resolve(load(base, ["aggregator.num_byzantine=1"])), num_clients=40)
    assert given == {"num_byzantine": 1, "num_clients": 40}


ATTACKED = {"attack": "sign_flip", "byzantine_fraction": 0.3, "cohort_size": 10}


@pytest.mark.parametrize(
    ("changes", "fewest", "most"),
    [
        ({}, 3, 10),
        ({"byzantine_fraction": 0.25}, 3, 10),
        ({"num_byzantine": 4}, 1, 4),
        ({"num_byzantine": 4, "cohort_size": 40}, 4, 4),
        ({"num_byzantine": 4, "byzantine_of": "cohort"}, 4, 4),
        ({"byzantine_fraction": 0.0}, 0, 0),
    ],
)
def test_malicious_clients_of_a_cohort(changes, fewest, most):
    asked = load(load(ATTACKED), [f"{k}={v}" for k, v in changes.items()])
    of = asked.byzantine_of
    number = count_malicious(40, asked.cohort_size, asked.byzantine_fraction, asked.num_byzantine, of)
    assert malicious_per_cohort(40, asked.cohort_size, number, of) == (fewest, most)


def test_a_count_that_contradicts_the_attack_is_refused():
    def made(*overrides):
        return build.method(resolve(load(ATTACKED, overrides)), num_clients=40)

    for count in (3, 4, 10):
        made("aggregator=trimmed_mean", f"aggregator={{name: nnm, num_byzantine: {count}, aggregator: median}}")
    average = r"between 3 \(on the average\) and 10 \(at most\); leave it out"
    with pytest.raises(ValueError, match=f"aggregator.num_byzantine=2: contradicts .*, {average}"):
        made("aggregator=krum", "aggregator.num_byzantine=2")
    inner = "aggregator={name: bucketing, aggregator: {name: krum, num_byzantine: 5}}"
    with pytest.raises(ValueError, match=r"aggregator.aggregator.num_byzantine=5: contradicts .*, 4; leave it out"):
        made(inner, "num_byzantine=4", "byzantine_of=cohort")
    made("aggregator=krum", "aggregator.num_byzantine=2", "byzantine_fraction=0")  # nobody to contradict
    groups = "{name: hierarchical, groups: 2, inner: {name: krum, num_byzantine: 1}, outer: fedavg}"
    made(f"aggregator={groups}", "num_byzantine=4", "byzantine_of=cohort")  # of a group


@pytest.fixture
def wrap(monkeypatch):
    """A rule around a rule, known to configurations as ``wrap``; returns the arguments that it was called with."""
    given = []

    def wrap(aggregator: Aggregator, num_byzantine: int, strength: float = 2.0) -> Aggregator:
        """Does as ``aggregator`` does."""
        given.append({"num_byzantine": num_byzantine, "strength": strength})
        checks.in_range("strength", strength, 0.0)
        return aggregator

    monkeypatch.setitem(registry.TABLES, "aggregator", {**registry.TABLES["aggregator"], "wrap": wrap})
    return given


def chosen(aggregator, **others):
    """The aggregator of a resolved configuration, as plain values."""
    return resolve(load({"aggregator": aggregator, **others})).to_mapping()["aggregator"]


def test_defaults_of_components_inside_components_are_written_out(wrap, tmp_path):
    written = chosen({"name": "wrap", "aggregator": {"name": "wrap", "aggregator": "drag", "strength": 3}})
    drag = {"name": "drag", "c": 0.25, "alpha": 0.25, "divergence": "cosine"}
    inner = {"name": "wrap", "aggregator": drag, "strength": 3}
    assert written == {"name": "wrap", "aggregator": inner, "strength": 2.0}
    config = resolve(load({"aggregator": written}))
    assert config.to_mapping()["aggregator"] == written
    results.begin(tmp_path, config)
    assert resolve(load(tmp_path / results.CONFIG)) == config
    assert load(tmp_path / results.CONFIG).to_mapping() == config.to_mapping()
    assert yaml.safe_load((tmp_path / results.CONFIG).read_text())["aggregator"] == written


def test_rules_that_wrap_rules():
    """The ones of the package: the count is supplied to the outer and the inner."""
    nested = {"name": "nnm", "aggregator": {"name": "bucketing", "aggregator": "krum"}}
    config = resolve(load({"aggregator": nested}, ["aggregator.aggregator.aggregator.name=br_drag"]))
    inner = config.to_mapping()["aggregator"]["aggregator"]["aggregator"]
    assert inner == {"name": "br_drag", "c": 0.5, "oracle": False}
    assert "root_delta" in build.method(config, num_clients=40).needs


def test_what_the_experiment_knows_reaches_rules_inside_rules(wrap):
    nested = {"name": "wrap", "aggregator": {"name": "wrap", "aggregator": {"name": "krum"}}}
    config = load({"aggregator": nested, "byzantine_fraction": 0.3, "cohort_size": 10})
    build.method(resolve(config), num_clients=40)
    assert [one["num_byzantine"] for one in wrap] == [3, 3]
    config = load(config, ["aggregator.aggregator.num_byzantine=1"])
    build.method(resolve(config), num_clients=40)
    assert [one["num_byzantine"] for one in wrap[2:]] == [1, 3]  # from the inside out
    assert "num_byzantine" not in resolve(load({"aggregator": nested})).to_mapping()["aggregator"]["aggregator"]


def test_a_reducer_is_not_told_about_malicious_clients():
    """It works on examples: their number must be given."""
    config = load({"root_client": {"name": "robust_sgd", "reducer": "krum"}, "byzantine_fraction": 0.3})
    krum = Component("krum", {"num_byzantine": None, "distance_power": 2})
    assert resolve(config).root_client.arguments == {"reducer": krum}
    with pytest.raises(ValueError, match=r"^root_client\.reducer: num_byzantine=None: must be the number of examples"):
        build.part(resolve(config), "root_client")
    config = load(config, ["root_client.reducer.num_byzantine=2"])
    assert build.part(resolve(config), "root_client").direction.__module__ == "fedjax_drag.clients._robust_sgd"


@pytest.mark.parametrize(
    ("aggregator", "message"),
    [
        ({"name": "wrap"}, "aggregator.aggregator: missing; wrap needs it (an aggregator (a name, or"),
        ({"name": "wrap", "aggregator": "krumm"}, "aggregator.aggregator.name='krumm': must be one of"),
        ({"name": "wrap", "aggregator": {"c": 1}}, "aggregator.aggregator.name=None: must be the name of one"),
        ({"name": "wrap", "aggregator": 3}, "aggregator.aggregator=3: must be an aggregator (a name, or a mapping"),
        ({"name": "wrap", "aggregator": None}, "aggregator.aggregator=None: must be an aggregator"),
        (
            {"name": "wrap", "aggregator": {"name": "drag", "alhpa": 1}},
            "unknown key 'alhpa' of aggregator.aggregator drag; did you mean 'alpha'?",
        ),
        (
            {"name": "wrap", "aggregator": {"name": "wrap", "aggregator": {"name": "krum", "num_byzantin": 1}}},
            "unknown key 'num_byzantin' of aggregator.aggregator.aggregator krum; did you mean 'num_byzantine'?",
        ),
        (
            {"name": "wrap", "aggregator": {"name": "krum", "num_byzantine": 0.5}},
            "aggregator.aggregator.num_byzantine=0.5: must be an integer",
        ),
        (
            {"name": "fedavg", "server_optimizer": "adam"},
            "aggregator.server_optimizer.learning_rate: missing; adam needs it (a number or a schedule",
        ),
        (
            {"name": "fedavg", "server_optimizer": {"name": "sdg"}},
            "aggregator.server_optimizer.name='sdg': must be one of sgd, adam, yogi, adagrad, fedavgm, "
            "fedadam, fedyogi, fedadagrad; did you mean 'sgd'?",
        ),
        (
            {"name": "fedavg", "server_optimizer": {"name": "adam", "learning_rate": 0.1, "eps_": 1}},
            "unknown key 'eps_' of aggregator.server_optimizer adam; did you mean 'eps'?",
        ),
        (
            {"name": "br_drag", "c": {"name": "linear_schedule", "init_value": 0.5, "end_value": 0.1}},
            "aggregator.c.transition_steps: missing; linear_schedule needs it (an integer)",
        ),
    ],
)
def test_bad_component_inside_a_component_is_named_with_its_place(wrap, aggregator, message):
    with pytest.raises(ValueError) as caught:
        chosen(aggregator)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("aggregator", "message"),
    [
        ({"name": "drag", "c": -1}, "aggregator.c=-1: must be in"),
        ({"name": "drag", "c": "abc"}, "aggregator.c='abc': must be a number"),
        ({"name": "krum", "num_byzantine": -1}, "aggregator.num_byzantine=-1: must be"),
        ({"name": "wrap", "aggregator": {"name": "drag", "c": -1}}, "aggregator.aggregator.c=-1: must be in"),
        ({"name": "wrap", "aggregator": "drag", "strength": -1}, "aggregator.strength=-1: must be in"),
        (
            {"name": "fedavg", "server_optimizer": {"name": "sgd", "momentum": 1.0}},
            "aggregator.server_optimizer.momentum=1.0: must be in [0, 1)",
        ),
        (
            {"name": "fedavg", "server_optimizer": {"name": "adagrad", "learning_rate": 0}},
            "aggregator.server_optimizer.learning_rate=0: must be in (0, inf)",
        ),
    ],
)
def test_error_of_a_builder_names_its_place(wrap, aggregator, message):
    with pytest.raises(ValueError) as caught:
        build.method(resolve(load({"aggregator": aggregator})), num_clients=40)
    assert str(caught.value).startswith(message)


def test_error_of_a_client_rule_names_the_key():
    with pytest.raises(ValueError, match=r"^client\.mu=-1: must be in"):
        build.method(resolve(load({}, ["client={name: fedprox, mu: -1}"])), num_clients=40)


def test_a_reducer_that_needs_more_than_gradients_is_named():
    config = resolve(load({"client": {"name": "robust_sgd", "reducer": "br_drag"}}))
    with pytest.raises(ValueError, match=r"^client.reducer: needs root_delta; must be a rule of the gradients alone$"):
        build.method(config, num_clients=40)


PARAMS = {"w": jnp.array([1.0, -2.0])}
DELTAS = {"w": jnp.array([[0.1, 0.2], [0.3, -0.4]])}
DECAY = {"name": "exponential_decay", "init_value": 1.0, "transition_steps": 1, "decay_rate": 0.5}


@pytest.mark.parametrize(
    ("server_optimizer", "same"),
    [
        ({"name": "sgd", "learning_rate": 0.5, "momentum": 0.9}, optax.sgd(0.5, 0.9)),
        ({"name": "sgd", "momentum": 0.5, "nesterov": True}, optax.sgd(1.0, 0.5, nesterov=True)),
        ({"name": "sgd", "learning_rate": DECAY}, optax.sgd(optax.exponential_decay(1.0, 1, 0.5))),
        ({"name": "adam", "learning_rate": 0.1, "eps": 0.01}, optax.adam(0.1, 0.9, 0.99, 0.01)),
        ({"name": "yogi", "learning_rate": 0.1, "b1": 0.5}, optax.yogi(0.1, 0.5, 0.99, 1e-3)),
        ({"name": "adagrad", "learning_rate": 0.1}, optax.adagrad(0.1, 1e-6, 1e-6)),
        ({"name": "fedavgm"}, optax.sgd(1.0, 0.9)),
        ({"name": "fedadam", "learning_rate": 0.1, "tau": 0.01}, server_optimizers.fedadam(0.1, tau=0.01)),
        ({"name": "fedyogi", "learning_rate": 0.1, "b1": 0.5}, server_optimizers.fedyogi(0.1, 0.5)),
        (
            {"name": "fedadagrad", "learning_rate": DECAY},
            server_optimizers.fedadagrad(optax.exponential_decay(1.0, 1, 0.5)),
        ),
    ],
    ids=["momentum", "nesterov", "decay", "adam", "yogi", "adagrad", "fedavgm", "fedadam", "fedyogi", "fedadagrad"],
)
def test_server_optimizers_of_a_configuration(server_optimizer, same):
    """Optax's by their plain names, the papers' by the method's."""
    config = resolve(load({"aggregator": {"name": "fedavg", "server_optimizer": server_optimizer}}))
    ours, theirs = build.method(config, num_clients=40), aggregators.fedavg(server_optimizer=same)

    @jax.jit
    def rounds():
        ends = []
        for init, step in ((ours.init, lambda p, d, s: ours.aggregate(p, Uplink(d), s)), (theirs.init, theirs.apply)):
            params, state = PARAMS, init(PARAMS)
            for k in (1, 2, -1):
                params, state = step(params, {"w": k * DELTAS["w"]}, state)
            ends.append(params["w"])
        return ends

    mine, expected = rounds()
    np.testing.assert_allclose(mine, expected, rtol=1e-6)
    assert not np.allclose(mine, PARAMS["w"] + 2 * DELTAS["w"].mean(0), atol=1e-3), "that is plain averaging"


@pytest.mark.parametrize(
    ("schedule", "values"),
    [
        ({"name": "linear_schedule", "init_value": 0.5, "end_value": 0.1, "transition_steps": 100}, (0.5, 0.3, 0.1)),
        ({"name": "cosine_decay_schedule", "init_value": 0.5, "decay_steps": 100, "alpha": 0.2}, (0.5, 0.3, 0.1)),
        ({"name": "exponential_decay", "init_value": 0.4, "transition_steps": 50, "decay_rate": 0.5}, (0.4, 0.2, 0.1)),
    ],
    ids=lambda value: value["name"] if isinstance(value, dict) else "",
)
def test_c_of_br_drag_can_be_a_schedule(schedule, values):
    config = load({"aggregator": {"name": "br_drag", "c": schedule}})
    rule = build.method(resolve(config), num_clients=40)
    assert rule.needs == {"root_delta", "round"}
    apply = jax.jit(rule.aggregate)
    for round_index, c in zip((0, 50, 100), values, strict=True):
        _, state = apply(
            PARAMS, Uplink(DELTAS), rule.init(PARAMS), root_delta={"w": jnp.array([0.2, -0.1])}, round=round_index
        )
        metrics = state.metrics
        np.testing.assert_allclose(metrics["divergence"], c * (1 - metrics["cosine"]), rtol=1e-5)


def test_local_work_of_a_configuration():
    schedule = {"name": "exponential_decay", "init_value": 0.1, "transition_steps": 10, "decay_rate": 0.9}
    sgd = {"name": "sgd", "momentum": 0.9, "weight_decay": 0.01}
    config = resolve(load({"step_size": schedule, "local_optimizer": sgd}))
    assert config.step_size.arguments["staircase"] is False
    step_size, optimizer = build.part(config, "step_size"), build.part(config, "local_optimizer")
    assert callable(step_size)
    np.testing.assert_allclose(step_size(jnp.int32(20)), 0.081, rtol=1e-5)
    assert optimizer is not None
    updates, _ = optimizer.update(DELTAS, optimizer.init(DELTAS), DELTAS)
    np.testing.assert_allclose(updates["w"], 1.01 * DELTAS["w"], rtol=1e-6)
    plain = resolve(load({}))
    assert (build.part(plain, "step_size"), build.part(plain, "local_optimizer")) == (0.01, None)
    with pytest.raises(ValueError, match=r"step_size\.name='linear': must be one of linear_schedule"):
        resolve(load({"step_size": {"name": "linear"}}))
    with pytest.raises(ValueError, match=r"local_optimizer\.momentum=1\.5: must be in \[0, 1\)"):
        build.part(resolve(load({"local_optimizer": {"name": "sgd", "momentum": 1.5}})), "local_optimizer")


def test_partition_follows_the_seed_unless_it_has_its_own(tiny):
    def rows(*overrides):
        config = resolve(load(tiny, overrides))
        return build.federation(config, build.dataset(config)).rows.tolist()

    assert rows("seed=1") != rows("seed=2")
    assert rows("seed=1", "partition.seed=0") == rows("seed=2", "partition.seed=0")


def test_a_dirichlet_partition_of_a_configuration_can_be_balanced():
    partitioned = []
    for balanced in ("true", "false"):
        config = resolve(load({}, ["data=digits", "partition.beta=0.5", f"partition.balanced={balanced}", "seed=3"]))
        partitioned.append(build.federation(config, build.dataset(config)))
    assert [fed.partition for fed in partitioned] == [
        "dirichlet(beta=0.5, seed=3, balanced)",
        "dirichlet(beta=0.5, seed=3)",
    ]
    assert partitioned[0].counts.std() < partitioned[1].counts.std()


def test_lists_are_checked_and_become_tuples(monkeypatch):
    def rule(sizes: tuple[int, ...] = (1, 2)) -> Any:
        """Gives its argument back."""
        return sizes

    monkeypatch.setitem(registry.TABLES, "aggregator", {"rule": rule})
    monkeypatch.setitem(registry.TABLES, "algorithm", {"from_aggregator": lambda aggregator: aggregator})
    for key in ("aggregator", "algorithm"):
        monkeypatch.setitem(KIND_OF, key, KIND_OF[key]._replace(makes=(object,)))
    assert resolve(load({"aggregator": "rule"})).aggregator.arguments == {"sizes": [1, 2]}
    assert build.method(resolve(load({}, ["aggregator={name: rule, sizes: [3]}"])), num_clients=40) == (3,)
    with pytest.raises(ValueError, match=r"aggregator.sizes=\['a'\]: must be a list, each entry an integer"):
        resolve(load({}, ["aggregator={name: rule, sizes: [a]}"]))


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        (int, "an integer"),
        (float | None, "a number or null"),
        (tuple[int, ...], "a list, each entry an integer"),
        (jax.Array, ""),
        (Aggregator | None, "an aggregator (a name, or a mapping with a name and arguments) or null"),
        (
            Any | Callable[[jax.Array], jax.Array],
            "a value or a schedule (a name, or a mapping with a name and arguments)",
        ),
    ],
)
def test_phrase_of_a_type(hint, words):
    assert phrase(hint) == words


def test_named_tuples_are_not_lists():
    assert phrase(Component) == ""


CONFIGS = Path(__file__).parents[3] / "configs"


OF_EACH_KIND = ("quickstart.yaml", "sweeps/absent_clients.yaml", "arena/digits.yaml")
SHIPPED = [path.relative_to(CONFIGS).as_posix() for path in sorted(CONFIGS.rglob("*.yaml"))]


@pytest.mark.parametrize(
    "path", [pytest.param(path, marks=[pytest.mark.thorough] * (path not in OF_EACH_KIND)) for path in SHIPPED]
)
def test_shipped_configurations_are_valid_and_say_how_to_run_them(path):
    text = (CONFIGS / path).read_text()
    header, command = text.partition("\nname:")[0], "run"
    if "\naxes:" in text:
        given = read(CONFIGS / path)["axes"]
        quick = [axis for axis, values in given.items() if axis == "data" or isinstance(values[0], int | float)]
        first = [f"axes.{axis}=[{given[axis][0]}]" for axis in quick]  # numbers of one axis are alike
        command, grid = "sweep", load_grid(CONFIGS / path, first)
        assert len({point.folder for point in grid.points}) == len(grid.points)
        assert grid.base.name == Path(path).stem
    elif "\nbase:" in text:
        command, arena = "arena run", load_arena(CONFIGS / path)
        assert arena.name == f"arena_{Path(path).stem}"
        assert begin(arena, Trials()).rows == {}
    else:
        assert load_experiment(CONFIGS / path).config.name == Path(path).stem
    assert f"fedjax-drag {command} configs/{path}" in header
    for word in ("Runtime:", "Expected:"):
        assert word in header


def test_an_error_without_a_message_is_told_by_its_type():
    def fails():
        raise TypeError

    with pytest.raises(ValueError, match=r"^TypeError$"):
        build.traced(fails)
