"""What can be run: the figures and tables of the papers, and the questions of this project.

``target`` says what a target is and how each scale shortens it; ``all_targets`` has all of them, found by name.
"""
