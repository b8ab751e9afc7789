"""The ``fedjax-drag`` command: arguments and printing, nothing else.

``main`` holds the commands, ``common`` what they share. JAX is imported when a command runs: ``--help`` stays quick.
"""
