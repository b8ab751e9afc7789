import gzip
import hashlib
import io
import lzma

import numpy as np
import pytest
import scipy.io

from fedjax_drag.data.sets import svhn

PACK = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}


def content(x, y, packed=True, **more):
    """A file in the published format: images ``[32, 32, 3, N]``, labels ``[N, 1]`` with 10 for 0."""
    stream = io.BytesIO()
    scipy.io.savemat(stream, {"X": x, "y": y, **more}, do_compression=packed)
    return stream.getvalue()


def arrays(n, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (32, 32, 3, n), dtype=np.uint8), rng.integers(1, 11, (n, 1), dtype=np.uint8)


TRAIN, TEST = arrays(30), arrays(12, 1)
FILES = {"train_32x32.mat": content(*TRAIN), "test_32x32.mat": content(*TEST)}
SMALL = svhn.SVHN._replace(checksums={name: hashlib.md5(data).hexdigest() for name, data in FILES.items()})


def write(folder, train=FILES["train_32x32.mat"], kind=""):
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in (FILES | {"train_32x32.mat": train}).items():
        (folder / f"{name}{kind}").write_bytes(PACK[kind](data))
    return folder


def refused(folder, match, dataset=SMALL):
    with pytest.raises(ValueError, match=match) as error:
        svhn.load_svhn(dataset, folder)
    assert "\n" not in str(error.value)
    assert str(error.value).startswith(f"{folder}/train_32x32.mat: ")


@pytest.mark.parametrize("where", ["", "svhn", "SVHN", "svhn_cropped"])
@pytest.mark.parametrize("kind", PACK)
def test_files_load(tmp_path, where, kind):
    write(tmp_path / where, kind=kind)
    fed = svhn.load_svhn(SMALL, tmp_path)
    assert (fed.name, fed.num_classes, fed.input_shape, fed.mean) == ("svhn", 10, (32, 32, 3), svhn.SVHN.mean)
    for part, (x, y) in ((fed.train, TRAIN), (fed.test, TEST)):
        assert part.x.dtype == np.uint8
        assert part.x.flags.c_contiguous
        for i in range(len(y)):
            np.testing.assert_array_equal(part.x[i], x[..., i])
        np.testing.assert_array_equal(part.y, np.where(y[:, 0] == 10, 0, y[:, 0]))
    assert 0 in fed.train.y


def test_labels_may_be_of_any_type_of_number(tmp_path):
    train = content(TRAIN[0], TRAIN[1].astype(float), packed=False, other=np.zeros(3))
    dataset = SMALL._replace(checksums={**SMALL.checksums, "train_32x32.mat": hashlib.sha256(train).hexdigest()})
    fed = svhn.load_svhn(dataset, write(tmp_path, train))
    np.testing.assert_array_equal(fed.train.y, TRAIN[1][:, 0] % 10)


def test_unpublished_files_are_not_parsed(tmp_path, monkeypatch):
    monkeypatch.setattr(scipy.io, "loadmat", None)
    good = FILES["train_32x32.mat"]
    refused(write(tmp_path, good[:-1] + bytes([good[-1] ^ 1])), "not the published file of svhn: MD5")
    refused(write(tmp_path, b""), "not the published file of svhn: MD5")
    with pytest.raises(FileNotFoundError, match=r"svhn: not found .*get its cropped digits"):
        svhn.load_svhn(data_dir=tmp_path / "nothing")


def accepting(data):
    """The small data set with this file as if it were published."""
    return SMALL._replace(checksums={**SMALL.checksums, "train_32x32.mat": hashlib.md5(data).hexdigest()})


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (TRAIN[0].astype(np.uint16), TRAIN[1], r"X is uint16 of shape \(32, 32, 3, 30\)"),
        (TRAIN[0][:31], TRAIN[1], r"X is uint8 of shape \(31, 32, 3, 30\)"),
        (TRAIN[0][..., 0], TRAIN[1], r"X is uint8 of shape \(32, 32, 3\)"),
        ("text", TRAIN[1], "X is <U4"),
        (TRAIN[0], TRAIN[1][:-1], "y must be"),
        (TRAIN[0], TRAIN[1].T, "y must be"),
        (TRAIN[0], TRAIN[1] - 1, "y must be"),
        (TRAIN[0], TRAIN[1] + 1, "y must be"),
        (TRAIN[0], TRAIN[1] + 0.5, "y must be"),
        (TRAIN[0], "text", "y must be"),
        (TRAIN[0], np.full((30, 1), np.nan), "y must be"),
    ],
)
def test_other_variables_are_refused(tmp_path, x, y, message):
    data = content(x, y)
    refused(write(tmp_path, data), message, accepting(data))


def test_damaged_files_are_refused(tmp_path):
    for packed in (True, False):
        good = content(TRAIN[0][..., :1], TRAIN[1][:1], packed)
        for data in (b"", b"<html>", *(good[:length] for length in range(1, len(good), len(good) // 40))):
            refused(write(tmp_path, data), "not a readable MATLAB file|X is|y must be", accepting(data))


def test_published_files(real):
    fed = real(svhn.load_svhn)
    assert fed.train.x.shape == (73_257, 32, 32, 3)
    assert fed.test.x.shape == (26_032, 32, 32, 3)
    np.testing.assert_allclose(fed.train.x.mean((0, 1, 2), dtype=np.float64) / 255, fed.mean, atol=1e-3)
