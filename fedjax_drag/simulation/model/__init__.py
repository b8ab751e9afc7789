"""A user's model as pure functions, whichever of its forms it has: a linen module, an nnx module, a pair of functions.

``model`` is what a run trains, and which of its parameters; ``forms`` and ``nnx`` make it of what the user gives;
``initial_params`` is what it starts from.
"""
