import gzip
import lzma
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_drag.data.formats import idx

IMAGES = np.arange(3 * 4 * 5, dtype=np.uint8).reshape(3, 4, 5)


def content(values):
    return bytes((0, 0, 8, values.ndim)) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


PACK = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}


@pytest.fixture(params=PACK)
def write(request, tmp_path):
    """Writes an IDX file of given bytes, plain or compressed."""

    def write(data):
        path = tmp_path / f"file{request.param}"
        path.write_bytes(PACK[request.param](data))
        return path

    return write


def refused(path, match=None):
    with pytest.raises(ValueError, match=match) as error:
        idx.read(path, 3)
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)


def test_values_come_back(write):
    np.testing.assert_array_equal(idx.read(write(content(IMAGES)), 3), IMAGES)
    labels = np.array([3, 1, 255], np.uint8)
    np.testing.assert_array_equal(idx.read(write(content(labels)), 1), labels)


def test_every_truncation_is_refused(write):
    data = content(IMAGES)
    for length in range(len(data)):
        refused(write(data[:length]), "truncated" if length >= 4 else "not an IDX file")


def test_every_bit_flip_in_the_header_is_refused(write):
    data = content(IMAGES)
    for position in range(16):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            refused(write(bytes(damaged)))


def test_bytes_left_over_are_refused(write):
    refused(write(content(IMAGES) + b"\0"), "bytes left over")
    refused(write(content(IMAGES) * 2), "bytes left over")


def test_wrong_kinds_are_refused(write):
    refused(write(b""), "an empty file")
    refused(write(b"<html>not found</html>"), "not an IDX file")
    refused(write(content(IMAGES[0])), "starts with 0x00000802, not 0x00000803")
    refused(write(bytes((0, 0, 9, 3)) + content(IMAGES)[4:]), "starts with 0x00000903")
    refused(write(content(IMAGES[:0])), "empty")


@pytest.mark.parametrize("shape", [(2**32 - 1,) * 3, (60_000, 2**16, 2**16), (2**31, 1, 1)])
def test_sizes_in_the_header_are_not_trusted(write, shape):
    """Nothing is allocated for what the file cannot hold."""
    refused(write(bytes((0, 0, 8, 3)) + struct.pack(">3I", *shape) + bytes(1000)), "more than the .* bytes allowed")


def test_memory_grows_with_the_bytes_read(write):
    path = write(bytes((0, 0, 8, 3)) + struct.pack(">3I", 1 << 10, 1 << 10, 1 << 10) + bytes(1000))
    tracemalloc.start()
    refused(path, "truncated: header declares shape .*, but 1000 follow it")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 << 20


@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_a_damaged_gzip_file_is_refused_or_reads_the_same(tmp_path_factory, data):
    """A flip may hit a byte that carries nothing, such as the time stamp; it never yields other values."""
    path = tmp_path_factory.mktemp("gzip") / "file.gz"
    compressed = bytearray(gzip.compress(content(IMAGES)))
    compressed[data.draw(st.integers(0, len(compressed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(compressed)
    try:
        values = idx.read(path, 3)
    except ValueError:
        refused(path)
    else:
        np.testing.assert_array_equal(values, IMAGES)


def test_truncated_gzip_files_are_refused(tmp_path):
    path, compressed = tmp_path / "file.gz", gzip.compress(content(IMAGES))
    for length in range(len(compressed)):
        path.write_bytes(compressed[:length])
        refused(path)
    path.write_bytes(compressed + b"x")
    refused(path, "damaged gzip")
    path.write_bytes(content(IMAGES))
    refused(path, "damaged gzip")


def test_a_missing_file_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError):
        idx.read(tmp_path / "nothing", 3)


@given(st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_arbitrary_bytes_never_load_unless_they_are_an_idx_file(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("idx") / "file"
    path.write_bytes(data)
    try:
        values = idx.read(path, 1)
    except ValueError:
        return
    assert content(values) == data
