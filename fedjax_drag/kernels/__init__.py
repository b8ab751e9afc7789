"""Arithmetic on the deltas of a cohort, and convolutions, in the forms that are fast on each platform.

Each fast form is measured and stands beside a plain one, called ``reference`` or named after one, of the same results:
``tests/kernels`` compares the two. Of ``arithmetic``, ``norms`` and ``sums``, :mod:`fedjax_drag.tree` has the names.
"""
