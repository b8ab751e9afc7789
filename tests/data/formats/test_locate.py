import gzip

import pytest

from fedjax_drag.data.formats import locate

WANTED = ("one", "two")


def write(folder, *names):
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_bytes(gzip.compress(b"x"))
    return [folder / name for name in names]


def find(data_dir=None):
    return locate.find("a_set", (WANTED,), ("sub", "other/sub"), data_dir, "get it and")


def test_subfolders_come_before_the_place_and_plain_files_before_packed_ones(tmp_path):
    paths = write(tmp_path, "one", "two")
    assert find(tmp_path) == find(str(tmp_path)) == paths
    paths = write(tmp_path / "other/sub", "one.xz", "two.gz")
    assert find(tmp_path) == paths
    paths = write(tmp_path / "sub", "one.gz", "two")
    assert find(tmp_path) == paths
    write(tmp_path / "sub", "one")
    assert find(tmp_path) == [tmp_path / "sub" / name for name in WANTED]
    (tmp_path / "sub" / "one").unlink()
    (tmp_path / "sub" / "one").mkdir()  # not a file
    assert find(tmp_path) == paths


def test_only_a_given_folder_is_searched(tmp_path, monkeypatch):
    monkeypatch.setattr(locate, "_SYSTEM", tmp_path / "system")
    system = write(tmp_path / "system/a-set", *WANTED)
    monkeypatch.setenv("FEDJAX_DRAG_DATA", "")
    assert find() == system
    monkeypatch.setenv("FEDJAX_DRAG_DATA", str(tmp_path / "mine"))
    mine = write(tmp_path / "mine/sub", *WANTED)
    assert find() == mine
    with pytest.raises(FileNotFoundError) as error:
        find(tmp_path / "elsewhere")
    assert "system" not in str(error.value)
    assert "mine" not in str(error.value)


def test_a_home_folder_may_be_abbreviated(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    paths = write(tmp_path / "data", *WANTED)
    assert find("~/data") == paths


def test_missing_files_are_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDJAX_DRAG_DATA", str(tmp_path))
    write(tmp_path, "two.gz")
    with pytest.raises(FileNotFoundError) as error:
        find()
    places = f"{tmp_path}/sub, {tmp_path}/other/sub, /usr/share/datasets/a-set, {tmp_path}"
    assert str(error.value) == (
        f"a_set: not found in {places}; {tmp_path} lacks one (plain, .gz or .xz); get it and set data_dir or "
        "FEDJAX_DRAG_DATA to the folder that holds one and two (plain, .gz or .xz)"
    )
    with pytest.raises(FileNotFoundError, match=r"holds one and the other 2 \(plain"):
        locate.find("a_set", (("one", "two", "three"),), (), tmp_path, "get it and")
