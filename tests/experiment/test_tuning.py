"""What is measured of a run on request: the table, the choice and its file."""

import numpy as np
import pytest

import fedjax_drag as fd
from fedjax_drag.experiment import tuning

FEW = {"rounds": 1, "quick": True}


@pytest.fixture
def as_if(monkeypatch):
    """Runs have the seconds that a function of their way over the clients says; it may raise an error instead."""

    def taking(seconds):
        monkeypatch.setattr(tuning, "_seconds", lambda simulation, interval: seconds(simulation))

    return taking


def by_way(map=2.0, chunk=3.0, vmap=1.0):
    def seconds(simulation):
        axis, size = simulation.batching
        return vmap if axis == "vmap" else map if size in (None, 1) else chunk

    return seconds


def settings_of(found):
    return [row.setting for row in found.rows]


def test_every_alternative_is_measured_in_turn(tiny, as_if):
    as_if(by_way())
    found = fd.tune(tiny, ["cohort_size=8", "mesh=null", "partition.num_clients=16"], rounds=1)
    ways = ["map", "map clients_per_chunk=2", "vmap"]
    expected = [tuning.PRESENT, *(f"clients_axis={way}" for way in ways), "mesh=null", "mesh=cores"]
    expected += ["rounds_per_compile=null", "rounds_per_compile=1"]
    assert settings_of(found) == expected
    first, same, chunk, vmap, *_ = found.rows
    assert (same.note, same.seconds) == ("same as present setting", first.seconds)
    assert (first.ratio, chunk.ratio, vmap.ratio) == (1.0, 1.5, 0.5)
    assert first.bytes > 0
    assert found.keys == {"clients_axis": "vmap"}
    assert all(row.keys["clients_axis"] == "vmap" for row in found.rows[4:]), "with the answer to the question before"
    head, *lines = str(found).splitlines()
    assert "ratio" in head
    assert [line.split("  ")[0] for line in lines[: len(expected)]] == expected
    assert lines[-1] == "fastest: clients_axis=vmap"


def test_chunks_of_the_configuration_are_taken_back_in_words(tiny, as_if):
    as_if(by_way())
    chunks = ["mesh=null", "clients_axis=map", "clients_per_chunk=2"]
    found = fd.tune(tiny, chunks, **FEW)
    ways = ["map clients_per_chunk=null", "vmap clients_per_chunk=null"]
    assert settings_of(found)[:3] == [tuning.PRESENT, *(f"clients_axis={way}" for way in ways)]
    assert found.conclusion == "fastest: clients_axis=vmap clients_per_chunk=null"


@pytest.mark.thorough
def test_what_is_hardly_faster_is_not_chosen(tiny, as_if):
    as_if(by_way(map=1.0, chunk=0.99, vmap=0.98))
    found = fd.tune(tiny, ["mesh=null"], **FEW)
    assert found.keys == {}
    assert found.conclusion == "nothing is clearly faster than the present setting"


@pytest.mark.thorough
def test_the_file_runs_and_has_the_same_history(tiny, as_if, tmp_path):
    as_if(by_way())
    place = tmp_path / "below" / "faster.yaml"
    found = fd.tune(tiny, ["mesh=null"], write=place, **FEW)
    assert found.keys["clients_axis"] == "vmap"
    before, after = fd.run(tiny, ["mesh=null"], quiet=True), fd.run(place, quiet=True)
    for name in ("test_accuracy", "test_loss"):
        np.testing.assert_allclose(after.history[name], before.history[name], rtol=0, atol=1e-5)


def test_a_file_that_is_there_is_refused_before_anything_is_measured(tiny, tmp_path):
    place = tmp_path / "mine.yaml"
    place.write_text("kept")
    with pytest.raises(ValueError, match=r"^write='.*mine.yaml': is there already; name another file$"):
        fd.tune(tiny, write=place, **FEW)
    assert place.read_text() == "kept"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["cohort_size=9"], "cohort_size=9"),
        (["compare={A: {}, B: {seed: 1}}"], r"^compare=\['A', 'B'\]: one run is measured at a time; must be null$"),
        (["axes.seed=[0,1]"], "^axes: belong to a sweep"),
    ],
)
def test_what_is_not_one_valid_run_is_refused(tiny, overrides, message):
    with pytest.raises(ValueError, match=message):
        fd.tune(tiny, overrides, **FEW)


@pytest.mark.thorough
def test_what_does_not_fit_into_memory_is_named_and_passed_over(tiny, as_if):
    def seconds(simulation):
        if simulation.batching.clients_axis == "vmap":
            raise MemoryError("needs 5 GiB, and 4 GiB are free")
        return 1.0

    as_if(seconds)
    found = fd.tune(tiny, ["mesh=null"], **FEW)
    (row,) = [row for row in found.rows if row.setting == "clients_axis=vmap"]
    assert row.note == "cannot be run: needs 5 GiB, and 4 GiB are free"
    assert (row.seconds, row.ratio, found.keys) == (None, None, {})


@pytest.mark.thorough
def test_a_present_setting_that_does_not_fit_is_passed_over_too(tiny, as_if):
    def seconds(simulation):
        if simulation.batching.clients_axis == "vmap":
            raise MemoryError("needs 5 GiB")
        return 1.0

    as_if(seconds)
    found = fd.tune(tiny, ["mesh=null", "clients_axis=vmap"], **FEW)
    assert found.rows[0].seconds is None
    assert found.keys == {"clients_axis": "map"}


@pytest.mark.thorough
def test_devices_that_do_not_divide_the_cohort_are_named_and_passed_over(tiny, as_if):
    as_if(by_way())
    found = fd.tune(tiny, ["cohort_size=1"], **FEW)
    (row,) = [row for row in found.rows if row.setting == "mesh=cores"]
    assert row.note.startswith("cannot be run: cohort_size=1: must be a multiple of the ")


def test_ctrl_c_leaves_what_was_measured(tiny, as_if, tmp_path):
    as_if(by_way())
    seen = []

    def stop(row):
        seen.append(row)
        if len(seen) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as stopped:
        fd.tune(tiny, ["mesh=null"], write=tmp_path / "x.yaml", callback=stop, **FEW)
    found = stopped.value.result
    assert settings_of(found) == [tuning.PRESENT, "clients_axis=map"]
    assert not (tmp_path / "x.yaml").exists()
