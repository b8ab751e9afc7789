"""Data that other libraries hold."""

import types

import numpy as np
import pytest

from fedjax_drag.data import from_clients, from_huggingface, from_pandas, from_partitioner, partition

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(40, 3)).astype(np.float32), np.arange(40) % 4
OWN = [(X[:5], Y[:5]), (X[5:25], Y[5:25]), (X[25:], Y[25:])]


def test_clients_keep_their_own_examples():
    fed = from_clients(OWN, test=(X, Y), name="hospitals", normalize="none")
    assert (fed.name, fed.num_clients, fed.num_classes) == ("hospitals", 3, 4)
    np.testing.assert_array_equal(fed.counts, [5, 20, 15])
    for (x, y), row, count in zip(OWN, fed.rows, fed.counts, strict=True):
        order = np.argsort(row[:count])
        np.testing.assert_array_equal(fed.train.x[row[:count][order]], x)
        np.testing.assert_array_equal(fed.train.y[row[:count][order]], y)


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ([], "clients: none"),
        ([*OWN, (X[:0], Y[:0])], r"clients\[3\]: has no example"),
        ([*OWN, (X[:, :2], Y)], r"clients\[3\]: inputs of shape \(2,\); must be \(3,\) as of clients\[0\]"),
        ([*OWN, (X, Y[:, None])], r"clients\[3\]: targets of shape \(1,\)"),
        ([*OWN, X], r"clients\[3\]=array float32\[40, 3\]: must be a pair of inputs and targets, \(x, y\)"),
    ],
)
def test_clients_that_do_not_fit_are_refused(clients, message):
    with pytest.raises(ValueError, match=message):
        from_clients(clients, test=(X, Y))


@pytest.fixture(scope="module")
def pictures():
    datasets = pytest.importorskip("datasets", reason="needs Hugging Face's datasets")
    features = datasets.Features(
        {
            "image": datasets.Array3D((4, 4, 1), "uint8"),
            "width": datasets.Value("float64"),
            "height": datasets.Value("int64"),
            "label": datasets.ClassLabel(names=list("abcde")),
        }
    )
    columns = {
        "image": RNG.integers(0, 256, (40, 4, 4, 1), dtype=np.uint8),
        "width": X[:, 0],
        "height": np.arange(40),
        "label": Y,
    }
    return datasets.Dataset.from_dict(columns, features=features), columns


def test_a_data_set_of_hugging_face(pictures):
    dataset, columns = pictures
    fed = from_huggingface(dataset, dataset)
    assert (fed.num_classes, fed.input_shape) == (5, (4, 4, 1))
    np.testing.assert_array_equal(fed.train.x, columns["image"])
    np.testing.assert_array_equal(fed.train.y, Y)
    fed = from_huggingface(dataset, dataset, x=["width", "height"], y="width", normalize="none")
    np.testing.assert_allclose(fed.train.x, np.stack([X[:, 0], np.arange(40)], 1))
    assert not fed.has_labels
    with pytest.raises(ValueError, match="x='picture': no such column; there are image, width"):
        from_huggingface(dataset, dataset, x="picture")


@pytest.mark.parametrize("given", [None, {"train": X}, types.SimpleNamespace(column_names={"train": ["image"]})])
def test_what_is_no_split_of_hugging_face_is_refused_in_one_line(given):
    with pytest.raises(ValueError, match=r"^train: must be a datasets.Dataset, one split such as load_dataset"):
        from_huggingface(given, given)


def test_a_partitioner_of_flower_gives_the_clients_that_it_gives(pictures):
    partitioners = pytest.importorskip("flwr_datasets.partitioner", reason="needs flwr-datasets")
    dataset, columns = pictures
    partitioner = partitioners.DirichletPartitioner(
        num_partitions=3, partition_by="label", alpha=0.5, min_partition_size=1
    )
    partitioner.dataset = dataset
    fed = from_partitioner(partitioner, dataset)
    np.testing.assert_array_equal(fed.counts, [len(partitioner.load_partition(index)) for index in range(3)])
    np.testing.assert_array_equal(np.sort(fed.train.x.sum((1, 2, 3))), np.sort(columns["image"].sum((1, 2, 3))))


@pytest.mark.parametrize(
    ("name", "arguments", "split"),
    [
        ("IidPartitioner", {"num_partitions": 7}, lambda fed: partition.iid(fed, 7)),
        ("LinearPartitioner", {"num_partitions": 7}, lambda fed: partition.quantity_skew(fed, 7, power=1)),
        ("SquarePartitioner", {"num_partitions": 3}, lambda fed: partition.quantity_skew(fed, 3, power=2)),
        ("NaturalIdPartitioner", {"partition_by": "label"}, lambda fed: partition.by_column(fed, fed.train.y)),
        (
            "GroupedNaturalIdPartitioner",
            {"partition_by": "label", "group_size": 2},
            lambda fed: partition.by_column(fed, fed.train.y, 2),
        ),
        (
            "ContinuousPartitioner",
            {"num_partitions": 7, "partition_by": "width", "strictness": 1.0},
            lambda fed: partition.by_quantile(fed, 7, column=X[:, 0]),
        ),
    ],
)
def test_sizes_are_those_of_flowers_partitioners(pictures, name, arguments, split):
    """And so are the clients' labels where nothing is drawn."""
    partitioners = pytest.importorskip("flwr_datasets.partitioner", reason="needs flwr-datasets")
    dataset, _ = pictures
    partitioner = getattr(partitioners, name)(**arguments)
    partitioner.dataset = dataset
    theirs = [partitioner.load_partition(index)["label"] for index in range(partitioner.num_partitions)]
    ours = split(from_huggingface(dataset, dataset))
    np.testing.assert_array_equal(ours.counts, [len(labels) for labels in theirs])
    if "partition_by" in arguments:
        for row, count, labels in zip(ours.rows, ours.counts, theirs, strict=True):
            np.testing.assert_array_equal(np.sort(ours.train.y[row[:count]]), np.sort(labels))


def test_clients_have_inputs_of_one_kind_and_may_have_no_test_examples():
    with pytest.raises(ValueError, match="inputs of type uint8; must be float32 as of"):
        from_clients([OWN[0], (np.uint8(OWN[1][0]), OWN[1][1])], test=(X, Y))
    without = [OWN[0], OWN[1], (np.empty((0, 3)), np.empty(0))]
    fed = from_clients(OWN, test=(X, Y), client_test=without, normalize="none")
    np.testing.assert_array_equal(fed.client_test.counts, [5, 20, 0])


@pytest.fixture(scope="module")
def table():
    pandas = pytest.importorskip("pandas", reason="needs pandas")
    return pandas.DataFrame(
        {
            "age": [20, 30, 40, 50],
            "pay": [1.5, 2.5, 4.0, 0.5],
            "job": ["cook", "nurse", "cook", "pilot"],
            "married": [True, False, True, True],
            "state": ["b", "a", "b", "a"],
            "income": ["low", "high", "low", "low"],
        }
    )


def test_a_table_of_pandas(table):
    other = table.assign(job=["cook", "king", "nurse", "nurse"])
    fed = from_pandas(table, other, target="income", users="state", normalize="none")
    wanted = [[20, 1.5, 1, 0, 0, 0, 1], [30, 2.5, 0, 1, 0, 1, 0], [40, 4.0, 1, 0, 0, 0, 1], [50, 0.5, 0, 0, 1, 0, 1]]
    np.testing.assert_array_equal(fed.train.x, wanted)
    np.testing.assert_array_equal(fed.test.x[:, 2:5], [[1, 0, 0], [0, 0, 0], [0, 1, 0], [0, 1, 0]])
    np.testing.assert_array_equal(fed.train.y, [1, 0, 1, 1])
    np.testing.assert_array_equal(partition.natural(fed).counts, [2, 2])
    assert fed.user_names == ("a", "b")
    np.testing.assert_array_equal(partition.natural(fed).client_test.counts, [2, 2])
    strangers = from_pandas(table, table.assign(state=list("bbcc")), target="income", users="state")
    np.testing.assert_array_equal(strangers.test_users, [1, 1, -1, -1])
    assert from_pandas(table, table.drop(columns="state"), target="income", users="state").test_users is None
    hours = from_pandas(table, table, target="pay", normalize="none")
    np.testing.assert_array_equal(hours.train.y, table["pay"].astype(np.float32))
    assert hours.num_classes == 0


def test_moments_of_time_keep_their_differences(table):
    """Seconds since 1970 that a single float32 cannot tell apart."""
    times = table.assign(age=1_700_000_000 + np.arange(4))
    with pytest.warns(UserWarning, match="vary too little for float32; they are stored as"):
        fed = from_pandas(times, times, target="income")
    assert len(np.unique(fed.train.x[:, 0])) == 4


def test_truth_values_that_are_numbers_elsewhere_are_not_lost_silently(table):
    with pytest.warns(UserWarning, match="test: no value of 'old' occurs in train, so that its inputs are 0"):
        fed = from_pandas(table.assign(old=[True, False] * 2), table.assign(old=[1, 0] * 2), target="income")
    np.testing.assert_array_equal(fed.test.x[:, -2:], 0)


def test_users_are_told_by_their_values(table):
    """A missing one among the test users makes the others floats there."""
    numbers = table.assign(state=[2, 10, 2, 10])
    fed = from_pandas(numbers, table.assign(state=[2, None, 3, 10]), target="income", users="state")
    assert fed.user_names == ("10", "2")
    np.testing.assert_array_equal(fed.test_users, [1, -1, -1, 0])
    with pytest.raises(ValueError, match="train: 1 values of 'state' are missing"):
        from_pandas(table.assign(state=[2, None, 3, 10]), table, target="income", users="state")
    kinds = table.assign(state=table["state"].astype("category").cat.add_categories("c"))  # of which train has none
    fed = from_pandas(kinds, kinds.assign(state=kinds["state"].mask([True, False] * 2, "c")), "income", users="state")
    np.testing.assert_array_equal(fed.users, [1, 0, 1, 0])
    np.testing.assert_array_equal(fed.test_users, [-1, 0, -1, 0])


def test_missing_values_are_refused_or_imputed(table):
    lacking = table.assign(age=[20, None, 40, 90], job=["cook", None, "cook", "pilot"])
    with pytest.raises(ValueError, match="train: 1 values of 'age' are missing; must be none, or give impute=True"):
        from_pandas(lacking, table, target="income")
    fed = from_pandas(lacking, table, target="income", impute=True, normalize="none")
    np.testing.assert_array_equal(fed.train.x[:, 0], [20, 40, 40, 90])
    np.testing.assert_array_equal(fed.train.x[:, 2:5].sum(1), 1)
    with pytest.raises(ValueError, match=r"test: 1 values of 'age' are missing; must be none$"):
        from_pandas(table, lacking, target="age")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"target": "wage"}, "target='wage': no such column; there are age, pay, job"),
        ({"target": "income", "users": "town"}, "users='town': no such column"),
    ],
)
def test_columns_that_are_not_there_are_refused(table, arguments, message):
    with pytest.raises(ValueError, match=message):
        from_pandas(table, table, **arguments)
    with pytest.raises(ValueError, match="test: no column 'job', which train has"):
        from_pandas(table, table.drop(columns="job"), target="income")
    with pytest.raises(ValueError, match=r"^test: must have numbers in 'age', as train has; .*'old'$"):
        from_pandas(table, table.assign(age="old"), target="income")
    twice = table[["age", "job", "age", "income"]]
    with pytest.raises(ValueError, match=r"^train: several columns 'age'; must have"):
        from_pandas(twice, twice, target="income")
    days = table.assign(born=np.arange(4).astype("M8[D]"))
    with pytest.raises(ValueError, match=r"^train: 'born' is datetime64\[.*; must be numbers, text"):
        from_pandas(days, days, target="income")
    with pytest.raises(ValueError, match="test: target 'medium' does not occur in train"):
        from_pandas(table, table.assign(income="medium"), target="income")
