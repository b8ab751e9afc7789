"""Running a target.

``run`` runs its sweep; ``timing`` measures the clients of its methods in turn, for claims about their time.
"""
