"""Configurations with compressors: what they build, what they refuse, and sweeps over their numbers."""

import numpy as np
import pytest
from tiny import TINY

import fedjax_drag as fd
from fedjax_drag.experiment.build import build
from fedjax_drag.experiment.build.experiment import load
from fedjax_drag.experiment.build.resolve import resolve
from fedjax_drag.experiment.run.planning import Federations
from fedjax_drag.experiment.sweep.grid import load_grid
from fedjax_drag.simulation.cells import likeness

NUMBERS = 64 * 4 + 4 + 4 * 10 + 10
BYTES = {"top_k": 31 * 8, "random_k": 8 + 31 * 4, "qsgd": 4 * 4 + 128 + 2 + 20 + 5, "sign": 4 * 4 + 32 + 1 + 5 + 2}
COMPONENTS = {
    "top_k": {"name": "top_k", "fraction": 0.1},
    "random_k": {"name": "random_k", "fraction": 0.1},
    "qsgd": {"name": "qsgd", "bits": 4},
    "sign": "sign",
    "low_rank": {"name": "low_rank", "rank": 1},
}


def resolved(**keys):
    return resolve(load(TINY | keys))


@pytest.mark.parametrize("key", ["compression", "downlink_compression"])
@pytest.mark.parametrize("name", COMPONENTS)
def test_every_name(key, name):
    component = COMPONENTS[name]
    if key == "downlink_compression":
        component = {"name": name} if isinstance(component, str) else component
        component = component | {"error_feedback": True}
    compressor = build.part(resolved(**{key: component}), key)
    assert compressor.name == name
    assert (compressor.contraction is not None) == (
        key == "downlink_compression" or name in ("top_k", "sign", "low_rank")
    )
    if name in BYTES:
        shapes = [
            np.zeros((64, 4), np.float32),
            np.zeros(4, np.float32),
            np.zeros((4, 10), np.float32),
            np.zeros(10, np.float32),
        ]
        assert sum(x.size for x in shapes) == NUMBERS
        assert compressor.num_bytes(shapes) == BYTES[name]


def test_none_is_the_default():
    config = resolved()
    assert (config.compression, config.downlink_compression) == (None, None)
    assert build.part(config, "compression") is None


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"compression": "topk"}, "compression.name='topk': must be one of top_k, random_k, qsgd, sign, low_rank"),
        ({"compression": {"name": "top_k", "k": 3}}, "unknown key 'k' of compression top_k"),
        ({"compression": "top_k"}, "compression.fraction: missing; top_k needs it"),
        ({"compression": {"name": "top_k", "fraction": 2}}, "compression.fraction=2: must be in (0, 1]"),
        ({"compression": {"name": "qsgd", "bits": 1}}, "compression.bits=1: must be an integer in [2, 16]"),
        ({"compression": {"name": "low_rank", "rank": 0.5}}, "compression.rank=0.5: must be an integer"),
        ({"forged_messages": "raw"}, "forged_messages='raw': must be one of decompressed, compressed"),
    ],
    ids=lambda value: None if isinstance(value, dict) else value.partition(":")[0],
)
def test_mistakes_name_the_key(keys, text):
    with pytest.raises(ValueError) as caught:
        build.part(resolved(**keys), "compression")
    assert str(caught.value).startswith(text)


class TestSweeps:
    @pytest.mark.parametrize(
        ("axes", "programs"),
        [
            ({"compression.fraction": [0.01, 0.1, 1.0], "seed": [0, 1]}, 1),
            ({"compression": [{"name": "qsgd", "bits": 2}, {"name": "qsgd", "bits": 4}]}, 1),
            ({"compression": [None, "sign", {"name": "low_rank", "rank": 1}, {"name": "low_rank", "rank": 2}]}, 4),
        ],
        ids=["fractions", "bits", "compressors"],
    )
    def test_programs(self, axes, programs):
        points = load_grid(TINY | {"compression": COMPONENTS["top_k"], "axes": axes}).points
        federations = Federations()
        cells = [build.settings(point.config, federations.split(point.config)) for point in points]
        assert len({likeness(cell) for cell in cells}) == programs

    @pytest.mark.slow
    def test_a_sweep_over_fractions_has_the_bytes_of_each_cell(self, tmp_path):
        keys = TINY | {"compression": COMPONENTS["top_k"], "axes": {"compression.fraction": [0.1, 0.5]}}
        cells = fd.sweep(keys, out=tmp_path / "sweep").cells
        for cell, sent in zip(cells, (31 * 8, NUMBERS * 4), strict=True):
            assert cell.history["bytes_up"].tolist() == [2 * 4 * sent] * 3
