"""Reader of the JSON files that the scripts of LEAF write (Caldas et al., 2018): examples with natural users.

The folder of a data set, or the folder ``data`` in it, has ``train/*.json`` and ``test/*.json``. Each file holds
``users``, their ``num_samples``, and in ``user_data`` the examples ``x`` and labels ``y`` of each user; a user is in
one file of a part. The content of the files depends on the arguments of the scripts, so that there are no checksums.
"""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_drag.data.dataset import FederatedDataset, from_arrays
from fedjax_drag.data.formats import compressed, locate
from fedjax_drag.data.formats.cache import cached

ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""The characters of LEAF's Shakespeare; their indices are the tokens."""

WINDOW = 80
"""Characters of an input of LEAF's Shakespeare."""

_MOST_BYTES = 4 << 30
_EXACT = 1e-3
"""Largest distance of a pixel from an integer grey level: LEAF writes level / 255, possibly rounded."""


class LeafDataset(NamedTuple):
    """A data set of LEAF.

    Attributes:
      name: its name here.
      subfolders: names of folders below a searched folder in which its files may be.
      num_classes: labels are 0 .. num_classes - 1.
      inputs: ``(x of a user) -> [n, ...]``; raises ValueError with the problem.
      labels: ``(y of a user) -> [n]``; raises ValueError too.
      advice: how to get it.
    """

    name: str
    subfolders: tuple[str, ...]
    num_classes: int
    inputs: Callable[[list[Any]], np.ndarray]
    labels: Callable[[list[Any]], np.ndarray]
    advice: str


def tokens(text: str) -> np.ndarray:
    """Indices into :data:`ALPHABET` ``[len(text)]``, int8; -1 for other characters."""
    codes = np.frombuffer(text.encode("utf-32-le", errors="surrogatepass"), "<u4")
    return _TOKEN_OF_CODE[np.minimum(codes, len(_TOKEN_OF_CODE) - 1)]


def _token_of_code() -> np.ndarray:
    table = np.full(129, -1, np.int8)  # the last entry is for characters outside ASCII
    table[[ord(character) for character in ALPHABET]] = np.arange(len(ALPHABET))
    return table


_TOKEN_OF_CODE = _token_of_code()


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
    try:
        array = np.asarray(values)
    except ValueError:
        raise ValueError("lists of unequal lengths") from None
    if array.dtype.kind not in "iuf":
        raise ValueError("an entry that is not a number")
    return array


def _windows(values: list[Any]) -> np.ndarray:
    return _characters("x", values, WINDOW)


def _next_characters(values: list[Any]) -> np.ndarray:
    return _characters("y", values, 1)[:, 0]


def _characters(field: str, values: list[Any], length: int) -> np.ndarray:
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
    ("femnist", "leaf/data/femnist"),
    62,
    _images,
    _classes,
    "make them with LEAF's preprocess.sh (data/femnist) and",
)
"""Handwritten characters by writer, 28x28 grey, white is 1; digits, upper and lower case letters."""

SHAKESPEARE = LeafDataset(
    "shakespeare",
    ("shakespeare", "leaf/data/shakespeare"),
    len(ALPHABET),
    _windows,
    _next_characters,
    "make them with LEAF's preprocess.sh (data/shakespeare) and",
)
"""Lines of Shakespeare's plays by role: 80 characters, and the one that follows."""


def load_leaf(dataset: LeafDataset, data_dir: str | os.PathLike[str] | None = None) -> FederatedDataset:
    """Finds and reads a data set of LEAF.

    Args:
      dataset: :data:`FEMNIST` or :data:`SHAKESPEARE`.
      data_dir: the only folder to search: ``train`` and ``test`` are in it, in a folder below it named after the data
        set, or in ``data`` in one of those. By default the folder in the environment variable ``FEDJAX_DRAG_DATA`` is
        searched in the same way, and ``/usr/share/datasets``.

    Returns:
      FEMNIST: images ``[N, 28, 28, 1]``, uint8 if all pixels are integer grey levels, else float32; mean and standard
      deviation are measured, since LEAF draws different samples. Shakespeare: tokens ``[N, 80]`` int8. With ``users``
      and ``user_names``, unpartitioned.

    Raises:
      FileNotFoundError: files are missing.
      ValueError: a file does not have the format of LEAF; the one line names it.
    """
    return load_files(dataset, find(dataset, data_dir))


def find(dataset: LeafDataset, data_dir: str | os.PathLike[str] | None) -> list[Path]:
    """The files of both parts, of the first folder that has both; FileNotFoundError as in :func:`load_leaf`."""
    folders = locate.candidates(dataset.name, dataset.subfolders, data_dir)
    for folder in folders:
        for place in (folder, folder / "data"):
            train, test = (_json_files(place / part) for part in ("train", "test"))
            if train and test:
                return train + test
    searched = ", ".join(str(folder) for folder in folders)
    raise FileNotFoundError(
        f"{dataset.name}: no train/*.json and test/*.json (plain, .gz or .xz) found in {searched}, nor in data below "
        f"them; {dataset.advice} set data_dir or {locate.ENVIRONMENT_VARIABLE} to the folder above train and test"
    )


def _json_files(folder: Path) -> list[Path]:
    """The files of a part; the plain one of two variants."""
    names = sorted({compressed.official_name(path) for path in folder.glob("*.json*") if path.is_file()})
    variants = (locate.variant(folder, name) for name in names if name.endswith(".json"))
    return [path for path in variants if path is not None]


def load_files(dataset: LeafDataset, paths: Sequence[Path]) -> FederatedDataset:
    """Reads the files that :func:`find` returns; see :func:`load_leaf`."""

    def read() -> dict[str, np.ndarray]:
        parts = ([path for path in paths if path.parent.name == part] for part in ("train", "test"))
        train, test = (_read_part(dataset, part) for part in parts)
        train_x, test_x = _of_one_type(train.x, test.x)
        users = np.repeat(np.arange(len(train.users)), train.sizes)
        names = np.frombuffer(json.dumps(train.users).encode(), np.uint8)
        labels = {"train_y": train.y, "test_y": test.y}
        return {"train_x": train_x, "test_x": test_x, **labels, "users": users, "names": names}

    return from_decoded(dataset, cached(dataset.name, paths, read, version="leaf 1"))


def from_decoded(dataset: LeafDataset, arrays: dict[str, np.ndarray]) -> FederatedDataset:
    """The data set from its arrays: of the two parts, of ``users``, and of the JSON text of their ``names``."""
    return from_arrays(
        arrays["train_x"],
        arrays["train_y"],
        arrays["test_x"],
        arrays["test_y"],
        num_classes=dataset.num_classes,
        name=dataset.name,
        users=arrays["users"],
        user_names=json.loads(arrays["names"].tobytes()),
    )


class _Part(NamedTuple):
    users: list[str]
    sizes: list[int]
    x: np.ndarray
    y: np.ndarray


def _read_part(dataset: LeafDataset, paths: Sequence[Path]) -> _Part:
    """All users of a part, in the order of files and of the users in them."""
    file_of: dict[str, Path] = {}
    xs, ys = [], []
    for path in paths:
        users, user_data = _parse(path)
        for user in users:
            if user in file_of:
                raise ValueError(
                    f"{path}: user {_shown(user)} is also in {file_of[user].name}: the folder mixes the output of "
                    "several runs; remove the older files"
                )
            file_of[user] = path
            x, y = _examples(dataset, path, user, user_data)
            xs.append(x)
            ys.append(y)
    x, y = np.concatenate(_of_one_type(*xs)), np.concatenate(ys).astype(np.int32)
    return _Part(list(file_of), [len(labels) for labels in ys], x, y)


def _parse(path: Path) -> tuple[list[str], dict[str, Any]]:
    """The users of a file, and their data by name, of which only the number of labels is checked here."""
    text = compressed.read(path, _MOST_BYTES)
    try:
        content = json.loads(text.decode())
    except ValueError as error:
        raise ValueError(f"{path}: not a JSON file, or truncated ({' '.join(str(error).split())[:100]})") from None
    except (RecursionError, MemoryError):
        raise ValueError(f"{path}: not a file of LEAF: nested too deeply, or larger than memory") from None
    users, user_data = (content.get(key) if isinstance(content, dict) else None for key in ("users", "user_data"))
    if not isinstance(users, list) or not isinstance(user_data, dict) or not all(isinstance(u, str) for u in users):
        raise ValueError(f"{path}: not a file of LEAF: must hold users (a list of names) and user_data (by name)")
    if not users:
        raise ValueError(f"{path}: has no users; remove it, or make it again")
    sizes = content.get("num_samples")
    if not isinstance(sizes, list) or len(sizes) != len(users):
        raise ValueError(f"{path}: num_samples must be a list with a number for each of the {len(users)} users")
    for user, size in zip(users, sizes, strict=True):
        labels = user_data[user].get("y") if isinstance(user_data.get(user), dict) else None
        if isinstance(labels, list) and len(labels) != size:
            raise ValueError(f"{path}: user {_shown(user)}: {len(labels)} labels, but num_samples says {size!a:.20}")
    return users, user_data


def _examples(dataset: LeafDataset, path: Path, user: str, user_data: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and labels of a user."""
    data = user_data.get(user)
    x, y = (data.get(key) if isinstance(data, dict) else None for key in ("x", "y"))
    if not isinstance(x, list) or not isinstance(y, list) or not x or len(x) != len(y):
        raise ValueError(f"{path}: user {_shown(user)}: user_data must have lists x and y, of equal length, not empty")
    try:
        return dataset.inputs(x), dataset.labels(y)
    except ValueError as error:
        raise ValueError(f"{path}: user {_shown(user)}: {error}") from None


def _of_one_type(*arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    """The arrays in one type: unless all are grey levels, grey levels become float32 in [0, 1]."""
    if len({array.dtype for array in arrays}) == 1:
        return arrays
    return tuple(a.astype(np.float32) / np.float32(255) if a.dtype == np.uint8 else a for a in arrays)


def _shown(user: str) -> str:
    """A name of any content, as ASCII for a message."""
    return ascii(user if len(user) <= 40 else f"{user[:40]}...")
