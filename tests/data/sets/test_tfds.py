import json
import os
import subprocess
import sys

import numpy as np
import pytest
from data_files import SIZES, refused, small, write

from fedjax_drag.data import preparing
from fedjax_drag.data.sets import cifar, mnist, tfds


@pytest.fixture
def library():
    return tfds.library()


def published(root, name, version="9.8.7", **info):
    """What tells that a version is prepared, without its examples."""
    folder = root / tfds.DATASETS[name].tfds / version
    folder.mkdir(parents=True)
    (folder / "dataset_info.json").write_text(json.dumps(info))
    return folder


@pytest.fixture
def originals(tmp_path, monkeypatch):
    """``originals(name, **changes)``: small original files in place of the published ones; returns their folder."""

    def originals(name, **changes):
        case = small(tfds.DATASETS[name])
        # TFDS has fewer of EMNIST Letters than the files.
        changes = {"sizes": (15, 3) if name == "emnist_letters" else SIZES} | changes
        monkeypatch.setitem(tfds.DATASETS, name, case.dataset._replace(**changes))
        monkeypatch.setattr(cifar, "CIFAR100_COARSE", cifar.CIFAR100_COARSE._replace(sizes=SIZES))
        return write(tmp_path / "originals", case.files)

    return originals


def test_unprepared_data_are_one_line_that_says_what_to_do(tmp_path, monkeypatch):
    missing = {"kind": FileNotFoundError}
    line = refused("emnist_digits: not prepared", tfds.load, "emnist_digits", tmp_path, **missing)
    for part in (str(tmp_path / "emnist" / "digits"), "fedjax-drag data prepare emnist_digits --from", "TFDS_DATA_DIR"):
        assert part in line
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "chosen"))
    refused(str(tmp_path / "chosen" / "svhn_cropped"), tfds.load, "svhn", **missing)
    monkeypatch.delenv("TFDS_DATA_DIR")
    monkeypatch.setenv("HOME", str(tmp_path))
    refused(str(tmp_path / "tensorflow_datasets" / "mnist"), tfds.load, "mnist", **missing)
    for call in (tfds.load, tfds.prepared, preparing.prepare):
        refused("did you mean 'fashion_mnist'", call, "fashion-mnist")


def test_another_format_is_one_line_that_says_what_to_do(tmp_path):
    folder = published(tmp_path, "mnist", fileFormat="tfrecord")
    assert tfds.prepared("mnist", tmp_path) is None
    for call, *arguments in ((tfds.load, tmp_path), (preparing.prepare, tmp_path, tmp_path)):
        line = refused(f"{folder}: prepared as tfrecord", call, "mnist", *arguments)
        assert "fedjax-drag data prepare mnist --from" in line
    (folder / "dataset_info.json").write_text("{}")  # before there was a choice
    refused("prepared as tfrecord", tfds.load, "mnist", tmp_path)


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
    refused(f"{folder}/dataset_info.json: not what TFDS writes; delete", tfds.load, "mnist", tmp_path)


def test_a_missing_package_is_one_line_that_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "array_record", None)
    published(tmp_path, "mnist", fileFormat="array_record")
    line = refused("array_record", tfds.load, "mnist", tmp_path)
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


def test_nothing_is_downloaded_or_left_behind_unless_allowed(tmp_path):
    line = refused("cifar10: give the folder", lambda: preparing.prepare("cifar10", data_dir=tmp_path))
    assert "--from DIR" in line
    assert "allow_download=True" in line
    root, missing = tmp_path / "root", FileNotFoundError
    refused(f"not found in {tmp_path}", preparing.prepare, "mnist", tmp_path, root, kind=missing)
    assert not list(tmp_path.iterdir())


def test_too_few_originals_are_refused(tmp_path, originals):
    folder = originals("emnist_letters", sizes=(21, 4))
    refused("20 train examples: must be 21", preparing.prepare, "emnist_letters", folder, tmp_path / "root")


def test_prepared_data_are_not_prepared_again(tmp_path):
    folder = published(tmp_path, "mnist", fileFormat="array_record")
    assert preparing.prepare("mnist", tmp_path, tmp_path) == folder


def test_the_order_is_that_of_tfds(library):
    from tensorflow_datasets.core import hashing

    for split in ("train", "test"):
        assert tfds.written_order(split, 500) == sorted(range(500), key=hashing.Hasher(split).hash_key)


@pytest.mark.parametrize("name", tfds.DATASETS)
def test_data_prepared_from_files_equal_the_files(name, library, tmp_path, originals, monkeypatch):
    root, source = tmp_path / "root", originals(name)
    folder, dataset = preparing.prepare(name, source, root), tfds.DATASETS[name]
    assert folder == tfds.prepared(name, root)
    assert folder.parent == root / dataset.tfds
    direct = dataset.load(source)
    for _ in range(2):  # decoded, then from the cache, which needs no package
        fed = tfds.load(name, root)
        assert (fed.name, fed.num_classes, fed.mean, fed.std) == (name, direct.num_classes, direct.mean, direct.std)
        for part, other, size in zip((fed.train, fed.test), (direct.train, direct.test), dataset.sizes, strict=True):
            assert (part.x.dtype, part.y.dtype) == (np.uint8, np.int32)
            np.testing.assert_array_equal(part.x, other.x[:size])
            np.testing.assert_array_equal(part.y, other.y[:size])
        for package in ("array_record", "tensorflow_datasets"):
            monkeypatch.setitem(sys.modules, package, None)


@pytest.mark.parametrize("name", ["mnist", "emnist_letters", "cifar100", "svhn"])
def test_tfds_itself_reads_prepared_data(name, library, tmp_path, originals):
    source = originals(name)
    preparing.prepare(name, source, tmp_path)
    dataset = tfds.DATASETS[name]
    read = library.data_source(dataset.tfds, split="train", data_dir=str(tmp_path))
    assert len(read) == dataset.sizes[0]
    place, example = tfds.written_order("train", len(read))[3], read[3]
    direct = dataset.load(source).train
    image = example["image"].transpose(1, 0, 2) if dataset.transposed else example["image"]
    np.testing.assert_array_equal(image, direct.x[place])
    assert example["label"] == direct.y[place] + dataset.first_label
    if name == "cifar100":
        assert example["coarse_label"] == direct.y[place] // 5
    if "id" in example:
        assert example["id"] == f"train_{place:0{6 if name == 'svhn' else 5}d}".encode()


def test_an_interrupted_preparation_leaves_nothing_prepared(library, tmp_path, originals, monkeypatch):
    source, encode, images = originals("mnist"), preparing._png, []

    def interrupted(image):
        images.append(image)
        if len(images) == 22:  # in the second split
            raise KeyboardInterrupt
        return encode(image)

    monkeypatch.setattr(preparing, "_png", interrupted)
    with pytest.raises(KeyboardInterrupt):
        preparing.prepare("mnist", source, tmp_path)
    monkeypatch.setattr(preparing, "_png", encode)
    assert tfds.prepared("mnist", tmp_path) is None
    assert not list((tmp_path / "mnist").iterdir())
    assert preparing.prepare("mnist", source, tmp_path) == tfds.prepared("mnist", tmp_path)


def test_what_stops_a_preparation_is_named(library, tmp_path, originals, monkeypatch):
    source = originals("mnist")
    folder = tmp_path / "mnist" / str(library.builder("mnist").version)
    folder.mkdir(parents=True)
    refused(f"{folder}: in the way", preparing.prepare, "mnist", source, tmp_path)
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    refused("a download needs TensorFlow", preparing.prepare, "svhn", None, tmp_path, True)


def test_other_data_than_the_published_are_refused(library, tmp_path, originals, monkeypatch):
    folder = preparing.prepare("mnist", originals("mnist"), tmp_path)
    dataset = tfds.DATASETS["mnist"]
    for change, match in (
        ({"sizes": (21, 4)}, "20 examples in train: must be 21"),
        ({"num_classes": 5}, r"label 9 found: must be in \[0, 4\]"),
        ({"shape": (28, 28, 3)}, r"an image L of \(28, 28\) pixels: must be of shape \(28, 28, 3\)"),
        ({"shape": (14, 28, 1)}, r"an image L of \(28, 28\) pixels: must be of shape \(14, 28, 1\)"),
    ):
        monkeypatch.setitem(tfds.DATASETS, "mnist", dataset._replace(**change))
        refused(match, tfds.load, "mnist", tmp_path, start=folder)


def test_damaged_files_are_refused_or_read_the_same(library, tmp_path, originals, monkeypatch):
    folder = preparing.prepare("mnist", originals("mnist"), tmp_path)
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
                refused("", tfds.load, "mnist", tmp_path, start=f"{folder}: ")
                num_refused += 1
            else:
                np.testing.assert_array_equal(read.train.x, whole.train.x)
                np.testing.assert_array_equal(read.test.y, whole.test.y)
        path.write_bytes(content)
    assert num_refused > 20
    os.remove(next(folder.glob("*train.array_record*")))
    refused(f"{folder}: cannot be read: ", tfds.load, "mnist", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fashion_mnist", "cifar10"])
def test_published_files_come_back_bit_for_bit(name, library, real, tmp_path):
    dataset = tfds.DATASETS[name]
    direct = real(dataset.load)
    preparing.prepare(name, dataset.find(None)[0].parent, tmp_path)
    equal(tfds.load(name, tmp_path), direct)


@pytest.mark.slow
def test_data_that_tfds_prepares_itself_come_back_bit_for_bit(library, real, tmp_path):
    """TFDS takes what lies in its folder for files fetched by hand as downloaded, if it is what it knows."""
    pytest.importorskip("tensorflow", reason="TFDS's own preparation needs TensorFlow")
    manual = tmp_path / "downloads" / "manual"
    manual.mkdir(parents=True)
    for path in real(mnist.MNIST.find, None):
        (manual / path.name).symlink_to(path)
    if not all((manual / f"{file}.gz").exists() for file in mnist.MNIST.files[0]):
        pytest.skip("the files of MNIST are not compressed as TFDS knows them")
    preparing.prepare("mnist", data_dir=tmp_path, allow_download=True)
    equal(tfds.load("mnist", tmp_path), mnist.MNIST.load())


def equal(fed, direct):
    for part, other in ((fed.train, direct.train), (fed.test, direct.test)):
        np.testing.assert_array_equal(part.x, other.x)
        np.testing.assert_array_equal(part.y, other.y)
