"""The ``fedjax-drag`` command: arguments and printing, nothing else.

``main`` joins the commands, each in a module of its own (``run``, ``sweep``, ``tune``, ``listing``, ``data``), but
``plot`` and ``report`` in ``showing``; ``common`` is what they share. JAX is imported when a command runs: ``--help``
stays quick.
"""
