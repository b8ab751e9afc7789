import gzip
import hashlib
import lzma
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
from test_unpickle import Call, python2_pickle

from fedjax_drag.data.formats import locate
from fedjax_drag.data.sets import cifar

PACK = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}
SIZES = (20, 4)


def images(dataset, seed=0):
    """Images ``[24, 32, 32, 3]`` and labels ``[kinds, 24]``, those for training first."""
    rng = np.random.default_rng(seed)
    y = np.stack([rng.integers(0, num_classes, sum(SIZES)) for num_classes in dataset.num_classes])
    return rng.integers(0, 256, (sum(SIZES), 32, 32, 3), dtype=np.uint8), y


def contents(dataset, version, x, y, pickled=pickle.dumps):
    """The files of a small data set in the published format."""
    files = getattr(dataset, version)
    planes, result = x.transpose(0, 3, 1, 2).reshape(len(x), -1), {}
    cuts = np.cumsum([SIZES[0] // len(files[:-1])] * len(files[:-1]))
    for name, index in zip(files, np.split(np.arange(len(x)), cuts), strict=True):
        if version == "binary":
            result[name] = np.concatenate([y[:, index].T.astype(np.uint8), planes[index]], axis=1).tobytes()
        else:
            labels = dict(zip(dataset.keys, y[:, index].tolist(), strict=True))
            result[name] = pickled({"data": planes[index], **labels})
    return result


def small(dataset, *files):
    sums = {name: hashlib.sha256(data).hexdigest() for some in files for name, data in some.items()}
    return dataset._replace(num_images=SIZES, checksums=sums)


def write(folder, files, kind=""):
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / f"{name}{kind}").write_bytes(PACK[kind](data))
    return folder


def refused(dataset, folder, match):
    with pytest.raises(ValueError, match=match) as error:
        cifar.load_cifar(dataset, folder)
    assert "\n" not in str(error.value)
    assert str(error.value).startswith(str(folder))


def same(fed, x, y):
    np.testing.assert_array_equal(fed.train.x, x[:20])
    np.testing.assert_array_equal(fed.test.x, x[20:])
    np.testing.assert_array_equal(fed.train.y, y[:20])
    np.testing.assert_array_equal(fed.test.y, y[20:])


@pytest.mark.parametrize("kind", PACK)
@pytest.mark.parametrize("version", ["binary", "python"])
@pytest.mark.parametrize("dataset", [cifar.CIFAR10, cifar.CIFAR100], ids=lambda dataset: dataset.name)
def test_both_versions_load(tmp_path, dataset, version, kind):
    x, y = images(dataset)
    files = contents(dataset, version, x, y)
    folder = dataset.folders[0 if version == "binary" else 2]
    write(tmp_path / folder, files, kind)
    for place in (tmp_path, tmp_path / folder):
        fed = cifar.load_cifar(small(dataset, files), place)
        assert (fed.name, fed.num_classes, fed.input_shape) == (dataset.name, dataset.num_classes[-1], (32, 32, 3))
        assert fed.mean == dataset.mean
        same(fed, x, y[-1])


def test_coarse_labels_are_an_option(tmp_path):
    x, y = images(cifar.CIFAR100)
    files = contents(cifar.CIFAR100, "binary", x, y)
    fed = cifar.load_cifar(small(cifar.CIFAR100, files), write(tmp_path, files), coarse=True)
    assert (fed.name, fed.num_classes) == ("cifar100_coarse", 20)
    same(fed, x, y[0])
    with pytest.raises(ValueError, match="coarse=True: must be False: cifar10 has no coarse labels"):
        cifar.load_cifar(cifar.CIFAR10, tmp_path, coarse=True)


def test_batches_of_python_2(tmp_path):
    x, y = images(cifar.CIFAR10)
    files = contents(cifar.CIFAR10, "python", x, y, lambda entries: python2_pickle(entries["data"], entries["labels"]))
    same(cifar.load_cifar(small(cifar.CIFAR10, files), write(tmp_path, files)), x, y[0])


def test_the_binary_version_comes_first_and_missing_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"cifar10: not found in .*get its binary or Python version"):
        cifar.load_cifar(cifar.CIFAR10, tmp_path)
    x, y = images(cifar.CIFAR10)
    python = contents(cifar.CIFAR10, "python", x, y)
    write(tmp_path / "cifar-10-batches-py", python)
    (tmp_path / "cifar-10-batches-py/test_batch").unlink()
    with pytest.raises(FileNotFoundError, match="cifar-10-batches-py lacks test_batch "):
        cifar.load_cifar(cifar.CIFAR10, tmp_path)
    binary = contents(cifar.CIFAR10, "binary", 255 - x, y)
    write(tmp_path / "cifar10", binary)
    write(tmp_path / "cifar-10-batches-py", python)
    same(cifar.load_cifar(small(cifar.CIFAR10, binary, python), tmp_path), 255 - x, y[0])


@pytest.mark.parametrize("kind", PACK)
def test_wrong_binary_files_are_refused(tmp_path, kind):
    files = contents(cifar.CIFAR10, "binary", *images(cifar.CIFAR10))
    dataset, name = small(cifar.CIFAR10, files), "data_batch_3.bin"

    def folder(data):
        return write(tmp_path, files | {name: data}, kind)

    good = files[name]
    refused(dataset, folder(good[:-1]), f"{name}{kind}: truncated: 12291 bytes, but 4 images take 12292")
    refused(dataset, folder(good + b"\0"), "holds more than the 12,292 bytes")
    refused(dataset, folder(good[:-1] + bytes([good[-1] ^ 1])), f"{name}{kind}: not the published file of cifar10")
    dataset = dataset._replace(checksums={})
    refused(dataset, folder(b"\x0a" + good[1:]), rf"{name}{kind}: label 10 found: must be in \[0, 9\]")


def test_wrong_batches_are_refused(tmp_path):
    files = contents(cifar.CIFAR10, "python", *images(cifar.CIFAR10))
    dataset, name = small(cifar.CIFAR10, files), "data_batch_3"
    good = pickle.loads(files[name])

    def folder(**changes):
        return write(tmp_path, files | {name: pickle.dumps(good | changes)})

    refused(dataset, folder(labels=[0, 1, 2, 3]), f"{name}: not the published file of cifar10")
    dataset = dataset._replace(checksums={})
    pixels, message = good["data"], r"'data' must be an array uint8 of shape \(4, 3072\)"
    for data in (pixels[:-1], pixels[:, :-1], pixels.astype(np.int32), pixels.tolist(), None):
        refused(dataset, folder(data=data), message)
    for labels in ([0, 1, 2], [0, 1, 2, "3"], [0, 1, 2, 2**32], [0, 1, 2, -1], [0, 1, 2, 0.5], (0, 1, 2, 3), None):
        refused(dataset, folder(labels=labels), "'labels' must be a list of 4 labels")
    refused(dataset, folder(labels=[0, 1, 2, 10]), r"label 10 found: must be in \[0, 9\]")
    refused(dataset, folder(more="x" * 2_000_000), "holds more than")
    write(tmp_path, files | {name: b"\x80"})
    refused(dataset, tmp_path, f"{name}: not a pickle of plain data")


def test_a_batch_cannot_call_functions(tmp_path):
    files = contents(cifar.CIFAR10, "python", *images(cifar.CIFAR10))
    made = tmp_path / "made"
    files["data_batch_1"] = pickle.dumps({"data": Call(os.mkdir, str(made))}, 2)
    folder = write(tmp_path / "data", files)
    refused(small(cifar.CIFAR10), folder, r"data_batch_1: not a pickle of plain data and arrays: it names posix\.mkdir")
    assert not made.exists()


MEASURE = """
import resource, time
from fedjax_drag.data import cifar
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
start = time.process_time()
fed = cifar.load_cifar(cifar.CIFAR10)
print(time.process_time() - start, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""
"""Prints seconds of processor time, and megabytes that the load adds to the peak of memory on Linux."""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is measured in other units")
def test_published_cifar10(real, tmp_path, monkeypatch):
    """Also what it costs: the first load unpacks and verifies, the second finds the arrays in the cache."""
    real(locate.find, "cifar10", cifar.CIFAR10.binary, cifar.CIFAR10.folders, None, "get them and")
    monkeypatch.setenv("FEDJAX_DRAG_CACHE", str(tmp_path))
    megabytes = 60_000 * 32 * 32 * 3 / 2**20
    for seconds in (60, 2):
        printed = subprocess.check_output([sys.executable, "-c", MEASURE], timeout=600)
        taken, peak = map(float, printed.split())
        assert taken < seconds
        assert peak < 2 * megabytes
    fed = cifar.load_cifar(cifar.CIFAR10)
    np.testing.assert_array_equal(np.bincount(fed.train.y), [5000] * 10)
    np.testing.assert_array_equal(np.bincount(fed.test.y), [1000] * 10)
    assert fed.train.x.shape == (50_000, 32, 32, 3)
    assert fed.test.x.shape == (10_000, 32, 32, 3)
    for channel in range(3):
        scaled = fed.train.x[..., channel].astype(np.float32) / 255
        np.testing.assert_allclose(scaled.mean(dtype=np.float64), fed.mean[channel], atol=1e-4)
        np.testing.assert_allclose(scaled.std(dtype=np.float64), fed.std[channel], atol=1e-4)
