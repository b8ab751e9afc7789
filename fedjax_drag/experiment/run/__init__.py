"""One run and its results folder: execution, checkpoints, metrics file, lock, summary, loggers."""
