"""Importing the package warns of nothing, starts no device and asks no network."""

import subprocess
import sys

import pytest

IMPORT = """
import socket

def refuse(*_, **__):
    raise AssertionError("a socket was opened")

socket.socket.connect = socket.socket.bind = socket.create_connection = socket.getaddrinfo = refuse
import fedjax_drag
{}
import jax
jax.config.update("jax_num_cpu_devices", 3)  # refused once a device has been started
assert jax.device_count() == 3
"""


@pytest.mark.parametrize("more", ["", "[getattr(fedjax_drag, name) for name in fedjax_drag.__all__]"])
def test_import_is_quiet_and_touches_neither_devices_nor_network(more):
    command = [sys.executable, "-W", "error", "-c", IMPORT.format(more)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_without_a_use_of_it_jax_is_not_imported():
    command = [sys.executable, "-c", "import sys, fedjax_drag, fedjax_drag.cli.main; print('jax' in sys.modules)"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "False\n"
