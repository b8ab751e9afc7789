"""``clients_axis="auto"``: what is measured, what is kept, and which runs are too short for it."""

import jax
import numpy as np
import pytest

import fedjax_drag as fd
from fedjax_drag.simulation.planning import calibration, memory
from fedjax_drag.simulation.planning.calibration import Passes, choose
from fedjax_drag.simulation.program.clients_axis import Walk
from fedjax_drag.types import Batch

MAP, VMAP = Walk("map"), Walk("vmap")


def passes(at_once=20, number=10**6, steps=(5,) * 40):
    """Linear regression on two inputs."""

    def loss(params, batch):
        return ((batch.x @ params - batch.y) ** 2).mean()

    params = jax.ShapeDtypeStruct((2,), np.float32)
    batch = Batch(jax.ShapeDtypeStruct((4, 2), np.float32), jax.ShapeDtypeStruct((4,), np.int32))
    return Passes(loss, params, batch, np.asarray(steps), at_once, number)


@pytest.fixture(autouse=True)
def worthwhile(monkeypatch, tmp_path):
    monkeypatch.setattr(calibration, "WORTHWHILE_SECONDS", 0.0)
    monkeypatch.setattr(calibration, "FEWEST_STEPS", 0)
    monkeypatch.delenv("FEDJAX_DRAG_CALIBRATE")
    monkeypatch.setenv("FEDJAX_DRAG_CACHE", str(tmp_path / "cache"))
    calibration._remembered.cache_clear()
    yield
    calibration._remembered.cache_clear()


@pytest.fixture
def timed(monkeypatch):
    """Sets the measured seconds by the number of clients at once; returns the list of measurements."""

    def give(seconds):
        asked = []

        def timer(passes, chunk):
            asked.append(chunk)
            return lambda: seconds[chunk] * passes.waiting(chunk)

        monkeypatch.setattr(calibration, "_timer", timer)
        return asked

    return give


@pytest.mark.parametrize(
    ("usual", "seconds", "chosen", "measured"),
    [
        (MAP, {1: 1.0, 2: 1.5}, MAP, [1, 2]),
        (MAP, {1: 1.0, 2: 0.97}, MAP, [1, 2]),  # too little to be told from noise
        (MAP, {1: 1.0, 2: 0.8}, Walk("map", 2), [1, 2]),  # too little to go on
        (MAP, {1: 1.0, 2: 0.6, 8: 0.7}, Walk("map", 2), [1, 2, 8]),
        (MAP, {1: 1.0, 2: 0.6, 8: 0.3, 20: 0.29}, Walk("map", 8), [1, 2, 8, 20]),
        (MAP, {1: 1.0, 2: 0.6, 8: 0.3, 20: 0.1}, VMAP, [1, 2, 8, 20]),
        (VMAP, {20: 1.0, 8: 1.1}, VMAP, [20, 8]),
        (VMAP, {20: np.inf, 8: 1.0, 2: 2.0}, Walk("map", 8), [20, 8, 2]),
        (VMAP, {20: 1.0, 8: 0.5, 2: 0.3, 1: 0.1}, MAP, [20, 8, 2, 1]),
    ],
)
def test_the_fastest_walk_is_chosen_with_few_measurements(timed, usual, seconds, chosen, measured):
    asked = timed(seconds)
    assert choose(usual, passes()) == chosen
    assert asked == measured


def test_memory_does_not_grow_with_a_large_cohort(timed):
    asked = timed({512: 1.0, 8: 1.0, 2: 1.0, 1: 1.0})
    assert choose(VMAP, passes(at_once=10_000, steps=(5,) * 10_000)) == Walk("map", 512)
    assert asked == [512, 8]


def test_clients_that_wait_for_each_other_count_as_slower(timed):
    timed({1: 1.0, 2: 0.8})
    assert choose(MAP, passes(steps=[1] * 40)) == Walk("map", 2)
    uneven = passes(steps=[1, 9] * 20)
    assert uneven.waiting(1) == 1
    assert uneven.waiting(2) == 9 / 5
    assert choose(MAP, uneven) == MAP


@pytest.mark.parametrize("limit", ["WORTHWHILE_SECONDS", "FEWEST_STEPS"])
def test_a_short_run_takes_the_usual_walk(timed, monkeypatch, limit):
    asked = timed({})
    monkeypatch.setattr(calibration, limit, 10**9)
    assert choose(VMAP, passes(number=100)) == VMAP
    assert choose(MAP, passes(number=100)) == MAP
    assert asked == []


def test_calibration_can_be_turned_off(timed, monkeypatch):
    asked = timed({})
    monkeypatch.setenv("FEDJAX_DRAG_CALIBRATE", "0")
    assert choose(VMAP, passes()) == VMAP
    assert choose(MAP, passes()) == MAP
    assert asked == []


def test_one_client_at_a_time_needs_no_measurement(timed):
    assert choose(MAP, passes(at_once=1)) == MAP
    assert timed({}) == []


def test_a_long_calibration_is_cut_short_and_not_kept(timed):
    asked = timed({20: 1e-12})
    assert choose(VMAP, passes(number=10)) == VMAP
    assert asked == [20]
    calibration._remembered.cache_clear()
    timed({1: 1.0, 2: 0.5, 8: 0.6, 20: 0.7})
    assert choose(MAP, passes(number=10)) == Walk("map", 2)


def test_a_calibration_is_kept_in_the_process_and_on_disk(timed, tmp_path):
    asked = timed({1: 1.0, 2: 0.5, 8: 1.0})
    answers = [choose(MAP, passes(number=n)) for n in (10**6, 10**7)]  # the length of the run is not part of it
    calibration._remembered.cache_clear()
    answers.append(choose(MAP, passes()))
    assert answers == 3 * [Walk("map", 2)]
    assert asked == [1, 2, 8]
    assert choose(MAP, passes(at_once=30)) == Walk("map", 2)
    assert asked == [1, 2, 8] * 2
    assert len(list((tmp_path / "cache").iterdir())) == 2


@pytest.mark.parametrize("content", ["", "{", "[]", '{"clients_at_once": 3}', '{"clients_at_once": "2"}', "[" * 9999])
def test_a_damaged_file_is_measured_again(timed, tmp_path, content):
    asked = timed({1: 1.0, 2: 0.5, 8: 1.0})
    choose(MAP, passes())
    (kept,) = (tmp_path / "cache").iterdir()
    whole = kept.read_text()
    kept.write_text(content)
    calibration._remembered.cache_clear()
    assert choose(MAP, passes()) == Walk("map", 2)
    assert len(asked) == 6
    assert kept.read_text() == whole


@pytest.mark.parametrize("place", ["", "file/below"])
def test_without_a_cache_folder_a_calibration_is_kept_in_the_process_only(timed, tmp_path, monkeypatch, place):
    (tmp_path / "file").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDJAX_DRAG_CACHE", place)
    asked = timed({1: 1.0, 2: 0.5, 8: 1.0})
    for _ in range(2):
        assert choose(MAP, passes()) == Walk("map", 2)
    assert asked == [1, 2, 8]
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_measured_times_are_plausible_and_infinite_beyond_the_memory(monkeypatch):
    for chunk in (1, 3):
        assert 0 < calibration._timer(passes(), chunk)() < 1
    monkeypatch.setattr(memory, "available", lambda: 100)
    assert calibration._timer(passes(), 3)() == np.inf


@pytest.mark.thorough
def test_a_run_takes_the_measured_walk(settings, fedavg, timed):
    timed({1: 1.0, 2: 0.5, 5: 1.0})
    simulation = fd.simulation.prepare(fedavg, **settings(clients_axis="auto"))
    assert simulation.walk == Walk("map", 2)
    said = fd.simulation.prepare(fedavg, **settings(clients_axis="map", clients_per_chunk=2))
    assert simulation.lowered.advance.as_text() == said.lowered.advance.as_text()
    assert fd.simulation.prepare(fedavg, **settings(clients_axis="vmap")).walk == VMAP
