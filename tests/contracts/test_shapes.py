"""The shapes in the signatures of rules and of what they are made of."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cases import AGGREGATORS

TESTS = Path(__file__).parents[1]


@pytest.mark.thorough
def test_every_rule_keeps_the_shapes_in_its_signatures():
    """Traced, not compiled: in a process of its own, since the check is built into modules as they are imported."""
    path = os.pathsep.join([str(TESTS), str(TESTS.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, TESTS / "shapes_checked.py"],
        env={**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == [case.label for case in AGGREGATORS]
