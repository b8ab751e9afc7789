"""The claims that each paper makes about its experiments, one module a paper.

Each has a tuple ``CLAIMS`` in the order of the paper; a claim names the target and the question that judge it.
"""
