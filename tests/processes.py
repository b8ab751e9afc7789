"""Several processes at once, for tests of runs that they share."""

import os
import socket
import subprocess
import sys


def together(command, num_processes, **environment):
    """Runs ``command(process_id, port)``, arguments of Python, as processes that end without an error.

    Their programs are compiled quickly and kept with those of the tests.

    Returns:
      What each has printed.
    """
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
    settings = {
        "JAX_COMPILATION_CACHE_DIR": os.environ["FEDJAX_DRAG_TEST_CACHE"],
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    }
    processes = [
        subprocess.Popen(
            [sys.executable, *map(str, command(process_id, port))],
            env=os.environ | settings | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for process_id in range(num_processes)
    ]
    try:
        printed = [process.communicate(timeout=600)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, output in zip(processes, printed, strict=True):
        assert process.returncode == 0, output
    return printed
