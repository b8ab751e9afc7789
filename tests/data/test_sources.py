import gzip
import hashlib
import inspect
import os
import struct
import subprocess
import sys

import numpy as np
import pytest

from fedjax_drag.data import DATASETS, files, load, synthetic

NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def idx_bytes(values):
    return bytes((0, 0, 8, values.ndim)) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def small_contents():
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (n, 4, 4), dtype=np.uint8) for n in (20, 10)]
    labels = [rng.integers(0, 10, n, dtype=np.uint8) for n in (20, 10)]
    return dict(zip(NAMES, map(idx_bytes, (images[0], labels[0], images[1], labels[1])), strict=True))


CONTENTS = small_contents()
SMALL = files.MNIST._replace(sha256={name: hashlib.sha256(data).hexdigest() for name, data in CONTENTS.items()})
"""A data set like MNIST, but small."""


def write(folder, contents=CONTENTS, compress=True):
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in contents.items():
        path = folder / (f"{name}.gz" if compress else name)
        path.write_bytes(gzip.compress(data) if compress else data)
    return folder


def refused(folder, match):
    with pytest.raises(ValueError, match=match) as error:
        files.load_idx(SMALL, folder)
    assert "\n" not in str(error.value)
    assert str(error.value).startswith(str(folder))


def test_digits():
    fed = load("digits")
    assert fed.train.x.shape == (1442, 8, 8, 1)
    assert fed.test.x.shape == (355, 8, 8, 1)
    assert fed.train.x.dtype == np.uint8
    assert fed.train.x.max() == 255
    assert fed.train.y.dtype == np.int32
    train, test = (np.bincount(part.y, minlength=10) for part in (fed.train, fed.test))
    np.testing.assert_array_equal(test, (train + test) // 5)
    images = {image.tobytes() for image in fed.train.x}
    assert not images & {image.tobytes() for image in fed.test.x}
    scaled = np.asarray(fed.preprocess(fed.train.x))
    assert abs(scaled.mean()) < 1e-3
    assert abs(scaled.std() - 1) < 1e-3


def test_synthetic_is_deterministic_and_as_hard_as_documented():
    fed, again = load("synthetic"), synthetic()
    np.testing.assert_array_equal(fed.train.x, again.train.x)
    assert not np.array_equal(fed.train.x, synthetic(seed=1).train.x)
    assert fed.train.x.shape == (10_000, 32)
    assert fed.train.x.dtype == np.float32
    np.testing.assert_array_equal(np.bincount(fed.train.y), 1000)
    centres = np.stack([fed.train.x[fed.train.y == label].mean(axis=0) for label in range(10)])
    nearest = ((fed.test.x[:, None] - centres) ** 2).sum(axis=-1).argmin(axis=1)
    assert abs((nearest == fed.test.y).mean() - 0.94) < 0.02
    assert abs(np.asarray(fed.preprocess(fed.train.x)).std() - 1) < 0.05


def test_synthetic_takes_arguments():
    fed = synthetic(num_classes=3, num_examples=31, num_test_examples=7, dim=2)
    assert (fed.num_classes, fed.input_shape, len(fed.train.y), len(fed.test.y)) == (3, (2,), 31, 7)
    counts = np.bincount(fed.train.y)
    assert counts.max() - counts.min() <= 1
    for arguments in ({"num_classes": 1}, {"num_examples": 9}, {"dim": 0}, {"separation": -1}, {"seed": -1}):
        with pytest.raises(ValueError, match=f"{next(iter(arguments))}={next(iter(arguments.values()))}"):
            synthetic(**arguments)


@pytest.mark.parametrize("where", ["", "mnist", "MNIST/raw"])
@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize("how", ["data_dir", "environment"])
def test_files_are_found(tmp_path, monkeypatch, where, compress, how):
    write(tmp_path / where, compress=compress)
    monkeypatch.setenv("FEDJAX_DRAG_DATA", str(tmp_path if how == "environment" else tmp_path / "elsewhere"))
    fed = files.load_idx(SMALL, tmp_path if how == "data_dir" else None)
    assert fed.input_shape == (4, 4, 1)
    assert fed.train.x.dtype == np.uint8
    assert fed.train.x.tobytes() == CONTENTS[NAMES[0]][16:]
    assert fed.train.y.dtype == np.int32
    assert fed.test.y.astype(np.uint8).tobytes() == CONTENTS[NAMES[3]][8:]


def test_a_folder_with_its_name_is_preferred(tmp_path):
    """The place itself may hold another data set: the file names are the same."""
    write(tmp_path / "mnist")
    write(tmp_path, dict.fromkeys(NAMES, b"another data set"))
    assert files.load_idx(SMALL, tmp_path).num_classes == 10


def test_what_is_missing_is_one_line_that_says_what_to_do(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError) as error:
        load("fashion_mnist", data_dir=tmp_path)
    message = str(error.value)
    assert "\n" not in message
    for part in (str(tmp_path / "fashion-mnist"), "dataset-fashion-mnist", "data_dir", "FEDJAX_DRAG_DATA"):
        assert part in message
    assert "/usr/share" not in message  # not looked in, because data_dir was given
    monkeypatch.setenv("FEDJAX_DRAG_DATA", str(tmp_path))
    monkeypatch.setattr(files, "_SYSTEM", tmp_path / "system")
    with pytest.raises(FileNotFoundError, match=str(tmp_path / "system" / "mnist")):
        load("mnist")
    monkeypatch.delenv("FEDJAX_DRAG_DATA")
    with pytest.raises(FileNotFoundError, match="mnist: not found"):
        load("mnist")


def test_an_incomplete_folder_is_named(tmp_path):
    (write(tmp_path) / f"{NAMES[1]}.gz").unlink()
    with pytest.raises(FileNotFoundError, match=f"{tmp_path} lacks {NAMES[1]}"):
        files.load_idx(SMALL, tmp_path)


@pytest.mark.parametrize("compress", [True, False])
def test_wrong_files_are_refused(tmp_path, compress):
    def folder(**changed):
        return write(tmp_path, CONTENTS | {NAMES[int(k[1:])]: v for k, v in changed.items()}, compress)

    images, labels = CONTENTS[NAMES[0]], CONTENTS[NAMES[1]]
    refused(folder(f0=images[:-1]), "truncated")
    refused(folder(f0=images + b"\0"), "bytes left over")
    refused(folder(f0=labels), "not an IDX file")
    refused(folder(f1=CONTENTS[NAMES[3]]), "10 labels, but .* has 20 images")
    refused(folder(f1=labels[:-1] + b"\x0a"), r"label 10 found: must be in \[0, 9\]")
    refused(folder(f0=images[:-1] + bytes([images[-1] ^ 1])), f"{NAMES[0]}.*not the published file of mnist: SHA-256")
    refused(folder(f3=CONTENTS[NAMES[3]][:-1] + b"\0"), f"{NAMES[3]}.*not the published file")


def test_damaged_gzip_is_refused(tmp_path):
    path = write(tmp_path) / f"{NAMES[0]}.gz"
    path.write_bytes(path.read_bytes()[:-9])
    refused(tmp_path, "damaged gzip")


def test_unknown_names_are_refused_with_the_nearest():
    with pytest.raises(ValueError, match=r"name='fashion-mnist': must be one of .*; did you mean 'fashion_mnist'\?"):
        load("fashion-mnist")
    with pytest.raises(ValueError, match="source='network': must be one of auto, files"):
        load("digits", source="network")


def test_every_known_data_set_has_a_description():
    assert [name for name, _ in DATASETS] == ["digits", "synthetic", "fashion_mnist", "mnist"]
    assert all(text and "\n" not in text for _, text in DATASETS)
    assert all(name in inspect.getdoc(load) for name, _ in DATASETS)


@pytest.mark.parametrize(
    ("name", "train_counts", "test_counts"),
    [
        ("fashion_mnist", [6000] * 10, [1000] * 10),
        (
            "mnist",
            [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
            [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
        ),
    ],
)
def test_published_files_load(name, train_counts, test_counts):
    try:
        fed = load(name)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    assert fed.train.x.shape == (60_000, 28, 28, 1)
    np.testing.assert_array_equal(np.bincount(fed.train.y), train_counts)
    np.testing.assert_array_equal(np.bincount(fed.test.y), test_counts)
    pixels = fed.train.x[:, :, :, 0]
    np.testing.assert_allclose(pixels.mean(dtype=np.float64) / 255, fed.mean[0], atol=1e-4)
    np.testing.assert_allclose(pixels.std(dtype=np.float64) / 255, fed.std[0], atol=1e-4)


def test_data_need_no_device_and_no_slow_import():
    code = """
import sys
from fedjax_drag import data
slow = {"sklearn", "matplotlib"} & set(sys.modules)
assert not slow, slow
fed = data.partition.iid(data.load("digits"), 3)
str(fed.skew_report())
"""
    environment = os.environ | {"JAX_PLATFORMS": "none_such"}  # the first use of a device would fail
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120, env=environment)
