"""Splits in which some clients have far more examples than others."""

import numpy as np

from fedjax_drag import checks
from fedjax_drag.data.dataset import FederatedDataset
from fedjax_drag.data.partition._assign import by_class, check, labels_of, with_clients
from fedjax_drag.data.partition._label_skew import log_mixes

_SWEEPS = 300
"""Sweeps at most of the fit of a table to its margins; rounding corrects the rest."""

_CLOSE = 0.1
"""Largest error of a fitted client size before rounding, in examples."""

_ROUNDING = 1e-9
"""By which a size that is whole may be below itself."""

_NEGLIGIBLE = 1e-3
"""Remainder up to which a client gets no example of a class beyond the rounded table."""


def quantity_skew(
    fed: FederatedDataset,
    num_clients: int,
    sigma: float | None = None,
    seed: int = 0,
    min_size: int = 1,
    power: float | None = None,
    beta: float | None = None,
) -> FederatedDataset:
    """Splits at random into clients of unequal sizes, each with about the label mix of the whole.

    One of ``sigma``, ``power`` and ``beta`` says how unequal. A client that would get fewer than ``min_size`` gets
    ``min_size``, and the others share the rest in the same proportions.

    Args:
      fed: the data set.
      num_clients: M.
      sigma: sizes are proportional to ``exp(sigma z)``, z standard normal (log-normal); in [0, 100], where 0 makes
        sizes differ by at most one.
      seed: >= 0.
      min_size: examples that every client has at least, >= 1.
      power: sizes are proportional to ``m^power`` for clients m = 1 .. M (a power law), in [0, 10]. They are rounded
        down, and the last client has what is left.
      beta: sizes are proportional to a draw from ``Dir(beta, ..., beta)``, in [1e-6, 1e6].

    Returns:
      The data set with clients.

    Raises:
      ValueError: an argument out of range, not one of the three, or ``num_clients * min_size`` above the number of
        training examples.

    References:
      Li et al., Federated learning on non-IID data silos: An experimental study, 2022 (NIID-Bench), quantity skew, with
      ``beta``; its code draws again until each client has ten examples. With ``power`` 1 and 2 the sizes are those of
      ``LinearPartitioner`` and ``SquarePartitioner`` of Flower Datasets.
    """
    check(fed, num_clients, seed, min_size)
    given = {name: value for name, value in (("sigma", sigma), ("power", power), ("beta", beta)) if value is not None}
    if len(given) != 1:
        raise checks.ArgumentError("sigma, power, beta", f"{', '.join(given) or 'none'} given; must be one of them")
    ranges = {"sigma": (0.0, 100.0), "power": (0.0, 10.0), "beta": (1e-6, 1e6)}
    ((name, value),) = given.items()
    checks.in_range(name, value, *ranges[name])
    rng = np.random.default_rng(seed)
    available = fed.train.num_examples
    if name == "power":
        exact = _exact_sizes(available, value * np.log(np.arange(1, num_clients + 1)), min_size)
        sizes = np.floor(exact + _ROUNDING).astype(np.int64)
        sizes[-1] += available - sizes.sum()
    else:
        logs = value * rng.standard_normal(num_clients) if name == "sigma" else log_mixes(rng, 1, num_clients, value)[0]
        sizes = _sizes(available, logs, min_size)
    owner = rng.permutation(np.repeat(np.arange(num_clients), sizes))
    return with_clients(fed, owner, num_clients, f"quantity_skew({_arguments(given, seed, min_size)})", rng)


def dirichlet_quantity(
    fed: FederatedDataset, num_clients: int, beta: float, sigma: float, seed: int = 0, min_size: int = 1
) -> FederatedDataset:
    """Splits into clients of log-normal sizes with Dirichlet label mixes.

    The sizes are those of :func:`quantity_skew`. Each client draws a label mix ``p_m ~ Dir(beta, ..., beta)``. Since
    each example is given to one client, class and client sizes are fixed: of all tables with these sizes, the one
    closest in relative entropy to the draws is used. Iterative proportional fitting (Deming and Stephan, 1940), which
    scales classes and clients in turn, converges to it; there the mix of client m is proportional to ``b_c p_mc``, with
    factors ``b_c`` of the classes that are the same for all clients. With many clients and balanced classes the factors
    are nearly equal, and the mixes are those drawn. The fit stops when it is within a tenth of an example, or after 300
    sweeps, which only tables of very small ``beta`` need; the table is rounded down, and single examples are added
    where the remainders are largest until all are distributed. There is always a result, and no draw is repeated.

    Args:
      fed: the data set.
      num_clients: M.
      beta: concentration of the label mixes, in [1e-6, 1e6]: a small one gives few classes per client, a large one
        the mix of the whole.
      sigma: of the logarithm of the sizes, in [0, 100]; 0 makes sizes differ by at most one.
      seed: >= 0.
      min_size: examples that every client has at least, >= 1.

    Returns:
      The data set with clients.

    Raises:
      ValueError: an argument out of range, or ``num_clients * min_size`` above the number of training examples.
    """
    check(fed, num_clients, seed, min_size)
    checks.in_range("beta", beta, 1e-6, 1e6)
    checks.in_range("sigma", sigma, 0.0, 100.0)
    per_class = np.bincount(labels_of(fed), minlength=fed.num_classes)
    present = per_class > 0

    def draw(rng: np.random.Generator) -> np.ndarray:
        sizes = _sizes(fed.train.num_examples, sigma * rng.standard_normal(num_clients), min_size)
        logs = log_mixes(rng, int(present.sum()), num_clients, beta)  # the fit normalises them
        counts = np.zeros((fed.num_classes, num_clients), np.int64)
        counts[present] = _rounded(_fitted(logs, per_class[present], sizes), per_class[present], sizes)
        return counts

    description = f"dirichlet_quantity({_arguments({'beta': beta, 'sigma': sigma}, seed, min_size)})"
    return by_class(fed, num_clients, description, draw, seed=seed)


def _arguments(given: dict[str, float], seed: int, min_size: int) -> str:
    shown = given | {"seed": seed} | ({"min_size": min_size} if min_size != 1 else {})
    return ", ".join(f"{name}={value}" for name, value in shown.items())


def _sizes(num_examples: int, logs: np.ndarray, min_size: int) -> np.ndarray:
    """``[M]`` integers near :func:`_exact_sizes`, with the same sum: the largest remainders are rounded up."""
    exact = _exact_sizes(num_examples, logs, min_size)
    sizes = np.floor(exact).astype(np.int64)
    sizes[np.argsort(sizes - exact, kind="stable")[: num_examples - sizes.sum()]] += 1
    return sizes


def _exact_sizes(num_examples: int, logs: np.ndarray, min_size: int) -> np.ndarray:
    """Shares of ``num_examples`` in proportion to ``exp(logs)`` ``[M]``, or ``min_size`` where that would be less."""
    weights = np.exp(logs - logs.max())
    # If the k largest clients are above min_size and all others at it, the scale follows from the sum; k is the
    # largest number for which the k-th client is not below min_size.
    descending, k = np.sort(weights)[::-1], np.arange(1, len(logs) + 1)
    scale = (num_examples - min_size * (len(logs) - k)) / np.cumsum(descending)
    above = np.flatnonzero(scale * descending >= min_size)
    return np.maximum(min_size, weights * scale[above[-1] if len(above) else 0])


def _fitted(logs: np.ndarray, per_class: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Scales the rows and columns of ``exp(logs)`` ``[C, M]`` to sums ``per_class`` and ``sizes``, nearly."""
    for _ in range(_SWEEPS):
        logs = logs + np.log(per_class)[:, None] - _log_sum(logs, 1)
        log_columns = _log_sum(logs, 0)
        if np.abs(np.exp(log_columns) - sizes).max() < _CLOSE:
            break
        logs = logs + np.log(sizes) - log_columns
    return np.exp(logs)


def _log_sum(logs: np.ndarray, axis: int) -> np.ndarray:
    largest = logs.max(axis, keepdims=True)
    return largest + np.log(np.exp(logs - largest).sum(axis, keepdims=True))


def _rounded(expected: np.ndarray, per_class: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Integers near ``expected`` ``[C, M]`` with row sums ``per_class`` and column sums ``sizes`` (equal totals)."""
    expected = expected * np.minimum(1.0, per_class / expected.sum(axis=1))[:, None]
    expected = expected * np.minimum(1.0, sizes / np.maximum(expected.sum(axis=0), 1e-300))
    counts = np.floor(expected).astype(np.int64)
    of_class, of_client = (per_class - counts.sum(axis=1)).tolist(), (sizes - counts.sum(axis=0)).tolist()
    remainder = expected - counts
    order = np.argsort(-remainder, axis=None, kind="stable")
    likely = order[: np.count_nonzero(remainder > _NEGLIGIBLE)]
    for places, most in ((likely, 1), (order, np.inf)):  # one for each cell; then all that remain
        for label, client in np.stack(np.unravel_index(places, expected.shape), axis=1).tolist():
            more = min(most, of_class[label], of_client[client])
            if more:
                counts[label, client] += more
                of_class[label] -= more
                of_client[client] -= more
    return counts
