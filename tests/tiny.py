"""The configuration of a run that takes moments, which tests change as they need."""

TINY = {
    "name": "tiny",
    "data": "digits",
    "partition": {"name": "iid", "num_clients": 8},
    "model": {"name": "mlp", "hidden": [4]},
    "rounds": 6,
    "eval_every": 2,
    "cohort_size": 4,
    "local_steps": 1,
    "batch_size": 4,
    "step_size": 0.1,
    "time_clients": False,
}

DRAG = {"aggregator": {"name": "drag", "c": 0.25, "alpha": 0.25}}

SYNTHETIC = {
    "data": {"name": "synthetic", "num_examples": 60, "num_test_examples": 20, "dim": 8},
    "partition": {"name": "iid", "num_clients": 6},
}
"""Data that are made faster than the digits are read."""
