"""What runs and sweeps would need on an accelerator: ``run_plan``, ``sweep_plan``, ``remedies`` and their ``text``."""
