"""Accelerators that are not there: ``targets`` to compile for, and ``counts`` of what a compiled program does."""
