"""Formats of data files: IDX, pickled batches, compressed files, and the cache of decoded arrays.

These modules parse files; :mod:`fedjax_drag.data.sets` says what the numbers in them mean.
"""
