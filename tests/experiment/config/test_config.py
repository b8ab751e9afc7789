import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedjax_drag.experiment.build.experiment import load, load_experiment, variants
from fedjax_drag.experiment.config.components import Component
from fedjax_drag.experiment.config.config import Config, flatten, slug


def test_defaults_survive_a_round_trip():
    assert load({}) == Config()
    assert load(Config().to_mapping()) == Config()


def test_bare_name_and_mapping_mean_the_same():
    assert load({"aggregator": "median"}) == load({"aggregator": {"name": "median"}})


def test_reads_a_file_with_overrides(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("rounds: 5\naggregator: {name: drag, c: 0.1}\nstep_size: 1e-2\n")
    config = load(path, ["rounds=7", "aggregator.alpha=0.5", "model.hidden=[32, 16]", "clients_per_chunk=null"])
    assert (config.rounds, config.step_size) == (7, 0.01)
    assert config.aggregator == Component("drag", {"c": 0.1, "alpha": 0.5})
    assert config.model.arguments["hidden"] == [32, 16]


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["aggregator.c=0.5"], Component("drag", {"c": 0.5, "alpha": 0.25})),
        (["aggregator=drag"], Component("drag", {"c": 0.25, "alpha": 0.25})),
        (["aggregator=krum"], Component("krum")),
        (["aggregator=krum", "aggregator.num_byzantine=2"], Component("krum", {"num_byzantine": 2})),
        (["aggregator={name: krum, num_byzantine: 2}"], Component("krum", {"num_byzantine": 2})),
        (["aggregator={c: 1.0}"], Component("drag", {"c": 1.0, "alpha": 0.25})),
        (["aggregator.name=median"], Component("median")),
    ],
)
def test_override_merges_or_replaces_a_component(tiny, overrides, expected):
    assert load(tiny, overrides).aggregator == expected


NESTED = {"name": "outer", "k": 3, "aggregator": {"name": "inner", "a": 1, "c": {"name": "line", "to": 2}}}


@pytest.mark.parametrize(
    ("overrides", "changed"),
    [
        (["aggregator.k=4"], {"k": 4}),
        (["aggregator.aggregator.name=krum"], {"aggregator": {"name": "krum"}}),
        (["aggregator.aggregator=krum"], {"aggregator": {"name": "krum"}}),
        (["aggregator.aggregator=inner"], {}),
        (["aggregator.aggregator.a=2"], {"aggregator": NESTED["aggregator"] | {"a": 2}}),
        (["aggregator.aggregator.c=0.5"], {"aggregator": NESTED["aggregator"] | {"c": 0.5}}),
        (["aggregator.aggregator.c.to=5"], {"aggregator": NESTED["aggregator"] | {"c": {"name": "line", "to": 5}}}),
        (["aggregator.aggregator.a={name: step}"], {"aggregator": NESTED["aggregator"] | {"a": {"name": "step"}}}),
        (["aggregator={aggregator: {a: 2}}"], {"aggregator": NESTED["aggregator"] | {"a": 2}}),
        (["aggregator.aggregator.name=krum", "aggregator.aggregator.f=1"], {"aggregator": {"name": "krum", "f": 1}}),
        (["aggregator.b=cosine", "aggregator.b.to=1"], {"b": {"name": "cosine", "to": 1}}),
    ],
)
def test_override_reaches_into_components_inside_components(tiny, overrides, changed):
    arguments = {key: value for key, value in (NESTED | changed).items() if key != "name"}
    assert load(tiny | {"aggregator": NESTED}, overrides).aggregator == Component("outer", arguments)
    assert NESTED["aggregator"] == {"name": "inner", "a": 1, "c": {"name": "line", "to": 2}}, "the source is untouched"


def test_variant_reaches_into_components_inside_components(tiny):
    compare = {"krum": {"aggregator": {"aggregator": "krum"}}, "5": {"aggregator": {"aggregator": {"a": 5}}}}
    compared = variants(load(tiny | {"aggregator": NESTED, "compare": compare}))
    assert compared["krum"].aggregator.arguments == {"k": 3, "aggregator": {"name": "krum"}}
    assert compared["5"].aggregator.arguments["aggregator"] == NESTED["aggregator"] | {"a": 5}


def test_nested_components_survive_a_round_trip(tiny):
    config = load(tiny | {"aggregator": NESTED, "root_client": {"name": "robust_sgd", "reducer": "median"}})
    assert load(config.to_mapping()) == config


def test_epochs_take_the_place_of_steps_and_steps_of_epochs(tiny):
    assert [(c.local_steps, c.local_epochs) for c in (load(tiny), load(tiny, ["local_epochs=0.5"]))] == [
        (1, None),
        (None, 0.5),
    ]
    compared = load(tiny | {"local_steps": None, "local_epochs": 2, "compare": {"a": {"local_steps": 3}, "b": None}})
    assert [(c.local_steps, c.local_epochs) for c in variants(compared).values()] == [(3, None), (None, 2.0)]
    assert load(compared.to_mapping()) == compared


@pytest.mark.parametrize(
    "overrides",
    [
        ["local_epochs=1", "local_steps=7"],
        ["local_steps=7", "rounds=3", "local_epochs=1"],
        ["byzantine_fraction=0.5", "num_byzantine=2"],
    ],
)
def test_overrides_that_say_the_same_in_two_ways_are_refused(tiny, overrides):
    first, second = (override for override in overrides if override != "rounds=3")
    with pytest.raises(ValueError) as caught:
        load(tiny, overrides)
    assert str(caught.value) == f"{first}, {second}: must be exactly one of the two"


def test_one_of_the_two_may_say_nothing(tiny):
    assert load(tiny, ["local_epochs=1", "local_steps=null"]).local_epochs == 1
    assert load(tiny, ["local_epochs=null", "local_steps=7"]).local_steps == 7
    assert load(tiny, ["byzantine_fraction=null", "num_byzantine=2"]).num_byzantine == 2
    assert load(load(tiny, ["local_epochs=1"]), ["local_steps=7"]).local_steps == 7


def test_step_size_is_a_number_or_a_schedule(tiny):
    schedule = {"name": "exponential_decay", "init_value": 0.1, "transition_steps": 10, "decay_rate": 0.9}
    config = load(tiny | {"step_size": schedule}, ["step_size.init_value=0.2"])
    assert config.step_size == Component(
        "exponential_decay", {k: v for k, v in (schedule | {"init_value": 0.2}).items() if k != "name"}
    )
    assert load(config.to_mapping()) == config
    assert flatten(config)["step_size.decay_rate"] == 0.9
    assert load(config, ["step_size=0.5"]).step_size == 0.5


def test_override_merges_with_defaults():
    assert load({}, ["partition.beta=0.5"]).partition.arguments == {"num_clients": 40, "beta": 0.5}


def test_overrides_of_a_config_leave_it_alone(tiny):
    config = load(tiny)
    assert load(config, ["rounds=9"]) == dataclasses.replace(config, rounds=9)
    assert config == load(tiny)


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"num_rounds": 3, "rounds": 4}, "rounds, num_rounds: are one setting; give it once"),
        ({"agregator": "krum"}, "unknown key 'agregator'; did you mean 'aggregator'?"),
        ({"axis": {"seed": [0]}}, "unknown key 'axis'; did you mean 'axes'?"),
        ({"rounds:5": None}, "unknown key 'rounds:5'; did you mean 'rounds: 5', with a space?"),
        (
            {"aggregator.c": 0.5},
            "unknown key 'aggregator.c'; did you mean 'c' inside 'aggregator'? Dots are for overrides",
        ),
        ({"rounds": 7.5}, "rounds=7.5: must be an integer"),
        (
            {"seed": [0, 1]},
            "seed=[0, 1]: must be an integer; a sweep takes lists: fedjax-drag sweep CONFIG 'axes.seed=[0, 1]'",
        ),
        ({"rounds": True}, "rounds=True: must be an integer"),
        ({"rounds": None}, "rounds=None: must be an integer"),
        ({"rounds": 0}, "rounds=0: must be an integer in [1, 2147483647]"),
        ({"root_size": "many"}, "root_size='many': must be an integer or null"),
        (
            {"root_source": "beningn"},
            "root_source='beningn': must be one of benign, all, biased; did you mean 'benign'?",
        ),
        ({"clients_per_chunk": 0}, "clients_per_chunk=0: must be an integer in [1, 2147483647]"),
        ({"step_size": "fast"}, "step_size='fast': must be a number"),
        ({"step_size": [1]}, "step_size=[1]: must be a number or a schedule, a mapping with a name and arguments"),
        ({"step_size": {"init_value": 1}}, "step_size.name=None: must be the name of one"),
        ({"local_epochs": 0}, "local_epochs=0.0: must be in (0, inf)"),
        ({"local_epochs": 10**400}, "local_epochs=1000000000"),
        ({"stop_when": 10**400}, "stop_when=1000000000"),
        ({"deadline_seconds": 10**400}, "deadline_seconds=1000000000"),
        ({"step_size": 10**400}, "step_size=1000000000"),
        ({"local_epochs": "all"}, "local_epochs='all': must be a number > 0, or a pair [low, high]"),
        ({"local_steps": [5, 2]}, "local_steps=[5, 2]: must be a pair [low, high] of integers, 1 <= low <= high"),
        ({"availability": "always"}, "availability='always': must be a number in [0, 1], a list of them or of lists"),
        ({"dropout_rate": 1}, "dropout_rate=1.0: must be in [0, 1)"),
        ({"step_size": float("nan")}, "step_size=nan: must be in (0, inf)"),
        ({"byzantine_fraction": 1.5}, "byzantine_fraction=1.5: must be in [0, 1]"),
        ({"diagnostics": "perhaps"}, "diagnostics='perhaps': must be true or false"),
        ({"clients_axis": "vmpa"}, "clients_axis='vmpa': must be one of auto, vmap, map; did you mean 'vmap'?"),
        ({"seed": -1}, "seed=-1: must be an integer in [0, 4294967295]"),
        ({"aggregator": 3}, "aggregator=3: must be a name, or a mapping with a name and arguments"),
        ({"aggregator": None}, "aggregator=None: must be a name, or a mapping with a name and arguments"),
        ({"attack": {"scale": 1}}, "attack.name=None: must be the name of one"),
        ({"root_client": None}, "root_client=None: must be a name, or a mapping with a name and arguments"),
        ({"compare": [1]}, "compare=[1]: must be null or a mapping"),
        ({"name": "?!"}, "name='?!': must have at least one letter or digit"),
    ],
)
def test_bad_value_is_one_line_with_key_value_and_what_is_allowed(mapping, message):
    with pytest.raises(ValueError) as caught:
        load(mapping)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"local_steps": None}, "local_steps=None, local_epochs=None: must be exactly one of the two"),
        ({"local_steps": 2, "local_epochs": 1.5}, "local_steps=2, local_epochs=1.5: must be exactly one of the two"),
        ({"epoch_order": "fixed"}, "epoch_order='fixed': needs local_epochs; the batches of local_steps are drawn"),
        ({"deadline": 2, "late": "drop"}, "deadline=2, late='drop': must be at least 5, the fewest local steps"),
        ({"late": "drop"}, "late='drop': needs deadline; after deadline_seconds a client sends nothing in any case"),
    ],
)
def test_values_that_do_not_go_together_are_refused_where_they_are_run(changes, message):
    base = {"data": "digits", "partition": {"name": "iid", "num_clients": 12}}
    for mapping, where in ((base | changes, ""), (base | {"compare": {"A": changes}}, "compare.A: ")):
        with pytest.raises(ValueError) as caught:
            load_experiment(mapping)
        assert str(caught.value).startswith(where + message)
        assert load(mapping)  # results that are there can be read


@pytest.mark.parametrize("override", ["rounds", "=3", "aggregator.=3", ".=1", "rounds=[1", "rounds=${", ""])
def test_bad_override_is_named(override):
    with pytest.raises(ValueError, match="override '") as caught:
        load({}, [override])
    assert "\n" not in str(caught.value)


def test_overrides_must_be_a_list():
    with pytest.raises(ValueError, match="must be a list"):
        load({}, "rounds=3")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1", "line 2"),
        ("rounds: 1\nrounds: 2\n", "duplicate key rounds"),
        ("- 1\n- 2\n", "must be a mapping"),
        ("", "must be a mapping"),
        ("3", "bad.yaml"),
        ("rounds: " + "[" * 500, "nested more than 40 deep"),
        ("rounds: " + "[" * 100_000, "nest"),  # newer versions of libyaml have a limit of their own, of 1,000
        ("a: 1\n" * 300_000, "at most 1,048,576 bytes"),
        ("\tx: 1", "line 1"),
    ],
)
def test_bad_file_is_one_line_with_the_place(tmp_path, text, message):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"bad\.yaml") as caught:
        load(path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", ["${seed}", "${oc.env:HOME}", ["a", "${oc.env:HOME}"], {"name": "${oc.env:HOME}"}])
def test_nothing_is_looked_up_elsewhere(value):
    with pytest.raises(ValueError, match=r"must be the value itself, without '\$\{'"):
        load({"aggregator": value})
    with pytest.raises(ValueError, match=r"compare\.a\.name='.*must be the value itself"):
        load({"compare": {"a": {"name": "x${oc.env:HOME}"}}})


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such file"):
        load(tmp_path / "none.yaml")
    with pytest.raises(ValueError, match=r"configuration '.*': must be a YAML file, and this is a folder"):
        load(tmp_path)


def test_binary_file(tmp_path):
    (tmp_path / "a.yaml").write_bytes(bytes(range(256)))
    with pytest.raises(ValueError, match="configuration") as caught:
        load(tmp_path / "a.yaml")
    assert "\n" not in str(caught.value)


def test_variants_change_the_base(tiny):
    compare = {"FedAvg": {"aggregator": "fedavg", "rounds": 3}, "DRAG": {"aggregator": {"c": 0.5}}, "as is": None}
    compared = variants(load(tiny | {"compare": compare}))
    assert list(compared) == ["FedAvg", "DRAG", "as is"]
    assert compared["FedAvg"].aggregator == Component("fedavg")
    assert compared["FedAvg"].rounds == 3
    assert compared["DRAG"].aggregator == Component("drag", {"c": 0.5, "alpha": 0.25})
    assert compared["as is"] == dataclasses.replace(load(tiny), name="as is")
    assert all(variant.compare is None and variant.name == label for label, variant in compared.items())


def test_override_reaches_into_a_variant_and_removes_all(tiny):
    mapping = tiny | {"compare": {"DRAG": {"aggregator": {"name": "drag", "c": 0.5}}}}
    assert variants(load(mapping, ["compare.DRAG.aggregator.c=0.7"]))["DRAG"].aggregator.arguments["c"] == 0.7
    assert variants(load(mapping, ["compare=null"])) == {}


@pytest.mark.parametrize(
    ("compare", "message"),
    [
        ({"x": {"round": 1}}, "compare.x: unknown key 'round'; did you mean 'rounds'?"),
        ({"x": {"rounds": 0}}, "compare.x: rounds=0: must be an integer in [1, 2147483647]"),
        ({"x": 3}, "compare.x=3: must be a mapping"),
        ({"x": {"compare": {}}}, "compare.x: must not contain"),
        ({"A b": {}, "a-b": {}}, "compare label 'a-b', which shares the folder of 'A b'"),
        ({"..": {}}, "compare label '..': must have letters or digits"),
    ],
)
def test_bad_variant_is_named(compare, message):
    with pytest.raises(ValueError) as caught:
        variants(load({"compare": compare}))
    assert str(caught.value).startswith(message)


@given(st.text())
def test_slug_is_one_safe_folder_name(label):
    name = slug(label)
    assert "/" not in name
    assert "\\" not in name
    assert not name.startswith((".", "-"))
    assert slug(name) == name


def test_flatten_has_dotted_keys(tiny):
    assert flatten(load(tiny))["aggregator.c"] == 0.25
    flat = flatten(load(tiny | {"aggregator": NESTED, "compare": {"A": {}, "B": {"aggregator": {"k": 2}}}}))
    assert flat["aggregator.aggregator.c.to"] == 2
    assert (flat["compare.A"], flat["compare.B.aggregator.k"]) == ({}, 2)
    assert flat["model.hidden"] == [4]
