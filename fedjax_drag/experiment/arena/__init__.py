"""A standing comparison of defences: tuned against attacks that are tuned against them, and tested once.

``protocol`` says what is compared, ``trials`` runs it as sweeps, ``choice`` picks settings by validation accuracy,
``scores`` has the figures with their intervals, ``standing`` keeps and shows them.
"""
