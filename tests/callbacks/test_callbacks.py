"""Each logging tool's own files hold what it was given."""

import json
import struct
import sys
import time

import numpy as np
import pytest

from fedjax_drag import callbacks
from fedjax_drag.callbacks import Logger
from fedjax_drag.simulation import Evaluation

CONFIG = {"rounds": 4, "aggregator": {"name": "drag", "c": 0.25}}
SCALARS = ("test_accuracy", "train_loss", "num_rejected")
COSINES = np.array([0.5, -0.25, np.nan, 1.0], np.float32)


def evaluation(number):
    """Of round ``number``, with what a history row may hold."""
    metrics = {
        "round": number,
        "test_accuracy": np.float32(number / 8),
        "train_loss": np.float32(np.nan),
        "num_rejected": np.int32(1),
        "cosine": COSINES,
        "weight": np.zeros(0, np.float32),
    }
    return Evaluation(number, 4, metrics, state=None)  # pyright: ignore[reportArgumentType]


def handed_on(logger):
    with logger:
        for number in (2, 4):
            logger(evaluation(number))


def test_scalars_and_the_finite_entries_of_vectors_are_sent():
    written, ended = [], []
    handed_on(Logger(lambda *what: written.append(what), ended.append))
    number, scalars, vectors = written[1]
    assert number == 4
    assert scalars == pytest.approx({"test_accuracy": 0.5, "train_loss": np.nan, "num_rejected": 1.0}, nan_ok=True)
    assert {name: values.tolist() for name, values in vectors.items()} == {"cosine": [0.5, -0.25, 1.0]}
    assert ended == [True]


def test_an_exception_in_the_block_is_a_failure():
    ended = []
    with pytest.raises(KeyboardInterrupt), Logger(lambda *_: None, ended.append):
        raise KeyboardInterrupt
    assert ended == [False]


@pytest.mark.parametrize(
    ("tool", "module", "make"),
    [
        ("tensorboard", "tensorboardX", lambda folder: callbacks.tensorboard(folder)),
        ("wandb", "wandb", lambda folder: callbacks.wandb(folder)),
        ("mlflow", "mlflow", lambda folder: callbacks.mlflow()),
    ],
)
def test_a_missing_package_is_one_line_with_the_extra(tool, module, make, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError) as caught:
        make(tmp_path)
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"{tool}: ")
    assert line.endswith(f"pip install 'fedjax-drag[{tool}]'")


def events(path):
    """An event file's own frames: length, its checksum, an event, its checksum."""
    from tensorboardX.proto.event_pb2 import Event

    data, begin = path.read_bytes(), 0
    while begin < len(data):
        (length,) = struct.unpack_from("<Q", data, begin)
        yield Event.FromString(data[begin + 12 : begin + 12 + length])
        begin += 16 + length


def test_tensorboard_takes_numbers_of_any_size(tmp_path):
    pytest.importorskip("tensorboardX")
    write = callbacks.tensorboard(tmp_path)._write
    write(1, {}, {"score": np.array([1e21, 2e21, -np.inf, 1.0])})


def test_tensorboard_events_are_read_back(tmp_path):
    handed_on(callbacks.tensorboard(tmp_path, "run", CONFIG))
    (path,) = (tmp_path / "run").iterdir()
    values = [value for event in events(path) for value in event.summary.value]
    accuracies = [value.simple_value for value in values if value.tag == "test_accuracy"]
    assert accuracies == [0.25, 0.5]
    assert {value.tag for value in values if value.HasField("simple_value")} == set(SCALARS)
    histograms = [value.histo for value in values if value.HasField("histo")]
    assert [(histogram.num, histogram.sum, histogram.max) for histogram in histograms] == [(3, 1.25, 1.0)] * 2
    assert sum("drag" in str(value.tensor) for value in values) == 1, "the configuration"


def history(path):
    """The rows of a run that wandb keeps on disk: a LevelDB log, blocks of pieces (checksum, length, kind, bytes)."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, begin, whole, rows = path.read_bytes(), 7, b"", []
    while begin < len(data):
        if 32768 - begin % 32768 < 7:  # too little of a block for another piece
            begin += 32768 - begin % 32768
            continue
        length, kind = struct.unpack_from("<HB", data, begin + 4)
        whole += data[begin + 7 : begin + 7 + length]
        begin += 7 + length
        if kind in (1, 4):  # all of a record, or its last piece
            row = Record.FromString(whole).history.item
            rows += (
                [{item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in row}] if row else []
            )
            whole = b""
    return rows


@pytest.mark.slow
def test_wandb_offline(tmp_path, monkeypatch):
    import wandb

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    handed_on(callbacks.wandb(tmp_path, "run", CONFIG))
    (path,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    rows, deadline = history(path), time.monotonic() + 30
    while len(rows) < 2 and time.monotonic() < deadline:  # wandb's own process writes them, on a busy machine later
        time.sleep(0.1)
        rows = history(path)
    assert [(row["_step"], row["test_accuracy"], row["cosine._type"]) for row in rows] == [
        (2, 0.25, "histogram"),
        (4, 0.5, "histogram"),
    ]
    assert sum(rows[0]["cosine.values"]) == 3
    wandb.teardown()  # forgets the mode


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy:DeprecationWarning")  # in MLflow, by SQLAlchemy 2.1
def test_mlflow_without_a_variable_writes_a_database_in_the_current_folder(tmp_path, monkeypatch):
    import mlflow

    for variable in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_ALLOW_FILE_STORE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(tmp_path)
    handed_on(callbacks.mlflow("run", CONFIG))
    assert [path.name for path in tmp_path.iterdir()] == ["mlflow.db"]
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    (experiment,) = [one for one in client.search_experiments() if one.name == "fedjax-drag"]
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("run", "FINISHED")
    assert run.data.params == {"rounds": "4", "aggregator.name": "drag", "aggregator.c": "0.25"}
    history = client.get_metric_history(run.info.run_id, "test_accuracy")
    assert [(point.step, point.value) for point in history] == [(2, 0.25), (4, 0.5)]
    assert set(run.data.metrics) == set(SCALARS)
