import gzip
import hashlib
import lzma
import tracemalloc

import pytest

from fedjax_drag.data.formats import compressed

CONTENT = bytes(range(256)) * 20
PACK = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}


@pytest.fixture(params=PACK)
def kind(request):
    return request.param


def write(folder, kind, data=CONTENT):
    path = folder / f"file.bin{kind}"
    path.write_bytes(PACK[kind](data))
    return path


def refused(path, match, **arguments):
    with pytest.raises(ValueError, match=match) as error:
        compressed.read(path, **arguments)
    assert "\n" not in str(error.value)
    assert str(error.value).startswith(f"{path}: ")


def test_content_comes_back(tmp_path, kind):
    path = write(tmp_path, kind)
    assert compressed.read(path) == compressed.read(str(path), limit=len(CONTENT)) == CONTENT
    assert compressed.official_name(path) == "file.bin"
    assert compressed.read(write(tmp_path, kind, b"")) == b""
    with compressed.opened(write(tmp_path, kind)) as stream:
        assert compressed.take(stream, 10) + compressed.take(stream) == CONTENT


@pytest.mark.parametrize("kind", [".gz", ".xz"])
def test_a_packed_file_without_its_ending_is_named(tmp_path, kind):
    path = write(tmp_path, kind).rename(tmp_path / "file.bin")
    refused(path, f"a {compressed.SUFFIXES[kind]} file: rename it to file.bin{kind}$")


def test_members_that_follow_each_other_are_one_content(tmp_path):
    for kind in (".gz", ".xz"):
        path = write(tmp_path, kind)
        path.write_bytes(path.read_bytes() * 2)
        assert compressed.read(path) == CONTENT * 2


def test_more_than_the_limit_is_refused_before_it_is_in_memory(tmp_path, kind):
    refused(write(tmp_path, kind), "holds more than the 5,119 bytes", limit=len(CONTENT) - 1)
    path = write(tmp_path, kind, bytes(40 << 20))
    tracemalloc.start()
    refused(path, "holds more than the 1,000,000 bytes", limit=1_000_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 << 20  # of which an .xz file takes 8 to be unpacked


@pytest.mark.parametrize("kind", [".gz", ".xz"])
def test_damage_is_one_line(tmp_path, kind):
    path, name = write(tmp_path, kind), compressed.SUFFIXES[kind]
    packed = path.read_bytes()
    for length in range(0, len(packed), 3):
        path.write_bytes(packed[:length])
        refused(path, f"damaged {name} file")
    path.write_bytes(packed[:40] + bytes([packed[40] ^ 1]) + packed[41:])
    refused(path, f"damaged {name} file")
    path.write_bytes(packed + b"more")
    refused(path, f"damaged {name} file")
    path.write_bytes(b"<html>")
    refused(path, f"damaged {name} file .*; get it again")


def test_a_missing_file_is_missing(tmp_path, kind):
    with pytest.raises(FileNotFoundError):
        compressed.read(tmp_path / f"nothing{kind}")


def test_published_checksums(tmp_path, kind):
    path = write(tmp_path, kind)
    for algorithm, label in (("sha256", "SHA-256"), ("md5", "MD5")):
        checksums = {"file.bin": hashlib.new(algorithm, CONTENT).hexdigest()}
        compressed.verify("a_set", path, checksums, CONTENT)
        compressed.verify("a_set", path, checksums, CONTENT[:7], memoryview(CONTENT)[7:])
        with pytest.raises(ValueError, match=f"{path}: not the published file of a_set: {label} .* must be") as error:
            compressed.verify("a_set", path, checksums, CONTENT[1:])
        assert "\n" not in str(error.value)
    compressed.verify("a_set", path, {"another": "00"}, CONTENT)
