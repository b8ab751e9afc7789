"""Damaged data files are refused in one line that names them, or read as what they are, and never take the machine.

What is found without a published checksum: whatever breaks the structure (sizes, types, labels out of range, bytes
missing or left over), and any change at all of a packed file, which has a checksum of its own. A flipped bit among the
pixels of a plain file gives another pixel, and only the checksum of the published file shows that.
"""

import io
import json
import os
import shutil
import struct
import tarfile
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from data_files import PACK, digests, mat, small
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedjax_drag.data.formats.cache import cached
from fedjax_drag.data.sets import adult, cifar, leaf, mnist, shakespeare, svhn


class Format(NamedTuple):
    """A small data set.

    Attributes:
      files: content by path below its folder.
      load: ``folder -> data set``.
    """

    files: dict[str, bytes]
    load: Callable[[Any], Any]


def published(dataset, version=0, checksums=None):
    """Files of which none, or all, have published checksums."""
    case = small(dataset, version)
    return Format(case.files, (case.dataset if checksums else case.dataset._replace(checksums={})).load)


def plain_mat():
    case = small(svhn.SVHN)
    parts = zip(case.files, np.split(case.x, [20]), np.split(case.y, [20]), strict=True)
    files = {name: mat(x, y, packed=False) for name, x, y in parts}
    return Format(files, case.dataset._replace(checksums=digests(files)).load)


def adult_files():
    words = "Private, {}, HS-grad, 9, Divorced, Sales, Wife, White, Male, 0, 0, 40, United-States"
    row = "39, " + words.format(77516)
    data = f"{row}, <=50K\n{row}, >50K\n39, {words.format(3)}, <=50K\n\n".encode()
    return {"adult.data": data, "adult.test": b"|1x3 Cross validator\n" + data.replace(b"K\n", b"K.\n")}


def leaf_files(dataset, x, y):
    def part(users):
        content = {"users": users, "num_samples": [2] * len(users), "user_data": {u: {"x": x, "y": y} for u in users}}
        return json.dumps(content).encode()

    return Format({"train/a.json": part(["u0", "u1"]), "test/a.json": part(["u0"])}, dataset.load)


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
read_text = lambda folder: shakespeare.load_shakespeare(folder, window=20)

FORMATS = {
    "idx": published(mnist.MNIST),
    "emnist": published(mnist.EMNIST["emnist_letters"]),
    "cifar10-binary": published(cifar.CIFAR10),
    "cifar100-python": published(cifar.CIFAR100, 1, checksums=True),
    "svhn": published(svhn.SVHN, checksums=True),
    "svhn-plain": plain_mat(),
    "adult": Format(adult_files(), adult.load_adult),
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
        twice = 2 * whole  # which is twice as much
        return name, content, victim, kind, draw(damaged(whole).filter(lambda new: new != twice))
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
                fed = FORMATS[name].load(self.folder)
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
            for found, expected in zip(arrays(fed), arrays(FORMATS[name].load(self.folder)), strict=True):
                np.testing.assert_array_equal(found, expected)


@pytest.fixture(scope="module")
def harness(tmp_path_factory, bounded):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDJAX_DRAG_CACHE", "")
        patch.setattr(adult, "_CHECKSUMS", digests(adult_files()))
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
    case = small(mnist.MNIST)
    name = data.draw(st.sampled_from(sorted(case.files)))
    whole = case.files[name]
    harness.write(case.files | {name: data.draw(damaged(whole).filter(lambda new: new != whole))}, "")
    with pytest.raises(ValueError, match=name):
        case.dataset.load(harness.folder)


@pytest.mark.thorough
@given(st.booleans(), st.floats(0, 1, exclude_max=True), st.integers(0, 7))
@settings(QUICK, max_examples=60)
def test_a_damaged_cache_is_read_anew(tmp_path_factory, cut, where, bit):
    folder = tmp_path_factory.mktemp("cache")
    (folder / "source").write_bytes(b"1")
    kept = {"x": np.arange(12.0).reshape(3, 4), "y": np.arange(3)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDJAX_DRAG_CACHE", str(folder / "kept"))
        cached("small", [folder / "source"], lambda: kept)
        [path] = (folder / "kept").iterdir()
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


@pytest.mark.thorough
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
