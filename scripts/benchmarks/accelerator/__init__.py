"""What an accelerator does with the simulator, measured in forty minutes: ``scripts/benchmark.py accelerator``.

``parts/`` holds the measurements and lists them; ``part.py`` says what one is, ``sizes.py`` how large they are.
``runner.py`` has a process of its own (``worker.py``) compute them, ``record.py`` keeps what has been measured, and
``page.py`` and ``figure.py`` show it. ``programs.py`` is a command of its own, ``scripts/benchmark.py programs``.
"""
