"""Data sets that need no files: scikit-learn's digits, and a synthetic mixture of Gaussians."""

import gzip
import importlib.util
from pathlib import Path

import numpy as np

from fedjax_drag import checks
from fedjax_drag.data.dataset import FederatedDataset, make, normalized
from fedjax_drag.data.normalization import Normalize
from fedjax_drag.data.validation import hold_out

_MOST = 1 << 27
"""Largest number of entries of all inputs: half a GiB, and three times as much while they are drawn."""


def digits() -> FederatedDataset:
    """The 8x8 handwritten digits that come with scikit-learn (Alpaydin and Kaynak, 1998).

    Every fifth image of each class, in scikit-learn's order, is a test image: the split is stratified and
    the same on every machine.

    Returns:
      1,442 training and 355 test images ``[8, 8, 1]``, 10 classes; the original grey levels 0..16
      are stretched to 0..255. Mean 0.3052 and standard deviation 0.3760 of the scaled training pixels.
    """
    x, y = _digits()
    images = np.rint(x * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8, 1)
    test = np.zeros(len(y), bool)
    for label in range(10):
        test[np.flatnonzero(y == label)[4::5]] = True
    return make("digits", (images[~test], y[~test]), (images[test], y[test]), 10, (0.3052,), (0.3760,))


def _digits() -> tuple[np.ndarray, np.ndarray]:
    """Grey levels ``[1797, 64]`` and labels, from scikit-learn's file: to import scikit-learn takes seconds."""
    package = importlib.util.find_spec("sklearn")  # finds the package without importing it
    folder = Path(package.origin).parent if package is not None and package.origin else Path()
    try:
        with gzip.open(folder / "datasets" / "data" / "digits.csv.gz", "rt", encoding="ascii") as stream:
            table = np.loadtxt(stream, delimiter=",")
        if table.shape == (1797, 65):
            return table[:, :-1], table[:, -1].astype(np.int32)
    except (OSError, EOFError, ValueError):  # a version that keeps the file elsewhere, or in another form
        pass
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return np.asarray(x), np.asarray(y, np.int32)


def synthetic(
    num_classes: int = 10,
    num_examples: int = 10_000,
    num_test_examples: int = 2_000,
    dim: int = 32,
    separation: float = 0.6,
    seed: int = 0,
    validation_fraction: float | int | None = None,
    validation_seed: int = 0,
    normalize: Normalize = "standard",
) -> FederatedDataset:
    """A mixture of Gaussians: the centre of each class ~ N(0, separation^2 I), an example ~ N(centre, I).

    Classes are balanced to within one example. With the defaults the best possible test accuracy is
    about 0.94.

    Args:
      num_classes: C, >= 2.
      num_examples: for training, at least C.
      num_test_examples: for testing, at least C.
      dim: entries of an input, >= 1; of all inputs together at most 134,217,728.
      separation: spread of the class centres in units of the noise, in [0, 1e6]; 0 makes learning impossible.
      seed: of everything drawn.
      validation_fraction: share of the training examples, in (0, 1), or, as an integer, their number, that
        :func:`~fedjax_drag.data.hold_out` moves into a validation split; default none.
      validation_seed: of that draw, >= 0.
      normalize: as in :func:`~fedjax_drag.data.load`.

    Returns:
      Inputs float32 ``[dim]``.

    Raises:
      ValueError: an argument out of range.
    """
    checks.count("num_classes", num_classes, 2)
    checks.count("num_examples", num_examples, num_classes)
    checks.count("num_test_examples", num_test_examples, num_classes)
    checks.count("dim", dim, 1)
    numbers = (num_examples + num_test_examples) * dim
    if numbers > _MOST:
        sizes = f"num_examples={num_examples}, num_test_examples={num_test_examples}, dim={dim}"
        raise ValueError(f"{sizes}: {numbers:,} numbers; must be at most {_MOST:,}")
    checks.in_range("separation", separation, 0.0, 1e6)
    checks.count("seed", seed)
    rng = np.random.default_rng(seed)
    centres = separation * rng.normal(size=(num_classes, dim))

    def draw(size: int) -> tuple[np.ndarray, np.ndarray]:
        y = rng.permutation(np.arange(size, dtype=np.int32) % num_classes)
        return (centres[y] + rng.normal(size=(size, dim))).astype(np.float32), y

    train, test = draw(num_examples), draw(num_test_examples)
    fed = make("synthetic", train, test, num_classes, (0.0,), (float(np.sqrt(1 + separation**2)),))
    return hold_out(normalized(fed, normalize), validation_fraction, validation_seed)


def shapes(
    num_examples: int = 1_000, num_test_examples: int = 200, size: int = 16, noise: float = 0.5, seed: int = 0
) -> FederatedDataset:
    """Pictures of a disc and a square in Gaussian noise, with the class of each pixel.

    A disc is as bright as a square, so that its form must be recognised. The radius of the disc, and half the side of
    the square, is from ``size / 8`` to ``size / 4``; the square may lie on the disc.

    Args:
      num_examples: for training, >= 1.
      num_test_examples: for testing, >= 1.
      size: side of a picture in pixels, >= 8.
      noise: standard deviation, in [0, 1e6]; shapes are 1, the background is 0.
      seed: of everything drawn, >= 0.

    Returns:
      Inputs float32 ``[size, size, 1]``, targets int32 ``[N, size, size]``: 0 background, 1 disc, 2 square;
      unpartitioned.

    Raises:
      ValueError: an argument out of range.
    """
    checks.count("num_examples", num_examples, 1)
    checks.count("num_test_examples", num_test_examples, 1)
    checks.count("size", size, 8)
    checks.count("seed", seed)
    checks.in_range("noise", noise, 0.0, 1e6)
    rng = np.random.default_rng(seed)
    row, column = np.mgrid[:size, :size]

    def draw(number: int) -> tuple[np.ndarray, np.ndarray]:
        """Pictures and the classes of their pixels."""
        radius = rng.uniform(size / 8, size / 4, (2, number, 1, 1))
        middle = rng.uniform(radius, size - 1 - radius, (2, 2, number, 1, 1))
        down, across = np.abs(row - middle[0]), np.abs(column - middle[1])
        y = np.where(np.hypot(down[0], across[0]) <= radius[0], 1, 0)
        y = np.where(np.maximum(down[1], across[1]) <= radius[1], 2, y).astype(np.int32)
        x = (y > 0) + noise * rng.standard_normal(y.shape)
        return x.astype(np.float32)[..., None], y

    train, test = draw(num_examples), draw(num_test_examples)
    return make("shapes", train, test, 3)
