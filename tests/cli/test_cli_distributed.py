"""``fedjax-drag run --distributed``: several processes, one results folder."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
import yaml
from processes import together

from fedjax_drag.cli.common import has_lost_a_process
from fedjax_drag.experiment.run import environment, metrics_file, results
from fedjax_drag.experiment.run.run import run


def command_of(num_processes, *arguments):
    main = "from fedjax_drag.cli.main import main; main()"

    def command(process_id, port):
        who = ["--coordinator", f"127.0.0.1:{port}", "--num-processes", num_processes, "--process-id", process_id]
        return ["-c", main, "run", *arguments, "--distributed", *who]

    return command


@pytest.mark.slow
def test_two_processes_write_one_folder_and_go_on_from_it(tiny, tmp_path):
    config, folder = tmp_path / "tiny.yaml", tmp_path / "out"
    changed = tiny | {"algorithm": "scaffold", "rounds": 4}
    config.write_text(yaml.safe_dump(changed))
    for more in ([], ["--resume", "rounds=6"]):
        command = command_of(2, config, *more, "--out", folder, "--debug")
        first, second = together(command, 2, JAX_NUM_CPU_DEVICES="2")
        assert f"results in {folder}" in first
        assert "results in" not in second
    (found,) = results.read(folder)
    assert found.config.mesh == "all"
    assert results.read_summary(folder)["resumed_from_round"] == 4
    assert len(json.loads((folder / environment.ENVIRONMENT).read_text())["devices"]) == 4
    alone = run(changed | {"rounds": 6})
    assert found.history["round"].tolist() == alone.history["round"].tolist() == [2, 4, 6]
    np.testing.assert_array_equal(found.history["client_ids"], alone.history["client_ids"])
    np.testing.assert_allclose(found.history["test_loss"], alone.history["test_loss"], rtol=1e-5)  # float32 sums


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--process-id", "0"], "--coordinator, --num-processes, --process-id: go with --distributed"),
        (
            ["mesh=cores", "--distributed"],
            "mesh='cores': the devices of one process; must be all with --distributed",
        ),
        (["--distributed", "--coordinator", "here"], "coordinator_address='here': must be host:port"),
        (["mesh=core"], "mesh='core': must be one of auto, cores, all; did you mean 'cores'?"),
    ],
)
def test_misuse_is_one_line_before_anything_is_written(command, tiny_file, tmp_path, options, message):
    result = command("run", tiny_file, *options)
    assert result.exit_code == 2
    assert result.stderr == f"fedjax-drag: error: {message}\n"
    assert list(tmp_path.iterdir()) == [tiny_file]


GLOO = "UNKNOWN: Gloo all-reduce failed: [external/gloo/gloo/transport/tcp/pair.cc:538] Read error: Connection reset"
COORDINATION = "UNAVAILABLE: Failed to send RPC to coordination service. Either the leader task was preempted"
NCCL = "INTERNAL: NCCL operation ncclCommGetAsyncError failed: remote process exited"


@pytest.mark.parametrize("text", [GLOO, COORDINATION, NCCL])
def test_an_error_of_the_connection_means_another_process(monkeypatch, text):
    error = jax.errors.JaxRuntimeError(text)
    wrapped = OSError("in 'out'; put that right")
    wrapped.__cause__ = error
    assert not has_lost_a_process(error), "where there is no other"
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    assert has_lost_a_process(error)
    assert has_lost_a_process(wrapped)
    assert not has_lost_a_process(RuntimeError(text))
    assert not has_lost_a_process(jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory"))


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_the_other_process_says_what_to_do_when_one_ends(tiny, tmp_path, how):
    config, folder = tmp_path / "tiny.yaml", tmp_path / "out"
    config.write_text(yaml.safe_dump(tiny | {"rounds": 10**6, "eval_every": 100}))
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
    command = command_of(2, str(config), "--out", str(folder))
    settings = {
        "JAX_COMPILATION_CACHE_DIR": os.environ["FEDJAX_DRAG_TEST_CACHE"],
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    }
    first, second = (
        subprocess.Popen(
            [sys.executable, *map(str, command(number, port))],
            env=os.environ | settings,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    )
    try:
        metrics, end = folder / metrics_file.METRICS, time.monotonic() + 300
        while not (metrics.exists() and metrics.stat().st_size) and time.monotonic() < end:
            assert first.poll() is None
            time.sleep(0.2)
        second.send_signal(how)
        told = first.communicate(timeout=120)[1]
    finally:
        first.kill()
        second.kill()
        second.communicate()
    assert first.returncode == 1
    assert told.endswith("fedjax-drag: error: another process of this run ended; run all again with --resume\n")
