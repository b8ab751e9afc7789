"""What all tests share: three tiers, how programs are compiled, and this folder on the path of its tests.

``pytest`` runs the fast tier: what is marked neither ``slow`` nor ``thorough``. Of a test marked ``sample(n)`` the
fast tier keeps the first ``n`` sets of parameters, and of one over ``cases.parametrize`` the cases named as ``fast``;
the others are marked ``thorough`` here or there. ``pytest -m "not slow"`` runs both tiers, as ``.ci/run`` does.
"""

import atexit
import collections
import gc
import os
import shutil
import sys
import tempfile
from pathlib import Path

import jax
import pytest
from jax._src import compiler

sys.path.insert(0, str(Path(__file__).parent))
pytest_plugins = ["run_fixtures"]

# Many tests build the same program anew; each is compiled once a session, for all of its processes.
if "FEDJAX_DRAG_TEST_CACHE" not in os.environ:
    os.environ["FEDJAX_DRAG_TEST_CACHE"] = tempfile.mkdtemp(prefix="fedjax-drag-tests-")
    atexit.register(shutil.rmtree, os.environ["FEDJAX_DRAG_TEST_CACHE"], ignore_errors=True)
os.environ["FEDJAX_DRAG_CACHE"] = os.path.join(os.environ["FEDJAX_DRAG_TEST_CACHE"], "data")  # not the user's own
jax.config.update("jax_compilation_cache_dir", os.environ["FEDJAX_DRAG_TEST_CACHE"])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

# Which way over the clients is fastest differs from run to run: every test takes the usual one unless it says which.
os.environ["FEDJAX_DRAG_CALIBRATE"] = "0"

# Two devices, so that sharding is tested everywhere; a program without a mesh runs on the first.
jax.config.update("jax_num_cpu_devices", 2)

compile_options = compiler.get_compile_options


def is_known(option, value):
    """Whether this XLA has an option; those of its older emitters went with them."""
    try:
        jax.jit(lambda x: x, compiler_options={option: value}).lower(0).compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True


OPTIONS = ("xla_cpu_use_fusion_emitters", False), ("xla_cpu_parallel_codegen_split_count", 1)
QUICK = [(option, value) for option, value in OPTIONS if is_known(option, value)]


def quick_compile_options(*args, **kwargs):
    """Where XLA is to leave optimisations out, it also fuses by its older emitters and compiles in one piece."""
    options = compile_options(*args, **kwargs)
    if jax.config.read("jax_disable_most_optimizations"):
        options.env_option_overrides = [*options.env_option_overrides, *QUICK]
    return options


compiler.get_compile_options = quick_compile_options

# Tracing makes objects by the million, few of them in cycles: looking for those less often saves time.
gc.set_threshold(20_000, 10, 10)

MAPS = Path("/proc/self/maps")

TRACED = ("fedjax_drag.", "flax.", "jax.", "numpy.", "optax.")
NOT_TRACED = ("fedjax_drag.cli.", "fedjax_drag.experiment.")  # no program has a function of theirs

set_attribute = pytest.MonkeyPatch.setattr
is_patched = False  # what programs are traced from
programs_of = None  # the file whose programs are kept


def forget_programs():
    """Drops the programs that this process keeps for identical runs."""
    kept = sys.modules.get("fedjax_drag.simulation.devices.program_cache")
    if kept is not None:
        kept.clear_cache()


def patching_what_is_traced(patch, target, *args, **kwargs):
    """``monkeypatch.setattr``; programs traced before the patch are not used with it, nor those with it afterwards."""
    global is_patched
    owner = target if isinstance(target, str) else getattr(target, "__module__", getattr(target, "__name__", ""))
    if f"{owner}.".startswith(TRACED) and not f"{owner}.".startswith(NOT_TRACED):
        is_patched = True
        forget_programs()
    set_attribute(patch, target, *args, **kwargs)


pytest.MonkeyPatch.setattr = patching_what_is_traced


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Marks as thorough what goes beyond a test's sample, before the tier is selected."""
    kept = collections.Counter()
    for item in items:
        sample = item.get_closest_marker("sample")
        if sample is None or item.get_closest_marker("slow") or item.get_closest_marker("thorough"):
            continue
        test = item.nodeid.partition("[")[0]
        kept[test] += 1
        if kept[test] > sample.args[0]:
            item.add_marker("thorough")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Most tests compile for seconds what runs for microseconds: XLA then leaves most of its optimisations out.

    Tests marked ``optimised`` are compiled as users' programs are, and with ``FEDJAX_DRAG_TEST_OPTIMISED=1`` all are.
    Set before any fixture, so that programs that are to give the same bits are compiled alike.

    The tests of a file share the programs of identical runs, but for those that patch what is traced, and those marked
    ``fresh``.
    """
    global is_patched, programs_of
    optimised = item.get_closest_marker("optimised") or os.environ.get("FEDJAX_DRAG_TEST_OPTIMISED") == "1"
    jax.config.update("jax_disable_most_optimizations", not optimised)
    if is_patched or item.path != programs_of or item.get_closest_marker("fresh"):
        is_patched, programs_of = False, item.path
        forget_programs()


def pytest_runtest_teardown(item, nextitem):
    """A program holds some ten memory maps, of which Linux grants a process 65,530; a file's are kept to its end."""
    if (nextitem is None or item.path != nextitem.path) and is_crowded():
        jax.clear_caches()


def is_crowded():
    """Whether nearly half of the memory maps is used; True where their number is unknown."""
    try:
        return MAPS.read_bytes().count(b"\n") > 30_000
    except OSError:
        return True
