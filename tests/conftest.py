"""Puts this folder on the path of its tests, which import ``cases`` and ``reference.numpy_rules``."""

import atexit
import itertools
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

# Which way over the clients is fastest differs from run to run: every test takes the usual one unless it says which.
os.environ["FEDJAX_DRAG_CALIBRATE"] = "0"

# Two devices, so that sharding is tested everywhere; a program without a mesh runs on the first.
jax.config.update("jax_num_cpu_devices", 2)

TESTS = itertools.count(1)
FULLY = ("models", "reference", "test_learning.py", "test_engine.py", "test_host_state.py")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Most tests compile for seconds what runs for microseconds: there XLA is told not to bother.

    Before any fixture, so that programs that are to give the same bits are compiled alike.
    """
    fully = any(part in FULLY for part in item.path.parts)
    jax.config.update("jax_disable_most_optimizations", not fully)


def pytest_runtest_teardown():
    """A program holds some ten memory maps, of which Linux grants a process 65,530."""
    if next(TESTS) % 100 == 0:
        jax.clear_caches()
