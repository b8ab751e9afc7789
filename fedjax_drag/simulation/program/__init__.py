"""What is compiled: the loop over rounds, one round, the local pass, the clients axis, sampling, evaluation.

A delta's way: ``local`` computes it and makes it the client's message, ``clients_axis`` repeats that for the cohort,
``server`` gives the messages to the algorithm, as a stack or as sums, and ``round`` makes the next state of the result.
``federation`` has the data, ``examples`` those of one client, ``keys`` the random keys, ``sampling`` says who takes
part, ``programs`` are the functions that JAX compiles.
"""
