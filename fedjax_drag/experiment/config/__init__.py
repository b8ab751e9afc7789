"""Configurations: a YAML file and overrides become a :class:`~fedjax_drag.experiment.config.config.Config`."""
