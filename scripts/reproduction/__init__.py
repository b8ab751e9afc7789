"""The parts of ``scripts/reproduce.py``.

``target`` and ``targets`` say what can be run, ``running`` and ``timing`` run it, ``figures`` and ``paired`` show it.
``recording``, ``settings`` and ``stored`` keep what decides the claims. ``claims``, ``papers/``, ``questions``,
``freeloaders``, ``comparison``, ``margins`` and ``outcome`` judge them; ``verdicts`` and ``published`` list the result.
"""
