"""Arithmetic on the deltas of a cohort, and convolutions, in the forms that are fast on each platform.

Each fast form has a plain one beside it, ``reference``, which says what is computed: ``tests/kernels`` compares the
results of the two, ``scripts/benchmark.py kernels`` their times. Of ``arithmetic``, ``norms`` and ``sums``,
:mod:`fedjax_drag.tree` has the names.
"""
