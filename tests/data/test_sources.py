import inspect
import os
import subprocess
import sys

import numpy as np
import pytest

from fedjax_drag.data import DATASETS, load, synthetic


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
    with pytest.raises(ValueError, match="source='network': must be one of auto, files"):
        load("digits", source="network")


def test_every_known_data_set_has_a_description():
    assert [name for name, _ in DATASETS] == ["digits", "synthetic", "fashion_mnist", "mnist"]
    assert all(text and "\n" not in text for _, text in DATASETS)
    assert all(name in inspect.getdoc(load) for name, _ in DATASETS)


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
