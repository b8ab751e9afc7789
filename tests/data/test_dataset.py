from dataclasses import FrozenInstanceError, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_drag import data as fd_data
from fedjax_drag.data import FederatedDataset, from_arrays, partition
from fedjax_drag.types import Batch


def images(n=6, size=4, channels=2):
    rng = np.random.default_rng(n)
    return rng.integers(0, 256, (n, size, size, channels), dtype=np.uint8), np.arange(n) % 3


def test_from_arrays_keeps_images_and_measures_channels():
    x, y = images(12)
    fed = from_arrays(x, y, *images())
    assert (fed.num_classes, fed.input_shape, fed.num_clients, fed.partition) == (3, (4, 4, 2), 0, "")
    assert fed.train.x.dtype == np.uint8
    assert fed.train.y.dtype == np.int32
    np.testing.assert_allclose(fed.mean, (x / 255).mean(axis=(0, 1, 2)), rtol=1e-6)
    np.testing.assert_allclose(fed.std, (x / 255).std(axis=(0, 1, 2)), rtol=1e-6)
    scaled = np.asarray(fed.preprocess(x))
    np.testing.assert_allclose(scaled.mean(axis=(0, 1, 2)), 0, atol=1e-5)
    np.testing.assert_allclose(scaled.std(axis=(0, 1, 2)), 1, atol=1e-5)


def test_from_arrays_accepts_lists_other_floats_and_constant_entries():
    x = [[1.0, 5.0], [2.0, 5.0], [3.0, 5.0]]
    fed = from_arrays(x, [0, 1, 1], x, [0, 1, 1], num_classes=4, name="mine")
    assert fed.train.x.dtype == np.float32
    assert (fed.name, fed.num_classes, fed.mean, fed.std[1]) == ("mine", 4, (2.0, 5.0), 1.0)
    assert np.isfinite(fed.preprocess(fed.train.x)).all()
    rounded = np.full((1000, 1), 0.1)
    assert from_arrays(rounded, np.zeros(1000, int), rounded, np.zeros(1000, int)).std == (1.0,)


def test_grey_images_get_a_channel_axis():
    x = np.zeros((5, 8, 8), np.uint8)
    assert from_arrays(x, [0] * 5, x, [0] * 5).input_shape == (8, 8, 1)


def test_preprocess_is_the_formula_also_inside_jit():
    x, y = images()
    fed = from_arrays(x, y, x, y, mean=(0.2, 0.3), std=(0.5, 2.0))
    expected = (x / 255 - np.array(fed.mean)) / np.array(fed.std)
    result = jax.jit(fed.preprocess)(jnp.asarray(x))
    assert result.dtype == jnp.float32
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(fed.preprocess(x[0]), expected[0], rtol=1e-5, atol=1e-6)
    floats = x.astype(np.float32)
    fed = from_arrays(floats, y, floats, y, mean=7.0, std=2)
    np.testing.assert_allclose(fed.preprocess(floats), (floats - 7) / 2, rtol=1e-6)


X, Y = images()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"train_x": X.astype(int)}, "train_x: of type int64: must be uint8"),
        ({"train_y": Y.astype(str)}, "train_y: of type <U.*: must be integers or floating; number the classes"),
        ({"train_y": np.where(Y > 0, np.inf, 0.0)}, "train_y: [0-9] entries are not finite"),
        ({"train_y": Y[:-1]}, r"train_x, train_y: shapes \(6, 4, 4, 2\), \(5,\)"),
        ({"test_y": Y[:, None]}, r"test: targets int32\[N, 1\] beside int32\[N\] of train"),
        ({"test_y": Y + 0.5}, r"test: targets float32\[N\] beside int32\[N\] of train"),
        ({"train_y": Y + 0.5, "test_y": Y + 0.5, "num_classes": 3}, "train: targets of type float32: must be int32"),
        ({"test_x": X[:0], "test_y": Y[:0]}, "no axis of length 0"),
        ({"train_x": X[:, :0], "test_x": X[:, :0]}, r"shapes \(6, 0, 4, 2\), \(6,\): must be .* no axis of length 0"),
        ({"train_x": Y.astype(np.uint8)}, r"train_x, train_y: shapes \(6,\), \(6,\)"),
        ({"test_x": X[:, :2]}, r"test_x: inputs of shape \(2, 4, 2\): must be \(4, 4, 2\) as of train_x"),
        ({"test_x": X.astype(np.float32)}, "test_x: float32 beside uint8 train_x"),
        ({"train_y": Y - 1}, "train_y: labels from -1 to 1"),
        ({"num_classes": 2}, r"train: labels from 0 to 2: must be in \[0, 1\]"),
        ({"num_classes": -1}, "num_classes=-1"),
        ({"mean": (0.0,) * 3}, "mean: 3 numbers: must be 1, or 2"),
        ({"std": (1.0, 0.0)}, "std=0.0"),
        ({"std": 1e-50}, r"std=1e-50: must be in \[1.17549e-38"),
        (
            {"train_y": Y * 10**9},
            r"2,000,000,001 classes, of which 5 have examples; .* np.unique\(y, return_inverse=True",
        ),
        ({"train_x": np.where(X > 0, np.nan, 0.0)}, "train_x: .* entries are not finite"),
        ({"train_x": X * 1e300}, "train_x: .* entries are not finite"),
        ({"train_x": np.where(X[1, 0] == X, np.nan, X)}, r"the first \[1, 0, 0, 0\]=nan; all must be"),
        ({"train_x": [[1.0, 2.0], [3.0]]}, "^train_x: must be an array; ValueError: setting an array element"),
        ({"test_y": [0, [1, 2]]}, "^test_y: must be an array; "),
        ({"users": [0, [1, 2]]}, "^users: must be an array; "),
        ({"train_x": np.ma.masked_greater(X, X.mean())}, "^train_x: [1-9]+ entries are masked; must be none"),
        ({"test_y": np.ma.masked_equal(Y, Y[0])}, "^test_y: [1-9]+ entries are masked"),
        ({"users": np.ma.masked_equal(Y, Y[0])}, "^users: [1-9]+ entries are masked"),
        ({"users": Y.astype(np.int64) << 32}, r"users: from 0 to 8589934592: must be in \[0, 2147483647\]"),
        ({"users": Y.astype(np.uint64) + 2**63}, "users: from 9223372036854775808 to"),
        ({"users": Y - 1}, "users: from -1 to 1"),
        ({"users": Y.astype(float)}, r"users: float64 of shape \(6,\): must be int32"),
        ({"users": Y[:0]}, r"users: int32 of shape \(0,\): must be int32 \[6\]"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_in_one_line(arguments, message):
    with pytest.raises(ValueError, match=message) as error:
        from_arrays(**({"train_x": X, "train_y": Y, "test_x": X, "test_y": Y} | arguments))
    assert "\n" not in str(error.value)


HOT = np.eye(3, dtype=np.int64)[Y]


@pytest.mark.parametrize(
    ("y", "num_classes", "said"),
    [
        (Y + 0.5, 0, "targets float32[N]"),
        (np.stack([Y, Y], 1) / 2, 0, "targets float32[N, 2]"),
        (HOT, 0, "targets int32[N, 3]"),
        (HOT > 0, 0, "targets int32[N, 3]"),
        (np.stack([Y, -Y, Y * 3], 1), 7, "targets int32[N, 3] of 7 classes"),
        (np.broadcast_to(Y[:, None, None] > 0, (6, 4, 4)), 2, "targets int32[N, 4, 4] of 2 classes"),
    ],
)
def test_targets_of_any_form(y, num_classes, said):
    fed = partition.iid(from_arrays(X, y, X, y), 2)
    np.testing.assert_array_equal(fed.train.y, np.asarray(y, fed.train.y.dtype))
    assert (fed.num_classes, fed.has_labels) == (num_classes, False)
    assert said in repr(fed)
    assert said.split(" ", 1)[1] in fed._repr_html_()
    assert len(fd_data.hold_out(from_arrays(X, y, X, y), 0.5).validation.y) == 3
    for of_labels in (fed.skew_report, lambda: partition.dirichlet(fed, 2, 1.0), lambda: partition.shards(fed, 2)):
        with pytest.raises(ValueError, match="must be labels, one class an example"):
            of_labels()


def test_integers_are_numbers_where_there_are_no_classes():
    fed = from_arrays(X, Y, X, Y, num_classes=0)
    assert not fed.has_labels
    assert "targets int32[N]," in repr(fed)


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (1, 8, 16), (4, 32, 32)])
def test_images_with_channels_first_are_refused(shape):
    x = np.zeros((6, *shape), np.uint8)
    with pytest.raises(
        ValueError, match=r"train_x: of shape .*: images must be \[N, H, W, C\]; take np.moveaxis\(x, 1, -1\)"
    ):
        from_arrays(x, Y, x, Y)
    x = np.moveaxis(x, 1, -1)
    assert from_arrays(x, Y, x, Y).input_shape == (*shape[1:], shape[0])


def test_inputs_that_may_be_something_else_are_warned_of():
    x = np.random.default_rng(0).normal(size=(6, 1, 100, 9))
    with pytest.warns(UserWarning, match="of shape \\(6, 1, 100, 9\\): images must be") as warned:
        assert from_arrays(x, Y, x, Y).input_shape == (1, 100, 9)
    assert warned[0].filename == __file__
    assert from_arrays(x[..., :4], Y, x[..., :4], Y).input_shape == (1, 100, 4)


def test_mostly_empty_classes_are_warned_of_unless_their_number_is_given():
    labels = Y * 100
    with pytest.warns(UserWarning, match="train_y, test_y: 201 classes, of which 3 have examples; number the classes"):
        assert from_arrays(X, labels, X, labels).num_classes == 201
    assert from_arrays(X, labels, X, labels, num_classes=201).num_classes == 201


def test_the_order_of_bytes_does_not_matter():
    for kind in ("i4", "f4"):
        x = np.arange(12).reshape(6, 2).astype(f">{kind}")
        np.testing.assert_array_equal(from_arrays(x, Y.astype(">i8"), x, Y).train.x, x.astype(kind))


def test_bfloat16_is_floating():
    x = jnp.linspace(-1, 1, 12, dtype=jnp.bfloat16).reshape(6, 2)
    fed = from_arrays(x, Y, x, Y)
    assert fed.train.x.dtype == np.float32
    np.testing.assert_array_equal(fed.train.x, x.astype(jnp.float32))


BOTH = {"image": X, "other": (np.arange(6) > 2, np.arange(18.0).reshape(6, 3), np.arange(6.0))}
"""Inputs of several arrays: bytes, and a tuple of truth values, a table and a number for each example."""


def test_inputs_and_targets_that_are_pytrees():
    y = {"label": Y.tolist(), "box": np.ones((6, 4))}
    fed = from_arrays(BOTH, y, BOTH, y)
    assert (fed.num_classes, fed.has_labels, fed.mean, fed.std) == (0, False, (0.0,), (1.0,))
    assert fed.input_shape == {"image": (4, 4, 2), "other": ((), (3,), ())}
    stored = fed.train.x["image"], *fed.train.x["other"], fed.train.y["label"], fed.train.y["box"]
    assert [str(x.dtype) for x in stored] == ["uint8", "bool", "float32", "float32", "int32", "float32"]
    assert fed.train.x["image"] is X, "no copy"
    seen = fed.preprocess(fed.train.x)
    np.testing.assert_allclose(seen["image"], X / np.float32(255), rtol=1e-6)
    assert seen["other"][0].dtype == bool
    np.testing.assert_array_equal(seen["other"][1], BOTH["other"][1])
    form = "{image: uint8[4, 4, 2], other: (bool[], float32[3], float32[])}"
    assert f"6 + 6 examples {form}, targets {{box: float32[N, 4], label: int32[N]}}, not" in repr(fed)
    assert "float32[N, 4]" in fed._repr_html_()
    of_users = replace(fed, users=np.arange(6, dtype=np.int32) // 2)
    splits = partition.iid(fed, 2), partition.quantity_skew(fed, 2, 1.0), partition.natural(of_users)
    assert [split.counts.sum() for split in splits] == [6, 6, 6]
    left = fd_data.hold_out(fed, 0.5)
    assert [part.x["other"][1].shape for part in (left.train, left.validation)] == [(3, 3), (3, 3)]
    with pytest.raises(ValueError, match=r"targets are {box: float32\[N, 4\], label: int32\[N\]}; must be labels"):
        partition.dirichlet(fed, 2, 1.0)
    assert from_arrays(BOTH, Y, BOTH, Y).num_classes == 3


def test_what_numpy_takes_for_one_array_is_one():
    rows, labels = ((1.0, 2.0), (3.0, 5.0)), (0, 1)
    np.testing.assert_array_equal(from_arrays(rows, labels, rows, labels, normalize="none").train.x, rows)
    fed = from_arrays(list(X), list(Y), list(X), list(Y))
    np.testing.assert_array_equal(fed.train.x, X)


OTHER = BOTH["other"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"train_x": {"image": X, "ids": Y.astype(int)}}, r"train_x\['ids'\]: of type int64: must be uint8"),
        ({"train_x": {"image": X, "table": [[1.0], [2.0, 3.0]]}}, r"train_x\['table'\]: must be an array"),
        ({"train_x": {"image": X, "other": None}}, r"train_x\['other'\]: of type object"),
        ({"train_y": {}}, r"train_x, train_y: shapes .*, {}: must be \[N, ...\] and"),
        ({"train_x": {}}, r"train_x, train_y: shapes {}, \(6,\): must be \[N, ...\] and"),
        ({"train_x": {"image": X[:5], "other": OTHER}}, r"shapes {'image': \(5, 4, 4, 2\), 'other': \(\(6,\)"),
        ({"train_y": {"a": Y, "b": Y[:5]}}, r"shapes .*{'a': \(6,\), 'b': \(5,\)}: must be"),
        ({"test_x": {"image": X}}, r"test_x: lacks \['other'\]\[0\]; must have the structure of train_x"),
        ({"test_x": X}, "test_x: is of type ndarray; must have the structure of train_x, a dict"),
        ({"test_x": {"image": X[:, :2], "other": OTHER}}, r"test_x\['image'\]: inputs of shape \(2, 4, 2\): must be"),
        ({"test_x": {"image": X / 2, "other": OTHER}}, r"test_x\['image'\]: float64 beside uint8 train_x"),
        ({"train_y": {"a": Y}}, r"test: targets int32\[N\] beside {a: int32\[N\]} of train"),
        ({"train_y": {"a": Y}, "test_y": {"a": Y}, "num_classes": 3}, "must be one array with num_classes=3"),
        ({"train_y": {"a": Y - 1}}, r"train_y\['a'\]: labels from -1"),
        ({"normalize": "unit"}, "normalize: must be left out for inputs of several arrays"),
        ({"mean": 0.0}, "mean, std: must be left out for inputs of several arrays"),
        ({"train_x": {"image": np.zeros((6, 3, 32, 32), np.uint8), "other": OTHER}}, r"test_x\['image'\]: inputs of"),
    ],
)
def test_pytrees_that_do_not_fit_are_refused_in_one_line(arguments, message):
    with pytest.raises(ValueError, match=message) as error:
        from_arrays(**({"train_x": BOTH, "train_y": Y, "test_x": BOTH, "test_y": Y} | arguments))
    assert "\n" not in str(error.value)


def test_an_array_of_a_pytree_that_float32_rounds_is_warned_of():
    x = {"image": X, "time": 1.7e9 + np.arange(6.0)}
    with pytest.warns(UserWarning, match=r"train_x\['time'\]: entries 0 of the last axis vary too little") as warned:
        from_arrays(x, Y, x, Y)
    assert warned[0].filename == __file__


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": None}, "given together"),
        ({"rows": np.zeros((2, 3), np.int64)}, "int64"),
        ({"counts": np.array([1, 2, 3], np.int32)}, "shapes"),
        ({"counts": np.array([0, 3], np.int32)}, r"counts: from 0 to 3: must be in \[1, 3\]"),
        ({"counts": np.array([1, 4], np.int32)}, "counts: from 1 to 4"),
        ({"rows": np.full((2, 3), 6, np.int32)}, "rows: indices from 6 to 6"),
        ({"rows": np.full((2, 3), -1, np.int32)}, "rows: indices from -1 to -1"),
        ({"train": Batch(X, Y.astype(np.float32))}, "train: targets of type float32: must be int32 with num_classes=3"),
        ({"train": Batch(X, np.zeros((6, 2), np.int32))}, r"test: targets int32\[N\] beside int32\[N, 2\] of train"),
        ({"train": Batch(X, Y.astype(np.int64))}, r"train: types uint8\[.*\], int64\[N\]: must be"),
    ],
)
def test_inconsistent_data_sets_cannot_be_made(changes, message):
    fed = partition.iid(from_arrays(X, Y, X, Y), 2)
    assert isinstance(fed, FederatedDataset)
    with pytest.raises(ValueError, match=message):
        replace(fed, **changes)
    with pytest.raises(FrozenInstanceError):
        fed.name = "other"
