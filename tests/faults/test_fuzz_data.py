"""Damaged data files are refused in one line that names them, or read as what they are, and never take the machine.

What is found without a published checksum: whatever breaks the structure (sizes, types, labels out of range, bytes
missing or left over), and any change at all of a packed file, which has a checksum of its own. A flipped bit among the
pixels of a plain file gives another pixel, and only the checksum of the published file shows that.
"""

import functools
import gzip
import hashlib
import io
import json
import lzma
import os
import pickle
import shutil
import struct
import tarfile
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import scipy.io
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedjax_drag.data.formats import files
from fedjax_drag.data.formats.cache import cached
from fedjax_drag.data.sets import adult, cifar, emnist, leaf, shakespeare, svhn

PACK = {
    "": bytes,
    ".gz": functools.partial(gzip.compress, mtime=0),
    ".xz": functools.partial(lzma.compress, check=lzma.CHECK_CRC32),
}
RNG = np.random.default_rng(0)


class Format(NamedTuple):
    """A small data set.

    Attributes:
      files: content by path below its folder.
      load: ``(folder, content by path) -> data set``; the content counts as published.
    """

    files: dict[str, bytes]
    load: Callable[[Any, dict[str, bytes]], Any]


def idx_files(names, labels):
    def content(values):
        return bytes((0, 0, 8, values.ndim)) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()

    images = [RNG.integers(0, 256, (len(y), 5, 4), dtype=np.uint8) for y in labels]
    arrays = [array for pair in zip(images, map(np.uint8, labels), strict=True) for array in pair]
    return dict(zip(names, map(content, arrays), strict=True))


def cifar_files(dataset, kind):
    found = {}
    for name in getattr(dataset, kind):
        n = 2
        labels = [RNG.integers(0, most, n) for most in dataset.num_classes]
        pixels = RNG.integers(0, 256, (n, 3072), dtype=np.uint8)
        if kind == "binary":
            found[name] = np.concatenate([np.stack(labels, 1).astype(np.uint8), pixels], 1).tobytes()
        else:
            found[name] = pickle.dumps(
                {"data": pixels, **dict(zip(dataset.keys, map(np.ndarray.tolist, labels), strict=True))}
            )
    sizes = (2 * (len(found) - 1), 2)
    return Format(found, lambda folder, _: cifar.load_cifar(dataset._replace(checksums={}, num_images=sizes), folder))


def mat(packed):
    def one(n):
        stream = io.BytesIO()
        pixels, labels = (
            RNG.integers(0, 256, (32, 32, 3, n), dtype=np.uint8),
            RNG.integers(1, 11, (n, 1), dtype=np.uint8),
        )
        scipy.io.savemat(stream, {"X": pixels, "y": labels}, do_compression=packed)
        return stream.getvalue()

    def load(folder, content):
        return svhn.load_svhn(svhn.SVHN._replace(checksums=digests(content, "md5")), folder)

    return Format({"train_32x32.mat": one(3), "test_32x32.mat": one(2)}, load)


def digests(content, algorithm="sha256"):
    return {name: hashlib.new(algorithm, data).hexdigest() for name, data in content.items()}


def adult_files():
    words = "Private, {}, HS-grad, 9, Divorced, Sales, Wife, White, Male, 0, 0, 40, United-States"
    row = "39, " + words.format(77516)
    data = f"{row}, <=50K\n{row}, >50K\n39, {words.format(3)}, <=50K\n\n".encode()
    load = lambda folder, content: adult.load_adult(adult.ADULT._replace(sha256=digests(content)), folder)
    return Format({"adult.data": data, "adult.test": b"|1x3 Cross validator\n" + data.replace(b"K\n", b"K.\n")}, load)


def leaf_files(dataset, x, y):
    def part(users):
        content = {"users": users, "num_samples": [2] * len(users), "user_data": {u: {"x": x, "y": y} for u in users}}
        return json.dumps(content).encode()

    parts = {"train/a.json": part(["u0", "u1"]), "test/a.json": part(["u0"])}
    return Format(parts, lambda folder, _: leaf.load_leaf(dataset, folder))


def tarred(text):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name in ("play_gut.txt", "other.txt"):
            member = tarfile.TarInfo(f"texts/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))
    return stream.getvalue()


LINES = "To be, or not to be, that is the question: whether it is nobler in the mind.\n"
speeches = lambda mark: (
    "ACT I\n\n" + "".join(f"{name}{mark}\n{LINES * 3}\n" for name in ("HAMLET", "OPHELIA", "HAMLET"))
)
read_text = lambda folder, _: shakespeare.load_shakespeare(folder, window=20)

FORMATS = {
    "idx": Format(
        idx_files(files.MNIST.files, ([0, 9, 3], [1, 2])),
        lambda folder, _: files.load_idx(files.MNIST._replace(sha256={}), folder),
    ),
    "emnist": Format(
        idx_files(emnist.EMNIST["emnist_letters"].files, ([1, 26, 3], [1, 2])),
        lambda folder, _: files.load_idx(emnist.EMNIST["emnist_letters"], folder),
    ),
    "cifar10-binary": cifar_files(cifar.CIFAR10, "binary"),
    "cifar100-python": cifar_files(cifar.CIFAR100, "python"),
    "svhn": mat(packed=True),
    "svhn-plain": mat(packed=False),
    "adult": adult_files(),
    "femnist": leaf_files(leaf.FEMNIST, [[0.0] * 783 + [1.0], [0.5] * 784], [0, 61]),
    "leaf-shakespeare": leaf_files(leaf.SHAKESPEARE, [LINES[:60] + "a" * 20] * 2, ["a", "b"]),
    "text": Format({"input.txt": speeches(":").encode()}, read_text),
    "tar": Format({shakespeare.ARCHIVE: tarred(speeches(".").encode())}, read_text),
}

ENCODINGS = ("utf-16", "utf-32", "utf-8-sig", "cp037")


@st.composite
def damaged(draw, data):
    """The bytes of a file with something done to them."""
    kind = draw(
        st.sampled_from(("cut", "flip", "flip", "put", "drop", "fill", "size", "twice", "other", "encode", "word"))
    )
    place, other = draw(st.integers(0, len(data))), draw(st.integers(0, len(data)))
    start, end = sorted((place, other))
    match kind:
        case "cut":
            return data[:place]
        case "flip":
            near = draw(st.sampled_from((len(data), 64, 300)))  # of most formats the beginning says the most
            changed = bytearray(data)
            for _ in range(draw(st.integers(1, 4))):
                changed[draw(st.integers(0, min(len(data), near) - 1))] ^= 1 << draw(st.integers(0, 7))
            return bytes(changed)
        case "put":
            return data[:place] + draw(st.binary(max_size=20)) + data[place:]
        case "drop":
            return data[:start] + data[end:]
        case "fill":
            return data[:start] + draw(st.sampled_from((b"\0", b"\xff", b"[", b"9"))) * (end - start) + data[end:]
        case "size":
            place = draw(st.integers(0, min(300, len(data))))
            number = draw(st.sampled_from((0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**20)))
            return data[:place] + struct.pack(draw(st.sampled_from(("<I", ">I"))), number) + data[place + 4 :]
        case "twice":
            return data * 2
        case "other":
            return draw(st.binary(max_size=50) | st.sampled_from((b"", b"<html>", b"null", b"[]", b"{}", b"[" * 10**5)))
        case "encode":
            return data.decode("latin-1").encode(draw(st.sampled_from(ENCODINGS)), errors="replace")
    found = draw(st.sampled_from((b"0.5", b"1.0", b"2", b"a", b"HAMLET", b"Private", b"users", b"u1", b"40", b"\n")))
    new = draw(
        st.sampled_from(
            (b"NaN", b"-1", b"1e999", b"null", b"[[]]", b"99999999999", b"9" * 5000, b"\xff", b"true", b'"')
        )
    )
    return data.replace(found, new, draw(st.sampled_from((1, -1))))


@st.composite
def attacks(draw):
    """A format, its files with one damaged, how they are packed, and whether that happened to the packed one."""
    name = draw(st.sampled_from(sorted(FORMATS)))
    content = dict(FORMATS[name].files)
    victim = draw(st.sampled_from(sorted(content)))
    packed, kind = draw(st.booleans()), draw(st.sampled_from(sorted(PACK)))
    if packed and kind:
        whole = PACK[kind](content[victim])
        return (
            name,
            content,
            victim,
            kind,
            draw(damaged(whole).filter(lambda new: new != 2 * whole)),
        )  # which is twice as much
    content[victim] = draw(damaged(content[victim]))
    return name, content, victim, kind, None


def arrays(fed):
    return (fed.train.x, fed.train.y, fed.test.x, fed.test.y)


class Harness:
    """Writes files, loads them, and counts what came of it."""

    def __init__(self, folder, bounded):
        self.folder, self.bounded = folder, bounded
        self.loaded = self.refused = 0

    def write(self, content, kind):
        shutil.rmtree(self.folder)
        self.folder.mkdir()
        for name, data in content.items():
            path = self.folder / f"{name}{kind}"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(PACK[kind](data))

    def check(self, attack, megabytes=300):
        name, content, victim, kind, packed = attack
        self.write(content, kind)
        if packed is not None:
            (self.folder / f"{victim}{kind}").write_bytes(packed)
        fed, message = None, ""
        with self.bounded(60, megabytes):
            try:
                fed = FORMATS[name].load(self.folder, content)
            except ValueError as error:
                message = str(error)
        if fed is None:
            assert len(message.splitlines()) == 1
            assert message.startswith(f"{self.folder}/")
            self.refused += 1
            return
        self.loaded += 1
        for part in (fed.train, fed.test):
            assert part.x.shape[1:] == fed.input_shape
            assert part.y.shape == part.x.shape[:1]
            assert 0 <= part.y.min() <= part.y.max() < fed.num_classes
            assert np.isfinite(part.x).all()
        if packed is not None:  # a change that was not seen is none
            self.write(content, "")
            for found, expected in zip(arrays(fed), arrays(FORMATS[name].load(self.folder, content)), strict=True):
                np.testing.assert_array_equal(found, expected)


@pytest.fixture(scope="module")
def harness(tmp_path_factory, bounded):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDJAX_DRAG_CACHE", "")
        yield Harness(tmp_path_factory.mktemp("fuzz"), bounded)


QUICK = settings(
    max_examples=120, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("kind", PACK)
def test_whole_files_load(harness, name, kind):
    before = harness.loaded
    harness.check((name, FORMATS[name].files, "", kind, None))
    assert harness.loaded == before + 1


@pytest.mark.thorough
@given(attacks())
@QUICK
def test_damaged_files_are_refused_or_are_what_they_say(harness, attack):
    harness.check(attack)


@pytest.mark.slow
def test_thousands_of_damaged_files(harness, capsys):
    harness.loaded = harness.refused = 0
    number = int(os.environ.get("FEDJAX_DRAG_FUZZ", "10000"))

    @given(attacks())
    @settings(QUICK, max_examples=number, derandomize=False, print_blob=True)
    def check(attack):
        harness.check(attack)

    try:
        check()
    finally:
        with capsys.disabled():
            print(f"\nfiles fuzzed: {harness.refused} refused in one line, {harness.loaded} read as what they are")


@pytest.mark.thorough
@given(st.data())
@settings(QUICK, max_examples=30)
def test_any_change_of_a_published_file_is_seen(harness, data):
    """Of one with a checksum, also in its pixels."""
    content = dict(FORMATS["idx"].files)
    name = data.draw(st.sampled_from(sorted(content)))
    harness.write(content | {name: data.draw(damaged(content[name]).filter(lambda new: new != content[name]))}, "")
    with pytest.raises(ValueError, match=name):
        files.load_idx(files.MNIST._replace(sha256=digests(content)), harness.folder)


@pytest.mark.thorough
@given(st.integers(0, 2), st.booleans(), st.floats(0, 1, exclude_max=True), st.integers(0, 7))
@settings(QUICK, max_examples=40)
def test_a_damaged_cache_is_read_anew(tmp_path_factory, file, cut, where, bit):
    folder = tmp_path_factory.mktemp("cache")
    (folder / "source").write_bytes(b"1")
    kept = {"x": np.arange(12.0).reshape(3, 4), "y": np.arange(3)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDJAX_DRAG_CACHE", str(folder / "kept"))
        cached("small", [folder / "source"], lambda: kept)
        path = sorted(path for path in (folder / "kept").rglob("*") if path.is_file())[file]
        content = bytearray(path.read_bytes())
        place = int(where * len(content))
        content[place] ^= 1 << bit
        path.write_bytes(content[:place] if cut else content)
        found = cached("small", [folder / "source"], lambda: kept)
    assert found.keys() == kept.keys()
    for name, values in kept.items():
        np.testing.assert_array_equal(found[name], values)


BOMBS = [
    (name, kind)
    for name in ("idx", "text", "cifar10-binary", "cifar100-python", "svhn", "adult", "femnist", "tar")
    for kind in (".gz", ".xz")
]


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("name", "kind"), [*BOMBS[:4], *(pytest.param(*bomb, marks=pytest.mark.slow) for bomb in BOMBS[4:])]
)
def test_what_unpacks_to_gigabytes_is_not_unpacked(harness, name, kind):
    """Three gigabytes, as streams that follow each other, which are one content: at most a quarter of them is read."""
    content, victim = dict(FORMATS[name].files), sorted(FORMATS[name].files)[0]
    bomb = PACK[kind](content[victim]) + PACK[kind](b" " * (16 << 20)) * 200
    before = harness.refused
    harness.check((name, content, victim, kind, bomb), megabytes=900)
    assert harness.refused == before + 1
