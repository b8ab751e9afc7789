"""From a YAML file to a results folder: configuration, running, results, plots, command line.

``config`` checks a file, ``build`` turns its names into functions, ``run`` executes and records,
``results`` reads and writes the folder, ``plotting`` draws it and ``cli`` is the ``fedjax-drag``
command. This package imports none of them, so that ``fedjax-drag --help`` stays quick.
"""
