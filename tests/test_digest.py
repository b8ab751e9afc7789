"""Checksums of files and folders."""

import hashlib

import pytest

from fedjax_drag.files import sha256


def test_a_missing_path_has_no_checksum(tmp_path):
    """It had that of an empty folder, so that a file which went missing had changed to what another had been."""
    (tmp_path / "empty").mkdir()
    assert sha256(tmp_path / "empty") == hashlib.sha256().hexdigest()
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    for missing in (tmp_path / "nowhere", tmp_path / "gone"):
        with pytest.raises(FileNotFoundError, match=r"no such file or folder$"):
            sha256(missing)
