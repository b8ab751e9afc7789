"""What is said of a data set of images once: where its files are, what they must be, and what their numbers mean."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from fedjax_drag.data.dataset import FederatedDataset, make
from fedjax_drag.data.formats import locate
from fedjax_drag.data.formats.cache import Arrays, cached


class Published(NamedTuple):
    """A published data set of images.

    Attributes:
      name: its name here.
      about: one line.
      read: ``(this, its files) -> train_x, train_y, test_x, test_y``: images uint8 ``[N, H, W, C]``, labels int32
        from 0; ValueError with one line that names the file that is damaged or not the published one.
      folders: names of folders below a searched folder in which its files may be.
      files: official names, once for each form in which it is published, the first choice first.
      advice: how to get them; ends in a conjunction.
      num_classes: labels are 0 .. num_classes - 1.
      shape: of an image.
      mean: of the training pixels of each channel, scaled to [0, 1].
      std: of the training pixels of each channel, scaled to [0, 1].
      checksums: of the uncompressed content, SHA-256 or MD5, by official file name; a file without one is not verified.
      sizes: examples for training and for testing in TFDS. They are those of the files except for EMNIST Letters: TFDS
        has the first 88,800 of 124,800 and the first 14,800 of 20,800.
      tfds: name in TFDS, and configuration if it has several: ``emnist/balanced``; empty if TFDS does not have it.
      first_label: the smallest label in the files and in TFDS, which becomes 0.
      transposed: whether rows and columns are exchanged in the files and in TFDS.
    """

    name: str
    about: str
    read: Callable[["Published", list[Path]], Arrays]
    folders: tuple[str, ...]
    files: tuple[tuple[str, ...], ...]
    advice: str
    num_classes: int
    shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    checksums: Mapping[str, str]
    sizes: tuple[int, int]
    tfds: str = ""
    first_label: int = 0
    transposed: bool = False

    def find(self, data_dir: locate.Place) -> list[Path]:
        """Its files; FileNotFoundError with one line that says where they were searched for and what to do."""
        return locate.find(self.name, self.files, self.folders, data_dir, self.advice)

    def load(self, data_dir: locate.Place = None) -> FederatedDataset:
        """Finds its files, reads and verifies them once, and keeps the arrays in the cache.

        Args:
          data_dir: the folder to search: one of ``folders`` below it, or the folder itself. By default the folder in
            the environment variable ``FEDJAX_DRAG_DATA`` is searched in the same way, and ``/usr/share/datasets``.

        Returns:
          The data set, unpartitioned.

        Raises:
          FileNotFoundError: as of :meth:`find`.
          ValueError: as of ``read``.
        """
        paths = self.find(data_dir)
        return self.of_arrays(cached(self.name, paths, lambda: self.read(self, paths)))

    def of_arrays(self, arrays: Arrays) -> FederatedDataset:
        """The data set with what ``read`` returns."""
        train, test = ((arrays[f"{part}_x"], arrays[f"{part}_y"]) for part in ("train", "test"))
        return make(self.name, train, test, self.num_classes, self.mean, self.std)

    def check_labels(self, place: Path, smallest: int, largest: int) -> None:
        """Refuses labels of a file, or of a prepared folder, that this data set does not have."""
        first, last = self.first_label, self.first_label + self.num_classes - 1
        for label in (smallest, largest):
            if not first <= label <= last:
                raise ValueError(f"{place}: label {label} found: must be in [{first}, {last}]")
