"""The federated data set: every example once in memory, and clients as rows of indices into them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import numpy as np

from fedjax_drag import checks, notebook, tree
from fedjax_drag.data import examples, targets
from fedjax_drag.data.client_test import ClientTest
from fedjax_drag.data.normalization import UNSCALED, Normalize, Preprocess, statistics, stored
from fedjax_drag.data.skew import SkewReport
from fedjax_drag.kinds import Kind
from fedjax_drag.types import Batch

_MOST_CLIENTS, _MOST_CLASSES = 60, 30  # shown in a notebook


@dataclass(frozen=True, eq=False)
class FederatedDataset:
    """Training, validation and test examples, and which client owns which of the first.

    M clients cost M rows of indices, not copies of data. Made by :func:`fedjax_drag.data.load` or
    :func:`from_arrays` without clients; a function of :mod:`fedjax_drag.data.partition` adds them.

    Attributes:
      name: of the data set.
      train: NumPy arrays: inputs ``[N, *input_shape]``, uint8 (images), float32, int8 or int32 (tokens), or bool;
        targets ``[N, ...]``, int32 or float32: a label ``[N]``, next tokens ``[N, L]``, several labels or numbers
        ``[N, K]``. Inputs and targets may be pytrees of such arrays, as may be those of ``test`` and ``validation``.
      test: the same for the test examples.
      num_classes: C where targets are classes ``0 .. C - 1``; 0 where they are numbers, or labels that an example may
        have several of. Negative integers in targets with more than one axis stand for what does not count.
      input_shape: of one input; for images with a trailing channel axis; of a pytree one in the place of each array.
      mean: subtracted from what a model sees: per entry of the last input axis, or one for all; of inputs scaled to
        [0, 1] if uint8. Not for tokens and bool. Of inputs that are a pytree 0.
      std: divisor after that, as ``mean``; positive.
      users: ``[N]`` int32, from 0: the natural user of each training example, such as the writer of an image; None
        if unknown.
      user_names: of the users; empty if they have none.
      rows: ``[M, L]`` int32; row m holds the indices into ``train`` of client m's examples in random
        order, then zeros. None before partitioning.
      counts: ``[M]`` int32, at least 1: how many entries of each row are real. None before partitioning.
      partition: description of the split, for titles; empty before partitioning.
      validation: the same as ``test`` for the examples by which rounds and settings are chosen, from
        :func:`~fedjax_drag.data.hold_out`; None where that is done on the test examples.
      test_users: ``[N']`` int32: the natural user of each test example, -1 for one without training examples; None if
        unknown.
      client_test: each client's own test examples, from :func:`~fedjax_drag.data.from_clients` or
        :func:`~fedjax_drag.data.partition.natural`; None where clients have none.
    """

    name: str
    train: Batch
    test: Batch
    num_classes: int
    input_shape: Any
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    users: np.ndarray | None = None
    user_names: tuple[str, ...] = ()
    rows: np.ndarray | None = None
    counts: np.ndarray | None = None
    partition: str = ""
    validation: Batch | None = None
    test_users: np.ndarray | None = None
    client_test: ClientTest | None = None

    def __post_init__(self) -> None:
        checks.count("num_classes", self.num_classes)
        for part in ("train", "test", *(() if self.validation is None else ("validation",))):
            own = getattr(self, part)
            _check_examples(part, own, self.num_classes)
            for what, *both in (("inputs", own.x, self.train.x), ("targets", own.y, self.train.y)):
                found, like = (tree.described(arrays, "N") for arrays in both)
                if found != like:
                    raise ValueError(f"{part}: {what} {found} beside {like} of train; must be alike")
        shape = examples.shapes(self.train.x)
        if shape != self.input_shape or shape == () or not all(x.size for x in jax.tree.leaves(self.train.x)):
            raise ValueError(f"train: inputs of shape {shape}: must be input_shape={self.input_shape}")
        if hasattr(self.train.x, "dtype"):
            _check_statistics(self.mean, self.std, self.input_shape)
        if self.users is not None:
            _check_users("users", self.users, self.user_names, self.train.num_examples)
        if self.test_users is not None:
            _check_users("test_users", self.test_users, self.user_names, self.test.num_examples, least=-1)
        if self.rows is not None and self.counts is not None:
            _check_clients(self.rows, self.counts, self.train.num_examples)
        elif self.rows is not None or self.counts is not None:
            raise ValueError("rows, counts: must be given together")
        if self.client_test is not None and len(self.client_test.counts) != self.num_clients:
            raise ValueError(f"client_test: of {len(self.client_test.counts)} clients; must be of {self.num_clients}")

    @property
    def num_clients(self) -> int:
        """Number of clients M; 0 before partitioning."""
        return 0 if self.rows is None else len(self.rows)

    def __repr__(self) -> str:
        sizes = f"{self.train.num_examples:,} + {self.test.num_examples:,} examples {tree.described(self.train.x)}"
        clients = f"{self.num_clients:,} clients by {self.partition}" if self.num_clients else "not split among clients"
        held_out = "" if self.validation is None else f", {self.validation.num_examples:,} for validation"
        return f"FederatedDataset({self.name}: {sizes}{held_out}, {self._targets()}, {clients})"

    def _targets(self) -> str:
        classes, form = f"{self.num_classes} classes", tree.described(self.train.y, "N")
        return classes if self.has_labels else f"targets {form}" + (f" of {classes}" if self.num_classes else "")

    @property
    def has_labels(self) -> bool:
        """Whether each example has one class."""
        return self.num_classes > 0 and self.train.y.ndim == 1

    @property
    def labels(self) -> np.ndarray:
        """The class of each training example, ``[N]`` int32.

        Raises:
          ValueError: the targets are something else.
        """
        if not self.has_labels:
            form = tree.described(self.train.y, "N")
            raise ValueError(f"{self.name}: targets are {form}; must be labels, one class an example")
        return np.asarray(self.train.y)

    def _repr_html_(self) -> str:
        shown = notebook.table(self.name, self._figures())
        if self.rows is None or not self.has_labels:
            return notebook.beside(shown)
        counts = self.skew_report().counts[:_MOST_CLIENTS, :_MOST_CLASSES]
        clients = f"{_some(len(counts), self.num_clients)} clients"
        classes = f"{_some(counts.shape[1], self.num_classes)} classes"
        return notebook.beside(shown, notebook.heat_map("examples per client and class", counts.T, clients, classes))

    def _figures(self) -> dict[str, Any]:
        """What the data set holds, as it is shown."""
        figures: dict[str, Any] = {
            "training examples": f"{self.train.num_examples:,}",
            **({} if self.validation is None else {"validation examples": f"{self.validation.num_examples:,}"}),
            "test examples": f"{self.test.num_examples:,}",
            "inputs": tree.described(self.train.x),
            **({"classes": self.num_classes} if self.has_labels else {"targets": self._targets().split(" ", 1)[1]}),
        }
        if self.counts is None:
            return figures | {"clients": "not split among clients"}
        least, middle, most = int(self.counts.min()), np.median(self.counts), int(self.counts.max())
        spread = f"{least:,} to {most:,}, median {middle:,g}"
        return figures | {"clients": f"{self.num_clients:,}", "split": self.partition, "examples of a client": spread}

    def preprocess(self, x: Any) -> Any:
        """Turns stored inputs into a model's inputs; may be called inside a compiled program.

        Args:
          x: ``[..., *input_shape]``, uint8, floating, int8, int32 or bool, or a pytree of such arrays.

        Returns:
          The same shape, float32: ``(x / 255 - mean) / std`` for uint8, ``(x - mean) / std`` for floating; tokens
          become int32, and bool stays.
        """
        return self.preprocessing(x)

    @property
    def preprocessing(self) -> Preprocess:
        """:meth:`preprocess` as a value, which does not hold the data."""
        return Preprocess(*(tuple(np.atleast_1d(np.asarray(x, np.float64)).tolist()) for x in (self.mean, self.std)))

    def skew_report(self) -> SkewReport:
        """How labels and sizes differ between the clients.

        Raises:
          ValueError: there are no clients yet, or the targets are no labels.
        """
        labels = self.labels
        if self.rows is None or self.counts is None:
            raise ValueError(f"{self.name}: not yet split among clients; apply fd.data.partition.dirichlet or another")
        real = np.arange(self.rows.shape[1]) < self.counts[:, None]
        first_cell = np.repeat(np.arange(self.num_clients) * self.num_classes, self.counts)
        counts = np.bincount(first_cell + labels[self.rows[real]], minlength=self.num_clients * self.num_classes)
        return SkewReport(counts.reshape(self.num_clients, self.num_classes), f"{self.name}, {self.partition}")


def _some(shown: int, number: int) -> str:
    return f"{number:,}" if shown == number else f"{shown} of {number:,}"


def from_arrays(
    train_x: Any,
    train_y: Any,
    test_x: Any,
    test_y: Any,
    num_classes: int | None = None,
    name: str = "arrays",
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    users: Any = None,
    user_names: Sequence[str] = (),
    normalize: Normalize = "standard",
    test_users: Any = None,
) -> FederatedDataset:
    """Makes a data set of your own arrays; give it clients with :mod:`fedjax_drag.data.partition`.

    Args:
      train_x: inputs ``[N, ...]``: uint8 for images (``[N, H, W]`` gets a channel axis), int8 or int32 for tokens,
        bool for masks, else floating; or a dict, a tuple or another pytree of such arrays, which the model receives as
        such. Of several arrays bytes are divided by 255, and the others are not scaled.
      train_y: targets: integer labels ``[N]``, from 0; integers ``[N, ...]`` such as next tokens or a class for each
        pixel, negative where there is none; numbers ``[N]`` or ``[N, K]``; or 0 and 1 ``[N, K]`` for several labels.
        Or a pytree of such arrays, which loss and metrics receive as such; they are no classes then.
      test_x: test inputs, shaped like ``train_x`` except for their number.
      test_y: test targets.
      num_classes: C; the largest integer plus one if not given, or 0 where targets are numbers, or 0 and 1 ``[N, K]``.
      name: for tables and figures.
      mean: subtracted from inputs (of uint8: after scaling to [0, 1]): one number, or one for each
        entry of the last input axis. Measured on the training inputs if not given.
      std: divisor after that. Measured if not given; an entry that is constant up to rounding gets 1.
      users: ``[N]`` integers from 0: the natural user of each training example, for
        :func:`~fedjax_drag.data.partition.natural`.
      user_names: of the users.
      normalize: what ``mean`` and ``std`` are where they are not given: ``"standard"``, as above; ``"unit"``, such that
        inputs are in [0, 1]: bytes divided by 255, and each entry of the last axis of floating inputs scaled by its
        smallest and largest training value, unless all are in [0, 1] already; ``"none"``, such that inputs stay as they
        are (bytes up to rounding). Tokens are ``"standard"``.
      test_users: ``[N']`` integers: the user of each test example among ``users``, -1 for another; then the clients of
        :func:`~fedjax_drag.data.partition.natural` have test examples of their own.

    Returns:
      The data set, unpartitioned; floating inputs become float32. Entries of the last axis that vary too little for
      that type beside their size, such as times in seconds since 1970, are stored as ``(x - mean) / std`` of float64;
      their mean is 0 and their std 1 then, and a warning says so.

    Raises:
      ValueError: shapes, types or labels do not fit together, an entry is masked, an input is not finite, images
        have their channels first (``[N, 3, 32, 32]``; of inputs that may be something else that is a warning), or a
        million classes are mostly empty (a hundred: a warning).

    Examples:
      >>> import numpy as np
      >>> x, y = np.random.rand(100, 5), np.arange(100) % 3
      >>> fed = from_arrays(x[:80], y[:80], x[80:], y[80:])
      >>> fed.num_classes, fed.input_shape
      (3, (5,))
    """
    (x, y), (x_test, y_test) = examples.checked("train", train_x, train_y), examples.checked("test", test_x, test_y)
    tree.check_structure("test_x", x_test, "train_x", x)
    examples.each(_check_alike, "test_x", x_test, x)
    names = [f"train_x{jax.tree_util.keystr(path)}" for path, _ in jax.tree.leaves_with_path(x)]
    for one, own in zip(names, jax.tree.leaves(x), strict=True):
        examples.check_channels(one, own)
    if num_classes is None:
        num_classes = targets.number_of_classes(y, y_test)
    is_given, is_single = mean is not None or std is not None, hasattr(x, "dtype")
    if normalize != "standard" and is_given:
        raise checks.ArgumentError("normalize", "must be 'standard' where mean or std are given", given=normalize)
    if is_single:
        measured = statistics(x, normalize) if mean is None or std is None else (mean, std)
    elif is_given or normalize != "standard":
        said = "must be left out for inputs of several arrays, which are not standardised; do it before"
        raise checks.ArgumentError("mean, std" if is_given else "normalize", said)
    else:
        measured = (0.0,), (1.0,)
    shift, scale = (
        np.atleast_1d(m if given is None else given) for m, given in zip(measured, (mean, std), strict=True)
    )
    if is_single:
        _check_statistics(shift.tolist(), scale.tolist(), x.shape[1:])
    kept = [*map(partial(stored, mean=shift, std=scale), names, jax.tree.leaves(x), jax.tree.leaves(x_test))]
    x, x_test = (jax.tree.unflatten(jax.tree.structure(x), [one[part] for one in kept]) for part in (0, 1))
    if is_single:
        shift, scale = kept[0][2:]
    users, test_users = (
        None if given is None else _narrowed(examples.as_array(name, given))
        for name, given in (("users", users), ("test_users", test_users))
    )
    fed = make(name, (x, y), (x_test, y_test), num_classes, tuple(shift.tolist()), tuple(scale.tolist()))
    if users is None and test_users is None:
        return fed
    return replace(fed, users=users, test_users=test_users, user_names=tuple(user_names))


def make(
    name: str,
    train: tuple[Any, Any],
    test: tuple[Any, Any],
    num_classes: int,
    mean: tuple[float, ...] = (0.0,),
    std: tuple[float, ...] = (1.0,),
) -> FederatedDataset:
    """An unpartitioned data set from pairs (inputs, labels) of arrays that have their final types."""
    return FederatedDataset(name, Batch(*train), Batch(*test), num_classes, examples.shapes(train[0]), mean, std)


def normalized(fed: FederatedDataset, normalize: Normalize) -> FederatedDataset:
    """The data set with the ``mean`` and ``std`` that :func:`from_arrays` measures; ``"standard"`` keeps its own."""
    if normalize == "standard":
        return fed
    mean, std = statistics(np.asarray(fed.train.x), normalize)
    return replace(fed, mean=mean, std=std)


def _check_alike(name: str, x: np.ndarray, like: np.ndarray) -> None:
    """Refuses test inputs of another type or shape than the training inputs; floating types may differ."""
    is_floating = all(np.issubdtype(inputs.dtype, np.floating) for inputs in (x, like))
    if x.dtype != like.dtype and not is_floating:
        raise checks.ArgumentError(name, f"{x.dtype} beside {like.dtype} train_x: must be of one type")
    if x.shape[1:] != like.shape[1:]:
        raise checks.ArgumentError(name, f"inputs of shape {x.shape[1:]}: must be {like.shape[1:]} as of train_x")


def _narrowed(users: np.ndarray) -> np.ndarray:
    """Integers as int32; unchanged if they do not fit, which the data set refuses."""
    fits = np.issubdtype(users.dtype, np.integer) and (users == users.astype(np.int32)).all()
    return users.astype(np.int32) if fits else users


def _check_examples(part: str, own: Batch, num_classes: int) -> None:
    if any(x.dtype not in (np.uint8, np.float32, *UNSCALED) for x in jax.tree.leaves(own.x)) or any(
        y.dtype not in (np.int32, np.float32) for y in jax.tree.leaves(own.y)
    ):
        allowed = "must be uint8, float32, int8, int32 or bool, and int32 or float32"
        raise ValueError(f"{part}: types {tree.described(own.x, 'N')}, {tree.described(own.y, 'N')}: {allowed}")
    if len({x.shape[:1] for x in jax.tree.leaves((own.x, own.y))}) != 1 or not own.num_examples:
        given = ", ".join(str(jax.tree.map(np.shape, arrays)) for arrays in (own.x, own.y))
        raise ValueError(f"{part}: inputs and targets of shapes {given}: must be as many, at least 1")
    if not num_classes:
        return
    y = own.y
    if not hasattr(y, "dtype"):
        raise ValueError(f"{part}: targets {tree.described(y, 'N')}: must be one array with num_classes={num_classes}")
    if not np.issubdtype(y.dtype, np.integer):
        raise ValueError(f"{part}: targets of type {y.dtype}: must be int32 with num_classes={num_classes}, or it be 0")
    if int(y.max()) >= num_classes or (y.ndim == 1 and int(y.min()) < 0):
        raise ValueError(f"{part}: labels from {y.min()} to {y.max()}: must be in [0, {num_classes - 1}]")


def _check_statistics(
    mean: Sequence[float] | np.ndarray, std: Sequence[float] | np.ndarray, input_shape: tuple[int, ...]
) -> None:
    float32 = np.finfo(np.float32)
    for name, value in (("mean", mean), ("std", std)):
        if len(value) not in (1, input_shape[-1]):
            raise checks.ArgumentError(
                name, f"{len(value)} numbers: must be 1, or {input_shape[-1]} as the last input axis"
            )
        for entry in value:
            checks.in_range(name, entry, float(float32.tiny if name == "std" else float32.min), float(float32.max))


def _check_users(name: str, users: np.ndarray, names: tuple[str, ...], num_examples: int, least: int = 0) -> None:
    is_list = users.shape == (num_examples,) and np.issubdtype(users.dtype, np.integer)
    last = len(names) - 1 if names else np.iinfo(np.int32).max
    if is_list and (users.min() < least or users.max() > last):
        raise checks.ArgumentError(name, f"from {users.min()} to {users.max()}: must be in [{least}, {last}]")
    if not is_list or users.dtype != np.int32:
        raise ValueError(f"{name}: {users.dtype} of shape {users.shape}: must be int32 [{num_examples}]")


def _check_clients(rows: np.ndarray, counts: np.ndarray, num_examples: int) -> None:
    if rows.dtype != np.int32 or counts.dtype != np.int32:
        raise ValueError(f"rows, counts: types {rows.dtype}, {counts.dtype}: must be int32")
    if rows.ndim != 2 or counts.shape != rows.shape[:1] or not rows.size:
        raise ValueError(f"rows, counts: shapes {rows.shape}, {counts.shape}: must be [M, L] and [M]")
    if counts.min() < 1 or counts.max() > rows.shape[1]:
        raise checks.ArgumentError("counts", f"from {counts.min()} to {counts.max()}: must be in [1, {rows.shape[1]}]")
    if rows.min() < 0 or rows.max() >= num_examples:
        raise checks.ArgumentError(
            "rows", f"indices from {rows.min()} to {rows.max()}: must be in [0, {num_examples - 1}]"
        )


DATASET = Kind(
    FederatedDataset,
    "a data set, such as fd.data.load('digits')",
    libraries={"builtins.str": "load it by name, fd.data.load(name)"},
    otherwise="arrays become one by fd.data.from_arrays(train_x, train_y, test_x, test_y)",
)
