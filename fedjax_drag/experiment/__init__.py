"""From a YAML file to a results folder.

``config`` reads and checks a configuration, ``build`` turns its names into functions, ``run`` executes one run and
records it, ``sweep`` runs a grid of them, ``figures`` and ``report`` draw the results. Nothing is imported here:
``fedjax-drag --help`` stays quick.
"""
