"""``fedjax-drag run --distributed``: several processes, one results folder."""

import json

import numpy as np
import pytest
import yaml
from processes import together

from fedjax_drag.experiment import results
from fedjax_drag.experiment.run import run


def command_of(num_processes, *arguments):
    main = "from fedjax_drag.experiment.cli import main; main()"

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
    assert len(json.loads((folder / results.ENVIRONMENT).read_text())["devices"]) == 4
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
