"""Compiled programs kept on disk: private, verified, and compiled again where a file is damaged."""

import importlib
import json
import os
import platform
import subprocess
import sys
import zlib
from contextlib import suppress
from typing import Any

import jax
import pytest

from fedjax_drag.simulation.devices import compilation_cache
from fedjax_drag.simulation.devices.compilation_cache import keep_compiled

PROGRAMS = """
import jax
import numpy as np
from fedjax_drag.simulation.devices.compilation_cache import keep_compiled

def doubled_sums(x):
    return x.sum(1, keepdims=True) * 2

def product_and_sine(x, y):
    return x @ y, jax.numpy.sin(y)

hits = []
jax.monitoring.register_event_listener(lambda event, **_: hits.append(event) if event.endswith("/cache_hits") else None)
keep_compiled()
x = np.add.outer(np.arange(14.0), np.arange(3.0))
sums, (product, _) = jax.jit(doubled_sums)(x), jax.jit(product_and_sine)(x, x.T)
print(len(hits), sums.shape, np.sum(sums), np.sum(product))
"""
UNCHANGED = "(14, 1) 630.0 33467.0"


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def call(cache):
    """Compiles two programs in a process of its own; returns how many came from the cache, and its warnings."""
    environment = {key: value for key, value in os.environ.items() if key != "JAX_COMPILATION_CACHE_DIR"}
    settings = {"FEDJAX_DRAG_CACHE": str(cache), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    command = [sys.executable, "-c", PROGRAMS]
    done = subprocess.run(command, env=environment | settings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    hits, outcome = done.stdout.split(" ", 1)
    assert outcome.strip() == UNCHANGED
    return int(hits), done.stderr


def entries(cache):
    """The two programs' files, the smaller first."""
    found = [path for path in cache.glob("compiled*/*-cache") if path.name.startswith(("jit_doubled", "jit_product"))]
    assert len(found) == 2
    return sorted(found, key=lambda path: path.stat().st_size)


def compressor() -> Any:
    """JAX's own, as it compresses what it keeps."""
    for module in ("compression.zstd", "zstandard"):
        with suppress(ImportError):
            return importlib.import_module(module)
    return zlib


def swapped(cache):
    one, other = entries(cache)
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


def recompressed_with_a_flipped_bit_and_cut_short(cache):
    one, other = entries(cache)
    program = bytearray(compressor().decompress(one.read_bytes()))
    program[len(program) // 2] ^= 16
    one.write_bytes(compressor().compress(bytes(program)))
    other.write_bytes(other.read_bytes()[:-7])


@pytest.mark.slow
def test_changed_files_are_compiled_again(cache):
    assert call(cache) == (0, "")
    for damage in (swapped, recompressed_with_a_flipped_bit_and_cut_short):
        damage(cache)
        assert call(cache) == (0, ""), damage.__name__
    assert call(cache) == (2, "")


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o277])
def test_folders_are_private(cache, umask, monkeypatch):
    before = os.umask(umask)
    try:
        keep(cache, monkeypatch)
    finally:
        os.umask(before)
    (folder,) = cache.iterdir()
    assert [oct(place.stat().st_mode & 0o777) for place in (cache, folder)] == ["0o700", "0o700"]


def keep(cache, monkeypatch, chosen=None):
    """The folder that JAX is told about."""
    before = jax.config.values["jax_compilation_cache_dir"]
    monkeypatch.setenv("FEDJAX_DRAG_CACHE", str(cache))
    try:
        jax.config.update("jax_compilation_cache_dir", chosen)
        keep_compiled()
        return jax.config.values["jax_compilation_cache_dir"]
    finally:
        jax.config.update("jax_compilation_cache_dir", before)


@pytest.mark.thorough
def test_programs_are_kept_in_the_folder_that_the_user_names(tmp_path, monkeypatch):
    folder = keep(tmp_path, monkeypatch)
    assert folder is not None
    assert folder.startswith(str(tmp_path / "compiled-"))
    assert keep(tmp_path, monkeypatch, chosen="mine") == "mine"
    assert keep("", monkeypatch) is None


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702, 0o1777])
@pytest.mark.parametrize("inner", [False, True])
def test_a_folder_that_others_may_write_is_refused(cache, mode, inner, monkeypatch, capsys):
    place = keep(cache, monkeypatch) if inner else cache
    assert place is not None
    os.makedirs(place, exist_ok=True)
    os.chmod(place, mode)
    assert keep(cache, monkeypatch) is None
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("fedjax-drag: warning: compiled programs are not kept: others may write ")
    assert line.endswith(f"{str(place)!r} (mode {mode:04o}); run chmod 700 {str(place)!r}")


def test_a_link_to_such_a_folder_and_one_of_another_user_are_refused(cache, tmp_path, monkeypatch, capsys):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    cache.symlink_to(tmp_path / "open")
    assert keep(cache, monkeypatch) is None
    assert "others may write" in capsys.readouterr().err
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    (tmp_path / "open").chmod(0o700)
    assert keep(cache, monkeypatch) is None
    assert "belongs to another user" in capsys.readouterr().err


def test_a_folder_that_cannot_be_made(cache, monkeypatch, capsys):
    cache.write_text("in the way")
    assert keep(cache, monkeypatch) is None
    assert "compiled programs are not kept: " in capsys.readouterr().err


def test_versions_and_processors_have_folders_of_their_own(cache, monkeypatch):
    here = keep(cache, monkeypatch)
    assert keep(cache, monkeypatch) == here
    monkeypatch.setattr(platform, "machine", lambda: "another")
    there = keep(cache, monkeypatch)
    monkeypatch.setattr(compilation_cache, "version", lambda package: "99")
    assert len({here, there, keep(cache, monkeypatch)}) == 3


def test_unlisted_files_are_removed_and_the_oldest_beyond_the_limit(tmp_path, monkeypatch):
    for age, name in enumerate(("new-cache", "autotune/middle", "old-cache")):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(100))
        os.utime(path, (1e9 - age, 1e9 - age))
    compilation_cache.record(tmp_path)
    assert set(json.loads((tmp_path / compilation_cache.MANIFEST).read_text())) == {
        "new-cache",
        "autotune/middle",
        "old-cache",
    }
    (tmp_path / "unlisted-cache").write_bytes(b"1")
    (tmp_path / "link-cache").symlink_to(tmp_path / "new-cache")
    compilation_cache.verify(tmp_path)
    (tmp_path / "link-cache").symlink_to(tmp_path / "new-cache")
    compilation_cache.record(tmp_path)
    compilation_cache.verify(tmp_path)
    kept = {compilation_cache.MANIFEST, "new-cache", "autotune", "old-cache"}
    assert {path.name for path in tmp_path.iterdir()} == kept
    monkeypatch.setattr(compilation_cache, "LARGEST", 250)
    compilation_cache.verify(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == kept - {"old-cache"}
    assert set(json.loads((tmp_path / compilation_cache.MANIFEST).read_text())) == {"new-cache", "autotune/middle"}


def test_files_of_another_user_are_not_trusted(tmp_path, monkeypatch):
    (tmp_path / "new-cache").write_bytes(b"1")
    compilation_cache.record(tmp_path)
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    compilation_cache.verify(tmp_path)
    assert not (tmp_path / "new-cache").exists()


@pytest.mark.parametrize("text", ["", "[]", "{", '{"new-cache": 3}', "\x00"])
def test_with_a_manifest_that_is_damaged_nothing_is_listed(tmp_path, text):
    (tmp_path / "new-cache").write_bytes(b"1")
    compilation_cache.record(tmp_path)
    (tmp_path / compilation_cache.MANIFEST).write_text(text)
    compilation_cache.verify(tmp_path)
    assert not (tmp_path / "new-cache").exists()
