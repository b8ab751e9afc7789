"""Small data sets in the files of their publishers, plain and packed."""

import gzip
import hashlib
import io
import lzma
import pickle
import struct
from typing import NamedTuple

import numpy as np
import pytest
import scipy.io

from fedjax_drag.data.sets.published import Published

PACK = {"": bytes, ".gz": lambda data: gzip.compress(data, mtime=0), ".xz": lambda data: lzma.compress(data, preset=0)}
SIZES = (20, 4)


class Small(NamedTuple):
    """A small data set in place of a published one: images and labels, those for training first, and its files."""

    dataset: Published
    files: dict[str, bytes]
    x: np.ndarray
    y: np.ndarray


def write(folder, files, kind=""):
    """Writes files by their paths below a folder, packed as ``kind`` says."""
    for name, data in files.items():
        path = folder / f"{name}{kind}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(PACK[kind](data))
    return folder


def refused(match, call, *arguments, start="", kind=ValueError):
    """Asserts that a call raises an error of one line, and returns it."""
    with pytest.raises(kind, match=match or None) as error:
        call(*arguments)
    (line,) = str(error.value).splitlines()
    assert line.startswith(str(start))
    assert len(line) < 1000
    return line


def digests(files, algorithm="sha256"):
    return {name: hashlib.new(algorithm, data).hexdigest() for name, data in files.items()}


def same(fed, small):
    for part, own in ((fed.train, slice(SIZES[0])), (fed.test, slice(SIZES[0], None))):
        assert (part.x.dtype, part.y.dtype) == (np.uint8, np.int32)
        assert part.x.flags.c_contiguous
        np.testing.assert_array_equal(part.x, small.x[own])
        np.testing.assert_array_equal(part.y, small.y[own])


def idx(values):
    return bytes((0, 0, 8, values.ndim)) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def mat(x, y, packed=True):
    stream = io.BytesIO()
    labels = np.where(y == 0, 10, y).astype(np.uint8)[:, None]
    scipy.io.savemat(stream, {"X": x.transpose(1, 2, 3, 0), "y": labels}, do_compression=packed)
    return stream.getvalue()


def python2_pickle(data, **labels):
    """What cPickle of Python 2 writes with protocol 2 of an array and lists of numbers below 256, opcode by opcode."""

    def text(value):
        return b"U" + bytes([len(value)]) + value

    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R"
    dtype = b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R(K\x03" + text(b"|") + b"NNNJ\xff\xff\xff\xff"
    dtype += b"J\xff\xff\xff\xffK\x00tb"
    shape = b"".join(b"J" + struct.pack("<i", size) for size in data.shape) + b"\x86"
    state = b"(K\x01" + shape + dtype + b"\x89T" + struct.pack("<i", data.size) + data.tobytes() + b"t"
    items = text(b"data") + b"q\x01" + array + state + b"b"
    for name, values in labels.items():
        items += text(name.encode()) + b"](" + b"".join(b"K" + bytes([value]) for value in values) + b"e"
    content = b"\x80\x02}q\x00(" + items + text(b"batch_label") + text(b"testing batch 1 of 1") + b"u."
    np.testing.assert_array_equal(pickle.loads(content, encoding="bytes")[b"data"], data)  # so it is a true one
    return content


def small(dataset, version=0):
    """A small data set like ``dataset``, whose files count as the published ones."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (sum(SIZES), *dataset.shape), dtype=np.uint8)
    y = rng.integers(0, dataset.num_classes, sum(SIZES))
    y[:2] = 0, dataset.num_classes - 1
    names = dataset.files[version]
    num_train = len(names) - 1 if dataset.shape[-1] == 3 else len(names) // 2 - 1  # files, or pairs of them
    cuts = np.arange(1, num_train + 1) * SIZES[0] // max(num_train, 1)
    parts = [*zip(np.split(x, cuts), np.split(y, cuts), strict=True)]
    if dataset.name == "svhn":
        files = {name: mat(*part) for name, part in zip(names, parts, strict=True)}
    elif dataset.name.startswith("cifar"):
        files = {name: batch(dataset.name, name, *part) for name, part in zip(names, parts, strict=True)}
    else:
        files = {}
        for (images, labels), *pair in zip(parts, names[::2], names[1::2], strict=True):
            stored = (images.transpose(0, 2, 1, 3) if dataset.transposed else images)[..., 0]
            values = stored, (labels + dataset.first_label).astype(np.uint8)
            files |= dict(zip(pair, map(idx, values), strict=True))
    return Small(dataset._replace(sizes=SIZES, checksums=digests(files)), files, x, y)


def batch(name, file, x, y):
    """A file of CIFAR; of a coarse label, the fine ones are five times as large."""
    planes = np.ascontiguousarray(x.transpose(0, 3, 1, 2).reshape(len(x), -1))
    fine = y * 5 if name.endswith("coarse") else y
    labels = {"labels": y} if name == "cifar10" else {"coarse_labels": fine // 5, "fine_labels": fine}
    if file.endswith(".bin"):
        return np.concatenate([np.stack([*labels.values()], 1).astype(np.uint8), planes], 1).tobytes()
    return python2_pickle(planes, **{key: values.tolist() for key, values in labels.items()})
