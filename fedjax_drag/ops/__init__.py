"""Arithmetic on stacked deltas that several aggregation rules share.

``distances``, ``order_statistics``, ``geometric_median``, ``kmeans`` and ``linkage`` compute; ``screening`` decides
which clients count; ``sums`` makes a rule of sums over clients.
"""
