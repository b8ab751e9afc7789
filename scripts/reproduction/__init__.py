"""The parts of ``scripts/reproduce.py``.

``target`` and ``targets`` say what can be run, ``running``, ``timing`` and ``outcome`` run it and read it back,
``claims``, ``questions``, ``verdicts`` and ``papers/`` judge the papers' claims, and ``figures`` draws.
"""
