"""Reader of the JSON files that the scripts of LEAF write (Caldas et al., 2018): examples with natural users.

The folder of a data set, or the folder ``data`` in it, has ``train/*.json`` and ``test/*.json``. Each file holds
``users``, their ``num_samples``, and in ``user_data`` the examples ``x`` and labels ``y`` of each user; a user is in
one file of a part. The content of the files depends on the arguments of the scripts, so that there are no checksums.
"""

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_drag.data.dataset import FederatedDataset, from_arrays
from fedjax_drag.data.formats import compressed, locate
from fedjax_drag.data.formats.cache import Arrays, cached

ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""The characters of LEAF's Shakespeare; their indices are the tokens."""

WINDOW = 80
"""Characters of an input of LEAF's Shakespeare."""

_PARTS = ("train", "test")
_MOST_BYTES = 4 << 30
_EXACT = 1e-3
"""Largest distance of a pixel from an integer grey level: LEAF writes level / 255, possibly rounded."""


class LeafDataset(NamedTuple):
    """A data set of LEAF.

    Attributes:
      name: its name here.
      about: one line.
      subfolders: names of folders below a searched folder in which its files may be.
      num_classes: labels are 0 .. num_classes - 1.
      inputs: ``(x of a user) -> [n, ...]``; raises ValueError with the problem.
      labels: ``(y of a user) -> [n]`` or ``[n, 1]``; raises ValueError too.
    """

    name: str
    about: str
    subfolders: tuple[str, ...]
    num_classes: int
    inputs: Callable[[list[Any]], np.ndarray]
    labels: Callable[[list[Any]], np.ndarray]

    def find(self, data_dir: locate.Place) -> list[Path]:
        """The files of both parts, of the first folder that has both; FileNotFoundError as in :meth:`load`."""
        folders = locate.candidates(self.name, self.subfolders, data_dir)
        for folder in folders:
            for place in (folder, folder / "data"):
                train, test = (_json_files(place / part) for part in _PARTS)
                if train and test:
                    return train + test
        raise FileNotFoundError(
            f"{self.name}: no train/*.json and test/*.json (plain, .gz or .xz) found in "
            f"{', '.join(map(str, folders))}, nor in data below them; make them with LEAF's preprocess.sh "
            f"(data/{self.name}) and set data_dir or {locate.ENVIRONMENT_VARIABLE} to the folder above train and test"
        )

    def load(self, data_dir: locate.Place = None) -> FederatedDataset:
        """Finds and reads the data set.

        Args:
          data_dir: the only folder to search: ``train`` and ``test`` are in it, in a folder below it named after the
            data set, or in ``data`` in one of those. By default the folder in the environment variable
            ``FEDJAX_DRAG_DATA`` is searched in the same way, and ``/usr/share/datasets``.

        Returns:
          FEMNIST: images ``[N, 28, 28, 1]``, uint8 if all pixels are integer grey levels, else float32; mean and
          standard deviation are measured, since LEAF draws different samples. Shakespeare: tokens ``[N, 80]`` int8.
          With ``users`` and ``user_names``, unpartitioned.

        Raises:
          FileNotFoundError: files are missing.
          ValueError: a file does not have the format of LEAF; the one line names it.
        """
        return self.load_files(self.find(data_dir))

    def load_files(self, paths: Sequence[Path]) -> FederatedDataset:
        """Reads the files that :meth:`find` returns; see :meth:`load`."""
        arrays = cached(self.name, paths, lambda: _read(self, paths))
        return from_arrays(
            *(arrays[part] for part in ("train_x", "train_y", "test_x", "test_y")),
            num_classes=self.num_classes,
            name=self.name,
            users=arrays["users"],
            test_users=arrays["test_users"],
            user_names=json.loads(arrays["names"].tobytes()),
        )


def tokens(text: str) -> np.ndarray:
    """Indices into :data:`ALPHABET` ``[len(text)]``, int8; -1 for other characters."""
    codes = np.frombuffer(text.encode("utf-32-le", errors="surrogatepass"), "<u4")
    token_of_code = np.full(129, -1, np.int8)  # the last entry is for characters outside ASCII
    token_of_code[[ord(character) for character in ALPHABET]] = np.arange(len(ALPHABET))
    return token_of_code[np.minimum(codes, 128)]


def _images(values: list[Any]) -> np.ndarray:
    """Images ``[n, 28, 28, 1]``: uint8 where every pixel is a whole grey level, else float32 in [0, 1]."""
    pixels = _numbers(values)
    if pixels.ndim != 2 or pixels.shape[1] != 784:
        raise ValueError(f"x of shape {pixels.shape}: must be lists of 784 numbers")
    if not ((pixels >= 0) & (pixels <= 1)).all():  # also for NaN
        raise ValueError("x with pixels outside [0, 1]")
    levels = 255 * pixels
    whole = np.rint(levels)
    exact = np.abs(levels - whole).max() < _EXACT
    return (whole.astype(np.uint8) if exact else pixels.astype(np.float32)).reshape(-1, 28, 28, 1)


def _classes(values: list[Any]) -> np.ndarray:
    labels = _numbers(values)
    if labels.ndim != 1 or labels.dtype.kind == "f":
        raise ValueError("y that is not a list of integers")
    if labels.min() < 0 or labels.max() >= 62:
        raise ValueError(f"y from {labels.min()} to {labels.max()}: must be in [0, 61]")
    return labels


def _numbers(values: list[Any]) -> np.ndarray:
    array = np.asarray(values)  # ValueError for lists of unequal lengths
    if array.dtype.kind not in "iuf":
        raise ValueError("an entry that is not a number")
    return array


def _characters(field: str, length: int, values: list[Any]) -> np.ndarray:
    """Tokens ``[n, length]`` int8."""
    if not all(isinstance(value, str) and len(value) == length for value in values):
        raise ValueError(f"{field} with an entry that is not a string of length {length}")
    text = "".join(values)
    result = tokens(text)
    if result.min() < 0:
        raise ValueError(f"{field} with {text[int(result.argmin())]!a}, which is not in LEAF's alphabet")
    return result.reshape(-1, length)


FEMNIST = LeafDataset(
    "femnist",
    "digits and letters by writer, 28x28 grey, 62 classes; LEAF's JSON files",
    ("femnist", "leaf/data/femnist"),
    62,
    _images,
    _classes,
)
"""Handwritten characters by writer, white is 1; digits, upper and lower case letters."""

SHAKESPEARE = LeafDataset(
    "shakespeare",
    "80 characters and the one that follows, by role, 80 classes; plain text, or LEAF's JSON files",
    ("shakespeare", "leaf/data/shakespeare"),
    len(ALPHABET),
    partial(_characters, "x", WINDOW),
    partial(_characters, "y", 1),
)
"""Lines of Shakespeare's plays by role: 80 characters, and the one that follows."""


def _json_files(folder: Path) -> list[Path]:
    """The files of a part; the plain one of two variants."""
    names = sorted({compressed.official_name(path) for path in folder.glob("*.json*")})
    variants = (locate.variant(folder, name) for name in names if name.endswith(".json"))
    return [path for path in variants if path is not None]


def _read(dataset: LeafDataset, paths: Sequence[Path]) -> Arrays:
    """The arrays of both parts, the number of the user of each example, and the JSON text of their names."""
    parts = {part: _read_part(dataset, [path for path in paths if path.parent.name == part]) for part in _PARTS}
    mixed = len({user.x.dtype for users in parts.values() for user in users.values()}) > 1
    arrays = {}
    for part, users in parts.items():
        # Beside other numbers, grey levels become float32 in [0, 1].
        scaled = [u.x / np.float32(255) if mixed and u.x.dtype == np.uint8 else u.x for u in users.values()]
        arrays[f"{part}_x"] = np.concatenate(scaled)
        arrays[f"{part}_y"] = np.concatenate([user.y for user in users.values()]).ravel().astype(np.int32)
    train = parts["train"]
    arrays["users"] = np.repeat(np.arange(len(train)), [len(user.y) for user in train.values()])
    number = {name: user for user, name in enumerate(train)}
    of_test = [number.get(name, -1) for name in parts["test"]]
    arrays["test_users"] = np.repeat(of_test, [len(user.y) for user in parts["test"].values()])
    arrays["names"] = np.frombuffer(json.dumps([*train]).encode(), np.uint8)
    return arrays


class _User(NamedTuple):
    file: Path
    x: np.ndarray
    y: np.ndarray


def _read_part(dataset: LeafDataset, paths: Sequence[Path]) -> dict[str, _User]:
    """All users of a part by name, in the order of files and of the users in them."""
    users: dict[str, _User] = {}
    for path in paths:
        for name, size, data in _content(path):
            shown = name if len(name) <= 40 else f"{name[:40]}..."
            place = f"{path}: user {shown!a}"
            if name in users:
                raise ValueError(
                    f"{place} is also in {users[name].file.name}: the folder mixes the output of several runs; remove "
                    "the older files"
                )
            match data:
                case {"x": list(x), "y": list(y)} if x and len(x) == len(y) == size:
                    pass
                case _:
                    allowed = f"lists x and y, not empty, of equal length, which num_samples says is {size!a:.20}"
                    raise ValueError(f"{place}: user_data must have {allowed}")
            try:
                users[name] = _User(path, dataset.inputs(x), dataset.labels(y))
            except ValueError as error:
                raise ValueError(f"{place}: {error}") from None
    return users


def _content(path: Path) -> list[tuple[str, Any, Any]]:
    """Each user of a file: the name, and what the file says of the number of examples and of the examples."""
    text = compressed.read(path, _MOST_BYTES)
    try:
        content = json.loads(text.decode())
    except (ValueError, RecursionError, MemoryError) as error:
        problem = " ".join(f"{type(error).__name__}: {error}".split())[:100]
        raise ValueError(f"{path}: not a JSON file, truncated or nested too deeply ({problem})") from None
    match content:
        case {"users": list(names), "num_samples": list(sizes), "user_data": dict(data)} if (
            names and len(names) == len(sizes) and all(isinstance(name, str) for name in names)
        ):
            return [(name, size, data.get(name)) for name, size in zip(names, sizes, strict=True)]
    allowed = "users (names, at least one), num_samples (a number for each) and user_data (by name)"
    raise ValueError(f"{path}: not a file of LEAF: must hold {allowed}")
