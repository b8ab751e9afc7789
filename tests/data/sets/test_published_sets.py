"""Data sets of images in published files."""

import hashlib
import os
import pickle
import struct
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from data_files import PACK, digests, idx, mat, refused, same, small, write
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_drag.data import load, loading
from fedjax_drag.data.formats import locate
from fedjax_drag.data.sets import cifar, mnist, svhn
from fedjax_drag.data.sets.published import Published

FORMS = [
    (dataset, version)
    for dataset in loading.SOURCES.values()
    if isinstance(dataset, Published) and dataset is not mnist.BYMERGE_TEST
    for version in range(len(dataset.files))
]
each = pytest.mark.parametrize(
    ("dataset", "version"), FORMS, ids=[f"{dataset.name}-{version}" for dataset, version in FORMS]
)


def damaged(case, name, change, kind="", published=False):
    """A small data set with a file that ``change`` makes of its content, and whether that has its checksum."""
    files = case.files | {name: change(case.files[name])}
    return case.dataset._replace(checksums=digests(files) if published else case.dataset.checksums), files, kind


@each
def test_files_load_from_every_folder_however_packed(tmp_path, monkeypatch, dataset, version):
    monkeypatch.setattr(locate, "_SYSTEM", tmp_path / "system")
    case = small(dataset, version)
    for number, (kind, folder) in enumerate((kind, folder) for kind in PACK for folder in ("", *dataset.folders)):
        root = tmp_path / str(number)
        write(root / folder, case.files, kind)
        monkeypatch.setenv("FEDJAX_DRAG_DATA", str(tmp_path / "elsewhere" if number % 2 else root))
        fed = case.dataset.load(root if number % 2 else None)
        assert (fed.name, fed.num_classes, fed.mean, fed.std) == (
            *(dataset.name, dataset.num_classes),
            *(dataset.mean, dataset.std),
        )
        same(fed, case)


@each
def test_other_files_than_the_published_are_refused(tmp_path, dataset, version):
    """Also where a single pixel differs. Only CIFAR-100's binary version and EMNIST have no published checksums."""
    case = small(dataset, version)
    assert dataset.name.startswith(("emnist", "cifar100")) or set(case.files) <= set(dataset.checksums)
    for place, name in enumerate(case.files):
        changed, files, kind = damaged(case, name, lambda data: data[:-1] + bytes([data[-1] ^ 1]), [*PACK][place % 3])
        folder = write(tmp_path / str(place), files, kind)
        message = rf"{name}{kind}: (not the published file of {dataset.name}: SHA-256|label)"
        refused(message, changed.load, folder, start=folder)


@each
def test_missing_files_are_one_line(tmp_path, dataset, version):
    *rest, last = small(dataset, version).files.items()
    folder = write(tmp_path / dataset.folders[0], dict(rest), ".gz")
    refused(
        rf"not found .*{folder} lacks {last[0]} \(plain.*{dataset.advice}",
        dataset.load,
        tmp_path,
        kind=FileNotFoundError,
    )


def test_the_first_version_and_the_folder_of_its_name_come_first(tmp_path):
    """The file names of data sets are the same: the place itself may hold another one."""
    first, other = small(cifar.CIFAR10), small(cifar.CIFAR10, 1)
    write(tmp_path / "cifar10", other.files)
    write(tmp_path, dict.fromkeys(first.files, b"another data set"))
    write(tmp_path / "cifar-10-batches-bin", first.files)
    same(first.dataset.load(tmp_path), first)


def test_a_point_before_the_type_is_a_spelling_of_the_name(tmp_path):
    case = small(mnist.MNIST)
    for kind in ("", ".gz"):
        write(tmp_path, {name.replace("-idx", ".idx"): data for name, data in case.files.items()}, kind)
        same(case.dataset.load(tmp_path), case)
    write(tmp_path, {"t10k-images.idx3-ubyte": idx(case.x[..., 0])})
    refused("t10k-labels.idx1-ubyte: 4 labels, but t10k-images.idx3-ubyte beside", case.dataset.load, tmp_path)


def test_labels_that_a_set_does_not_have_are_refused(tmp_path):
    def relabelled(dataset, version, name, place, label):
        case = small(dataset, version)
        changed, files, kind = damaged(
            case, name, lambda data: data[:place] + bytes([label]) + data[place + 1 :], published=True
        )
        refused(rf"{name}: label {label} found: must be in \[", changed.load, write(tmp_path, files, kind))

    letters = mnist.EMNIST["emnist_letters"]  # from 1
    for label in (0, 27):
        relabelled(letters, 0, letters.files[0][1], 9, label)
    relabelled(mnist.MNIST, 0, "t10k-labels-idx1-ubyte", 11, 10)
    relabelled(cifar.CIFAR10, 0, "data_batch_3.bin", 3073, 10)
    relabelled(cifar.CIFAR100, 0, "train.bin", 1, 100)
    relabelled(cifar.CIFAR100_COARSE, 0, "train.bin", 0, 20)


@pytest.mark.parametrize("kind", PACK)
def test_binary_files_of_another_size_are_refused(tmp_path, kind):
    case, name = small(cifar.CIFAR10), "data_batch_3.bin"
    for change, message in (
        (lambda data: data[:-1], f"{name}{kind}: truncated: 12291 bytes, but 4 images take 12292"),
        (lambda data: data + b"\0", f"{name}{kind}: holds more than the 12,292 bytes"),
    ):
        changed, files, _ = damaged(case, name, change)
        refused(message, changed.load, write(tmp_path, files, kind), start=tmp_path)


class Call:
    """Pickled as a call of something."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def test_a_batch_calls_nothing(tmp_path):
    """Even one that has the published checksum, which no other file than the published one has."""
    case, made = small(cifar.CIFAR10, 1), tmp_path / "made"
    assert set(case.files) <= set(cifar.CIFAR10.checksums)
    assert set(cifar.CIFAR100.files[1]) <= set(cifar.CIFAR100.checksums)
    for call, name in (
        (Call(os.mkdir, str(made)), r"posix\.mkdir"),
        (Call(eval, f"open({str(made)!r}, 'w')"), r"__builtin__\.eval"),
        (Call(np.load, str(made)), r"numpy\.load"),
    ):
        attack = pickle.dumps({"data": call}, 2)
        changed, files, _ = damaged(case, "data_batch_1", lambda _, attack=attack: attack)
        folder = write(tmp_path / "data", files)
        refused("not the published file", changed.load, folder, start=folder)
        changed = changed._replace(checksums=digests(files))
        message = f"data_batch_1: not a pickle of plain data and arrays: it names {name}; get it again"
        refused(message, changed.load, folder, start=folder)
    assert not made.exists()
    pickle.loads(pickle.dumps(Call(os.mkdir, str(made)), 2))
    assert made.exists()  # an ordinary unpickler is taken in


def test_matlab_files_in_either_packing_and_type_of_labels(tmp_path, monkeypatch):
    case = small(svhn.SVHN)
    files = {
        name: mat(x, y, packed=False)
        for name, x, y in zip(case.files, np.split(case.x, [20]), np.split(case.y, [20]), strict=True)
    }
    same(case.dataset._replace(checksums=digests(files, "md5")).load(write(tmp_path / "plain", files)), case)
    monkeypatch.setattr("scipy.io.loadmat", None)  # what is not published is not parsed
    refused("not the published file of svhn: SHA-256", case.dataset.load, write(tmp_path, files), start=tmp_path)


def test_one_part_of_emnist_is_split_by_class(tmp_path):
    case = small(mnist.BYMERGE_TEST)
    y = np.repeat([0, 1, 2], [70, 13, 1])[np.random.default_rng(1).permutation(84)]
    x = np.random.default_rng(2).integers(0, 256, (84, 28, 28), dtype=np.uint8)
    files = dict(zip(case.files, (idx(x), idx(y.astype(np.uint8))), strict=True))
    refused("not the published file of emnist_bymerge_test", mnist.BYMERGE_TEST.load, write(tmp_path, files))
    record = mnist.BYMERGE_TEST._replace(checksums={})
    fed, again = (record.load(write(tmp_path / part, files)) for part in "ab")
    np.testing.assert_array_equal(np.bincount(fed.test.y, minlength=3), [10, 2, 0])
    np.testing.assert_array_equal(np.bincount(fed.train.y), [60, 11, 1])
    np.testing.assert_array_equal(fed.test.x, again.test.x)
    place = {image.tobytes(): index for index, image in enumerate(x.transpose(0, 2, 1))}
    for part in (fed.train, fed.test):
        places = [place.pop(image.tobytes()) for image in part.x]
        assert places == sorted(places)
        np.testing.assert_array_equal(part.y, y[places])
    assert not place


IMAGES = np.arange(3 * 4 * 5, dtype=np.uint8).reshape(3, 4, 5)
IDX = idx(IMAGES)


@pytest.fixture(params=PACK)
def read(request, tmp_path):
    """Reads bytes as an IDX file of three axes, plain or packed."""
    return lambda data: mnist.read_idx(write(tmp_path, {"file": data}, request.param) / f"file{request.param}", 3)[0]


def test_idx_values_come_back_and_damage_of_their_structure_is_refused(read, tmp_path):
    np.testing.assert_array_equal(read(IDX), IMAGES)
    for length in range(len(IDX)):
        refused("truncated" if length >= 4 else "not an IDX file", read, IDX[:length], start=tmp_path)
    for position in range(16):
        for bit in range(8):
            damaged = bytearray(IDX)
            damaged[position] ^= 1 << bit
            refused("", read, bytes(damaged), start=tmp_path)
    for data, message in (
        (IDX + b"\0", "bytes left over"),
        (IDX * 2, "bytes left over"),
        (b"", "not an IDX file"),
        (b"<html>not found</html>", "not an IDX file"),
        (idx(IMAGES[0]), "starts with 0x00000802, not 0x00000803"),
        (bytes((0, 0, 9, 3)) + IDX[4:], "starts with 0x00000903"),
        (idx(IMAGES[:0]), "empty"),
    ):
        refused(message, read, data, start=tmp_path)


@pytest.mark.parametrize("kind", PACK)
def test_sizes_in_an_idx_header_are_not_trusted(tmp_path, kind):
    """Nothing is allocated for what the file does not hold."""
    for shape in ((2**32 - 1,) * 3, (60_000, 2**16, 2**16), (1 << 10,) * 3):
        data = bytes((0, 0, 8, 3)) + struct.pack(">3I", *shape) + bytes(1000)
        path = write(tmp_path, {"file": data}, kind) / f"file{kind}"
        tracemalloc.start()
        refused("truncated: header declares shape .*, but 1000 follow it", mnist.read_idx, path, 3)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 16 << 20


@given(st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_arbitrary_bytes_are_refused_unless_they_are_an_idx_file(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("idx") / "file"
    path.write_bytes(data)
    try:
        values, _ = mnist.read_idx(path, 1)
    except ValueError:
        return
    assert idx(values) == data


def statistics(fed):
    """Mean and standard deviation of the training pixels of each channel."""
    levels = np.arange(256) / 255
    shares = [np.bincount(fed.train.x[..., c].ravel(), minlength=256) for c in range(fed.input_shape[-1])]
    means = [share @ levels / share.sum() for share in shares]
    pairs = zip(shares, means, strict=True)
    return means, [np.sqrt(share @ (levels - mean) ** 2 / share.sum()) for share, mean in pairs]


MNIST_COUNTS = (
    [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
    [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("name", "train_counts", "test_counts"),
    [
        ("mnist", *MNIST_COUNTS),
        ("fashion_mnist", [6000] * 10, [1000] * 10),
        pytest.param("cifar10", [5000] * 10, [1000] * 10, marks=pytest.mark.slow),
        pytest.param("svhn", None, None, marks=pytest.mark.slow),
    ],
)
def test_published_files(name, train_counts, test_counts, real):
    fed = real(load, name)
    if train_counts is not None:
        np.testing.assert_array_equal(np.bincount(fed.train.y), train_counts)
        np.testing.assert_array_equal(np.bincount(fed.test.y), test_counts)
    np.testing.assert_allclose(statistics(fed), (fed.mean, fed.std), atol=1e-4 if train_counts else 1e-3)


MEASURE = """
import resource, time
from fedjax_drag.data.sets import cifar
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
start = time.process_time()
fed = cifar.CIFAR10.load()
print(time.process_time() - start, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""
"""Prints seconds of processor time, and megabytes that the load adds to the peak of memory on Linux."""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is measured in other units")
def test_what_cifar10_costs(real):
    """The first load unpacks and verifies, the second finds the arrays in the cache."""
    real(locate.find, "cifar10", cifar.CIFAR10.files[:1], cifar.CIFAR10.folders, None, "get them and")
    megabytes = 60_000 * 32 * 32 * 3 / 2**20
    for seconds in (60, 2):
        printed = subprocess.check_output([sys.executable, "-c", MEASURE], timeout=600)
        taken, peak = map(float, printed.split())
        assert taken < seconds
        assert peak < 2 * megabytes


def correlations(x, other_x, y, other_y):
    """Of the mean images of the ten digits in two sets."""
    pairs = ((x[y == digit].mean(axis=0), other_x[other_y == digit].mean(axis=0)) for digit in range(10))
    return np.array([np.corrcoef(mean.ravel(), other.ravel())[0, 1] for mean, other in pairs])


@pytest.mark.thorough
def test_published_bymerge_test(real):
    fed = real(mnist.BYMERGE_TEST.load)
    assert (len(fed.train.y), len(fed.test.y)) == mnist.BYMERGE_TEST.sizes == (99_707, 16_616)
    train, test = (np.bincount(part.y, minlength=47) for part in (fed.train, fed.test))
    np.testing.assert_array_equal(test, np.rint((train + test) / 7))
    counts = "5745 6400 5765 5827 5498 5326 5787 5873 5655 5651 1058 652 2156 735 860 1524 430 576 2413 912 809 3358"
    counts += " 1984 1351 4690 1812 415 835 3899 1630 2528 1223 1262 897 1195 925 1668 932 1708 4066 426 583 1535 1872"
    np.testing.assert_array_equal(train + test, [*map(int, counts.split()), 533, 2365, 2979])
    np.testing.assert_allclose(statistics(fed), (fed.mean, fed.std), atol=1e-4)
    assert hashlib.sha256(fed.test.y.tobytes()).hexdigest()[:8] == "a38c57ca"  # the same split everywhere
    digits = real(mnist.MNIST.load)
    upright = correlations(fed.train.x, digits.train.x, fed.train.y, digits.train.y)
    transposed = correlations(fed.train.x.transpose(0, 2, 1, 3), digits.train.x, fed.train.y, digits.train.y)
    assert (upright > transposed).all()
    assert upright.mean() > 0.7
