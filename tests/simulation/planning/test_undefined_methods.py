"""A class of one's own that lacks a method is named with it, before anything is computed."""

import pytest

import fedjax_drag as fd
from fedjax_drag.compression import Compressor
from fedjax_drag.ops.rules import PlainAggregator, SummedAggregator
from fedjax_drag.ops.weighted import WeightedAggregator
from fedjax_drag.types import Aggregator, ClientRule


@pytest.mark.parametrize(
    ("base", "method"),
    [
        (Aggregator, "init"),
        (WeightedAggregator, "weigh"),
        (PlainAggregator, "combine"),
        (SummedAggregator, "accumulate"),
        (ClientRule, "direction"),
        (Compressor, "num_bytes"),
    ],
)
def test_a_class_without_a_method(settings, fedavg, base, method):
    own = type("own", (base,), {})()
    rule, changes = (own, {}) if isinstance(own, Aggregator) else (fedavg, {})
    if base is ClientRule:
        rule = fd.algorithms.from_aggregator(fd.aggregators.fedavg(), client=own)
    if base is Compressor:
        changes = {"compression": own}
    with pytest.raises(ValueError, match=f"^own: must define {method}"):
        fd.simulate(rule, **settings(**changes))
