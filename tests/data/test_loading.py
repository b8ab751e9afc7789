import os
import subprocess
import sys

import numpy as np
import pytest

from fedjax_drag.data import DATASETS, load, loading, synthetic
from fedjax_drag.data.sets import tfds


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


def test_unknown_names_are_refused_with_the_nearest():
    with pytest.raises(ValueError, match=r"name='fashion-mnist': must be one of .*; did you mean 'fashion_mnist'\?"):
        load("fashion-mnist")
    with pytest.raises(ValueError, match="source='network': must be one of auto, files, tfds"):
        load("digits", source="network")
    with pytest.raises(ValueError, match=r"name='adult': must be one of .*mnist"):
        load("adult", source="tfds")


def test_every_known_data_set_has_a_description():
    names = [name for name, _ in DATASETS]
    promised = "digits synthetic mnist fashion_mnist emnist_balanced femnist svhn cifar10 cifar100 adult shakespeare"
    assert set(promised.split()) <= set(names)
    assert len(set(names)) == len(names)
    assert all(text and "\n" not in text for _, text in DATASETS)
    assert set(tfds.DATASETS) <= set(names)


@pytest.mark.parametrize("name", [name for name, _ in DATASETS if loading.SOURCES[name].find])
def test_missing_files_are_one_line(name, tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tfds"))
    assert loading.where(name, tmp_path) == ""
    with pytest.raises(FileNotFoundError) as error:
        load(name, data_dir=tmp_path)
    message = str(error.value)
    assert "\n" not in message
    assert name.removesuffix("_coarse").removesuffix("_hours").removesuffix("_tokens") in message
    assert str(tmp_path) in message
    assert (f"fedjax-drag data prepare {name}" in message) == (name in tfds.DATASETS)
    if name in tfds.DATASETS:
        with pytest.raises(FileNotFoundError, match=r"^\w+: not prepared in [^\n]*$"):
            load(name, source="tfds")


def test_where_names_the_location_of_the_files(tmp_path):
    assert loading.where("digits") == loading.where("synthetic", tmp_path) == "always"
    folder = tmp_path / "FashionMNIST" / "raw"
    folder.mkdir(parents=True)
    for part in ("train", "t10k"):
        for kind in ("images-idx3-ubyte", "labels-idx1-ubyte.gz"):
            (folder / f"{part}-{kind}").touch()
    assert loading.where("fashion_mnist", tmp_path) == str(folder)
    (tmp_path / "tinyshakespeare.txt").touch()
    assert loading.where("shakespeare", tmp_path) == str(tmp_path / "tinyshakespeare.txt")


def test_a_damaged_file_is_an_error_and_not_replaced_by_another_source(tmp_path):
    for part in ("train", "t10k"):
        for kind in ("images-idx3-ubyte", "labels-idx1-ubyte"):
            (tmp_path / f"{part}-{kind}").write_bytes(b"none such")
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte: not an IDX file"):
        load("mnist", data_dir=tmp_path)


@pytest.mark.thorough
def test_data_need_no_device_and_no_slow_import():
    code = """
import sys
from fedjax_drag import data
slow = {"sklearn", "matplotlib", "scipy", "platformdirs", "tensorflow_datasets"} & set(sys.modules)
assert not slow, slow
fed = data.partition.iid(data.load("digits"), 3)
str(fed.skew_report())
"""
    environment = os.environ | {"JAX_PLATFORMS": "none_such"}  # the first use of a device would fail
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120, env=environment)
