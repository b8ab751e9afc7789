"""Rules, methods, client rules, attacks and compressors need few packages (docs/install.md)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import fedjax_drag

CODE = """
import sys

NOT_NEEDED = {"flax", "orbax", "tensorstore", "pyarrow", "sklearn", "matplotlib", "omegaconf", "typer", "tqdm",
              "psutil", "jinja2", "platformdirs"}


class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in NOT_NEEDED:
            raise ImportError(f"{name} is not installed")


sys.meta_path.insert(0, Refuse())
import jax.numpy as jnp
from fedjax_drag import aggregators, algorithms, attacks, clients, compression

params = {"w": jnp.zeros(2)}
deltas = {"w": jnp.ones((5, 2))}
rule = aggregators.drag(c=0.25)
moved, _ = rule.apply(params, deltas, rule.init(params))
assert abs(float(moved["w"][0]) - 1) < 1e-6
"""


@pytest.mark.thorough
def test_rules_need_no_package_of_the_simulator(tmp_path):
    source = os.environ | {"PYTHONPATH": str(Path(fedjax_drag.__file__).parents[1])}
    subprocess.run([sys.executable, "-c", CODE], check=True, cwd=tmp_path, env=source)
