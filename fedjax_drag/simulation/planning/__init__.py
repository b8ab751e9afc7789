"""What is decided before compiling: setup, memory budget, checks across settings."""
