"""Durations of clocks against plain NumPy, and their statistics."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from fedjax_drag import clocks
from fedjax_drag.clocks import Work

MANY = 20_000


def work(number=6, round=3, steps=5, **changes):
    ids = jnp.arange(number, dtype=jnp.int32)
    given = Work(ids, jnp.full(number, round), jnp.full(number, steps), ids % 3 == 1, bytes_down=400, bytes_up=600)
    return given._replace(**changes)


def seconds(clock, given=None, key=0):
    found = jax.jit(clock.seconds)(jax.random.key(key), work() if given is None else given)
    assert found.dtype == jnp.float32
    return np.asarray(found)


def test_constant():
    steps = jnp.arange(6)
    found = seconds(clocks.constant(seconds_per_step=2.0, latency=1.0, bandwidth=500.0), work(steps=steps))
    np.testing.assert_allclose(found, 1 + 2 * np.arange(6) + 2)
    np.testing.assert_allclose(seconds(clocks.constant()), 5)


def test_log_normal_speeds_are_those_of_the_clients():
    clock = clocks.log_normal(sigma=0.7, seconds_per_step=2.0, latency=1.0)
    many = work(MANY, steps=1)
    found = seconds(clock, many)
    assert stats.kstest(np.log((found - 1) / 2), "norm", (0, 0.7)).pvalue > 1e-3
    np.testing.assert_array_equal(found, seconds(clock, many._replace(round=many.round + 1)))
    some = jnp.asarray([7, 4, 19_999])
    part = Work(some, some * 0, some * 0 + 1, some > 9)
    np.testing.assert_allclose(seconds(clock, part), found[some], rtol=1e-6)
    assert (seconds(clock, many, key=1) != found).mean() > 0.99


def test_jitter_is_drawn_in_every_round():
    clock = clocks.log_normal(sigma=0.0, jitter=0.5)
    one, other = (np.log(seconds(clock, work(MANY, round, 1))) for round in (3, 4))
    assert stats.kstest(one, "norm", (0, 0.5)).pvalue > 1e-3
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.03


def test_a_table_of_devices(tmp_path):
    file = tmp_path / "phones.csv"
    file.write_text("ms, kbps, device\n10,8,a\n20,80,b\n40,800,c\n\n", encoding="utf-8-sig")  # as a spreadsheet does
    told = {"seconds_per_step": "ms", "seconds": 0.001, "bandwidth": "kbps", "bytes_per_second": 125.0}
    clock = clocks.table(str(file), latency=0.5, **told)
    speeds, rates = np.array([0.01, 0.02, 0.04] * 2), np.array([1e3, 1e4, 1e5] * 2)
    expected = 5 * speeds + 1000 / rates
    np.testing.assert_allclose(seconds(clock), expected + 0.0005, rtol=1e-6)
    assert repr(clock) == "table(3 devices)"
    given = clocks.table(seconds_per_step=[0.01, 0.02, 0.04], bandwidth=[1e3, 1e4, 1e5])
    np.testing.assert_allclose(seconds(given), expected, rtol=1e-6)


def test_drawn_devices_are_equally_likely():
    found = seconds(clocks.table(seconds_per_step=[1.0, 2.0, 3.0], drawn=True), work(MANY, steps=1))
    assert stats.chisquare(np.unique(found, return_counts=True)[1]).pvalue > 1e-3


def test_attackers_answer_early():
    base = clocks.log_normal(sigma=1.0)
    np.testing.assert_allclose(
        seconds(clocks.attackers(base, 0.25)), np.where(np.arange(6) % 3 == 1, 0.25, 1) * seconds(base)
    )


@pytest.mark.parametrize(
    "clock",
    [
        clocks.constant(1.0, bandwidth=jnp.float32(1e6)),
        clocks.table(seconds_per_step=[1.0], bandwidth=1e6),
    ],
    ids=["traced", "table"],
)
def test_messages_may_have_more_bytes_than_an_int32_counts(clock):
    given = work(bytes_down=2**32, bytes_up=2**31)
    found = jax.jit(lambda clock: clock.seconds(jax.random.key(0), given))(clock)
    np.testing.assert_allclose(found, 5 + 3 * 2**31 / 1e6, rtol=1e-6)


def test_numbers_can_be_traced():
    given = work()
    one = jax.jit(lambda sigma: clocks.log_normal(sigma=sigma).seconds(jax.random.key(0), given))
    np.testing.assert_allclose(one(jnp.float32(0.3)), seconds(clocks.log_normal(sigma=0.3)), rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: clocks.constant(seconds_per_step=-1), r"seconds_per_step=-1: must be in \[0, inf\)"),
        (lambda: clocks.constant(bandwidth=0), "bandwidth=0"),
        (lambda: clocks.constant(latency=-0.1), "latency=-0.1"),
        (lambda: clocks.log_normal(sigma=-1), "sigma=-1"),
        (lambda: clocks.log_normal(sigma=30), r"sigma=30: must be in \[0, 10\]"),
        (lambda: clocks.log_normal(jitter=-1), "jitter=-1"),
        (lambda: clocks.attackers(clocks.constant(), 0), "factor=0"),
        (lambda: clocks.attackers("constant", 1.0), "clock='constant': must be a clock.*write fd.clocks.constant"),
        (lambda: clocks.table("nowhere.csv"), "file='nowhere.csv': must be a CSV file.*No such file"),
        (lambda: clocks.table(), "seconds_per_step='seconds_per_step': must be a column of file=None: none"),
        (lambda: clocks.table(seconds_per_step=[1.0, -1.0]), "seconds_per_step: must be finite and >= 0"),
        (lambda: clocks.table(seconds_per_step=[1.0], bandwidth=[0.0]), "bandwidth: must be finite and > 0"),
        (lambda: clocks.table(seconds_per_step=["fast"]), "seconds_per_step=.*must be numbers"),
        (lambda: clocks.table(seconds_per_step=[1.0] * 3, latency=[1.0] * 2), "table: has 2 and 3 devices"),
        (lambda: clocks.table(seconds_per_step=[1.0], seconds=0.0), "seconds=0.0"),
        (lambda: clocks.Clock().seconds(None, work()), "Clock: must define seconds"),
    ],
)
def test_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_file_that_lacks_a_column(tmp_path):
    (tmp_path / "short.csv").write_text("a,b\n1,2\n3\n")
    with pytest.raises(ValueError, match=r"file=.*must be a CSV file"):
        clocks.table(str(tmp_path / "short.csv"))
    (tmp_path / "whole.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"seconds_per_step='c': must be a column of .*: a, b"):
        clocks.table(str(tmp_path / "whole.csv"), seconds_per_step="c")
