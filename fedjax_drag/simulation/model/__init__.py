"""A user's model as pure functions, whichever of its forms it has: a linen module, an nnx module, a pair of functions.

``model`` is what a run trains, ``statistics`` what becomes of running statistics, ``functions`` a user's model as pure
functions, ``modes`` how it is told that it is in training, ``trainable`` which of its parameters are trained, ``start``
what it starts from.
"""
