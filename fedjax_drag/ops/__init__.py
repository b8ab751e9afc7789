"""What several aggregation rules share.

``rules`` and ``weighted`` are the forms of a rule, ``screening`` decides which clients count; ``kmeans``, ``linkage``,
``principal`` and ``subsets`` choose among clients from small matrices. ``lbfgs`` and ``largest`` choose among
directions and entries, ``paths`` among the parameters of a model. What passes over the deltas is in
:mod:`fedjax_drag.kernels`.
"""
