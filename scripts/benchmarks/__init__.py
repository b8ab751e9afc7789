"""The measurements behind ``scripts/benchmark.py``, one module a subcommand.

``aggregators``, ``clients``, ``growth``, ``profiling``, ``rounds`` and ``sweeps`` each have a function ``run`` that
returns the rows of a table; ``workloads``, ``timing``, ``roofline`` and ``torch_baseline`` are what they share.
"""
