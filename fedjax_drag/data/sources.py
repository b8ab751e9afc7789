"""Data sets by name."""

import os
from typing import Literal

from fedjax_drag import checks
from fedjax_drag.data import builtin, files
from fedjax_drag.data.dataset import FederatedDataset

DATASETS: tuple[tuple[str, str], ...] = (
    ("digits", "handwritten digits, 8x8 grey, 10 classes, 1,442 + 355 examples; ships with scikit-learn"),
    ("synthetic", "mixture of Gaussians, 32 numbers, 10 classes, 10,000 + 2,000 examples; computed"),
    ("fashion_mnist", "articles of clothing, 28x28 grey, 10 classes, 60,000 + 10,000 examples; IDX files"),
    ("mnist", "handwritten digits, 28x28 grey, 10 classes, 60,000 + 10,000 examples; IDX files"),
)
"""Name and one-line description of every data set that :func:`load` knows."""


def load(
    name: str, *, data_dir: str | os.PathLike[str] | None = None, source: Literal["auto", "files"] = "auto"
) -> FederatedDataset:
    """Loads a data set, not yet split among clients.

    Args:
      name: one of ``"digits"``, ``"synthetic"``, ``"fashion_mnist"``, ``"mnist"``. The synthetic data
        have arguments of their own in :func:`synthetic`.
      data_dir: the only folder to look in for files: ``data_dir`` itself, or a folder below it that is
        named after the data set (``fashion_mnist``, ``fashion-mnist``, ``FashionMNIST/raw``). By
        default the folder in the environment variable ``FEDJAX_DRAG_DATA`` is searched in the same
        way, and ``/usr/share/datasets``. Data sets without files ignore it.
      source: ``"files"`` or ``"auto"``, which is the same wherever there is one source.

    Returns:
      The data set as NumPy arrays; no accelerator is touched.

    Raises:
      FileNotFoundError: the files are not there.
      ValueError: an unknown name or source, or a file that is damaged or not the published one.
    """
    checks.one_of("name", name, [known for known, _ in DATASETS])
    checks.one_of("source", source, ("auto", "files"))
    match name:
        case "digits":
            return builtin.digits()
        case "synthetic":
            return builtin.synthetic()
        case "fashion_mnist":
            return files.load_idx(files.FASHION_MNIST, data_dir)
        case _:
            return files.load_idx(files.MNIST, data_dir)
