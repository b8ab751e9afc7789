"""The memory of a run is computed before its first round; a run that does not fit is refused."""

import logging
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_drag as fd
from fedjax_drag import cores
from fedjax_drag.simulation.devices import memory


def test_memory_of_a_program_includes_arguments_results_and_temporaries():
    x = jax.ShapeDtypeStruct((1000,), np.float32)
    assert memory.needed(jax.jit(lambda x: x + 1).lower(x).compile()) == 8000
    assert memory.needed(jax.jit(lambda x: x + 1, donate_argnums=0).lower(x).compile()) == 4000
    between = jax.jit(lambda x: jnp.sort(jnp.outer(x, x), 0).sum()).lower(x).compile()
    assert 4_000_000 < memory.needed(between) < 13_000_000
    assert memory.needed(types.SimpleNamespace(memory_analysis=lambda: None)) == 0


def device(**stats):
    return types.SimpleNamespace(platform="gpu", memory_stats=lambda: stats or None)


def test_free_memory_of_a_device():
    assert memory.available(device(bytes_limit=100, bytes_in_use=30)) == 70
    assert memory.available(device()) == np.inf
    assert 0 < memory.available() < 2**50


def test_the_control_group_with_the_least_free_memory_counts(tmp_path, monkeypatch):
    root, job, step = tmp_path, tmp_path / "job", tmp_path / "job" / "step"
    step.mkdir(parents=True)
    own = tmp_path / "self"
    monkeypatch.setattr(cores, "ROOT", root)
    monkeypatch.setattr(cores, "OF_PROCESS", own)
    assert memory._left_in_cgroup() == np.inf
    own.write_text("1:cpu:/other\n0::/job/step\n")
    (job / "memory.max").write_text("5000\n")
    (job / "memory.stat").write_text("anon 2000\nfile 2900\n")
    (step / "memory.max").write_text("max\n")
    (step / "memory.stat").write_text("anon 10\nfile 0\n")
    assert memory._left_in_cgroup() == 3000
    assert memory.available() == 3000
    (step / "memory.max").write_text("2010\n")
    assert memory._left_in_cgroup() == 2000


@pytest.mark.thorough
def test_a_run_that_does_not_fit_is_refused_before_its_first_round(settings, fedavg, monkeypatch):
    rounds = []
    monkeypatch.setattr(memory, "available", lambda *_: 1000.0)
    with pytest.raises(MemoryError, match=r"^cpu:0 has 0\.0 MiB free, and the run needs 0\..* MiB") as error:
        fd.simulate(fedavg, callbacks=[rounds.append], **settings(clients_axis="map", clients_per_chunk=2))
    ways = "; take clients_per_chunk below 2 or a mesh of several devices or a smaller cohort_size or batch_size"
    assert str(error.value).endswith(ways)
    assert "\n" not in str(error.value)
    assert rounds == []


def test_ways_out_exclude_settings_already_taken():
    smaller = "a smaller cohort_size or batch_size"
    assert memory.ways_out("vmap", None, None, True) == ["clients_axis='map'", smaller]
    assert memory.ways_out("map", None, "device", True) == ["client_state='host'", "client_state='disk'", smaller]
    assert memory.ways_out("map", None, "host", True) == ["client_state='disk'", smaller]
    assert memory.ways_out("map", None, "disk", True) == [smaller]
    assert memory.ways_out("map", 1, None, True) == [smaller]


@pytest.mark.thorough
def test_the_estimate_is_logged_and_excludes_arrays_already_on_the_device(settings, fedavg, caplog):
    simulation = fd.simulation.prepare(fedavg, **settings())
    with caplog.at_level(logging.INFO, memory.__name__):
        simulation.run()
    (record,) = caplog.records
    assert record.getMessage().startswith("cpu:0: the run needs ")
    program = simulation.lowered.advance.compile()
    inputs = sum(leaf.nbytes for leaf in jax.tree.leaves(simulation.federation))
    assert memory.needed(program) > inputs
    limit = memory.needed(program)  # enough for everything, and so more than enough beside the data
    memory.check([(memory.needed(program), simulation.federation)], 0, ["less"])
    assert limit - inputs < 2**20


def test_devices_of_one_host_share_its_memory(monkeypatch):
    x = jax.device_put(np.zeros(4), jax.local_devices()[0])
    on_all = jax.device_put(np.zeros(4), jax.NamedSharding(jax.make_mesh((2,), ("clients",)), jax.P()))
    program = jax.jit(lambda x: jnp.outer(x, x)).lower(x).compile()
    beside = memory.needed(program) - x.nbytes
    for present, devices in ((x, 1), (on_all, 2)):
        monkeypatch.setattr(memory, "available", lambda *_, n=devices: float(n * beside + 10))
        memory.check([(memory.needed(program), present)], 10, ["less"])
        with pytest.raises(MemoryError, match="; take less"):
            memory.check([(memory.needed(program), present)], 11, ["less"])
