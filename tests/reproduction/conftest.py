"""Puts the folder of the scripts on the path of its tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
