"""What is compiled: the loop over rounds, one round, the local pass, the clients axis, sampling, evaluation."""
