import gzip
import hashlib
import struct

import numpy as np
import pytest

from fedjax_drag.data.formats import files
from fedjax_drag.data.sets import emnist

LETTERS = emnist.EMNIST["emnist_letters"]


def write(folder, record, x, y):
    """Writes the same images and labels as training and test files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in record.files:
        values = np.asarray(x if "images" in name else y, np.uint8)
        header = bytes((0, 0, 8, values.ndim)) + struct.pack(f">{values.ndim}I", *values.shape)
        (folder / f"{name}.gz").write_bytes(gzip.compress(header + values.tobytes()))
    return folder


def images(n, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, 28, 28), dtype=np.uint8)


@pytest.mark.parametrize("where", ["", "emnist", "EMNIST/raw", "gzip"])
@pytest.mark.parametrize("name", emnist.EMNIST)
def test_every_split_loads_upright(name, where, tmp_path):
    record = emnist.EMNIST[name]
    x, y = images(record.num_classes), np.arange(record.num_classes)
    write(tmp_path / where, record, x, y + record.first_label)
    fed = files.load_idx(record._replace(sha256={}), tmp_path)
    assert (fed.name, fed.num_classes, fed.input_shape) == (name, record.num_classes, (28, 28, 1))
    for part in (fed.train, fed.test):
        np.testing.assert_array_equal(part.x[..., 0], x.transpose(0, 2, 1))
        np.testing.assert_array_equal(part.y, y)


def test_letters_count_from_one(tmp_path):
    for label in (0, 27):
        write(tmp_path, LETTERS, images(2), [1, label])
        with pytest.raises(ValueError, match=rf"labels-idx1-ubyte.gz: label {label} found: must be in \[1, 26\]"):
            files.load_idx(LETTERS, tmp_path)


def test_published_files_are_verified(tmp_path):
    write(tmp_path, emnist.BYMERGE_TEST, images(2), [0, 1])
    with pytest.raises(ValueError, match="not the published file of emnist_bymerge_test: SHA-256"):
        emnist.load_bymerge_test(data_dir=tmp_path)
    assert sorted(emnist.EMNIST["emnist_bymerge"].sha256) == sorted(emnist.BYMERGE_TEST.files)
    assert not emnist.EMNIST["emnist_byclass"].sha256


def test_missing_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"emnist_letters: not found .*get gzip\.zip of EMNIST") as error:
        files.load_idx(LETTERS, tmp_path)
    assert "emnist-letters-train-images-idx3-ubyte" in str(error.value)


def test_one_set_is_split_by_class(tmp_path):
    y = np.repeat([0, 1, 2], [70, 13, 1])[np.random.default_rng(1).permutation(84)]
    x = images(84)
    record = emnist.BYMERGE_TEST._replace(sha256={})
    fed, again = (emnist.load_bymerge_test(record, write(tmp_path / part, record, x, y)) for part in "ab")
    np.testing.assert_array_equal(np.bincount(fed.test.y, minlength=3), [10, 2, 0])
    np.testing.assert_array_equal(np.bincount(fed.train.y), [60, 11, 1])
    np.testing.assert_array_equal(fed.test.x, again.test.x)
    upright = [image.tobytes() for image in x.transpose(0, 2, 1)]
    place = {image: index for index, image in enumerate(upright)}
    for part in (fed.train, fed.test):
        places = [place.pop(image.tobytes()) for image in part.x]
        assert places == sorted(places)
        np.testing.assert_array_equal(part.y, y[places])
    assert not place


def correlations(x, other_x, y, other_y):
    """Of the mean images of the ten digits in two sets."""
    pairs = ((x[y == digit].mean(axis=0), other_x[other_y == digit].mean(axis=0)) for digit in range(10))
    return np.array([np.corrcoef(mean.ravel(), other.ravel())[0, 1] for mean, other in pairs])


@pytest.mark.thorough
def test_published_bymerge_test(real):
    fed = real(emnist.load_bymerge_test)
    assert fed.train.x.shape == (99_707, 28, 28, 1)
    assert fed.test.x.shape == (16_616, 28, 28, 1)
    train, test = (np.bincount(part.y, minlength=47) for part in (fed.train, fed.test))
    np.testing.assert_array_equal(test, np.rint((train + test) / 7))
    counts = "5745 6400 5765 5827 5498 5326 5787 5873 5655 5651 1058 652 2156 735 860 1524 430 576 2413 912 809 3358"
    counts += " 1984 1351 4690 1812 415 835 3899 1630 2528 1223 1262 897 1195 925 1668 932 1708 4066 426 583 1535 1872"
    np.testing.assert_array_equal(train + test, [*map(int, counts.split()), 533, 2365, 2979])
    levels, share = np.arange(256) / 255, sum(np.bincount(image.ravel(), minlength=256) for image in fed.train.x)
    share = share / share.sum()
    np.testing.assert_allclose(share @ levels, fed.mean[0], atol=1e-4)
    np.testing.assert_allclose(np.sqrt(share @ (levels - share @ levels) ** 2), fed.std[0], atol=1e-4)
    assert hashlib.sha256(fed.test.y.tobytes()).hexdigest()[:8] == "a38c57ca"  # the same split everywhere
    mnist = real(files.load_idx, files.MNIST)
    upright = correlations(fed.train.x, mnist.train.x, fed.train.y, mnist.train.y)
    transposed = correlations(fed.train.x.transpose(0, 2, 1, 3), mnist.train.x, fed.train.y, mnist.train.y)
    assert (upright > transposed).all()
    assert upright.mean() > 0.7
