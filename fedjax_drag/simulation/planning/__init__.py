"""What is settled before compiling: setup, calibration, memory budget, checks across settings."""
