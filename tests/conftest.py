"""Puts this folder on the path of its tests, which import ``cases`` and ``reference.numpy_rules``."""

import sys
import tempfile
from pathlib import Path

import jax

sys.path.insert(0, str(Path(__file__).parent))

# Many tests build the same program anew; each is compiled once a session.
jax.config.update("jax_compilation_cache_dir", tempfile.mkdtemp(prefix="fedjax-drag-tests-"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

# Two devices, so that sharding is tested everywhere; a program without a mesh runs on the first.
jax.config.update("jax_num_cpu_devices", 2)
