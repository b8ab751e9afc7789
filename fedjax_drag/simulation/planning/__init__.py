"""What is decided before compiling: setup, calibration, memory budget, checks across settings."""
