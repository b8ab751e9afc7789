import gzip
import io
import itertools
import os
import re
import tarfile
from pathlib import Path

import numpy as np
import pytest
from data_files import refused, write

from fedjax_drag.data import partition
from fedjax_drag.data.sets import leaf, shakespeare

PLAY = """THE PLAY

DRAMATIS PERSONAE

KING HENRY.
a king, and his cast

SCENE: Here.

ACT I.

Scene I. A room.

[Enter King
and Fool.]

KING HENRY.
Once more unto the breach, dear
friends,   once more; [Drums.]

Fool.
The rain it raineth
Every day:

And night, too.

KING HENRY. Peace!
Be still.

[Exeunt.]

ACT II.

Nobody says this.

Fool.
Ay\u00e9, \u201cmy\u201d lord\u2014no *.

DUKE

What news?

DUKE
Speak.
"""
SPOKEN = {
    "KING HENRY": "Once more unto the breach, dear\nfriends, once more;\nPeace!\nBe still.",
    "FOOL": 'The rain it raineth\nEvery day:\nAnd night, too.\nAye, "my" lord--no .',
    "DUKE": "What news?\nSpeak.",
}


def archive(path, members):
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def speeches(role, size, seed):
    """Speeches of a role in the manner of tiny Shakespeare, and the text they make."""
    rng = np.random.default_rng(seed)
    lines = ["".join(rng.choice(list("abcdefgh"), 19)) for _ in range(size)]
    return [f"{role}:\n{line}\n" for line in lines], "\n".join(lines)


def test_roles_of_a_play(tmp_path):
    files = {"texts/play_gut.txt": PLAY.encode(), "texts/sonnets.txt": b"KING HENRY.\nno play\n", "a/b.pdf": b"\xff"}
    texts = shakespeare.role_texts(archive(tmp_path / "plays.tar.gz", files))
    assert texts == {f"play/{role}": text for role, text in SPOKEN.items()}


def test_roles_of_a_plain_text(tmp_path):
    path = tmp_path / "input.txt"
    path.write_text(
        "First Citizen:\nBefore we proceed:\nhear.\n\nAll:\nSpeak.\r\n\r\nFirst Citizen:\nYou\n\nALL\n\nare\n"
    )
    assert shakespeare.role_texts(path) == {
        "FIRST CITIZEN": "Before we proceed:\nhear.\nYou\nALL\nare",
        "ALL": "Speak.",
    }


def test_windows_are_text_and_none_crosses_the_cut(tmp_path):
    one, two, short = speeches("One", 40, 0), speeches("Two", 25, 1), speeches("Short", 2, 2)
    turns = itertools.zip_longest(one[0], two[0], short[0], fillvalue="")  # the roles speak in turn
    (tmp_path / "input.txt").write_text("\n".join(speech for turn in turns for speech in turn))
    fed = shakespeare.load_shakespeare(tmp_path, window=30, stride=7, test_fraction=0.25)
    assert fed.user_names == ("ONE", "TWO")
    assert (fed.train.x.dtype, fed.num_classes, fed.input_shape) == (np.int8, 80, (30,))
    train = [decode(row) for row in np.c_[fed.train.x, fed.train.y]]
    assert fed.users is not None
    assert fed.test_users is not None
    place = 0
    for user, (_, text) in enumerate((one, two)):
        cut = len(text) - round(0.25 * len(text))
        expected = [text[begin : begin + 31] for begin in range(0, cut - 30, 7)]
        assert [w for w, owner in zip(train, fed.users, strict=True) if owner == user] == expected
        assert all(window in text[:cut] for window in expected)
        for begin in range(cut, len(text) - 30, 7):
            assert decode(np.append(fed.test.x[place], fed.test.y[place])) == text[begin : begin + 31]
            assert fed.test_users[place] == user
            place += 1
    assert place == len(fed.test.y)
    assert len(partition.natural(fed).counts) == 2


def decode(row):
    return "".join(leaf.ALPHABET[token] for token in row)


def test_leaf_files_come_first_and_a_given_file_before_all(tmp_path):
    folder = tmp_path / "shakespeare"
    text = b'{"users": ["r"], "num_samples": [1], "user_data": {"r": {"x": ["%s"], "y": ["b"]}}}' % (b"a" * 80)
    write(folder, {"train/a.json": text, "test/a.json": text})
    path = write(folder, {"input.txt": "\n".join(speeches("One", 40, 0)[0]).encode()}, ".gz") / "input.txt.gz"
    assert shakespeare.load_shakespeare(tmp_path).user_names == ("r",)
    assert shakespeare.load_shakespeare(path).user_names == ("ONE",)
    message = r"stride=2: .*a\.json is already cut into windows; leave it out"
    refused(message, lambda: shakespeare.load_shakespeare(tmp_path, stride=2))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"window": 0}, "window=0"),
        ({"stride": 0}, "stride=0"),
        ({"stride": 1.0}, r"stride=1\.0"),
        ({"test_fraction": 0.0}, r"test_fraction=0\.0: must be in \(0, 1\)"),
        ({"test_fraction": 1.0}, r"test_fraction=1\.0"),
        ({"window": 400}, "input.txt: no role speaks enough for windows of 400 characters"),
        ({"window": 10**12}, "input.txt: no role speaks enough"),
    ],
)
def test_bad_arguments_are_named(tmp_path, arguments, message):
    (tmp_path / "input.txt").write_text("\n".join(speeches("One", 40, 0)[0]))
    refused(message, lambda: shakespeare.load_shakespeare(tmp_path, **arguments))


def test_malicious_files_are_one_clear_line(tmp_path, monkeypatch):
    load, text = shakespeare.load_shakespeare, tmp_path / "a.txt"
    refused(r"^shakespeare: not found .* get LEAF's .*openshakespeare", load, tmp_path, kind=FileNotFoundError)
    for content, message in (
        (b"ROLE:\n\xff\xfe\n", "not UTF-8 text"),
        (b"", "no role speaks enough"),
        (b"no roles here\n" * 99, "no role speaks enough"),
    ):
        text.write_bytes(content)
        refused(message, load, text, start=text)
    whole = archive(tmp_path / "plays.tar.gz", {"a.txt": PLAY.encode() * 30, "b.txt": b"x" * 2000})
    content, tar = gzip.decompress(whole.read_bytes()), tmp_path / "some.tar"
    for damaged in (content[:300], content[:600], content[:5000], b"PK\x03\x04" * 500):
        tar.write_bytes(damaged)
        refused("damaged tar archive", load, tar, start=tar)
    bad = archive(tmp_path / "latin.tar.gz", {"d/a\nb.txt": b"\xe9"})
    refused(r"'a\\nb\.txt': not UTF-8 text", load, bad, start=bad)
    member = tarfile.TarInfo("huge.txt")
    member.size = 1 << 40
    tar.write_bytes(member.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    refused("more than 10,000 members or 67,108,864 bytes", load, tar, start=tar)
    monkeypatch.setattr(shakespeare, "_MOST_BYTES", 1000)
    refused("more than the 1,000 bytes", load, whole, start=whole)


SHARED = Path(os.environ.get("FEDJAX_DRAG_DATA") or "/nowhere") / "shakespeare"


def published(name):
    path = SHARED / name
    if not path.is_file():
        pytest.skip(f"needs {name} in the folder shakespeare of FEDJAX_DRAG_DATA")
    return path


@pytest.mark.thorough
def test_open_shakespeare():
    path = published("openshakespeare-0.6-texts.tar.gz")
    texts = shakespeare.role_texts(path)
    assert len(texts) == 1354
    assert len({name.partition("/")[0] for name in texts}) == 37
    assert sum(map(len, texts.values())) == 4_256_163
    assert set("".join(texts.values())) <= set(leaf.ALPHABET)
    assert texts["hamlet/HAM"].startswith("A little more than kin, and less than kind!\nNot so, my lord;")
    assert "To be, or not to be,--that is the question:--" in texts["hamlet/HAM"]
    lines = [line for text in texts.values() for line in text.split("\n")]
    assert len(lines) > 100_000
    assert sum(bool(re.search(r"[\[\]]", line)) for line in lines) == 32  # directions that lack a bracket

    fed = shakespeare.load_shakespeare(path)
    assert fed.train.x.shape == (328_118, 80)
    assert fed.test.x.shape == (77_210, 80)
    assert len(fed.user_names) == 850
    assert len(np.unique(fed.train.x)) == 76  # of the 80 characters
    assert fed.users is not None
    sizes = np.bincount(fed.users)
    assert (sizes.min(), np.median(sizes), sizes.max()) == (25, 169, 5194)
    first = 0  # of the test examples of a user, which have their order
    for user, name in enumerate(fed.user_names):
        text = texts[name]
        cut = len(text) - round(0.2 * len(text))
        rows = np.flatnonzero(fed.users == user)
        joined = decode(fed.train.x[rows, :10].ravel())  # the windows begin ten characters apart
        assert text[:cut].startswith(joined)
        last = np.append(fed.train.x[rows[-1]], fed.train.y[rows[-1]])
        assert decode(last) == text[10 * (len(rows) - 1) :][:81]
        assert 10 * (len(rows) - 1) + 81 <= cut
        number = len(range(0, len(text) - cut - 80, 10))
        assert text[cut:].startswith(decode(fed.test.x[first : first + number, :10].ravel()))
        first += number
    assert first == len(fed.test.y)


def test_tiny_shakespeare():
    path = published("tinyshakespeare-input.txt.gz")
    texts = shakespeare.role_texts(path)
    assert len(texts) == 302
    assert sum(map(len, texts.values())) == 1_027_543
    fed = shakespeare.load_shakespeare(path)
    assert (len(fed.train.y), len(fed.test.y), len(fed.user_names)) == (79_537, 18_796, 192)
