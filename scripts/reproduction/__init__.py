"""The parts of ``scripts/reproduce.py``.

``targets/`` says what can be run, ``running`` runs it, ``showing/`` draws it and ``storing/`` keeps what was measured.
``papers/`` has the claims, which ``judging/`` decides; ``publishing/`` lists the verdicts. ``names`` has the papers'
words for what a sweep calls otherwise. No ``__init__`` imports anything: what lists the targets loads nothing else.
"""
