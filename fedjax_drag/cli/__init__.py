"""The ``fedjax-drag`` command: arguments and printing, nothing else.

``main`` joins the commands, each in a module of its own (``run``, ``sweep``, ``plot``, ``listing``, ``report``,
``data``); ``common`` is what they share. JAX is imported when a command runs: ``--help`` stays quick.
"""
