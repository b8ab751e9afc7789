import json

import numpy as np
import pytest
from data_files import refused, write

from fedjax_drag.data import partition
from fedjax_drag.data.sets import leaf


def content(data, **changes):
    """The JSON of a file, of ``{user: (x, y)}``."""
    known = {
        "users": list(data),
        "num_samples": [len(y) for _, y in data.values()],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in data.items()},
    }
    return json.dumps(known | changes).encode()


def writer(seed, size):
    """Grey levels ``[size, 784]``, and x and y as LEAF writes them."""
    rng = np.random.default_rng(seed)
    levels, y = rng.integers(0, 256, (size, 784)), rng.integers(0, 62, size)
    return levels, ((levels / 255).tolist(), y.tolist())


def femnist(folder, train=None, test=None):
    contents = train or content({"f1": writer(0, 2)[1]}), test or content({"f1": writer(1, 1)[1]})
    return write(folder, dict(zip(("train/a.json", "test/a.json"), contents, strict=True)))


def test_femnist_from_several_files_of_any_packing(tmp_path):
    levels, users = zip(*(writer(seed, size) for seed, size in enumerate((3, 1, 4, 2))), strict=True)
    folder = write(tmp_path / "femnist/data", {"train/notes.txt": b"not read"})
    write(folder, {"train/all_data_0_train_9.json": content({"w_b": users[0], "w_a": users[1]})})
    write(folder, {"train/all_data_1_train_9.json": content({"w_c": users[2]})}, ".xz")
    write(folder, {"test/all_data_0_test_9.json": content({"w_new": users[1], "w_b": users[3]})}, ".gz")
    fed = leaf.FEMNIST.load(tmp_path)
    assert fed.train.x.dtype == np.uint8
    assert (fed.name, fed.num_classes, fed.input_shape) == ("femnist", 62, (28, 28, 1))
    np.testing.assert_array_equal(fed.train.x.reshape(-1, 784), np.concatenate(levels[:3]))
    np.testing.assert_array_equal(fed.test.x.reshape(-1, 784), np.concatenate([levels[1], levels[3]]))
    np.testing.assert_array_equal(fed.train.y, np.concatenate([y for _, y in users[:3]]))
    np.testing.assert_array_equal(fed.users, [0] * 3 + [1] + [2] * 4)
    np.testing.assert_array_equal(fed.test_users, [-1, 0, 0])
    assert fed.user_names == ("w_b", "w_a", "w_c")
    np.testing.assert_allclose(fed.mean, fed.train.x.mean() / 255)
    split = partition.natural(fed, min_size=2)
    assert split.counts is not None
    assert split.counts.tolist() == [3, 4]
    assert split.client_test is not None
    assert [part.tolist() for part in split.client_test[1:]] == [[1, 2], [2, 0]]
    again = leaf.FEMNIST.load(tmp_path)  # from the cache
    np.testing.assert_array_equal(again.train.x, fed.train.x)
    assert again.user_names == fed.user_names


def test_femnist_rounded_to_a_few_digits_is_the_same_and_other_numbers_stay(tmp_path):
    levels, (x, y) = writer(0, 2)
    femnist(tmp_path / "a", content({"f1": (np.round(x, 6).tolist(), y)}))
    fed = leaf.FEMNIST.load(tmp_path / "a")
    assert fed.train.x.dtype == np.uint8
    np.testing.assert_array_equal(fed.train.x.reshape(-1, 784), levels)
    blurred = np.asarray(x) * 0.99
    femnist(tmp_path / "b", content({"f1": (blurred.tolist(), y), "f2": (x, y)}))
    fed = leaf.FEMNIST.load(tmp_path / "b")
    assert fed.train.x.dtype == fed.test.x.dtype == np.float32
    assert fed.train.x.shape == (4, 28, 28, 1)
    np.testing.assert_allclose(fed.train.x.reshape(2, 2, 784), [blurred, x], rtol=1e-6)
    np.testing.assert_allclose(fed.test.x.reshape(-1, 784), writer(1, 1)[1][0], rtol=1e-6)


def test_the_folder_itself_and_the_environment_variable(tmp_path, monkeypatch):
    femnist(tmp_path / "mine")
    assert len(leaf.FEMNIST.load(tmp_path / "mine").train.y) == 2
    femnist(tmp_path / "all" / "leaf" / "data" / "femnist" / "data")
    monkeypatch.setenv("FEDJAX_DRAG_DATA", str(tmp_path / "all"))
    assert len(leaf.FEMNIST.load().train.y) == 2


def test_missing_files_are_one_clear_line(tmp_path):
    write(tmp_path, {"femnist/train/a.json": content({"f1": writer(0, 2)[1]})})
    message = rf"^femnist: no train/\*\.json and test/\*\.json .*{tmp_path / 'femnist'}.*preprocess"
    refused(message, leaf.FEMNIST.load, tmp_path, kind=FileNotFoundError)


def test_the_alphabet_is_leafs():
    assert len(leaf.ALPHABET) == len(set(leaf.ALPHABET)) == 80
    np.testing.assert_array_equal(leaf.tokens(leaf.ALPHABET), np.arange(80))
    np.testing.assert_array_equal(leaf.tokens("\x00<\x7f\xe9\u2014\U0001f600\ud800a"), [-1] * 7 + [53])
    assert leaf.tokens("").shape == (0,)


def lines(seed, size):
    rng = np.random.default_rng(seed)
    places = rng.integers(0, 80, (size, 81))
    text = ["".join(leaf.ALPHABET[place] for place in row) for row in places]
    return places, ([line[:80] for line in text], [line[80] for line in text])


def test_shakespeare_is_windows_of_tokens(tmp_path):
    (one, first), (two, second), (three, third) = (lines(seed, seed + 1) for seed in range(3))
    train, test = content({"HAMLET_GHOST": first, "HAMLET_HAMLET": second}), content({"HAMLET_GHOST": third})
    write(tmp_path, {"shakespeare/train/a.json": train, "shakespeare/test/a.json": test})
    fed = leaf.SHAKESPEARE.load(tmp_path)
    assert fed.train.x.dtype == fed.test.x.dtype == np.int8
    assert (fed.num_classes, fed.input_shape, fed.mean, fed.std) == (80, (80,), (0.0,), (1.0,))
    np.testing.assert_array_equal(np.c_[fed.train.x, fed.train.y], np.concatenate([one, two]))
    np.testing.assert_array_equal(np.c_[fed.test.x, fed.test.y], three)
    np.testing.assert_array_equal(fed.users, [0, 1, 1])
    assert fed.user_names == ("HAMLET_GHOST", "HAMLET_HAMLET")


X, Y = writer(0, 2)[1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", r"not a JSON file, truncated or .*Expecting value"),
        (content({"u": (X, Y)})[:-30], "not a JSON file, truncated"),
        (b"\xff\xfe{}", "not a JSON file, truncated"),
        (b"[" * 200_000, "nested too deeply"),
        (b"1" * 5000, "not a JSON file, truncated"),
        (b"[]", r"must hold users \(names, at least one\), num_samples .* and user_data"),
        (b"{}", "must hold users"),
        (content({"u": (X, Y)}, users=[1]), "must hold users"),
        (content({"u": (X, Y)}, user_data=[]), "must hold users"),
        (content({}), "must hold users"),
        (content({"u": (X, Y)}, num_samples=None), "num_samples .a number for each"),
        (content({"u": (X, Y)}, num_samples=[3]), "user 'u': .* of equal length, which num_samples says is 3"),
        (content({"u": (X, Y)}, num_samples=["\n" * 99]), "user 'u': .* which num_samples says is"),
        (content({"u": (X, Y)}, user_data={}), "user 'u': user_data must have lists x and y"),
        (content({"u": (X, Y)}, user_data={"u": None}), "user 'u': user_data must have lists"),
        (content({"u": ([], [])}), "user 'u': .* not empty"),
        (content({"u": (X[:1], Y)}), "user 'u': .* of equal length"),
        (content({"u": ("x", Y)}), "user 'u': user_data must have lists"),
        (content({"u\n" * 30: (X, Y[::-1])}, num_samples=[0]), r"user 'u\\nu\\n.*\.\.\.': .* num_samples says is 0"),
        (content({"u": (X, Y)}, users=["u", "u"], num_samples=[2, 2]), "user 'u' is also in a.json"),
        (content({"u": ([X[0], X[1][:-1]], Y)}), "user 'u': .* inhomogeneous shape"),
        (content({"u": ([X[0][:9], X[1][:9]], Y)}), r"user 'u': x of shape \(2, 9\): must be lists of 784 numbers"),
        (content({"u": ([0.5, 0.5], Y)}), r"x of shape \(2,\)"),
        (content({"u": ([["0.5"] * 784] * 2, Y)}), "an entry that is not a number"),
        (content({"u": ([[None] * 784] * 2, Y)}), "an entry that is not a number"),
        (content({"u": ([[10**30] * 784] * 2, Y)}), "an entry that is not a number"),
        (content({"u": ([[{}] * 784] * 2, Y)}), "an entry that is not a number"),
        (content({"u": ([[255] * 784] * 2, Y)}), r"x with pixels outside \[0, 1\]"),
        (content({"u": ([[float("nan")] * 784] * 2, Y)}), "x with pixels outside"),
        (content({"u": (X, [1, 62])}), r"y from 1 to 62: must be in \[0, 61\]"),
        (content({"u": (X, [-1, 1])}), "y from -1 to 1"),
        (content({"u": (X, [1.0, 2.0])}), "y that is not a list of integers"),
        (content({"u": (X, [[1], [2]])}), "y that is not a list of integers"),
        (content({"u": (X, [True, False])}), "an entry that is not a number"),
    ],
)
def test_other_files_than_femnist_are_one_line_with_the_path(tmp_path, text, message):
    refused(
        message, leaf.FEMNIST.load, write(femnist(tmp_path), {"train/a.json": text}), start=tmp_path / "train/a.json"
    )


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (["a" * 79], ["b"], "x with an entry that is not a string of length 80"),
        (["a" * 80], [["b"]], "y with an entry that is not a string of length 1"),
        (["a" * 80], ["bc"], "y with an entry"),
        ([[1] * 80], ["b"], "x with an entry"),
        (["a" * 79 + "*"], ["b"], r"x with '\*', which is not in LEAF's alphabet"),
        (["a" * 80], ["\u2028"], r"y with '\\u2028', which"),
        (["a" * 80], ["\ud83d"], r"y with '\\ud83d', which"),
    ],
)
def test_other_files_than_shakespeare_are_one_line_with_the_path(tmp_path, x, y, message):
    write(tmp_path, {"train/a.json": content({"u": (["a" * 80], ["b"])}), "test/b.json": content({"u": (x, y)})})
    refused(message, leaf.SHAKESPEARE.load, tmp_path, start=f"{tmp_path / 'test/b.json'}: user 'u': ")


def test_a_user_in_two_files_and_damaged_packing(tmp_path):
    write(femnist(tmp_path), {"train/b.json": content({"f2": (X, Y), "f1": (X, Y)})})
    refused(r"b\.json: user 'f1' is also in a\.json: .*several runs", leaf.FEMNIST.load, tmp_path)
    (tmp_path / "train/b.json").unlink()
    path = write(tmp_path, {"train/b.json": content({"f2": (X, Y)})}, ".gz") / "train/b.json.gz"
    path.write_bytes(path.read_bytes()[:-20])
    refused(r"b\.json\.gz: damaged gz", leaf.FEMNIST.load, tmp_path)
