"""Configurations that nobody in their right mind would write end in a plan, or in status 2 and one line."""

import inspect
import math
import os
import re
import shutil
from collections import Counter

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny import SYNTHETIC, TINY
from typer.testing import CliRunner

from fedjax_drag.cli.app import app
from fedjax_drag.experiment.build import registry, resolve
from fedjax_drag.experiment.config.components import COMPONENTS, KIND_OF, OPTIONAL
from fedjax_drag.experiment.config.config import Config
from fedjax_drag.experiment.run import planning, run
from fedjax_drag.experiment.sweep import sweep

pytestmark = pytest.mark.filterwarnings("ignore:.* not given. takes .*:UserWarning")  # errors are looked for

SMALL = TINY | SYNTHETIC | {"rounds": 2}
ODD = (
    *(0, 1, -1, 2, 3, 7, 10**4, 10**9, 2**31 - 1, 2**31, 2**63, 10**18, 10**30, -(10**18)),
    *(0.0, 0.1, 0.5, -0.5, 1e-300, 1e-7, 1e30, 1e300, math.inf, -math.inf, math.nan, True, False, None),
    *("", " ", "x", "auto", "none", "1", "1e9", "nan", "???", "${rounds}", "${oc.env:HOME}", "${", "..", "../..", "~"),
    *(
        "\n",
        "a\nb",
        "\x1b[31m",
        "\0",
        "é",
        "\N{LINE SEPARATOR}",
        "漢" * 300,
        "=",
        ".",
        "[0]",
        "-",
        "--help",
        "x" * 5000,
    ),
    *(
        [],
        {},
        [[]],
        [None],
        [0],
        [10**9],
        [3] * 300,
        {"name": None},
        {"name": []},
        {"name": {"name": "krum"}},
        {"": ""},
    ),
    *({"name": "krum"}, "krum", "sgd", "drag", {"name": "linear_schedule", "init_value": 1}, [math.nan, "x"], [0.5]),
)
"""Values that somebody may have taken for one of the right kind."""

ODD_TEXTS = (
    "",
    "3",
    "- a",
    "rounds: 1\nrounds: 2",
    "a: &a [*a]",
    "a: &a {b: *a}",
    "rounds: &x [1, 2]\naxes: {seed: *x}",
    "a: &a [x, x, x, x, x, x, x, x, x]\n"
    + "".join(f"a{i + 1}: &a{i + 1} [{', '.join([f'*a{i}'] * 9)}]\n" for i in range(9)),
    "x: &a0 {y: 1}\n" + "".join(f"x{i}: &a{i + 1} {{<<: [{', '.join([f'*a{i}'] * 9)}]}}\n" for i in range(9)),
    "data: " + "[" * 100_000,
    "data: " + "{a: " * 3000,
    "".join(" " * i + "a:\n" for i in range(500)),
    "data: !!python/object/apply:os.system ['true']",
    "data: !!python/name:os.system",
    "data: !!python/module:os",
    "name: !!binary aGVsbG8=",
    "data: !!set {digits}",
    "data: !!omap [name: digits]",
    "data: !!timestamp 2001-01-01",
    "data: !!timestamp 2{001-01-01",
    "rounds: !!int x",
    'rounds: !!int ""',
    "diagnostics: !!bool x",
    "rounds: " + "9" * 5000,
    "rounds: -1:30:00",
    "rounds: 0x100000000",
    "rounds: .inf",
    "rounds: 1\n---\nrounds: 2",
    "~: 1",
    "1: 2",
    "true: 1",
    "1.5: 2",
    "[1]: 2",
    "{a: 1}: 2",
    "? rounds",
    "%YAML 9.9\n---\nrounds: 1",
    "rounds: *nowhere",
    "\ufeffrounds: 0",
    "\trounds: 1",
    "rounds: 0\r\rseed: 2",
    "name: |\n  a\n  b",
    "rounds: ${seed}",
    "rounds: ${oc.decode:1}",
    "name: ${oc.env:HOME}",
    "compare: {a: {rounds: 1}, A: {}}",
    "compare: {'a\n b': {round: 1}}",
    "axes: {seed: [0, 1]}",
)

odd = st.sampled_from(ODD)
seldom = st.integers(0, 15).map(lambda number: number == 7)  # not 0, which is drawn more often than others
anything = st.recursive(
    odd | st.text(max_size=8) | st.integers() | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


USUAL = {
    "list, each entry an integer": ([4], [3, 2], []),
    "list": ([0.5], [0.1, 1.0]),
    "an integer": (1, 2, 3, 0),
    "number": (0.5, 0.1, 1, 2.0, 0.9),
    "true": (True, False),
    "string": ("x",),
    "value": (0.5, 0.1, 1, 2.0),
}
"""Values that an argument may well have, by what the errors say of its type; the longer comes first."""


def usual(hint, depth):
    """Values that an argument of this type may well have."""
    if table := resolve.table_of(hint):
        return components(table, depth - 1) if depth else st.none()
    words = resolve.phrase(hint)
    if words.startswith("one of "):
        return st.sampled_from(words.removeprefix("one of ").split(", "))
    for kind, values in USUAL.items():
        if kind in words:
            return st.sampled_from(values)
    return st.none()


@st.composite
def components(draw, table, depth=2):
    """A component of the registry, with arguments that it needs, others that it has, and now and then another."""
    names = [name for name in registry.TABLES[table] if table != "data" or name in ("digits", "synthetic", "mnist")]
    name = draw(st.sampled_from(names))
    found = {}
    for argument, (parameter, hint) in resolve.arguments(table, registry.TABLES[table][name]).items():
        if argument == "allow_download":
            continue
        needed = parameter.default is inspect.Parameter.empty and argument not in KIND_OF[table].supplied
        if draw(st.integers(0, 3)) < (4 if needed else 1):
            found[argument] = draw(odd if draw(seldom) else usual(hint, depth))
    if name == "mnist":
        found["data_dir"] = "nowhere"
    if draw(seldom):
        found[draw(st.text(max_size=5))] = draw(anything)
    return draw(st.sampled_from([name, {"name": name, **found}])) if not found else {"name": name, **found}


KEYS = sorted(set(Config.__dataclass_fields__) - {"mesh"})
CHOICES = {
    "name": ("other",),
    "byzantine_of": ("federation", "cohort"),
    "root_source": ("benign", "all", "biased"),
    "nonfinite": ("reject", "propagate"),
    "clients_axis": ("map", "vmap", "auto"),
    "aggregation": ("auto", "stack", "stream"),
    "compute_dtype": ("float32", "bfloat16"),
    "client_state": ("host", "device"),
    "diagnostics": (True, False),
    "evaluate_clients": (True, False, 0.3),
    "shard_data": (True, False),
    "time_clients": (True, False),
    "compare": ({"a": {"rounds": 3}, "b": None}, None),
}
numbers = st.sampled_from([1, 2, 3, 4, 0.1, 0.5])


@st.composite
def mappings(draw):
    """A small configuration with some keys changed to what may or may not be allowed."""
    found = dict(SMALL)
    for key in draw(st.lists(st.sampled_from(KEYS), max_size=3)):
        if draw(seldom):
            found[key] = draw(odd | anything)
        elif key in COMPONENTS:
            found[key] = draw(components(key) | st.none() if key in OPTIONAL else components(key))
        else:
            found[key] = draw(st.sampled_from(CHOICES[key]) if key in CHOICES else numbers)
    if draw(seldom):
        found[draw(st.text(max_size=8))] = draw(anything)
    return found


@st.composite
def sweeps(draw):
    """The same with axes."""
    axes = {}
    for key in draw(st.lists(st.sampled_from([*KEYS, "partition.num_clients", "seed", "aggregator.c"]), max_size=3)):
        values = components(key) if key in COMPONENTS else numbers | odd
        axes[key] = draw(anything if draw(seldom) else st.lists(values, min_size=1, max_size=3))
    return {**draw(mappings()), "axes": draw(anything) if draw(seldom) else axes}


@st.composite
def overrides(draw):
    """Strings of which most look like a change of some key."""
    key = draw(
        st.sampled_from([*KEYS, "aggregator.c", "model.hidden", "partition.name", "axes.seed"]) | st.text(max_size=6)
    )
    value = draw(odd | anything)
    written = yaml.safe_dump(value, default_flow_style=True, width=math.inf).removesuffix("...\n").strip()
    return f"{key}{draw(st.sampled_from(['=', '=', '=', '', '==', '.=', '.x=']))}{written}".lstrip("-")


@st.composite
def texts(draw):
    """YAML as written out, or odd, or with a piece cut out or put in."""
    text = draw(st.sampled_from(ODD_TEXTS) | mappings().map(lambda x: yaml.safe_dump(x, allow_unicode=True)))
    place, length = draw(st.integers(0, len(text))), draw(st.integers(0, 5))
    piece = draw(
        st.sampled_from(["", "", "", "{", "]", "&a ", "*a", "!!", ": ", "\n", "\t", "'", "%", "\x00", "${", "- "])
    )
    return text[:place] + piece + text[place + length :] if piece else text


calls = st.one_of(
    st.tuples(st.just("run"), mappings(), st.just([])),
    st.tuples(st.just("sweep"), sweeps(), st.just([])),
    st.tuples(st.sampled_from(["run", "sweep"]), texts(), st.just([])),
    st.tuples(st.just("run"), st.just(SMALL), st.lists(overrides(), min_size=1, max_size=3)),
    st.tuples(
        st.just("sweep"), st.just({**SMALL, "axes": {"seed": [0, 1]}}), st.lists(overrides(), min_size=1, max_size=2)
    ),
)


class Harness:
    """Calls the command line up to where a run would start, and counts what came of it."""

    def __init__(self, folder, bounded):
        self.path, self.folder, self.bounded = folder / "fuzzed.yaml", folder, bounded
        self.planned = self.refused = 0
        self.traced, self.executed = True, False

    def check(self, call, seconds=120, megabytes=1500):
        command, content, changes = call
        text = content if isinstance(content, str) else yaml.safe_dump(content, allow_unicode=True)
        self.path.write_bytes(text.encode(errors="surrogatepass"))
        arguments = [command, str(self.path), "--out", str(self.folder / "out"), *(["--", *changes] if changes else [])]
        with self.bounded(seconds, megabytes):
            result = CliRunner().invoke(app, arguments, prog_name="fedjax-drag")
        assert result.exit_code in (2, 130), (result.exit_code, result.output[-2000:])
        lines = result.stderr.splitlines()
        assert len(lines) == 1, lines
        assert lines[0].isprintable()
        beginning = "stopped" if result.exit_code == 130 else "fedjax-drag: error: "
        assert lines[0].startswith(beginning), lines
        assert result.exit_code == 130 or len(lines[0]) > len(beginning)
        assert not (self.folder / "out").exists()
        self.planned += result.exit_code == 130
        self.refused += result.exit_code == 2
        return result.exit_code


@pytest.fixture(scope="module")
def harness(tmp_path_factory, bounded):
    """What would run stops at once, as if by Ctrl-C, which is a status of its own."""

    def stop(*_, **__):
        raise KeyboardInterrupt

    execute = run.execute
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "execute", lambda *args, **kw: (execute if harness.executed else stop)(*args, **kw))
        patch.setattr(sweep, "execute", stop)
        patch.setattr("fedjax_drag.cores.one_device_per_core", lambda: None)
        patch.setattr("sys.argv", ["fedjax-drag"])
        harness, trace = Harness(tmp_path_factory.mktemp("fuzz"), bounded), planning.trace
        patch.setattr(planning, "trace", lambda asked: trace(asked) if harness.traced else asked)
        yield harness


QUICK = settings(
    max_examples=60, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.thorough
@given(calls)
@QUICK
def test_any_configuration_ends_in_settings_or_one_line(harness, call):
    """All but the tracing, which takes seconds where a configuration is valid."""
    harness.traced = False
    harness.check(call)


@pytest.mark.parametrize("text", ODD_TEXTS, ids=range(len(ODD_TEXTS)))
@pytest.mark.parametrize("command", ["run", "sweep"])
def test_odd_yaml(harness, command, text):
    harness.traced = False
    harness.check((command, text, []), seconds=10, megabytes=200)


@pytest.mark.slow
def test_thousands_of_configurations(harness, capsys):
    """With ``-s`` or as it is: prints how many were tried."""

    @given(calls)
    @settings(QUICK, max_examples=int(os.environ.get("FEDJAX_DRAG_FUZZ", "3000")), derandomize=False, print_blob=True)
    def check(call):
        harness.traced = True
        harness.check(call)

    try:
        check()
    finally:
        with capsys.disabled():
            print(f"\nconfigurations tried: {harness.planned} planned, {harness.refused} refused in one line")


def small(found):
    """Whether a configuration, if it is one, is compiled and run in seconds."""
    sizes = [
        found[key] for key in ("rounds", "cohort_size", "local_steps", "local_epochs", "batch_size") if key in found
    ]
    plain = all(isinstance(size, int | float | None) and (size or 0) < 10 for size in sizes)
    return (
        plain and found["model"] == SMALL["model"] and found["data"] == SMALL["data"] and found.get("compare") is None
    )


@pytest.mark.slow
def test_a_handful_runs_to_its_end(harness, capsys):
    """Status 0 with a summary; or, of a run that diverges, 1 and one line."""
    codes = Counter()

    @given(mappings().filter(small))
    @settings(QUICK, max_examples=40)
    def check(found):
        harness.path.write_text(yaml.safe_dump(found, allow_unicode=True), encoding="utf-8")
        out = harness.folder / "out"
        result = CliRunner().invoke(app, ["run", str(harness.path), "--out", str(out), "--quiet"])
        codes[result.exit_code] += 1
        assert result.exit_code in (0, 1, 2), result.output
        assert len(result.stderr.splitlines()) == (result.exit_code > 0), result.output
        assert result.exit_code != 1 or "not finite" in result.stderr, result.output
        assert (out / "summary.json").exists() == (result.exit_code != 2)
        shutil.rmtree(out, ignore_errors=True)

    harness.traced = harness.executed = True
    try:
        check()
    finally:
        harness.executed = False
    with capsys.disabled():
        print(f"\nrun to their end: {codes[0]}, diverged: {codes[1]}, refused: {codes[2]}")
    assert codes[0]


EXTREMES = (10**9, 10**18, 10**30, 1e300, math.inf, math.nan, -(10**18))


def extremes():
    """Configurations with one number, of all that there are, out of any proportion."""
    for key in KEYS:
        if key not in COMPONENTS:
            yield key, {}
    for table in COMPONENTS:
        for name, builder in registry.TABLES[table].items():
            if table == "data" and name not in ("digits", "synthetic"):
                continue
            allowed = resolve.arguments(table, builder)
            needed = {
                argument: 0.5
                if resolve.phrase(hint) in ("a number", "a value")
                else {"attack": "sign_flip"}.get(resolve.table_of(hint), "krum")
                if resolve.table_of(hint)
                else 3
                for argument, (parameter, hint) in allowed.items()
                if parameter.default is inspect.Parameter.empty and argument not in KIND_OF[table].supplied
            }
            for argument, (_, hint) in allowed.items():
                if re.search("integer|number|value", resolve.phrase(hint)):
                    listed = "list" in resolve.phrase(hint)
                    yield (table, argument, listed), {table: {"name": name, **needed}}


@pytest.mark.slow
def test_numbers_out_of_all_proportion(harness, capsys):
    harness.traced, before = True, harness.planned + harness.refused
    for place, changes in extremes():
        for value in EXTREMES:
            found = {**SMALL, "byzantine_fraction": 0.5, "attack": "sign_flip", **changes}
            if isinstance(place, str):
                found[place] = value
            else:
                table, argument, listed = place
                found[table] = {**found[table], argument: [value] if listed else value}
            harness.check(("run", found, []))
    with capsys.disabled():
        print(f"\nnumbers out of all proportion: {harness.planned + harness.refused - before} configurations")
