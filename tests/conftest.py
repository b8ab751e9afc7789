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

# A device waits for another at most 40 s by itself, which is too short beside other work: XLA then ends the process.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_collective_call_terminate_timeout_seconds=3600"

# Tests compile for seconds what runs for microseconds. Later versions end over flags that they do not know.
if jax.__version_info__ < (0, 11):
    FLAGS = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FLAGS}"

# Two devices, so that sharding is tested everywhere; a program without a mesh runs on the first.
jax.config.update("jax_num_cpu_devices", 2)

# Tracing makes objects by the million, few of them in cycles: looking for those less often saves time.
gc.set_threshold(20_000, 10, 10)

MAPS = Path("/proc/self/maps")


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

    Tests share what JAX has traced and compiled, but for those marked ``fresh``.
    """
    from run_fixtures import optimise  # a plugin, which pytest imports after this file

    marked = item.get_closest_marker("optimised") is not None
    optimise(marked or os.environ.get("FEDJAX_DRAG_TEST_OPTIMISED") == "1")
    if item.get_closest_marker("fresh"):
        jax.clear_caches()


def pytest_runtest_teardown(item, nextitem):
    """A program holds some ten memory maps, of which Linux grants a process 65,530; a file's are kept to its end."""
    crowded = (nextitem is None or item.path != nextitem.path) and is_crowded()
    if crowded or item.get_closest_marker("fresh"):
        jax.clear_caches()


def is_crowded():
    """Whether nearly half of the memory maps is used; True where their number is unknown."""
    try:
        return MAPS.read_bytes().count(b"\n") > 30_000
    except OSError:
        return True
