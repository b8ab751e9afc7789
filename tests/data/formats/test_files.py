import gzip
import hashlib
import lzma
import struct

import numpy as np
import pytest

from fedjax_drag.data import load
from fedjax_drag.data.formats import files, locate

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


PACK = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}


def write(folder, contents=CONTENTS, kind=".gz"):
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in contents.items():
        (folder / f"{name}{kind}").write_bytes(PACK[kind](data))
    return folder


def refused(folder, match):
    with pytest.raises(ValueError, match=match) as error:
        files.load_idx(SMALL, folder)
    assert "\n" not in str(error.value)
    assert str(error.value).startswith(str(folder))


@pytest.mark.parametrize("where", ["", "mnist", "MNIST/raw"])
@pytest.mark.parametrize("kind", PACK)
@pytest.mark.parametrize("how", ["data_dir", "environment"])
def test_files_are_found(tmp_path, monkeypatch, where, kind, how):
    write(tmp_path / where, kind=kind)
    monkeypatch.setenv("FEDJAX_DRAG_DATA", str(tmp_path if how == "environment" else tmp_path / "elsewhere"))
    fed = files.load_idx(SMALL, tmp_path if how == "data_dir" else None)
    assert fed.input_shape == (4, 4, 1)
    assert fed.train.x.dtype == np.uint8
    assert fed.train.x.tobytes() == CONTENTS[NAMES[0]][16:]
    assert fed.train.y.dtype == np.int32
    assert fed.test.y.astype(np.uint8).tobytes() == CONTENTS[NAMES[3]][8:]


@pytest.mark.parametrize("kind", ["", ".gz"])
def test_a_point_before_the_type_is_a_spelling_of_the_name(tmp_path, kind):
    write(tmp_path, {name.replace("-idx", ".idx"): data for name, data in CONTENTS.items()}, kind)
    assert len(files.load_idx(SMALL, tmp_path).train.y) == 20
    path = tmp_path / f"{NAMES[2].replace('-idx', '.idx')}{kind}"
    path.write_bytes(PACK[kind](CONTENTS[NAMES[0]]))
    refused(tmp_path, "t10k")


def test_a_folder_with_its_name_is_preferred(tmp_path):
    """The place itself may hold another data set: the file names are the same."""
    write(tmp_path / "mnist")
    write(tmp_path, dict.fromkeys(NAMES, b"another data set"))
    assert files.load_idx(SMALL, tmp_path).num_classes == 10


def test_missing_files_are_one_line_that_says_what_to_do(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError) as error:
        load("fashion_mnist", data_dir=tmp_path)
    message = str(error.value)
    assert "\n" not in message
    for part in (str(tmp_path / "fashion-mnist"), "dataset-fashion-mnist", "data_dir", "FEDJAX_DRAG_DATA"):
        assert part in message
    assert "/usr/share" not in message  # not looked in, because data_dir was given
    monkeypatch.setenv("FEDJAX_DRAG_DATA", str(tmp_path))
    monkeypatch.setattr(locate, "_SYSTEM", tmp_path / "system")
    with pytest.raises(FileNotFoundError, match=str(tmp_path / "system" / "mnist")):
        load("mnist")
    monkeypatch.delenv("FEDJAX_DRAG_DATA")
    with pytest.raises(FileNotFoundError, match="mnist: not found"):
        load("mnist")


def test_an_incomplete_folder_is_named(tmp_path):
    (write(tmp_path) / f"{NAMES[1]}.gz").unlink()
    with pytest.raises(FileNotFoundError, match=f"{tmp_path} lacks {NAMES[1]}"):
        files.load_idx(SMALL, tmp_path)


@pytest.mark.parametrize("kind", PACK)
def test_wrong_files_are_refused(tmp_path, kind):
    def folder(**changed):
        return write(tmp_path, CONTENTS | {NAMES[int(k[1:])]: v for k, v in changed.items()}, kind)

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


@pytest.mark.sample(1)
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
def test_published_files_load(name, train_counts, test_counts, real):
    fed = real(load, name)
    assert fed.train.x.shape == (60_000, 28, 28, 1)
    np.testing.assert_array_equal(np.bincount(fed.train.y), train_counts)
    np.testing.assert_array_equal(np.bincount(fed.test.y), test_counts)
    pixels = fed.train.x[:, :, :, 0]
    np.testing.assert_allclose(pixels.mean(dtype=np.float64) / 255, fed.mean[0], atol=1e-4)
    np.testing.assert_allclose(pixels.std(dtype=np.float64) / 255, fed.std[0], atol=1e-4)
