"""Shakespeare's plays as next-character data: every role of every play is a natural user.

The reader extracts the roles from plain text. It cuts the text into paragraphs at blank lines; a speech begins with a
paragraph whose first line is the name of a role, followed by a mark, and lasts until the next speech. A name that
occurs alone on the first line of a paragraph is recognised at the beginning of every paragraph. Stage directions in
brackets are left out. Two kinds of files are read:

* Open Shakespeare 0.6, a tar archive with a text for each play; the mark is a full stop. Text before the first act or
  prologue is left out, so that casts and poems have no roles. A name that is not in capitals, or lacks the mark, must
  occur twice, since a line of verse may look like a name.
* any other text, such as the ``input.txt`` of tiny Shakespeare; the mark is a colon, and there is one play.
"""

import io
import os
import re
import tarfile
import unicodedata
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np

from fedjax_drag import checks
from fedjax_drag.data.dataset import FederatedDataset, from_arrays
from fedjax_drag.data.formats import compressed, locate
from fedjax_drag.data.sets import leaf
from fedjax_drag.data.validation import hold_out

ARCHIVE = "openshakespeare-0.6-texts.tar"
TEXTS = ("tinyshakespeare-input.txt", "tinyshakespeare.txt", "input.txt")

_MOST_BYTES = 64 << 20
_MOST_MEMBERS = 10_000
_NAME = re.compile(r"[A-Z0-9][\w .,'&-]{0,39}")
_DIRECTION = re.compile(r"[\[{][^\[\]{}]*[\]}]")
_FOREIGN = re.compile(f"[^{re.escape(leaf.ALPHABET)}]")
_PLAIN = str.maketrans({"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2013": "-", "\u2014": "--"})
_SCENE = re.compile(r"(?:ACT|SCENE|(?:THE )?PROLOGUE|EPILOGUE|INDUCTION)\b|(?:Act|Scene)\b\W*(?:[IVX]+\b|\d)")


def load_shakespeare(
    data_dir: locate.Place = None,
    window: int | None = None,
    stride: int | None = None,
    test_fraction: float | None = None,
    validation_fraction: float | int | None = None,
    validation_seed: int = 0,
) -> FederatedDataset:
    """Next-character data by role, from the first of: LEAF's JSON files, Open Shakespeare 0.6, a plain text.

    In plain texts, the speeches of a role are joined in their order. Its last part is for testing; no window crosses
    the boundary between the parts. Roles too short for a window in both parts are left out. Characters are those of
    LEAF: letters lose their accents, typographic quotes and dashes become plain ones, other characters outside LEAF's
    alphabet become spaces, and a run of spaces becomes one.

    Args:
      data_dir: a text or archive; or the only folder to search: the files are in it or in ``shakespeare`` below it.
        By default the folder in the environment variable ``FEDJAX_DRAG_DATA`` is searched in the same way, and
        ``/usr/share/datasets``.
      window: characters of an input, >= 1; 80 if not given.
      stride: characters from the beginning of a window to that of the next, >= 1; 10 if not given. 1, as in LEAF,
        makes windows that share all but one of their characters: ten times the memory for little more text.
      test_fraction: of each role's characters, in (0, 1); 0.2, as in LEAF's full-sized task, if not given.
      validation_fraction: share of the training examples, in (0, 1), or, as an integer, their number, that
        :func:`~fedjax_drag.data.hold_out` moves into a validation split; default none.
      validation_seed: of that draw, >= 0.

    Returns:
      Tokens ``[N, window]`` int8 and the token that follows ``[N]``, of 80; ``users`` are the roles of the training
      examples, ``test_users`` those of the test examples; ``user_names`` are ``play/ROLE``, or ``ROLE`` if there is one
      text. Unpartitioned.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: an argument out of range, or given for LEAF's files, which are already windows; a file that is damaged
        or without roles.
    """
    paths = find(data_dir)
    if compressed.official_name(paths[0]).endswith(".json"):
        for name, value in (("window", window), ("stride", stride), ("test_fraction", test_fraction)):
            if value is not None:
                raise checks.ArgumentError(name, f"{paths[0]} is already cut into windows; leave it out", given=value)
        fed = leaf.SHAKESPEARE.load_files(paths)
    else:
        window, stride = 80 if window is None else window, 10 if stride is None else stride
        test_fraction = 0.2 if test_fraction is None else test_fraction
        checks.count("window", window, 1)
        checks.count("stride", stride, 1)
        checks.in_range("test_fraction", test_fraction, 0.0, 1.0, open_low=True, open_high=True)
        fed = _from_text(paths[0], window, stride, test_fraction)
    return hold_out(fed, validation_fraction, validation_seed)


def find(data_dir: locate.Place) -> list[Path]:
    """LEAF's files, or the one archive or text; FileNotFoundError as in :func:`load_shakespeare`."""
    if data_dir is not None and os.path.isfile(os.path.expanduser(data_dir)):
        return [Path(os.path.expanduser(data_dir))]
    with suppress(FileNotFoundError):
        return leaf.SHAKESPEARE.find(data_dir)
    advice = f"get LEAF's train/*.json and test/*.json, {ARCHIVE}.gz or one of {', '.join(TEXTS)} and"
    files = [(name,) for name in (ARCHIVE, *TEXTS)]
    return locate.find("shakespeare", files, leaf.SHAKESPEARE.subfolders, data_dir, advice)


def _from_text(path: Path, window: int, stride: int, test_fraction: float) -> FederatedDataset:
    """Windows of all roles that are long enough."""
    names, users, parts = [], ([], []), ([], [])
    for name, text in role_texts(path).items():
        encoded = leaf.tokens(text)
        cut = len(encoded) - round(test_fraction * len(encoded))
        if min(cut, len(encoded) - cut) <= window:
            continue
        for part, owners, piece in zip(parts, users, (encoded[:cut], encoded[cut:]), strict=True):
            part.append(np.lib.stride_tricks.sliding_window_view(piece, window + 1)[::stride])
            owners.append(np.full(len(part[-1]), len(names)))
        names.append(name)
    if not names:
        raise ValueError(
            f"{path}: no role speaks enough for windows of {window} characters; a speech must begin with a paragraph "
            "whose first line is 'NAME:' (in an archive of plays, 'NAME.')"
        )
    (x, y), (x_test, y_test) = ((w[:, :-1], w[:, -1].astype(np.int32)) for w in map(np.concatenate, parts))
    classes, (users, test_users) = len(leaf.ALPHABET), map(np.concatenate, users)
    of_users = {"users": users, "test_users": test_users, "user_names": names}
    return from_arrays(x, y, x_test, y_test, classes, "shakespeare", **of_users)


def role_texts(path: Path) -> dict[str, str]:
    """The whole text of every role, in characters of LEAF's alphabet, by ``play/ROLE`` or ``ROLE``.

    Args:
      path: of a tar archive of plays, or of a text; may be compressed.

    Raises:
      ValueError: damaged, too large or not UTF-8 text.
    """
    content = compressed.read(path, _MOST_BYTES)
    if compressed.official_name(path).endswith(".tar"):
        plays = {f"{name.removesuffix('_gut')}/": _roles(text, ".") for name, text in _archived(path, content)}
    else:
        plays = {"": _roles(_decoded(str(path), content), ":")}
    return {f"{play}{role}": text for play, roles in plays.items() for role, text in roles.items()}


def _archived(path: Path, content: bytes) -> Iterator[tuple[str, str]]:
    """Name without ending, and text, of the ``.txt`` members of an archive; nothing is written to disk."""
    remaining = _MOST_BYTES
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
            for number, member in enumerate(archive):
                name = member.name.rpartition("/")[2]
                remaining -= max(0, member.size)  # a sparse member may declare more than the archive holds
                if number >= _MOST_MEMBERS or remaining < 0:
                    raise ValueError(f"{path}: more than {_MOST_MEMBERS:,} members or {_MOST_BYTES:,} bytes of them")
                if not member.isreg() or not name.endswith(".txt"):
                    continue
                stream = archive.extractfile(member)
                yield name.removesuffix(".txt"), _decoded(f"{path}: {name!a}", stream.read() if stream else b"")
    except (tarfile.TarError, EOFError, OverflowError) as error:
        raise ValueError(f"{path}: damaged tar archive ({' '.join(str(error).split())}); get it again") from None


def _decoded(place: str, content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{place}: not UTF-8 text ({error.reason} at byte {error.start})") from None


def _roles(text: str, mark: str) -> dict[str, str]:
    """The speeches of each role, by its name in capitals, in the order of first appearance."""
    paragraphs = [_lines(paragraph) for paragraph in re.split(r"\n[ \t]*(?:\n[ \t]*)+", "\n".join(text.splitlines()))]
    paragraphs = [lines for lines in paragraphs if lines]
    if mark == ".":
        begin = next((place for place, lines in enumerate(paragraphs) if _SCENE.match(lines[0])), len(paragraphs))
        paragraphs = paragraphs[begin:]
    names = _names([lines[0] for lines in paragraphs], mark)
    speeches: dict[str, list[str]] = {}
    role = None
    for lines in paragraphs:
        if _SCENE.match(lines[0]):
            role = None
            continue
        name, marked, rest = lines[0].partition(mark)
        if name in names and (marked or name.isupper()):
            role, lines = name.upper(), [rest, *lines[1:]]
        if role is not None:
            speeches.setdefault(role, []).extend(lines)
    return {role: _normalised("\n".join(filter(None, map(str.strip, lines)))) for role, lines in speeches.items()}


def _names(first_lines: list[str], mark: str) -> set[str]:
    """Texts that occur alone on a line, as names of roles do."""
    occurrences: Counter[str] = Counter()
    sure = set()
    for line in first_lines:
        name = line.removesuffix(mark)
        marked, capitals = name != line, name.isupper() and mark == "."
        if _NAME.fullmatch(name) and (marked or capitals):
            occurrences[name] += 1
            if marked and (capitals or mark == ":"):
                sure.add(name)
    return sure | {name for name, times in occurrences.items() if times > 1}


def _lines(paragraph: str) -> list[str]:
    """Lines without stage directions, which may extend over several lines."""
    lines = (" ".join(line.split()) for line in _DIRECTION.sub("", paragraph).split("\n"))
    return [line for line in lines if line]


def _normalised(text: str) -> str:
    """The text in LEAF's alphabet."""
    if not text.isascii():
        text = unicodedata.normalize("NFKD", text.translate(_PLAIN))
        text = "".join(character for character in text if not unicodedata.combining(character))
    return re.sub(" +", " ", _FOREIGN.sub(" ", text))
