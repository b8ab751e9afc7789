"""Importing the package warns of nothing, starts no device and asks no network."""

import os
import subprocess
import sys

import pytest

IMPORT = """
import socket

def refuse(*_, **__):
    raise AssertionError("a socket was opened")

socket.socket.connect = socket.socket.bind = socket.create_connection = socket.getaddrinfo = refuse
import fedjax_drag
[getattr(fedjax_drag, name) for name in fedjax_drag.__all__]
import jax
jax.config.update("jax_num_cpu_devices", 3)  # refused once a device has been started
assert jax.device_count() == 3
"""


def test_import_is_quiet_and_touches_neither_devices_nor_network():
    command = [sys.executable, "-W", "error", "-c", IMPORT]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_without_a_use_of_it_jax_is_not_imported():
    command = [sys.executable, "-c", "import sys, fedjax_drag, fedjax_drag.cli.main; print('jax' in sys.modules)"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "False\n"


SLOW = {"sklearn", "scipy", "matplotlib", "orbax", "tensorstore", "pyarrow", "pandas", "tensorflow_datasets", "IPython"}

RUN = """
config = {"data": "digits", "partition": {"name": "iid", "num_clients": 8}, "model": {"name": "mlp", "hidden": [4]}}
fd.run(config, ["rounds=1", "cohort_size=2", "local_steps=1", "batch_size=4", "step_size=0.1"], quiet=True)
"""
SIMULATE = """
data = fd.data.partition.iid(fd.data.load("digits"), 8)
model, work = fd.models.mlp(10, hidden=(4,)), dict(local_steps=1, batch_size=4, step_size=0.1)
fd.simulate(fd.aggregators.fedavg(), model=model, data=data, num_rounds=1, cohort_size=2, **work)
"""


@pytest.mark.thorough
def test_a_run_without_results_imports_nothing_that_it_does_not_use():
    code = f"import sys\nimport fedjax_drag as fd\n{SIMULATE}{RUN}\nprint(sorted({SLOW} & set(sys.modules)))"
    quick = os.environ | {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=quick, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


def test_help_imports_no_numbers():
    slow = SLOW | {"jax", "numpy", "flax", "optax", "omegaconf"}
    code = f"import atexit, sys\natexit.register(lambda: print(sorted({slow} & set(sys.modules))))\n"
    code += "from fedjax_drag.cli.main import main\nmain()"
    for arguments in (["--help"], ["run", "--help"], ["sweep", "--help"]):
        done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "[]"
