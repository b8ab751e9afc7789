"""From YAML to a checked configuration.

``loading`` does it in three steps: ``yaml_text`` reads, ``merging`` merges overrides and defaults, ``config`` checks.
"""
