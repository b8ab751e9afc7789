"""A backdoor for rare examples, which few others train on."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from fedjax_drag import checks, tree
from fedjax_drag.attacks._attack import in_fraction
from fedjax_drag.attacks._backdoor import boosted, check_boost, relabelled
from fedjax_drag.data.dataset import FederatedDataset
from fedjax_drag.data.normalization import UNSCALED
from fedjax_drag.ops.largest import floor_of
from fedjax_drag.types import Attack, Batch, Scalar, Uplink

_ROUNDING = 1e-5  # share of the distance of the tail that float32 may lose in a model's inputs


def edge_case(
    fed: FederatedDataset,
    source: int = 1,
    target: int = 0,
    share: float = 0.05,
    fraction: float = 0.5,
    boost: float | None = None,
) -> Attack:
    """Malicious clients learn to classify the rarest examples of one class as another, and boost their messages.

    How rare an example is depends on no model: it is its distance from the mean of its class, in what a model sees. The
    tail are the ``floor(share n)`` of the n training examples of class ``source``, at least one, that are furthest from
    its mean. In every round the same ``floor(fraction * n_m)`` examples of a malicious client are replaced by examples
    of the tail, one after another from a place that is drawn for each client, with the label ``target``. Benign clients
    train on those of them that they hold, with the true label. The attack succeeds on a test example of class
    ``source``, at least as far from the training mean as the tail, if the model predicts the target; no others count.

    Knows:
      the rarest training examples; if ``boost`` is None, how many clients take part and how many of them are malicious.

    Args:
      fed: the data set; a configuration supplies it.
      source: class whose rarest examples are misclassified.
      target: class that the model is to predict for them, another one.
      share: of the training examples of class ``source``, in (0, 1].
      fraction: of a malicious client's examples that are replaced, in [0, 1].
      boost: factor > 0 of what malicious clients send; None for the number of clients present divided by theirs,
        1 for no boost.

    Raises:
      ValueError: if an argument is out of range, inputs are tokens or several arrays, or the class has no training
        example or no test example as rare.

    References:
      Wang et al., Attack of the tails: yes, you really can backdoor federated learning, NeurIPS 2020. Interpretations:
      the paper takes examples from another source, such as airplanes of one airline, and defines them by a small
      density of the input distribution; here that is a Gaussian of equal variance in all directions around the mean of
      the class. With ``boost`` it is the paper's model replacement, with ``boost=1`` its black-box attack.
    """
    if not isinstance(fed, FederatedDataset):
        raise checks.ArgumentError("fed", "must be a data set, such as fd.data.load('digits')", given=fed)
    if not fed.has_labels:
        raise checks.ArgumentError("edge_case", f"needs one label for each example, which is not in {fed!r}")
    checks.count("source", source, 0, fed.num_classes - 1)
    checks.count("target", target, 0, fed.num_classes - 1)
    if source == target:
        raise checks.ArgumentError("target", f"must be another class than source={source}", given=target)
    checks.in_range("share", share, 0.0, 1.0, open_low=True)
    with jax.ensure_compile_time_eval():  # a sweep builds its attacks while it is traced
        tail = tail_of(fed, source, share)
        counted = is_rare(tail.mean, tail.distance, seen_by_a_model(fed, fed.test, source)).any()
        arrays = jnp.asarray(tail.examples), jnp.asarray(tail.mean)
    if not counted:
        raise checks.ArgumentError(
            "share",
            f"no test example of class {source} of {fed.name} is as far from the mean as these training "
            "examples; try a larger share",
            given=share,
        )

    return _EdgeCase(source, target, fraction, boost, *arrays, tail.distance)


class _EdgeCase(Attack):
    """:func:`edge_case`, with the tail of the data: see :class:`Tail`."""

    source: int
    target: int
    fraction: float
    boost: float | None
    examples: jax.Array
    mean: jax.Array
    distance: Scalar

    def __repr__(self) -> str:
        settings = f"source={self.source}, target={self.target}, fraction={self.fraction}, boost={self.boost}"
        return f"{self.name}({settings})"

    @property
    def name(self) -> str:
        """The name of the function that made it."""
        return edge_case.__name__

    def check(self) -> None:
        checks.in_range("fraction", self.fraction, 0.0, 1.0)
        check_boost(self.boost)

    def poison(
        self, key: jax.Array, batch: Batch, *, positions: jax.Array, num_examples: jax.Array, num_classes: int
    ) -> Batch:
        del num_classes
        first = jax.random.randint(key, (), 0, len(self.examples))
        x = jnp.asarray(self.examples, batch.x.dtype)[(first + positions) % len(self.examples)]
        return relabelled(batch, in_fraction(positions, num_examples, self.fraction), x, self.target)

    def forge(self, key: jax.Array, uplink: Uplink, malicious: jax.Array, *, valid: Any = None, **_: Any) -> Uplink:
        del key
        return boosted(self.boost, uplink, malicious, valid)

    def goal(self, x: jax.Array, y: jax.Array, num_classes: int) -> tuple[jax.Array, jax.Array]:
        del num_classes
        return x, jnp.where((y == self.source) & is_rare(self.mean, self.distance, x), self.target, y)


class Tail(NamedTuple):
    """The rarest training examples of a class.

    Attributes:
      examples: as a model sees them, ``[K, *input_shape]``, the rarest first.
      mean: of the class, ``[*input_shape]``.
      distance: of the last of them from the mean.
    """

    examples: np.ndarray
    mean: np.ndarray
    distance: float


def tail_of(fed: FederatedDataset, source: int, share: float) -> Tail:
    """The ``floor(share n)`` examples of a class that are furthest from its mean, at least one.

    Raises:
      ValueError: if inputs are tokens or several arrays, or the class has no training example.
    """
    if getattr(fed.train.x, "dtype", np.bool_) in UNSCALED:
        form = tree.described(fed.train.x)
        raise checks.ArgumentError("edge_case", f"needs one array of inputs with a distance, not {form} of {fed.name}")
    x = seen_by_a_model(fed, fed.train, source)
    if not len(x):
        raise checks.ArgumentError("source", f"{fed.name} has no training example of that class", given=source)
    mean = x.mean(axis=0, dtype=np.float64)
    distances = np.linalg.norm((x - mean).reshape(len(x), -1), axis=1)
    rarest = np.argsort(-distances, kind="stable")[: max(1, floor_of(share, len(x)))]
    return Tail(x[rarest], mean.astype(np.float32), float(distances[rarest[-1]]))


def seen_by_a_model(fed: FederatedDataset, examples: Batch, label: int) -> np.ndarray:
    """The examples of a class as a model sees them, ``[n, *input_shape]``."""
    return np.asarray(fed.preprocess(np.asarray(examples.x)[np.asarray(examples.y) == label]))


def is_rare(
    mean: Float[Array, "..."] | np.ndarray, distance: Any, x: Float[Array, "batch ..."] | np.ndarray
) -> Bool[Array, " batch"]:
    """Marks the inputs that are at least as far from the mean as the tail, up to rounding."""
    apart = (jnp.asarray(x, jnp.float32) - mean).reshape(-1, mean.size)
    return jnp.linalg.norm(apart, axis=1) >= distance * (1 - _ROUNDING)
