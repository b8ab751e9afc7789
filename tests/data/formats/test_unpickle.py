import collections
import os
import pickle
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_drag.data.formats import unpickle

PATH = Path("batch")
PIXELS = np.arange(24, dtype=np.uint8).reshape(2, 12)


def refused(content, match=""):
    with pytest.raises(ValueError, match=f"batch: not a pickle of plain data and arrays: .*{match}") as error:
        unpickle.loads(PATH, content)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_data_and_arrays_come_back(protocol):
    entries = {
        "data": PIXELS,
        "big_endian": np.array([1.5, -2.0], ">f4"),
        "fortran": np.asfortranarray(np.arange(6, dtype=np.int64).reshape(2, 3)),
        "empty": np.zeros((0, 3)),
        "truth": np.array([True, False]),
        "plain": [1, -(2**70), 2.5, True, None, b"", b"\xff\x00", "text", (3, [4], {"a": (b"x",)})],
        "scalar": np.float32(2.5),
    }
    loaded = unpickle.loads(PATH, pickle.dumps(entries, protocol))
    assert list(loaded) == list(entries)
    for name in ("data", "big_endian", "fortran", "empty", "truth"):
        assert type(loaded[name]) is np.ndarray
        assert loaded[name].dtype == entries[name].dtype
        np.testing.assert_array_equal(loaded[name], entries[name])
    assert (loaded["plain"], loaded["scalar"]) == (entries["plain"], 2.5)


def python2_pickle(pixels, labels):
    """What cPickle of Python 2 writes with protocol 2, opcode by opcode."""

    def text(value):
        return b"U" + bytes([len(value)]) + value

    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R"
    dtype = b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R(K\x03" + text(b"|") + b"NNNJ\xff\xff\xff\xff"
    dtype += b"J\xff\xff\xff\xffK\x00tb"
    shape = b"".join(b"J" + struct.pack("<i", size) for size in pixels.shape) + b"\x86"
    state = b"(K\x01" + shape + dtype + b"\x89T" + struct.pack("<i", pixels.size) + pixels.tobytes() + b"t"
    listed = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    items = text(b"data") + b"q\x01" + array + state + b"b" + text(b"labels") + listed
    return b"\x80\x02}q\x00(" + items + text(b"batch_label") + text(b"testing batch 1 of 1") + b"u."


def test_pickles_of_python_2():
    content = python2_pickle(PIXELS, [3, 1])
    official = pickle.loads(content, encoding="bytes")
    np.testing.assert_array_equal(official[b"data"], PIXELS)  # so the file above is a true one
    loaded = unpickle.loads(PATH, content)
    np.testing.assert_array_equal(loaded["data"], PIXELS)
    assert loaded["labels"] == official[b"labels"] == [3, 1]
    assert loaded["batch_label"] == b"testing batch 1 of 1"


class Call:
    """Pickled as a call of something."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_nothing_is_called(tmp_path, protocol):
    made = tmp_path / "made"
    attacks = [
        (Call(os.system, f"touch {made}"), "it names (posix|nt).system"),
        (Call(open, str(made), "w"), "it names (_io|io|__builtin__|builtins).open"),
        (Call(eval, f"open({str(made)!r}, 'w')"), "it names (__builtin__|builtins).eval"),
        (Call(subprocess.Popen, ["touch", str(made)]), "it names (subprocess|commands).Popen"),
        (Call(getattr, Path, "cwd"), "it names (__builtin__|builtins).getattr"),
        (Call(np.load, str(made)), "it names numpy.load"),
        (Call(np.fromfile, str(made)), "it names numpy"),
        (collections.OrderedDict(a=1), "it names collections.OrderedDict"),
        (Call(print, "called"), "it names (__builtin__|builtins).print"),
    ]
    for attack, message in attacks:
        for entries in ({"data": attack}, attack, [attack], {"labels": [attack], "data": PIXELS}):
            refused(pickle.dumps(entries, protocol), message)
    assert not made.exists()
    pickle.loads(pickle.dumps(attacks[1][0], protocol)).close()
    assert made.exists()  # an ordinary unpickler is taken in


def test_names_resolve_to_arrays_only():
    refused(b"cnumpy\nndarray\n.", "has no attribute 'items'")
    refused(b"\x80\x02cnumpy\nndarray\n)\x81.")  # its __new__
    refused(b"\x80\x02cnumpy\ndtype\n}U\x08__code__N\x86b.")
    refused(b"\x80\x04\x8c\x05numpy\x8c\x0bdtype.names\x93.", "it names numpy.dtype.names")
    refused(b"\x82\x01.", "unregistered extension")
    refused(b"Pid\n.", "persistent")
    for name in ("O", "V8", "U3", "M8[s]", "f16", "u1,u1", "(1000000000,)u1"):
        refused(b"cnumpy\ndtype\n(U" + bytes([len(name)]) + name.encode() + b"K\x00K\x01tR.", "an array of type")


def test_declared_sizes_are_not_trusted():
    good = pickle.dumps({"data": PIXELS}, 2)
    shape = pickle.dumps((2, 12), 2)[2:-3]
    assert shape in good
    for claimed in ((2, 13), (2**62, 2**62), (-2, -12), (24.0, 1), (True, 24), ()):
        refused(good.replace(shape, pickle.dumps(claimed, 2)[2:-1]), "24 bytes for an array of another size")
    refused(b"(dS'x'\nr\xff\xff\xff\x7fI1\ns.", "memo entry 2147483647")  # would take gigabytes
    refused(b"p1000000000\n.", "memo entry|")
    refused(b"\x8e" + struct.pack("<Q", 1 << 40) + b"x.", "expected 1099511627776 bytes")
    refused(b"T\xff\xff\xff\x7fx.", "expected 2147483647 bytes")
    refused(b"}" + b")\x85" * 10_001 + b"N\x73.", "more than 10,000 tuples")
    refused(good + b"x", "1 bytes left over")
    refused(good[:-1])
    refused(b"")
    refused(b"<html>")
    refused(pickle.dumps([1]), "'list' object has no attribute 'items'")


def test_every_truncation_is_refused():
    for content in (python2_pickle(PIXELS, [3, 1]), pickle.dumps({"data": PIXELS}, 5)):
        for length in range(len(content)):
            refused(content[:length])


@given(data=st.data())
@settings(max_examples=500, deadline=None)
def test_damage_is_refused_or_is_other_plain_data(data):
    content = bytearray(python2_pickle(PIXELS, [3, 1]))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        loaded = unpickle.loads(PATH, bytes(content))
    except ValueError:
        refused(bytes(content))
    else:
        assert all(isinstance(key, str) for key in loaded)
