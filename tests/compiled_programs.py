"""What the compilers of accelerators make of every rule, model and two-sided method.

    python tests/compiled_programs.py                # all; needs the compilers
    python tests/compiled_programs.py median krum    # some of them
    python tests/compiled_programs.py --missing      # those without figures

writes ``tests/accelerators/compiled.json``, with which ``tests/accelerators/test_compiled.py`` compares, and the tables
of docs/compiled.md. The figures are those of the compiled programs' texts: no device is asked.
"""

import functools
import itertools
import json
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from cases import AGGREGATORS, ALGORITHMS, NUM_CLIENTS, Case, extras, nested_params
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from quadratics import batches, uplink_of

from fedjax_drag import aggregators, losses, models
from fedjax_drag.accelerators import counts, targets
from fedjax_drag.experiment.build.registry import TABLES
from fedjax_drag.simulation.devices.placement import split_coordinates

ROOT = Path(__file__).parents[1]
FIGURES = ROOT / "tests/accelerators/compiled.json"
PAGE = ROOT / "docs/compiled.md"

TARGETS = ("h100", "v5e:2x2")
"""Programs for one device; of a slice of TPUs its first chip."""
MESHES = ("v5e:2x2", "v5e:4x4")

COLUMNS = {"kernels": "kernels", "temporary": "temporary MB"}
"""Headings by figure."""

COHORT, DIMENSION = 100, 10**6
COHORT_OF_MESH = 96  # the devices divide it
SHARED = ("fedavg", "fedexp", "norm_clipping", "drag", "br_drag", "median", "krum")
"""Rules whose exchanges over the devices of a mesh are told."""

MIXED = [
    Case("nnm-fedavg", aggregators.nnm, {"aggregator": aggregators.fedavg(), "num_byzantine": 1}),
    Case("nnm-krum", aggregators.nnm, {"aggregator": aggregators.krum(1), "num_byzantine": 1}),
]
"""Mixing by itself, and before a rule that measures distances again."""

SETTINGS = {
    "mlp": {"hidden": [16]},
    "cnn": {"variant": "small"},
    "resnet18": {"width": 8, "groups": 4},
    "lstm": {"hidden": 16, "layers": 1},
    "transformer": {"layers": 1, "heads": 2, "width": 16},
    "vit": {"layers": 1, "heads": 2, "width": 16},
}
"""Small widths of models; a model that is not named is built with its defaults."""
INPUTS = dict.fromkeys(("lstm", "transformer"), jax.ShapeDtypeStruct((2, 4, 12), jnp.int32))
MODELS = [name for name in TABLES["model"] if name != "lora"]
"""Those that wrap no other."""
IMAGES = jax.ShapeDtypeStruct((2, 4, 16, 16, 3), jnp.float32)
"""A batch of four for each of two clients, of images unless a model takes something else."""


class Program(NamedTuple):
    """Something to compile.

    Attributes:
      function: of ``arguments``.
      arguments: arrays or their shapes.
      stack: bytes of the deltas of a rule; 0 for another program.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    stack: int = 0


def of_rule(case: Case, cohort: int = COHORT, params: Any = None) -> Program:
    """One call of a rule; by default on single vectors of a million parameters, or an output layer of as many."""
    sizes = {"num_clients": cohort, "history": 10 * cohort}
    rule = case.build(**{name: size for name, size in sizes.items() if name in case.settings})
    if params is None:
        layer = {"kernel": (DIMENSION // 10 - 1, 10), "bias": (10,)}
        shapes = layer if "head" in case.settings else {"w": (DIMENSION,)}
        params = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    deltas = jax.tree.map(lambda p: jax.ShapeDtypeStruct((cohort, *p.shape), p.dtype), params)
    given = {name: value for name, value in extras(cohort).items() if name in case.requires}
    given |= {name: like for name, like in (("root_delta", params), ("starts", deltas)) if name in given}

    def apply(params: Any, deltas: Any, state: Any, given: dict[str, Any]) -> Any:
        return rule.apply(params, deltas, state, **given)

    start = jax.eval_shape(rule.init, params)
    state = jax.eval_shape(lambda *args: apply(*args)[1], params, deltas, start, given)
    return Program(apply, (params, deltas, state, given), 4 * cohort * sum(p.size for p in jax.tree.leaves(params)))


def of_model(name: str) -> Program:
    """A gradient for each of two clients with parameters of their own."""
    model, x = TABLES["model"][name](num_classes=10, **SETTINGS.get(name, {})), INPUTS.get(name, IMAGES)
    one = jax.ShapeDtypeStruct(x.shape[1:], x.dtype)
    params = jax.eval_shape(model.init, jax.random.key(0), one)
    y = jax.ShapeDtypeStruct(jax.eval_shape(model.apply, params, one).shape[:-1], jnp.int32)

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        return losses.cross_entropy()(model.apply(params, x), y).mean()

    of_clients = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((2, *leaf.shape), leaf.dtype), (params, y))
    return Program(jax.vmap(jax.grad(loss)), (of_clients[0], x, of_clients[1]))


def of_method(case: Case) -> Program:
    """A round of a two-sided method, of clients with quadratic losses."""
    method, params, given = case.build(), nested_params(), extras(NUM_CLIENTS)

    def round_of(params: Any, state: Any, given: dict[str, Any]) -> Any:
        uplink = uplink_of(method, params, state, given["client_ids"], batches())
        return method.aggregate(params, uplink, state, **given)

    start = jax.eval_shape(method.init, params)
    state = jax.eval_shape(lambda *args: round_of(*args)[1], params, start, given)
    return Program(round_of, (params, state, given))


PROGRAMS: dict[str, Callable[[], Program]] = {
    **{f"rule {case.label}": functools.partial(of_rule, case) for case in [*AGGREGATORS, *MIXED]},
    **{f"model {name}": functools.partial(of_model, name) for name in MODELS},
    **{f"method {case.label}": functools.partial(of_method, case) for case in ALGORITHMS},
}
"""Every program by its kind and name."""


def measure(label: str, target: str) -> dict[str, float]:
    """What a program does on one device: kernels, temporary megabytes, and of a rule passes over the deltas.

    Raises:
      MissingCompilerError: the target's compiler is not installed.
    """
    place = targets.find(target).place
    program = PROGRAMS[label]()
    compiled = jax.jit(program.function).lower(*place(program.arguments)).compile()
    work = counts.work_of(compiled.as_text() or "")
    temporary = counts.memory_of(compiled).temporary / 1e6
    if not program.stack:
        return {"kernels": work.num_kernels, "temporary": round(temporary, 3)}
    passes = round(work.bytes / program.stack, 2)
    return {"passes": passes, "kernels": work.num_kernels, "temporary": round(temporary, 1)}


def exchanges(name: str, target: str) -> dict[str, list[int]]:
    """What the devices of a mesh exchange for a rule on deltas of the paper's CNN, each device having its clients'.

    Returns:
      Number and bytes of each device, by operation.
    """
    mesh = Mesh(targets.find(target).devices, ("clients",))
    like = jax.ShapeDtypeStruct((1, 28, 28, 1), jnp.float32)
    params = jax.eval_shape(models.cnn(10).init, jax.random.key(0), like)
    case = next(case for case in AGGREGATORS if case.label == name)
    apply, (params, deltas, *rest), _ = of_rule(case, COHORT_OF_MESH, params)

    def place(values: Any, *axes: str) -> Any:
        sharding = NamedSharding(mesh, PartitionSpec(*axes))
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), values)

    def server(params: Any, deltas: Any, *rest: Any) -> Any:
        if case.build().split == "coordinates":
            deltas = split_coordinates(deltas, mesh)
        return apply(params, deltas, *rest)

    everywhere = NamedSharding(mesh, PartitionSpec())
    arguments = (place(params), place(deltas, "clients"), *map(place, rest))
    text = jax.jit(server, out_shardings=everywhere).lower(*arguments).compile().as_text() or ""
    return {kind: list(exchange) for kind, exchange in counts.work_of(text).collectives.items()}


def stored() -> dict[str, Any]:
    """The figures last written."""
    return json.loads(FIGURES.read_text()) if FIGURES.exists() else {"programs": {}, "exchanges": {}}


def write(labels: Iterable[str], shared: Iterable[str], again: bool = True) -> None:
    """Measures some programs and exchanges, ``again`` also those that have figures; writes the figures and the page."""
    figures = stored()
    kinds = (("programs", labels, TARGETS, measure), ("exchanges", shared, MESHES, exchanges))
    for kind, names, targets_of_kind, figures_of in kinds:
        for name, target in itertools.product(names, targets_of_kind):
            known = figures[kind].setdefault(name, {})
            if again or target not in known:
                known[target] = figures_of(name, target)
                print(name, target, known[target], flush=True)
                _save(figures)


def _save(figures: dict[str, Any]) -> None:
    programs, shared = figures["programs"], figures["exchanges"]
    programs = {label: dict(sorted(programs[label].items())) for label in PROGRAMS if label in programs}
    figures = {"programs": programs, "exchanges": {name: shared[name] for name in SHARED if name in shared}}
    FIGURES.write_text(json.dumps(figures, indent=1) + "\n")
    page = PAGE.read_text()
    for name, text in tables(figures).items():
        start, end = f"<!-- {name}: written by tests/compiled_programs.py -->\n\n", f"\n<!-- end of {name} -->\n"
        before, _, rest = page.partition(start)
        page = before + start + text + end + rest.partition(end)[2]
    PAGE.write_text(page)


def tables(figures: dict[str, Any]) -> dict[str, str]:
    """The tables of the page, by name."""
    programs = figures["programs"]
    return {
        "rules": table(programs, ["rule"], {"passes": "passes", **COLUMNS}, 1),
        "models and methods": table(programs, ["model", "method"], COLUMNS, 2),
        "exchanges": exchanges_table(figures["exchanges"]),
    }


def table(programs: dict[str, Any], kinds: Collection[str], columns: Mapping[str, str], digits: int) -> str:
    """Figures of programs on both targets, in Markdown.

    Args:
      programs: figures by program and target.
      kinds: of the programs; a single one is not named in each row.
      columns: headings by figure.
      digits: of figures that are no whole numbers.
    """
    first = next(iter(kinds)) if len(kinds) == 1 else "program"
    headings = [f"{target}: {' | '.join(columns.values())}" for target in ("H100", "v5e")]
    lines = [f"| {' | '.join([first, *headings])} |", f"| --- |{' --- |' * len(columns) * len(headings)}"]
    for label, figures in programs.items():
        kind, _, name = label.partition(" ")
        if kind in kinds:
            of_targets = [figures.get(target, {}) for target in TARGETS]
            cells = [_cell(one.get(key), digits) for one in of_targets for key in columns]
            lines.append(f"| {' | '.join([name if len(kinds) == 1 else label, *cells])} |")
    return "\n".join(lines) + "\n"


def _cell(figure: float | None, digits: int) -> str:
    return "" if figure is None else f"{figure:,.{digits}f}" if isinstance(figure, float) else f"{figure:,}"


def exchanges_table(shared: dict[str, Any]) -> str:
    """What the devices of meshes exchange, in Markdown."""
    headers = [f"{targets.find(target).num_devices} chips | MB" for target in MESHES]
    lines = [f"| rule | {' | '.join(headers)} |", f"| --- |{' --- | --- |' * len(MESHES)}"]
    for name, figures in shared.items():
        cells = []
        for target in MESHES:
            made = figures.get(target, {})
            cells.append(", ".join(f"{number} {kind}" for kind, (number, _) in made.items()))
            cells.append(f"{sum(size for _, size in made.values()) / 1e6:,.1f}" if made else "")
        lines.append(f"| {' | '.join([name, *cells])} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    chosen = [word for word in sys.argv[1:] if word != "--missing"]
    known = [label for label in PROGRAMS if not chosen or label in chosen or label.partition(" ")[2] in chosen]
    shared_by_devices = [name for name in SHARED if not chosen or name in chosen]
    write(known, shared_by_devices, again="--missing" not in sys.argv)
