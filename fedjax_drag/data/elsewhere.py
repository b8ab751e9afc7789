"""Data that other libraries hold: clients' own arrays, data sets of Hugging Face, partitioners of Flower, tables.

Nothing of these libraries is imported: the objects that a user has made with them are read.
"""

import operator
import types
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from fedjax_drag import checks
from fedjax_drag.data.client_test import of_owners
from fedjax_drag.data.dataset import FederatedDataset, from_arrays
from fedjax_drag.data.examples import as_arrays, shapes
from fedjax_drag.data.partition._assign import with_clients

Arrays = tuple[Any, Any]
"""Inputs ``[N, ...]`` and targets ``[N, ...]``, arrays or pytrees of them."""


def from_clients(
    clients: Sequence[Arrays],
    test: Arrays | None = None,
    client_test: Sequence[Arrays] | None = None,
    **options: Any,
) -> FederatedDataset:
    """Makes a data set of what each client has.

    Args:
      clients: inputs and targets of each, as :func:`from_arrays` takes them; at least one example each.
      test: inputs and targets by which the global model is measured; default those of ``client_test`` together.
      client_test: test inputs and targets of each client, on which ``evaluate_clients=True`` evaluates it; ``[0, ...]``
        for a client without any. Default none: clients then hold out some of what they have.
      **options: of :func:`from_arrays`, such as ``num_classes`` and ``name``.

    Returns:
      The data set with as many clients, in this order.

    Raises:
      ValueError: a client has no example, arrays do not fit together, or there are no test examples.

    Examples:
      >>> own = [(np.random.rand(5 + m, 3), np.arange(5 + m) % 2) for m in range(4)]
      >>> from_clients(own, test=own[0]).counts
      array([5, 6, 7, 8], dtype=int32)
    """
    if not len(clients):
        raise checks.ArgumentError("clients", "none; must be at least one")
    if test is None and client_test is None:
        raise checks.ArgumentError("test", "must be given, or client_test, the test examples of each client")
    if client_test is not None and len(client_test) != len(clients):
        said = f"of {len(client_test)} clients; must be of {len(clients)}, as clients"
        raise checks.ArgumentError("client_test", said)
    x, y, sizes = _joined({f"clients[{client}]": own for client, own in enumerate(clients)})
    if 0 in sizes:
        raise checks.ArgumentError(f"clients[{sizes.index(0)}]", "has no example; must have at least one")
    tests = {f"client_test[{client}]": own for client, own in enumerate(client_test or ())}
    x_test, y_test, test_sizes = _joined(tests if test is None else tests | {"test": test})
    fed = from_arrays(x, y, x_test, y_test, **options)
    fed = with_clients(fed, _owner(sizes), len(clients), "as given", np.random.default_rng(0))
    if client_test is None:
        return fed
    owner = _owner(test_sizes[: len(clients)])
    if test is None:
        return replace(fed, client_test=of_owners(fed.test, owner, len(clients)))
    own, others = (jax.tree.map(operator.itemgetter(part), fed.test) for part in np.s_[: len(owner), len(owner) :])
    return replace(fed, test=others, client_test=of_owners(own, owner, len(clients)))


def _owner(sizes: Sequence[int]) -> np.ndarray:
    """The client of each example, of clients that have so many one after another."""
    return np.repeat(np.arange(len(sizes)), sizes)


def _joined(parts: Mapping[str, Arrays]) -> tuple[Any, Any, list[int]]:
    """Inputs and targets of all parts, one after another, and how many examples each has."""
    for name, part in parts.items():
        if not isinstance(part, list | tuple) or len(part) != 2:
            raise checks.ArgumentError(name, "must be a pair of inputs and targets, (x, y)", given=part)
    given = {name: tuple(as_arrays(name, arrays) for arrays in part) for name, part in parts.items()}
    first, like = next(iter(given.items()))
    for name, part in given.items():
        for kind, arrays, of_first in zip(("inputs", "targets"), part, like, strict=True):
            if shapes(arrays) != shapes(of_first):
                said = f"{kind} of shape {shapes(arrays)}; must be {shapes(of_first)} as of {first}"
                raise checks.ArgumentError(name, said)
        for own, model in zip(jax.tree.leaves(part[0]), jax.tree.leaves(like[0]), strict=True):
            if len(own) and len(model) and _kind(own) != _kind(model):
                raise checks.ArgumentError(name, f"inputs of type {own.dtype}; must be {model.dtype} as of {first}")
        if len({array.shape[:1] for array in jax.tree.leaves(part)}) != 1:
            found = ", ".join(str(jax.tree.map(np.shape, arrays)) for arrays in part)
            raise checks.ArgumentError(name, f"shapes {found}: must be [N, ...] and [N, ...]")
    x, y = jax.tree.map(_concatenated, *given.values())
    return x, y, [len(jax.tree.leaves(part)[0]) for part in given.values()]


def _kind(array: np.ndarray) -> str:
    """What inputs stand for: bytes of images, tokens, truth values or numbers."""
    return "bytes" if array.dtype == np.uint8 else array.dtype.kind.replace("u", "i")


def _concatenated(*own: np.ndarray) -> np.ndarray:
    """One after another; an empty one, whose type says nothing, does not count."""
    filled = [array for array in own if len(array)] or own[:1]
    return filled[0] if len(filled) == 1 else np.concatenate(filled)


def from_huggingface(
    train: Any, test: Any, x: str | Sequence[str] = "image", y: str = "label", **options: Any
) -> FederatedDataset:
    """Makes a data set of two of Hugging Face's ``datasets``, which need no network once they are on this machine.

    Args:
      train: a ``datasets.Dataset``, such as ``load_dataset("mnist")["train"]``.
      test: another with the same columns.
      x: the column of inputs, images or arrays of one shape; or the names of several columns of numbers, which become
        the last axis of float32 inputs.
      y: the column of targets. The classes of a ``ClassLabel`` are ``num_classes``.
      **options: of :func:`from_arrays`.

    Returns:
      The data set, not yet split among clients.

    Raises:
      ValueError: there is no such column, or its entries have different shapes.
    """
    for argument, part in (("train", train), ("test", test)):
        if isinstance(getattr(part, "column_names", None), Mapping | types.NoneType):
            allowed = "must be a datasets.Dataset, one split such as load_dataset(name)['train']"
            raise checks.ArgumentError(argument, f"{allowed}, not {type(part).__name__}")
    options = _classes(train, y) | options
    return from_arrays(*_columns(train, x, y), *_columns(test, x, y), **options)


def from_partitioner(
    partitioner: Any, test: Any, x: str | Sequence[str] = "image", y: str = "label", **options: Any
) -> FederatedDataset:
    """Makes a data set with the clients of a partitioner of ``flwr_datasets``, in its order.

    Args:
      partitioner: with ``num_partitions`` and ``load_partition(index)``; its ``dataset`` is set.
      test: as of :func:`from_huggingface`.
      x: as of :func:`from_huggingface`.
      y: as of :func:`from_huggingface`.
      **options: of :func:`from_arrays`.

    Raises:
      ValueError: as of :func:`from_huggingface` and :func:`from_clients`.
    """
    parts = [partitioner.load_partition(index) for index in range(partitioner.num_partitions)]
    options = _classes(parts[0], y) | options
    return from_clients([_columns(part, x, y) for part in parts], _columns(test, x, y), **options)


def from_pandas(
    train: Any, test: Any, target: str, users: str | None = None, impute: bool = False, **options: Any
) -> FederatedDataset:
    """Makes a data set of two tables of pandas.

    Columns of numbers become one input each; columns of text, categories or truth values one for each value that
    occurs in ``train``, 1 where a row has it. A warning names a column of which ``test`` has none of these values.

    Args:
      train: a ``pandas.DataFrame``, a row for each example.
      test: another with the same columns.
      target: name of the column of targets: numbers, or text, categories or truth values, which become classes in
        sorted order.
      users: name of the column that says whose example each is, for :func:`fedjax_drag.data.partition.natural`; where
        ``test`` has it too, test examples of a user are its own.
      impute: whether a missing number is the training rows' median, and a missing text a value of its own; else a
        missing value is an error.
      **options: of :func:`from_arrays`, such as ``num_classes=0`` for integers that are no classes.

    Raises:
      ValueError: one line that names a column that is not there or there twice, has missing values, or values of
        another kind, such as dates.
    """
    for argument, name in (("target", target), ("users", users)):
        if name is not None and name not in train.columns:
            there = ", ".join(map(str, train.columns))
            raise checks.ArgumentError(argument, f"no such column; there are {there}", name)
    inputs = [name for name in train.columns if name not in (target, users)]
    for part, table in (("train", train), ("test", test)):
        if absent := [name for name in (*inputs, target) if name not in table.columns]:
            raise checks.ArgumentError(part, f"no column {absent[0]!r}, which train has")
        if not table.columns.is_unique:
            twice = table.columns[table.columns.duplicated()][0]
            raise checks.ArgumentError(part, f"several columns {twice!r}; must have different names")
        if others := [name for name in (*inputs, target) if table[name].dtype.kind in "mMc"]:
            said = f"{others[0]!r} is {table[others[0]].dtype}; must be numbers, text, categories or truth values"
            raise checks.ArgumentError(part, said)
        for name in (target, *(() if impute else inputs)):
            if number := int(table[name].isna().sum()):
                remedy = "" if name == target else ", or give impute=True"
                raise checks.ArgumentError(part, f"{number} values of {name!r} are missing; must be none{remedy}")
    (train_x, test_x), (train_y, test_y) = _inputs(train[inputs], test[inputs]), _targets(train[target], test[target])
    if users is not None:
        if number := int(train[users].isna().sum()):
            raise checks.ArgumentError("train", f"{number} values of {users!r} are missing; must be none")
        names = sorted(set(train[users]), key=str)
        place = {name: user for user, name in enumerate(names)}
        options = {"users": [place[name] for name in train[users]], "user_names": tuple(map(str, names))} | options
        if users in test.columns:
            options = {"test_users": [place.get(name, -1) for name in test[users]]} | options
    return from_arrays(train_x, train_y, test_x, test_y, **options)


def _columns(dataset: Any, x: str | Sequence[str], y: str) -> Arrays:
    """Inputs and targets of a Hugging Face data set."""
    names = [x] if isinstance(x, str) else list(x)
    for argument, name in (*(("x", name) for name in names), ("y", y)):
        if name not in dataset.column_names:
            raise checks.ArgumentError(argument, f"no such column; there are {', '.join(dataset.column_names)}", name)
    columns = dataset.select_columns(list(dict.fromkeys([*names, y]))).with_format("numpy")[:]
    values = [np.asarray(columns[name]) for name in (*names, y)]
    if uneven := [name for name, column in zip((*names, y), values, strict=True) if column.dtype == object]:
        raise checks.ArgumentError("x", "entries of different shapes; must have one, as after dataset.map", uneven[0])
    if not isinstance(x, str):
        return np.stack(values[:-1], -1).astype(np.float64), values[-1]
    if np.issubdtype(values[0].dtype, np.signedinteger):  # as which all integers are read
        feature = dataset.features[x]
        while hasattr(feature, "feature"):  # of lists in lists
            feature = feature.feature
        narrow = values[0].astype(np.uint8 if getattr(feature, "dtype", None) == "uint8" else np.int32)
        if (narrow != values[0]).any():
            low, high = values[0].min(), values[0].max()
            raise checks.ArgumentError("x", f"integers from {low} to {high}; must fit {narrow.dtype}", x)
        values[0] = narrow
    return values[0], values[-1]


def _classes(dataset: Any, y: str) -> dict[str, Any]:
    """The option ``num_classes`` where a column says it."""
    return {"num_classes": getattr(dataset.features.get(y), "num_classes", None)}


def _inputs(train: Any, test: Any) -> Arrays:
    """Inputs ``[N, F]`` float64 of both tables."""
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.preprocessing import OneHotEncoder

    numeric = [name for name in train.columns if train[name].dtype.kind in "iuf"]
    others = [name for name in train.columns if name not in numeric]
    for name in numeric:
        with checks.explained("test", f"have numbers in {name!r}, as train has"):
            test[name].to_numpy(float, na_value=np.nan)
    encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    encoded = ColumnTransformer([("numbers", SimpleImputer(strategy="median"), numeric), ("others", encoder, others)])
    texts = dict.fromkeys(others, "str")
    train, test = train.astype(texts), test.astype(texts)
    for name in others:
        if not test[name].isin(train[name]).any():
            said = f"test: no value of {name!r} occurs in train, so that its inputs are 0; is it of another type there?"
            warnings.warn(said, stacklevel=3)
    x = encoded.fit_transform(train), encoded.transform(test)
    return np.asarray(x[0], np.float64), np.asarray(x[1], np.float64)


def _targets(train: Any, test: Any) -> Arrays:
    """Numbers as they are; classes of anything else, by their order."""
    if train.dtype.kind in "iuf":
        return np.asarray(train), np.asarray(test)
    classes = np.unique(np.asarray(train).astype(str))
    known, unknown = np.asarray(test).astype(str), np.setdiff1d(np.asarray(test).astype(str), classes)
    if len(unknown):
        raise checks.ArgumentError("test", f"target {str(unknown[0])!r} does not occur in train")
    return np.searchsorted(classes, np.asarray(train).astype(str)), np.searchsorted(classes, known)
