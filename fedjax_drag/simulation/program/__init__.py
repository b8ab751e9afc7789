"""What is compiled: the loop over rounds, one round, the local pass, the clients axis, sampling, evaluation.

A delta's way: ``local`` computes it, ``client_pass`` makes it the client's message, ``clients_axis`` repeats that for
the cohort, ``stacking`` or ``streaming`` gives the messages to the algorithm, and ``round`` makes the next state of
the result.
"""
