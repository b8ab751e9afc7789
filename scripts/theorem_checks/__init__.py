"""The parts of ``scripts/theorems.py``.

``bounds`` has the papers' bounds, ``quadratics`` the losses and their simulation, ``measurements`` compares the two
theorem by theorem, and ``figures`` prints and draws the result.
"""
