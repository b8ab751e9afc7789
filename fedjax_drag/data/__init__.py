"""Data: loading, splitting among clients, and the federated data set itself."""

from fedjax_drag.data import augmentation, partition
from fedjax_drag.data.dataset import FederatedDataset, from_arrays
from fedjax_drag.data.derived import next_tokens, pairs
from fedjax_drag.data.elsewhere import from_clients, from_huggingface, from_pandas, from_partitioner
from fedjax_drag.data.loading import DATASETS, load
from fedjax_drag.data.sets.builtin import shapes, synthetic
from fedjax_drag.data.sets.shakespeare import load_shakespeare
from fedjax_drag.data.skew import SkewReport
from fedjax_drag.data.validation import hold_out

__all__ = [
    "DATASETS",
    "FederatedDataset",
    "SkewReport",
    "augmentation",
    "from_arrays",
    "from_clients",
    "from_huggingface",
    "from_pandas",
    "from_partitioner",
    "hold_out",
    "load",
    "load_shakespeare",
    "next_tokens",
    "pairs",
    "partition",
    "shapes",
    "synthetic",
]
