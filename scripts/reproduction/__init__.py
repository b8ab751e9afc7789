"""What ``scripts/reproduce.py`` is made of: targets and their scales, the papers' claims, how they are judged."""
