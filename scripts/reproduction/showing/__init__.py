"""A target as a reader sees it, apart from its claims.

``figures`` draws it, with the points that ``printed`` has from the papers; ``paired`` and ``tuned`` are tables of the
methods' paired differences and of the settings that validation data choose.
"""
