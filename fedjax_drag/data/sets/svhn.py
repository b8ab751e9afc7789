"""SVHN, cropped: house numbers in photographs of streets, digit by digit, in MATLAB files."""

import io
from pathlib import Path

import numpy as np

from fedjax_drag.data.formats import compressed
from fedjax_drag.data.formats.cache import Arrays
from fedjax_drag.data.sets.published import Published

_MOST = 1 << 28
"""Largest number of bytes of a file; the published ones have 182 and 64 million."""


def _read(dataset: Published, paths: list[Path]) -> Arrays:
    """Both parts; only what has the published checksum is parsed. The label 10 in the files becomes 0."""
    from scipy.io import loadmat  # here, because it is slow to import

    arrays = {}
    for part, path in zip(("train", "test"), paths, strict=True):
        content = compressed.read(path, _MOST)
        compressed.verify(dataset.name, path, dataset.checksums, content)
        variables = loadmat(io.BytesIO(content), variable_names=("X", "y"))
        arrays[f"{part}_x"] = variables["X"].transpose(3, 0, 1, 2)
        arrays[f"{part}_y"] = variables["y"][:, 0].astype(np.int32) % 10
    return arrays


SVHN = Published(
    name="svhn",
    about="house numbers, 32x32 colour, 10 classes, 73,257 + 26,032 examples; MATLAB files",
    read=_read,
    folders=("svhn", "SVHN", "svhn_cropped"),
    files=(("train_32x32.mat", "test_32x32.mat"),),
    advice="get its cropped digits, train_32x32.mat and test_32x32.mat, and",
    num_classes=10,
    shape=(32, 32, 3),
    mean=(0.4377, 0.4438, 0.4728),
    std=(0.1980, 0.2010, 0.1970),
    checksums={
        "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
        "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
    },
    sizes=(73_257, 26_032),
    tfds="svhn_cropped",
)
"""House numbers (Netzer et al., 2011), without the extra ones."""
