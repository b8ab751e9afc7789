import tracemalloc

import pytest
from data_files import PACK, digests, refused, write

from fedjax_drag.data.formats import compressed

CONTENT = bytes(range(256)) * 20


@pytest.fixture(params=PACK)
def kind(request):
    return request.param


def written(folder, kind, data=CONTENT):
    return write(folder, {"file.bin": data}, kind) / f"file.bin{kind}"


def test_content_comes_back(tmp_path, kind):
    path = written(tmp_path, kind)
    assert compressed.read(path, len(CONTENT)) == compressed.read(path, 1 << 40) == CONTENT
    assert compressed.official_name(path) == "file.bin"
    assert compressed.read(written(tmp_path, kind, b""), 1) == b""
    if kind:  # streams that follow each other are one content
        path.write_bytes(PACK[kind](CONTENT) * 2)
        assert compressed.read(path, 1 << 40) == CONTENT * 2
    with pytest.raises(FileNotFoundError):
        compressed.read(tmp_path / f"nothing{kind}", 1)


def test_more_than_the_limit_is_refused_before_it_is_in_memory(tmp_path, kind):
    path = written(tmp_path, kind)
    refused("holds more than the 5,119 bytes", compressed.read, path, len(CONTENT) - 1, start=path)
    path = written(tmp_path, kind, bytes(40 << 20))
    tracemalloc.start()
    refused("holds more than the 1,000,000 bytes", compressed.read, path, 1_000_000, start=path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 << 20  # of which an .xz file takes 8 to be unpacked


@pytest.mark.parametrize(("kind", "name", "magic"), [(".gz", "gzip", 2), (".xz", "xz", 6)])
def test_damage_is_one_line(tmp_path, kind, name, magic):
    path = written(tmp_path, kind)
    packed = path.read_bytes()
    flipped = packed[:40] + bytes([packed[40] ^ 1]) + packed[41:]
    for data in (*(packed[:length] for length in range(magic, len(packed))), flipped, packed + b"more"):
        path.write_bytes(data)
        refused(f"damaged {name} file .*; get it again", compressed.read, path, 1 << 30, start=f"{path}: ")


def test_the_first_bytes_decide_and_not_the_name(tmp_path, kind):
    path = written(tmp_path, kind).rename(tmp_path / "file.bin.gz")
    assert compressed.read(path, 1 << 30) == CONTENT


def test_published_checksums(tmp_path, kind):
    path = written(tmp_path, kind)
    for algorithm, label in (("sha256", "SHA-256"), ("md5", "MD5")):
        checksums = digests({"file.bin": CONTENT}, algorithm)
        compressed.verify("a_set", path, checksums, CONTENT)
        message = f"{path}: not the published file of a_set: {label} .* must be"
        refused(message, compressed.verify, "a_set", path, checksums, CONTENT[1:])
    compressed.verify("a_set", path, {"another": "00"}, CONTENT)
