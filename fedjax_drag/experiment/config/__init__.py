"""What a configuration is: its keys and components, its text, and the names of the user's own parts in it.

``yaml_text`` reads, ``config`` merges and checks; :mod:`fedjax_drag.experiment.build.experiment` does it in order.
"""
