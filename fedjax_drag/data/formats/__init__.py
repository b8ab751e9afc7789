"""Formats of data files: IDX, pickled batches, compressed files, and the cache of decoded arrays.

A module here knows what a file is made of; what its numbers mean is known in :mod:`fedjax_drag.data.sets`.
"""
