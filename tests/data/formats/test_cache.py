import contextlib
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from fedjax_drag.data.formats.cache import cached

ARRAYS = {
    "x": np.arange(24, dtype=np.uint8).reshape(2, 3, 4),
    "y": np.float32([1.5, -2]),
    "names": np.array(["a", "bcd"]),
    "transposed": np.arange(6).reshape(2, 3).T,
    "one": np.array(7),
}


class Reader:
    """Counts how often the files are read."""

    def __init__(self, arrays=ARRAYS):
        self.arrays, self.calls = arrays, 0

    def __call__(self):
        self.calls += 1
        return dict(self.arrays)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDJAX_DRAG_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "source"
    path.write_bytes(b"content")
    return path


def same(arrays, expected=ARRAYS):
    assert list(arrays) == list(expected)
    for name, values in expected.items():
        assert arrays[name].dtype == values.dtype
        np.testing.assert_array_equal(arrays[name], values)
        assert arrays[name].flags.c_contiguous


def test_the_second_time_nothing_is_read(folder, source):
    read = Reader()
    for _ in range(3):
        same(cached("set", [source], read))
    assert read.calls == 1
    assert [path.name[:4] for path in folder.iterdir()] == ["set-"]  # and nothing temporary
    assert folder.stat().st_mode & 0o777 == 0o700


def test_other_sources_and_names_are_distinguished(folder, source, tmp_path):
    read = Reader()
    (tmp_path / "second").write_bytes(b"content")
    for _ in range(2):
        cached("set", [source], read)
        cached("other", [source], read)
        cached("set", [source, source], read)
        cached("set", [tmp_path / "second"], read)
        assert read.calls == 4


def test_a_changed_source_is_read_again_and_replaces_the_cache(folder, source):
    read = Reader()
    cached("set", [source], read)
    os.utime(source, ns=(0, 5))
    read.arrays = {"x": np.zeros(3)}
    same(cached("set", [source], read), read.arrays)
    source.write_bytes(b"longer content")
    os.utime(source, ns=(0, 5))
    read.arrays = {"x": np.ones(3)}
    for _ in range(2):
        same(cached("set", [source], read), read.arrays)
    assert read.calls == 3
    assert len(list(folder.iterdir())) == 1


def test_damage_is_repaired(folder, source):
    """Whatever else lies there; single bits are in tests/faults/test_fuzz_data.py."""
    cached("set", [source], Reader())
    [place] = folder.iterdir()
    data = place.read_bytes()
    np.savez(place, x=np.zeros(3))
    other = place.read_bytes()
    for content in (b"", b"{", b"PK\x03\x04", data[:-1], data[100:], data[: len(data) // 2], other, None):
        place.unlink()
        if content is not None:
            place.write_bytes(content)
        read = Reader()
        for _ in range(2):
            same(cached("set", [source], read))
        assert read.calls == 1
    assert list(folder.iterdir()) == [place]


def test_an_unwritable_cache_is_not_used(source, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        monkeypatch.setenv("FEDJAX_DRAG_CACHE", str(place))
        read = Reader()
        for _ in range(2):
            same(cached("set", [source], read))
        assert read.calls == 2

    def full(*arguments, **keywords):
        raise OSError(28, "No space left on device")

    monkeypatch.setenv("FEDJAX_DRAG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(np, "savez", full)
    same(cached("set", [source], Reader()))
    assert not list((tmp_path / "cache").iterdir())


def test_it_can_be_switched_off_and_moved(source, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    monkeypatch.setenv("FEDJAX_DRAG_CACHE", "")
    read = Reader()
    for _ in range(2):
        same(cached("set", [source], read))
    assert (read.calls, [path.name for path in tmp_path.iterdir()]) == (2, ["source"])
    monkeypatch.setenv("FEDJAX_DRAG_CACHE", "~/mine")
    cached("set", [source], read)
    assert (tmp_path / "mine").is_dir()
    monkeypatch.delenv("FEDJAX_DRAG_CACHE")
    cached("set", [source], read)
    if sys.platform == "linux":
        assert [path.name[:4] for path in (tmp_path / "user/fedjax_drag").iterdir()] == ["set-"]


def test_nothing_is_kept_after_an_error(folder, source):
    def read():
        raise ValueError("damaged")

    with pytest.raises(ValueError, match="damaged"):
        cached("set", [source], read)
    assert not folder.exists()


def test_many_at_once(folder, source):
    def user(_):
        for i in range(40):
            same(cached("set", [source], Reader()))
            if i % 4 == 0:
                for path in folder.glob("set-*"):
                    with contextlib.suppress(OSError):
                        path.write_bytes(b"damaged")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(user, range(4)))
