"""Data sets, a module for each or for each family: where their files are and what they mean.

:func:`fedjax_drag.data.load` finds a set by its name.
"""
