import json
import os
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import test_cifar
import test_emnist
import test_svhn

from fedjax_drag.data import preparing
from fedjax_drag.data.formats import files, locate
from fedjax_drag.data.sets import cifar, emnist, svhn, tfds

SIZES = (20, 4)


@pytest.fixture
def library():
    return tfds.library()


def published(root, name, version="9.8.7", **info):
    """What tells that a version is prepared, without its examples."""
    folder = root / tfds.DATASETS[name].path / version
    folder.mkdir(parents=True)
    (folder / "dataset_info.json").write_text(json.dumps(info))
    return folder


def refused(call, match, kind=ValueError):
    with pytest.raises(kind, match=match) as error:
        call()
    assert "\n" not in str(error.value)
    return str(error.value)


def originals(name, folder, monkeypatch):
    """Writes a small data set as original files, and has it expected in place of the published one."""
    if name.startswith("cifar"):
        record = {"cifar10": cifar.CIFAR10, "cifar100": cifar.CIFAR100}[name]
        x, y = test_cifar.images(record)
        content = test_cifar.contents(record, "binary", x, y)
        test_cifar.write(folder, content)
        record = test_cifar.small(record, content)
        monkeypatch.setattr(preparing, "CIFAR100", record)
        change = {"sizes": SIZES, "from_files": partial(cifar.load_cifar, record)}
    elif name == "svhn":
        test_svhn.write(folder)
        change = {"sizes": (30, 12), "from_files": partial(svhn.load_svhn, test_svhn.SMALL)}
    else:
        record = {**emnist.EMNIST, "mnist": files.MNIST, "fashion_mnist": files.FASHION_MNIST}[name]._replace(sha256={})
        y = np.arange(30) % record.num_classes
        test_emnist.write(folder, record, test_emnist.images(30), y + record.first_label)
        # TFDS has fewer of EMNIST Letters than the files
        change = {"sizes": (20, 10), "from_files": partial(files.load_idx, record)}
    monkeypatch.setitem(tfds.DATASETS, name, tfds.DATASETS[name]._replace(**change))
    return folder


def test_names_and_statistics_are_those_of_the_files():
    assert set(tfds.DATASETS) == {"mnist", "fashion_mnist", *emnist.EMNIST, "cifar10", "cifar100", "svhn"}
    assert tfds.DATASETS["emnist_balanced"].path == "emnist/balanced"
    assert tfds.DATASETS["svhn"].path == "svhn_cropped"
    for name, dataset in tfds.DATASETS.items():
        assert len(dataset.mean) == len(dataset.std) == dataset.shape[-1], name
    assert tfds.DATASETS["mnist"].mean == (files.MNIST.mean,)
    assert tfds.DATASETS["emnist_letters"].first_label == 1
    assert tfds.DATASETS["cifar100"].num_classes == 100


def test_unprepared_data_are_one_line_that_says_what_to_do(tmp_path, monkeypatch):
    line = refused(lambda: tfds.load("emnist_digits", tmp_path), "emnist_digits: not prepared", FileNotFoundError)
    for part in (str(tmp_path / "emnist" / "digits"), "fedjax-drag data prepare emnist_digits --from", "TFDS_DATA_DIR"):
        assert part in line
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "chosen"))
    refused(lambda: tfds.load("svhn"), str(tmp_path / "chosen" / "svhn_cropped"), FileNotFoundError)
    monkeypatch.delenv("TFDS_DATA_DIR")
    monkeypatch.setenv("HOME", str(tmp_path))
    refused(lambda: tfds.load("mnist"), str(tmp_path / "tensorflow_datasets" / "mnist"), FileNotFoundError)
    for call in (tfds.load, tfds.prepared, preparing.prepare):
        refused(lambda call=call: call("fashion-mnist"), "did you mean 'fashion_mnist'")


def test_another_format_is_one_line_that_says_what_to_do(tmp_path):
    folder = published(tmp_path, "mnist", fileFormat="tfrecord")
    assert tfds.prepared("mnist", tmp_path) is None
    for call in (lambda: tfds.load("mnist", tmp_path), lambda: preparing.prepare("mnist", tmp_path, tmp_path)):
        assert "fedjax-drag data prepare mnist --from" in refused(call, f"{folder}: prepared as tfrecord")
    (folder / "dataset_info.json").write_text("{}")  # before there was a choice
    refused(lambda: tfds.load("mnist", tmp_path), "prepared as tfrecord")


def test_the_newest_readable_version_is_used(tmp_path):
    assert tfds.prepared("emnist_mnist", tmp_path) is None
    place = tmp_path / "emnist" / "mnist"
    published(tmp_path, "emnist_mnist", "3.9.0", fileFormat="array_record")
    published(tmp_path, "emnist_mnist", "incomplete.AB12CD_3.11.0", fileFormat="array_record")
    assert tfds.prepared("emnist_mnist", tmp_path) == place / "3.9.0"
    published(tmp_path, "emnist_mnist", "3.10.0", fileFormat="tfrecord", alternativeFileFormats=["array_record"])
    assert tfds.prepared("emnist_mnist", str(tmp_path)) == place / "3.10.0"
    published(tmp_path, "emnist_mnist", "4.0.0", fileFormat="tfrecord")
    (place / "5.0.0").mkdir()
    assert tfds.prepared("emnist_mnist", tmp_path) == place / "3.10.0"


@pytest.mark.parametrize("content", ["", "[]", "nothing", '{"fileFormat": [1]}', "[" * 100_000, "\xff"])
def test_damaged_information_is_refused(tmp_path, content):
    folder = published(tmp_path, "mnist")
    (folder / "dataset_info.json").write_bytes(content.encode("latin-1"))
    assert tfds.prepared("mnist", tmp_path) is None
    refused(lambda: tfds.load("mnist", tmp_path), f"{folder}/dataset_info.json: not what TFDS writes; delete")


def test_a_missing_package_is_one_line_that_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "array_record", None)
    published(tmp_path, "mnist", fileFormat="array_record")
    line = refused(lambda: tfds.load("mnist", tmp_path), "array_record")
    assert line.endswith("pip install 'fedjax-drag[tfds]'")


@pytest.mark.thorough
def test_the_search_for_prepared_data_imports_nothing_slow(tmp_path):
    published(tmp_path, "mnist", fileFormat="array_record")
    code = """
import sys
from fedjax_drag.data import preparing
from fedjax_drag.data.sets import tfds
assert preparing and tfds.prepared("mnist", sys.argv[1]) is not None
slow = {"tensorflow", "tensorflow_datasets", "array_record", "PIL", "scipy", "sklearn"} & set(sys.modules)
assert not slow, slow
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=120)


def test_nothing_is_downloaded_unless_allowed(tmp_path):
    line = refused(lambda: preparing.prepare("cifar10", data_dir=tmp_path), "cifar10: give the folder")
    assert "--from DIR" in line
    assert "allow_download=True" in line
    assert not list(tmp_path.iterdir())


def test_missing_originals_leave_nothing_behind(tmp_path):
    refused(
        lambda: preparing.prepare("mnist", tmp_path, tmp_path / "root"), f"not found in {tmp_path}", FileNotFoundError
    )
    assert not list(tmp_path.iterdir())


def test_too_few_originals_are_refused(tmp_path, monkeypatch):
    folder = originals("emnist_letters", tmp_path, monkeypatch)
    dataset = tfds.DATASETS["emnist_letters"]
    monkeypatch.setitem(tfds.DATASETS, "emnist_letters", dataset._replace(sizes=(31, 30)))
    refused(lambda: preparing.prepare("emnist_letters", folder, tmp_path / "root"), "30 train examples: must be 31")


def test_prepared_data_are_not_prepared_again(tmp_path):
    folder = published(tmp_path, "mnist", fileFormat="array_record")
    assert preparing.prepare("mnist", tmp_path, tmp_path) == folder


def test_every_index_is_written_once():
    train, test = (tfds.written_order(split, 1000) for split in ("train", "test"))
    assert sorted(train) == sorted(test) == list(range(1000))
    assert train != test


def test_the_order_is_that_of_tfds(library):
    from tensorflow_datasets.core import hashing

    hasher = hashing.Hasher("train")
    assert tfds.written_order("train", 500) == sorted(range(500), key=hasher.hash_key)


@pytest.mark.parametrize("name", tfds.DATASETS)
def test_data_prepared_from_files_equal_the_files(name, library, tmp_path, monkeypatch):
    root = tmp_path / "root"
    source = originals(name, tmp_path / "originals", monkeypatch)
    folder = preparing.prepare(name, source, root)
    dataset = tfds.DATASETS[name]
    assert folder == tfds.prepared(name, root)
    assert folder.parent == root / dataset.path
    fed, direct = tfds.load(name, root), dataset.from_files(source)
    assert (fed.name, fed.num_classes, fed.mean, fed.std) == (name, direct.num_classes, direct.mean, direct.std)
    for part, other, size in zip((fed.train, fed.test), (direct.train, direct.test), dataset.sizes, strict=True):
        assert part.x.dtype == np.uint8
        assert part.y.dtype == np.int32
        np.testing.assert_array_equal(part.x, other.x[:size])
        np.testing.assert_array_equal(part.y, other.y[:size])


@pytest.mark.parametrize("name", ["mnist", "emnist_letters", "cifar100", "svhn"])
def test_tfds_itself_reads_prepared_data(name, library, tmp_path, monkeypatch):
    source = originals(name, tmp_path / "originals", monkeypatch)
    preparing.prepare(name, source, tmp_path)
    dataset = tfds.DATASETS[name]
    read = library.data_source(dataset.path, split="train", data_dir=str(tmp_path))
    assert len(read) == dataset.sizes[0]
    place, example = tfds.written_order("train", len(read))[3], read[3]
    direct = dataset.from_files(source).train
    image = example["image"].transpose(1, 0, 2) if dataset.transposed else example["image"]
    np.testing.assert_array_equal(image, direct.x[place])
    assert example["label"] == direct.y[place] + dataset.first_label
    if name == "cifar100":
        assert example["coarse_label"] == cifar.load_cifar(preparing.CIFAR100, source, coarse=True).train.y[place]
    if "id" in example:
        assert example["id"] == f"train_{place:0{6 if name == 'svhn' else 5}d}".encode()


def test_a_second_load_needs_no_package(library, tmp_path, monkeypatch):
    preparing.prepare("mnist", originals("mnist", tmp_path / "originals", monkeypatch), tmp_path)
    first = tfds.load("mnist", tmp_path)
    monkeypatch.setitem(sys.modules, "array_record", None)
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    np.testing.assert_array_equal(tfds.load("mnist", tmp_path).train.x, first.train.x)


def test_an_interrupted_preparation_leaves_nothing_prepared(library, tmp_path, monkeypatch):
    source, encode, images = originals("mnist", tmp_path / "originals", monkeypatch), preparing._png, []

    def interrupted(image):
        images.append(image)
        if len(images) == 25:  # in the second split
            raise KeyboardInterrupt
        return encode(image)

    monkeypatch.setattr(preparing, "_png", interrupted)
    with pytest.raises(KeyboardInterrupt):
        preparing.prepare("mnist", source, tmp_path)
    monkeypatch.setattr(preparing, "_png", encode)
    assert tfds.prepared("mnist", tmp_path) is None
    assert not list((tmp_path / "mnist").iterdir())
    assert preparing.prepare("mnist", source, tmp_path) == tfds.prepared("mnist", tmp_path)


def test_a_folder_in_the_way_is_named(library, tmp_path, monkeypatch):
    source = originals("mnist", tmp_path / "originals", monkeypatch)
    folder = tmp_path / "mnist" / str(library.builder("mnist").version)
    folder.mkdir(parents=True)
    refused(lambda: preparing.prepare("mnist", source, tmp_path), f"{folder}: in the way")


def test_a_download_without_tensorflow_is_refused(library, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    refused(lambda: preparing.prepare("mnist", data_dir=tmp_path, allow_download=True), "a download needs TensorFlow")


def test_other_data_than_the_published_are_refused(library, tmp_path, monkeypatch):
    preparing.prepare("mnist", originals("mnist", tmp_path / "originals", monkeypatch), tmp_path)
    dataset = tfds.DATASETS["mnist"]
    for change, match in (
        ({"sizes": (21, 10)}, "20 examples in train: must be 21"),
        ({"num_classes": 5}, r"label 9 found: must be in \[0, 4\]"),
        ({"shape": (28, 28, 3)}, r"an image L of \(28, 28\) pixels: must be of shape \(28, 28, 3\)"),
        ({"shape": (14, 28, 1)}, r"an image L of \(28, 28\) pixels: must be of shape \(14, 28, 1\)"),
    ):
        monkeypatch.setitem(tfds.DATASETS, "mnist", dataset._replace(**change))
        monkeypatch.setenv("FEDJAX_DRAG_CACHE", "")
        line = refused(lambda: tfds.load("mnist", tmp_path), match)
        assert line.startswith(str(tfds.prepared("mnist", tmp_path)))


def test_damaged_files_are_refused_or_read_the_same(library, tmp_path, monkeypatch):
    folder = preparing.prepare("mnist", originals("mnist", tmp_path / "originals", monkeypatch), tmp_path)
    monkeypatch.setenv("FEDJAX_DRAG_CACHE", "")
    whole, rng = tfds.load("mnist", tmp_path), np.random.default_rng(0)
    num_refused = 0
    for path in (*folder.glob("*.array_record*"), folder / "features.json"):
        content = path.read_bytes()
        flipped = [bytearray(content) for _ in range(12)]
        for damaged in flipped:  # where there is something: the rest is padding
            damaged[rng.integers(min(len(content), 15_000))] ^= 1 << rng.integers(8)
        for damaged in (*flipped, content[: len(content) // 2], b"", content + b"x"):
            path.write_bytes(damaged)
            try:
                read = tfds.load("mnist", tmp_path)
            except ValueError:
                refused(lambda: tfds.load("mnist", tmp_path), f"^{folder}: ")
                num_refused += 1
            else:
                np.testing.assert_array_equal(read.train.x, whole.train.x)
                np.testing.assert_array_equal(read.test.y, whole.test.y)
        path.write_bytes(content)
    assert num_refused > 20
    os.remove(next(folder.glob("*train.array_record*")))
    refused(lambda: tfds.load("mnist", tmp_path), f"{folder}: TFDS cannot read it")


@pytest.mark.slow
@pytest.mark.parametrize("record", [files.FASHION_MNIST, cifar.CIFAR10], ids=lambda record: record.name)
def test_published_files_come_back_bit_for_bit(record, library, real, tmp_path):
    wanted = record.files if isinstance(record, files.IdxDataset) else record.binary
    source = real(locate.find, record.name, wanted, record.folders, None, record.advice)[0].parent
    direct = tfds.DATASETS[record.name].from_files(source)
    assert preparing.prepare(record.name, source, tmp_path) == tfds.prepared(record.name, tmp_path)
    for _ in range(2):  # decoded, then from the cache
        fed = tfds.load(record.name, tmp_path)
        for part, other in ((fed.train, direct.train), (fed.test, direct.test)):
            np.testing.assert_array_equal(part.x, other.x)
            np.testing.assert_array_equal(part.y, other.y)
        assert (fed.mean, fed.std, fed.num_classes) == (direct.mean, direct.std, direct.num_classes)


@pytest.mark.slow
def test_data_that_tfds_prepares_itself_come_back_bit_for_bit(library, real, tmp_path):
    """TFDS takes what lies in its folder for files fetched by hand as downloaded, if it is what it knows."""
    pytest.importorskip("tensorflow", reason="TFDS's own preparation needs TensorFlow")
    record, manual = files.MNIST, tmp_path / "downloads" / "manual"
    manual.mkdir(parents=True)
    for path in real(locate.find, record.name, record.files, record.folders, None, record.advice):
        (manual / path.name).symlink_to(path)
    if not all((manual / f"{file}.gz").exists() for file in record.files):
        pytest.skip("the files of MNIST are not compressed as TFDS knows them")
    preparing.prepare("mnist", data_dir=tmp_path, allow_download=True)
    direct, fed = files.load_idx(record), tfds.load("mnist", tmp_path)
    for part, other in ((fed.train, direct.train), (fed.test, direct.test)):
        np.testing.assert_array_equal(part.x, other.x)
        np.testing.assert_array_equal(part.y, other.y)
