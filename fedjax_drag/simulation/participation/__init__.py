"""Who takes part in a round: who is available, drops out or is late, and how many local steps each client takes.

``availability`` reads the option of that name, ``attendance`` draws in the compiled round.
"""
