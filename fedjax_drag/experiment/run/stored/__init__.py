"""What a checkpoint consists of: the leaves of the state, the rows of clients beside them, and what it is."""
