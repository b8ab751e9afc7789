"""Programs that a process has compiled, kept for identical runs; the least recently used are dropped.

There are two levels. Runs with equal fingerprints (:mod:`fedjax_drag.simulation.planning.fingerprint`) share all that
was made of their settings, and nothing is traced. Programs that were traced anew and lowered to the same text share the
executable. A program that calls back into Python is not kept, because its text does not say what it calls.

JAX's persistent compilation cache is another matter: it is on disk, and spares other processes the compilation.
"""

import contextlib
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
from jax._src import config as jax_config

_MAPS, _MOST_MAPS = Path("/proc/self/maps"), Path("/proc/sys/vm/max_map_count")

RUNS = 8
"""Most runs that are kept. The programs of one take some 30 MB and 700 memory maps on a CPU."""

PROGRAMS = 32
"""Most programs that are kept by their text."""

_QUICKLY = {"xla_backend_optimization_level": 1}  # the same bits; draws are as fast as at the usual level 3


class Recent:
    """A dict of the entries used most recently. Several threads may use it."""

    def __init__(self, most: int) -> None:
        self._most, self._entries, self._lock = most, OrderedDict[Hashable, Any](), threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable) -> Any:
        """The entry of a key; None without one."""
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
            return self._entries.get(key)

    def put(self, key: Hashable, value: Any) -> None:
        """Keeps an entry, and drops the oldest where there are too many."""
        with self._lock:
            self._entries[key] = value
            self._entries.move_to_end(key)
            while len(self._entries) > self._most:
                self._entries.popitem(last=False)

    def clear(self) -> None:
        """Drops all entries."""
        with self._lock:
            self._entries.clear()


runs = Recent(RUNS)
"""What identical runs share, by the fingerprint of their settings."""

_programs = Recent(PROGRAMS)


def clear_cache() -> None:
    """Drops all programs that :func:`fedjax_drag.simulate` keeps for identical calls, with the memory they hold.

    Call it after changing a module of fedjax_drag, Flax, JAX, NumPy or Optax in place, such as by a patch: their
    functions are taken as constant. What a run returned stays valid. ``jax.clear_caches()`` does not drop these
    programs, and this function does not touch JAX's own caches.
    """
    runs.clear()
    _programs.clear()


def jit_for_one_call(function: Callable[..., Any], platform: str, **options: Any) -> Any:
    """``jax.jit`` of a program that is called once, whose compilation on a CPU takes longer than the call.

    Args:
      function: as for ``jax.jit``.
      platform: on which it is to run.
      **options: others of ``jax.jit``.
    """
    return jax.jit(function, compiler_options=_QUICKLY if platform == "cpu" else None, **options)


def context() -> Hashable:
    """What programs depend on: all of JAX's configuration, also what holds for this thread alone, and the backend."""
    values = jax.config.values
    current = tuple((name, repr(getattr(jax.config, name, value))) for name, value in sorted(values.items()))
    return current, jax_config.trace_context(), jax.devices()[0]


def check_jit() -> None:
    """Refuses to run where JAX compiles nothing.

    Raises:
      ValueError: ``jax_disable_jit`` is set.
    """
    if jax.config.jax_disable_jit:  # pyright: ignore[reportAttributeAccessIssue]
        raise ValueError(
            "jax_disable_jit=True: must be False, for a run is compiled before it starts; jax.debug.print shows values "
            "inside, and a rule called by itself needs no compilation"
        )


def compiled(lowered: Any, mesh: Hashable) -> Any:
    """A lowered program compiled, or the executable of an equal one.

    Args:
      lowered: from ``jax.jit(function).lower(...)``.
      mesh: devices that share its work, or None.
    """
    signature = _signature(lowered)
    if signature is None:
        return lowered.compile()
    text = hashlib.sha256(lowered.as_text().encode()).digest()
    name = (text, signature, mesh, context())
    program = _programs.get(name)
    if program is None:
        _make_room()
        program = lowered.compile()
        _programs.put(name, program)
    return program


def compiled_at_once(programs: Sequence[Any]) -> list[Any]:
    """Lowered programs compiled, each in a thread of its own; they are not kept.

    Args:
      programs: each from ``jax.jit(function).lower(...)``.
    """
    here = context()

    def compile_one(program: Any) -> Any:
        return program.compile() if context() == here else None  # configured for the caller's thread alone

    with ThreadPoolExecutor(len(programs), "compilation") as threads:
        done = list(threads.map(compile_one, programs))
    return [program.compile() if made is None else made for program, made in zip(programs, done, strict=True)]


@contextlib.contextmanager
def compiling(programs: Iterable[Any], mesh: Any) -> Iterator[None]:
    """Compiles programs in threads of their own while the block runs; :func:`compiled` then finds them.

    Those that cannot be kept are left to :func:`compiled`, and so are all where the caller has configured JAX for its
    thread alone, or where several processes must compile in the same order.

    Args:
      programs: each from ``jax.jit(function).lower(...)``.
      mesh: devices that share their work, or None.
    """
    here = context()

    def compile_one(program: Any) -> None:
        if context() == here:
            with contextlib.suppress(Exception):  # raised again by who needs the program
                compiled(program, mesh)

    wanted = [] if mesh is not None and mesh.is_multi_process else list(filter(is_self_contained, programs))
    with ThreadPoolExecutor(max(1, len(wanted)), "compilation") as threads:
        for program in wanted:
            threads.submit(compile_one, program)
        yield


def _make_room() -> None:
    """Drops all programs where the process has half of the memory maps that Linux grants it; a program needs many."""
    try:
        is_crowded = _MAPS.read_text().count("\n") > int(_MOST_MAPS.read_text()) // 2
    except (OSError, ValueError):  # not Linux
        return
    if is_crowded:
        clear_cache()


def is_self_contained(lowered: Any) -> bool:
    """Whether a program is all in its text: it neither calls Python nor holds arrays; False where that is unknown."""
    return _signature(lowered) is not None


def _signature(lowered: Any) -> Hashable | None:
    """What a program's text leaves out: structure and shapes of arguments and results, and which arguments it uses.

    None for a program that is not self-contained.
    """
    try:
        details, constants = lowered._lowering.compile_args, lowered._lowering.const_args
        outside = ("host_callbacks", "keepalive", "ordered_effects", "unordered_effects", "mut")
        if constants or any(details[name] for name in outside):
            return None
        used = frozenset(details["kept_var_idx"]), tuple(details["global_in_avals"]), tuple(details["global_out_avals"])
        placed = tuple(details["in_shardings"]), tuple(details["out_shardings"])
        # A call checks those that the program does not use as well.
        given = tuple((one.shape, one.dtype) for one in jax.tree.leaves(lowered.args_info))
    except (AttributeError, KeyError, TypeError):  # a version of JAX that keeps them elsewhere
        return None
    return used, placed, given, lowered.in_tree, lowered.out_tree
