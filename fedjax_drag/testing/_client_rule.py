"""The contract of client rules."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_drag import kinds
from fedjax_drag.testing._local import batches, beginning, cohort_pass, local_pass, passed
from fedjax_drag.testing._promises import (
    assert_close,
    assert_finite,
    assert_like,
    assert_losses,
    assert_pure,
    check,
    examined,
    parameters,
    stacked,
)
from fedjax_drag.types import Batch, ClientRule, Downlink, Params, Uplink


@dataclasses.dataclass(frozen=True)
class _ClientRuleBench:
    """A client rule and its test input.

    Attributes:
      rule: under test.
      downlink: what a client receives.
    """

    rule: ClientRule
    downlink: Downlink

    @functools.cached_property
    def send(self) -> Callable[[Downlink, Batch], Uplink]:
        """A local pass, compiled once."""
        return jax.jit(functools.partial(local_pass, self.rule))

    def data(self, client: int) -> Batch:
        """The mini-batches of a client, ``[U, B]``."""
        return jax.tree.map(lambda x: x[0], batches([client]))


def check_client_rule(rule: ClientRule, *, params: Params = None, shared: Any = (), own: Any = ()) -> None:
    """Checks the behaviour of a client rule that simulations and methods rely on.

    Clients with quadratic losses take a few local steps. The rule's formula is not checked, but that ``direction``
    returns a pair ``(direction, carry)`` in the structures, shapes and dtypes of the parameters and of the carry that
    ``begin`` made, that it is pure, works under ``jit``, ``scan`` and ``vmap``, and sends finite messages; that a loss
    of its own is a finite number for each example; of one that keeps its carry from round to round, that the carry
    begins with the parameters alone and stays finite.

    Args:
      rule: the rule to check.
      params: parameters to use; default a small pytree of float32 arrays.
      shared: ``Downlink.shared``, for a rule that reads it.
      own: ``Downlink.own`` of one client, for a rule that reads it.

    Raises:
      AssertionError: names every broken promise, one per line.
      ValueError: if ``rule`` is something else.
    """
    kinds.CLIENT_RULE.check("rule", rule)
    start, shared, own = (jax.tree.map(jnp.asarray, part) for part in (parameters(params), shared, own))
    check(_ClientRuleBench(rule, Downlink(start, shared, own)), _PROMISES)


def _keeps_shapes(bench: _ClientRuleBench) -> None:
    """Direction returns a pair like the parameters and the carry."""
    jax.eval_shape(functools.partial(local_pass, bench.rule), bench.downlink, bench.data(0))


def _repeats(bench: _ClientRuleBench) -> None:
    """The same input gives the same bits."""
    assert_pure(functools.partial(local_pass, bench.rule), bench.downlink, bench.data(0))


def _is_finite(bench: _ClientRuleBench) -> None:
    """What the client sends is finite."""
    assert_finite(bench.send(bench.downlink, bench.data(0)))


def _runs_for_many_clients(bench: _ClientRuleBench) -> None:
    """Vmap over clients equals one after another."""
    clients = range(3)
    alone = [bench.send(bench.downlink, bench.data(client)) for client in clients]
    own = jax.tree.map(lambda x: jnp.stack([x] * len(clients)), bench.downlink.own)
    together = jax.jit(functools.partial(cohort_pass, bench.rule))(bench.downlink._replace(own=own), batches(clients))
    assert_close(together, stacked(alone))


def _ignores_padding(bench: _ClientRuleBench) -> None:
    """Examples of a mini-batch that are padding do not count."""
    data = bench.data(0)
    real = jnp.ones(data.y.shape, bool).at[:, -1].set(False)
    shorter = jax.tree.map(lambda x: x[:, :-1], data)
    padded, short = (bench.send(bench.downlink, part) for part in (data._replace(real=real), shorter))
    assert_close(padded, short)


def _has_losses_of_examples(bench: _ClientRuleBench) -> None:
    """Loss gives a finite number for each example."""
    rule, batch = bench.rule, jax.tree.map(lambda x: x[0], bench.data(0))
    model = rule.trained(beginning(rule, bench.downlink.start))
    carry = rule.begin(bench.downlink)
    assert_losses(rule.loss(examined(model, batch, num_classes=3), carry, bench.downlink, batch), batch)


def _goes_on(bench: _ClientRuleBench) -> None:
    """A kept carry begins with the initial parameters alone and stays finite from pass to pass."""
    if not bench.rule.keeps_carry:
        return
    first = bench.rule.begin(Downlink(bench.downlink.start))
    assert_like("begin of a downlink with parameters alone returns a carry", first, bench.rule.begin(bench.downlink))
    after = jax.jit(lambda carry: passed(bench.rule, bench.downlink, bench.data(0), carry).kept.carry.rows)
    kept = after(first)
    assert_like("keep returns a carry", kept, first)
    assert_finite(after(kept), "carry")


_PROMISES = (
    _keeps_shapes,
    _repeats,
    _is_finite,
    _runs_for_many_clients,
    _ignores_padding,
    _has_losses_of_examples,
    _goes_on,
)
