"""The ``fedjax-drag`` command: arguments and printing, nothing else.

``app`` joins the commands, each in a module of its own, but ``plot`` and ``report`` in ``showing``; ``common`` is what
they share. JAX is imported when a command runs: ``--help`` stays quick. In their docstrings a backspace keeps the lines
of the paragraph that follows it.
"""
