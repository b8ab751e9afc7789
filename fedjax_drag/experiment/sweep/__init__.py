"""Sweeps: the grid of cells, their grouping into programs, jobs on a cluster, the table and the heat map."""
