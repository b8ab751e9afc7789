"""Server optimisers once more, in NumPy float64: those of optax, and Algorithm 2 of Reddi et al. (2021).

Each is ``(gradient, memory, step) -> (update, memory)`` with ``memory`` None and ``step`` 1 in the first round that
counts; the update is added to the parameters.
"""

import numpy as np


def sgd(learning_rate, momentum=0.0, nesterov=False):
    """Gradient descent with heavy ball or Nesterov momentum: FedAvgM."""

    def update(gradient, memory, step):
        del step
        trace = gradient + (0 if memory is None else momentum * memory)
        along = gradient + momentum * trace if nesterov else trace
        return -learning_rate * along, trace

    return update


def reddi(second_moment, learning_rate, b1, tau):
    """Lines 9 to 14 of the paper's Algorithm 2, in terms of ``Delta``, minus the gradient."""

    def update(gradient, memory, step):
        del step
        delta = -gradient
        m, v = (0 * delta, tau**2 + 0 * delta) if memory is None else memory
        m = b1 * m + (1 - b1) * delta
        v = second_moment(v, delta)
        return learning_rate * m / (np.sqrt(v) + tau), (m, v)

    return update


def fedadagrad(learning_rate, b1=0.0, tau=1e-3):
    return reddi(lambda v, delta: v + delta**2, learning_rate, b1, tau)


def fedyogi(learning_rate, b1=0.9, b2=0.99, tau=1e-3):
    return reddi(lambda v, delta: v - (1 - b2) * delta**2 * np.sign(v - delta**2), learning_rate, b1, tau)


def fedadam(learning_rate, b1=0.9, b2=0.99, tau=1e-3):
    return reddi(lambda v, delta: b2 * v + (1 - b2) * delta**2, learning_rate, b1, tau)


def adam(learning_rate, b1=0.9, b2=0.999, eps=1e-8):
    """Kingma and Ba's Algorithm 1."""

    def update(gradient, memory, step):
        m, v = (0 * gradient, 0 * gradient) if memory is None else memory
        m = b1 * m + (1 - b1) * gradient
        v = b2 * v + (1 - b2) * gradient**2
        return -learning_rate * (m / (1 - b1**step)) / (np.sqrt(v / (1 - b2**step)) + eps), (m, v)

    return update


def yogi(learning_rate, b1=0.9, b2=0.999, eps=1e-3, initial=1e-6):
    """Adam whose second moment moves by at most ``(1 - b2) g^2``; both moments start at ``initial``."""

    def update(gradient, memory, step):
        m, v = (initial + 0 * gradient, initial + 0 * gradient) if memory is None else memory
        m = b1 * m + (1 - b1) * gradient
        v = v - (1 - b2) * np.sign(v - gradient**2) * gradient**2
        return -learning_rate * (m / (1 - b1**step)) / (np.sqrt(v / (1 - b2**step)) + eps), (m, v)

    return update


def adagrad(learning_rate, initial=0.1, eps=1e-7):
    """Divides by the root of the sum of all squares so far."""

    def update(gradient, memory, step):
        del step
        total = (initial + 0 * gradient if memory is None else memory) + gradient**2
        return -learning_rate * gradient / np.sqrt(total + eps), total

    return update
