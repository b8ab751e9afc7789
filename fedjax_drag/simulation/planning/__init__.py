"""What is decided before compiling: the run of the settings, what is known of it from shapes, what fits together, and
what the run spends of its privacy.
"""
