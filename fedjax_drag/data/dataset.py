"""The federated data set: every example once in memory, and clients as rows of indices into them."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_drag import checks, notebook
from fedjax_drag.data import targets
from fedjax_drag.data.normalization import TOKENS, Normalize, Preprocess, statistics, stored
from fedjax_drag.data.skew import SkewReport
from fedjax_drag.kinds import Kind
from fedjax_drag.types import Batch

_MOST_CLIENTS, _MOST_CLASSES = 60, 30  # shown in a notebook
_SMALLEST_SIDE, _MOST_CHANNELS = 8, 4
"""Of an image: a last axis of that length is not taken for channels behind a first of at most so many."""


@dataclass(frozen=True, eq=False)
class FederatedDataset:
    """Training, validation and test examples, and which client owns which of the first.

    M clients cost M rows of indices, not copies of data. Made by :func:`fedjax_drag.data.load` or
    :func:`from_arrays` without clients; a function of :mod:`fedjax_drag.data.partition` adds them.

    Attributes:
      name: of the data set.
      train: NumPy arrays: inputs ``[N, *input_shape]``, uint8 (images), float32, or int8 or int32 (tokens); targets
        ``[N, ...]``, int32 or float32: a label ``[N]``, next tokens ``[N, L]``, several labels or numbers ``[N, K]``.
      test: the same for the test examples.
      num_classes: C where targets are classes ``0 .. C - 1``; 0 where they are numbers, or labels that an example may
        have several of. Negative integers in targets with more than one axis stand for what does not count.
      input_shape: of one input; for images with a trailing channel axis.
      mean: subtracted from what a model sees: per entry of the last input axis, or one for all; of inputs scaled to
        [0, 1] if uint8. Not for tokens.
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
    """

    name: str
    train: Batch
    test: Batch
    num_classes: int
    input_shape: tuple[int, ...]
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    users: np.ndarray | None = None
    user_names: tuple[str, ...] = ()
    rows: np.ndarray | None = None
    counts: np.ndarray | None = None
    partition: str = ""
    validation: Batch | None = None

    def __post_init__(self) -> None:
        checks.count("num_classes", self.num_classes)
        for part in ("train", "test", *(() if self.validation is None else ("validation",))):
            examples = getattr(self, part)
            _check_examples(part, examples, self.input_shape, self.num_classes)
            if examples.x.dtype != self.train.x.dtype:
                raise ValueError(f"{part}: inputs of type {examples.x.dtype} beside {self.train.x.dtype} of train")
            if (examples.y.dtype, examples.y.shape[1:]) != (self.train.y.dtype, self.train.y.shape[1:]):
                raise ValueError(f"{part}: targets {_form(examples.y)} beside {_form(self.train.y)} of train")
        _check_statistics(self.mean, self.std, self.input_shape)
        if self.users is not None:
            _check_users(self.users, self.user_names, len(self.train.y))
        if self.rows is not None and self.counts is not None:
            _check_clients(self.rows, self.counts, len(self.train.y))
        elif self.rows is not None or self.counts is not None:
            raise ValueError("rows, counts: must be given together")

    @property
    def num_clients(self) -> int:
        """Number of clients M; 0 before partitioning."""
        return 0 if self.rows is None else len(self.rows)

    def __repr__(self) -> str:
        examples = f"{len(self.train.y):,} + {len(self.test.y):,} examples {self.train.x.dtype}{list(self.input_shape)}"
        clients = f"{self.num_clients:,} clients by {self.partition}" if self.num_clients else "not split among clients"
        held_out = "" if self.validation is None else f", {len(self.validation.y):,} for validation"
        return f"FederatedDataset({self.name}: {examples}{held_out}, {self._targets()}, {clients})"

    def _targets(self) -> str:
        classes = f"{self.num_classes} classes"
        other = f"targets {_form(self.train.y)}" + (f" of {classes}" if self.num_classes else "")
        return classes if self.has_labels else other

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
            raise ValueError(f"{self.name}: targets are {_form(self.train.y)}; must be labels, one class an example")
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
            "training examples": f"{len(self.train.y):,}",
            **({} if self.validation is None else {"validation examples": f"{len(self.validation.y):,}"}),
            "test examples": f"{len(self.test.y):,}",
            "inputs": f"{self.train.x.dtype}{list(self.input_shape)}",
            **({"classes": self.num_classes} if self.has_labels else {"targets": self._targets().split(" ", 1)[1]}),
        }
        if self.counts is None:
            return figures | {"clients": "not split among clients"}
        least, middle, most = int(self.counts.min()), np.median(self.counts), int(self.counts.max())
        spread = f"{least:,} to {most:,}, median {middle:,g}"
        return figures | {"clients": f"{self.num_clients:,}", "split": self.partition, "examples of a client": spread}

    def preprocess(self, x: jax.Array | np.ndarray) -> jax.Array:
        """Turns stored inputs into a model's inputs; may be called inside a compiled program.

        Args:
          x: ``[..., *input_shape]``, uint8, floating, int8 or int32.

        Returns:
          The same shape, float32: ``(x / 255 - mean) / std`` for uint8, ``(x - mean) / std`` for floating; tokens
          become int32.
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


def _form(y: Any) -> str:
    return f"{y.dtype}[{', '.join(['N', *map(str, y.shape[1:])])}]"


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
) -> FederatedDataset:
    """Makes a data set of your own arrays; give it clients with :mod:`fedjax_drag.data.partition`.

    Args:
      train_x: inputs ``[N, ...]``: uint8 for images (``[N, H, W]`` gets a channel axis), int8 or int32 for tokens,
        else floating.
      train_y: targets: integer labels ``[N]``, from 0; integers ``[N, ...]`` such as next tokens or a class for each
        pixel, negative where there is none; numbers ``[N]`` or ``[N, K]``; or 0 and 1 ``[N, K]`` for several labels.
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
    (x, y), (x_test, y_test) = _examples("train", train_x, train_y), _examples("test", test_x, test_y)
    _check_channels(x)
    floating = all(np.issubdtype(inputs.dtype, np.floating) for inputs in (x, x_test))
    if x.dtype != x_test.dtype and not floating:
        raise checks.ArgumentError("test_x", f"{x_test.dtype} beside {x.dtype} train_x: must be of one type")
    if x.shape[1:] != x_test.shape[1:]:
        raise checks.ArgumentError("test_x", f"inputs of shape {x_test.shape[1:]}: must be {x.shape[1:]} as of train_x")
    if num_classes is None:
        num_classes = targets.number_of_classes(y, y_test)
    if normalize != "standard" and not (mean is None and std is None):
        raise checks.ArgumentError("normalize", "must be 'standard' where mean or std are given", given=normalize)
    measured = statistics(x, normalize) if mean is None or std is None else (mean, std)
    shift, scale = (
        np.atleast_1d(m if given is None else given) for m, given in zip(measured, (mean, std), strict=True)
    )
    _check_statistics(shift.tolist(), scale.tolist(), x.shape[1:])
    if floating:
        x, x_test, shift, scale = stored(x, x_test, shift, scale)
    users = None if users is None else _narrowed(_array("users", users))
    fed = make(name, (x, y), (x_test, y_test), num_classes, tuple(shift.tolist()), tuple(scale.tolist()))
    return fed if users is None else replace(fed, users=users, user_names=tuple(user_names))


def make(
    name: str,
    train: tuple[Any, Any],
    test: tuple[Any, Any],
    num_classes: int,
    mean: tuple[float, ...] = (0.0,),
    std: tuple[float, ...] = (1.0,),
) -> FederatedDataset:
    """An unpartitioned data set from pairs (inputs, labels) of arrays that have their final types."""
    return FederatedDataset(name, Batch(*train), Batch(*test), num_classes, train[0].shape[1:], mean, std)


def normalized(fed: FederatedDataset, normalize: Normalize) -> FederatedDataset:
    """The data set with the ``mean`` and ``std`` that :func:`from_arrays` measures; ``"standard"`` keeps its own."""
    if normalize == "standard":
        return fed
    mean, std = statistics(np.asarray(fed.train.x), normalize)
    return replace(fed, mean=mean, std=std)


def _examples(part: str, x: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
    """Checked inputs, in a floating type still as they were given, and targets."""
    x, y = _array(f"{part}_x", x), _array(f"{part}_y", y)
    if x.dtype != np.uint8 and x.dtype not in TOKENS and not np.issubdtype(x.dtype, np.floating):
        allowed = "uint8 (images, 0..255), floating, or int8 or int32 (tokens)"
        raise ValueError(f"{part}_x: of type {x.dtype}: must be {allowed}")
    y = targets.stored(f"{part}_y", y)
    if x.ndim < 2 or y.shape[:1] != x.shape[:1] or not x.size or not y.size:
        allowed = "must be [N, ...] and [N, ...], no axis of length 0"
        raise ValueError(f"{part}_x, {part}_y: shapes {x.shape}, {y.shape}: {allowed}")
    if x.dtype == np.uint8 and x.ndim == 3:
        x = x[..., None]
    if np.issubdtype(x.dtype, np.floating):
        with np.errstate(over="ignore"):  # a number too large for float32 is reported as not finite
            finite = np.isfinite(x.astype(np.float32, copy=False))
        if not finite.all():
            raise ValueError(f"{part}_x: {np.count_nonzero(~finite)} entries are not finite float32 numbers")
    return np.ascontiguousarray(x), y


def _array(name: str, values: Any) -> np.ndarray:
    if np.ma.is_masked(values):
        raise checks.ArgumentError(
            name, f"{np.ma.count_masked(values)} entries are masked; must be none, as after .filled(0)"
        )
    try:
        array = np.asarray(values)
        wide = jnp.issubdtype(array.dtype, jnp.floating) and not np.issubdtype(array.dtype, np.floating)  # bfloat16
        return array.astype(np.float32 if wide else array.dtype.newbyteorder("="), copy=False)
    except (ValueError, TypeError, RuntimeError) as error:  # lists of unequal lengths, tensors of other libraries
        raise checks.ArgumentError(name, f"must be an array; {checks.first_line(error)}") from error


def _narrowed(users: np.ndarray) -> np.ndarray:
    """Integers as int32; unchanged if they do not fit, which the data set refuses."""
    fits = np.issubdtype(users.dtype, np.integer) and (users == users.astype(np.int32)).all()
    return users.astype(np.int32) if fits else users


def _check_channels(x: np.ndarray) -> None:
    """Refuses images whose channels come first, or warns of them where inputs may be meant to have such a shape."""
    if x.ndim != 4 or x.shape[1] > _MOST_CHANNELS or min(x.shape[2:]) < _SMALLEST_SIDE or x.dtype in TOKENS:
        return
    message = (
        f"train_x: of shape {x.shape}: images must be [N, H, W, C]; take np.moveaxis(x, 1, -1) of all inputs if "
        "axis 1 is the channels"
    )
    if x.dtype == np.uint8 or x.shape[2] == x.shape[3]:
        raise ValueError(message)
    warnings.warn(message, stacklevel=3)


def _check_examples(part: str, batch: Batch, input_shape: tuple[int, ...], num_classes: int) -> None:
    x, y = batch.x, batch.y
    if x.dtype not in (np.uint8, np.float32, *TOKENS) or y.dtype not in (np.int32, np.float32):
        allowed = "must be uint8, float32, int8 or int32, and int32 or float32"
        raise ValueError(f"{part}: types {x.dtype}, {y.dtype}: {allowed}")
    if x.shape[1:] != tuple(input_shape) or not input_shape or 0 in input_shape:
        raise ValueError(f"{part}: inputs of shape {x.shape[1:]}: must be input_shape={input_shape}")
    if y.shape[:1] != x.shape[:1] or not len(y):
        raise ValueError(f"{part}: {x.shape[0]} inputs, targets of shape {y.shape}: must be as many, at least 1")
    if num_classes and not np.issubdtype(y.dtype, np.integer):
        raise ValueError(f"{part}: targets of type {y.dtype}: must be int32 with num_classes={num_classes}, or it be 0")
    if num_classes and (int(y.max()) >= num_classes or (y.ndim == 1 and int(y.min()) < 0)):
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


def _check_users(users: np.ndarray, names: tuple[str, ...], num_examples: int) -> None:
    is_list = users.shape == (num_examples,) and np.issubdtype(users.dtype, np.integer)
    last = len(names) - 1 if names else np.iinfo(np.int32).max
    if is_list and (users.min() < 0 or users.max() > last):
        raise checks.ArgumentError("users", f"from {users.min()} to {users.max()}: must be in [0, {last}]")
    if not is_list or users.dtype != np.int32:
        raise ValueError(f"users: {users.dtype} of shape {users.shape}: must be int32 [{num_examples}]")


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
