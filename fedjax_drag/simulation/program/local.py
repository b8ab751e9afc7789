"""One client's work in a round: the mini-batches it draws, a gradient step on each, the message that it sends."""

import contextlib
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from fedjax_drag import per_client, tree
from fedjax_drag.compression import _channel as channel
from fedjax_drag.data.batching import draw_epochs, draw_positions, whole_batches
from fedjax_drag.simulation.devices.model_sharding import divided_like_params
from fedjax_drag.simulation.model.model import NO_STATISTICS, NO_STREAMS, Statistics, Streams
from fedjax_drag.simulation.program.examples import Drawn, class_counts, fetch, loss_moments
from fedjax_drag.simulation.program.malicious import HONEST, Misled, misled
from fedjax_drag.simulation.run import (
    FULL,
    NOTHING_KEPT,
    PRECISIONS,
    ClientInput,
    ClientRows,
    LocalResult,
    RoundInput,
    Run,
)
from fedjax_drag.types import Attack, Batch, ClientRule, Downlink, Params, Uplink
from fedjax_drag.types._messages import client_params, shared_params
from fedjax_drag.types._part import value_of

LossFn = Callable[..., tuple[jax.Array, Statistics]]
"""``(params, statistics, batch, rngs) -> (loss, statistics)``: the mean loss of the batch's real examples in training,
and the statistics of the model after it. Of a client rule that has a loss it receives that too, as a function of
:class:`~fedjax_drag.types.Examined`."""

LOCAL_STEPS = "local_steps"
"""In a compiled program, the name of the loop over local steps where clients take different numbers of them."""


class PassInput(NamedTuple):
    """What a local pass is given beside the server's message and the examples.

    Attributes:
      statistics: of the model, at the start.
      rngs: keys ``[U]`` by stream of the model, one for each step.
      kept: from which the carry of the client and the state of the optimizer go on; what it lacks begins afresh.
      keys: of the client rule's own draws ``[U]``, one for each step; None where it has none.
      own: what the client has for itself; ``()`` for nothing.
      misled: what an attack changes in the steps; default nothing.
    """

    statistics: Statistics = NO_STATISTICS
    rngs: Streams = NO_STREAMS
    kept: ClientRows = NOTHING_KEPT
    keys: PRNGKeyArray | None = None
    own: Any = ()
    misled: Misled = HONEST


class Position(NamedTuple):
    """Where a local pass is.

    Attributes:
      params: of the client, with what it has for itself if there is anything.
      statistics: of its model.
      carry: what the client rule carries from step to step.
      optimizer: state of the local optimizer; ``()`` without one.
    """

    params: Params
    statistics: Statistics
    carry: Any
    optimizer: Any


StepInput = tuple[Any, Streams, PRNGKeyArray | None]
"""Of one step its mini-batch as it was drawn, the model's keys, and the client rule's key."""

Step = Callable[..., tuple[Position, jax.Array]]
"""``(position, input, real, stored=False) -> (position, loss)``; ``real`` says which examples count, None that all do,
and ``stored`` whether a GPU writes the direction to memory before it is followed."""


_PLAIN = PassInput()
_FEW_STEPS = 8  # up to so many, the first is worth being compiled twice


def local_pass(
    client: ClientRule,
    loss_fn: LossFn,
    downlink: Downlink,
    fetch: Callable[[Any], Batch],
    drawn: Any,
    step_size: Any,
    *,
    given: PassInput = _PLAIN,
    real: Bool[Array, "steps batch"] | None = None,
    num_steps: Int[Array, ""] | None = None,
    optimizer: optax.GradientTransformation | None = None,
    at_once: bool = False,
) -> LocalResult:
    """Runs ``w -= step_size * direction`` once for every mini-batch.

    Args:
      client: what the client computes.
      loss_fn: see :data:`LossFn`.
      downlink: what the server sent to this client.
      fetch: from a mini-batch as it was drawn to the examples of this client.
      drawn: the mini-batches of the pass, such as
        :class:`~fedjax_drag.simulation.program.examples.Drawn`; a pytree with a leading axis ``[U]``.
      step_size: eta > 0.
      given: see :class:`PassInput`; default for a model without statistics and random streams, and nothing kept.
      real: ``[U, B]`` bool, which of the examples count; default all. The pass ends before the first batch with none.
      num_steps: after which it ends too, where that is before U; default U.
      optimizer: turns a direction into the one that is followed. Default the direction itself.
      at_once: whether ``vmap`` repeats the pass for several clients.
    """

    def step(
        position: Position, one: StepInput, counts: Bool[Array, " batch"] | None, stored: bool = False
    ) -> tuple[Position, jax.Array]:
        w, statistics, carry, optimizer_state = position
        drawn, rngs, key = one
        batch = fetch(drawn)
        if counts is not None:
            batch = batch._replace(real=counts)

        # Further gradients of the step see the same statistics and random numbers, as those of one sample should.
        def loss_on(at: Params, on: Batch) -> tuple[jax.Array, Statistics]:
            model = client.trained(at)
            own = lambda examined: client.loss(examined, carry, downlink, on)
            if (forged := given.misled.loss) is not None:
                return loss_fn(model, statistics, on, rngs, lambda seen: forged(own(seen), seen, on, drawn))
            if client.has_loss:
                return loss_fn(model, statistics, on, rngs, own)
            return loss_fn(model, statistics, on, rngs)

        (loss, after), gradient = jax.value_and_grad(loss_on, has_aux=True)(w, batch)
        # No second forward pass for the usual call.
        of_loss = lambda at, on: gradient if at is w and on is batch else jax.grad(loss_on, has_aux=True)(at, on)[0]
        followed = given.misled.gradient
        grad_fn = of_loss if followed is None else lambda at, on: followed(of_loss(at, on), at, start.params, drawn)
        keyed: dict[str, Any] = {} if key is None else {"key": key}
        direction, carry = _stepped(client.direction(grad_fn, w, carry, downlink, batch, **keyed), w, carry)
        if optimizer is not None:
            direction = jax.tree.map(lambda d, p: d.astype(p.dtype), direction, w)
            direction, optimizer_state = optimizer.update(direction, optimizer_state, w)
        if stored:
            barrier = jax.lax.optimization_barrier
            direction = jax.lax.platform_dependent(direction, cuda=barrier, rocm=barrier, default=lambda d: d)
        w = jax.tree.map(lambda p, d: (p - step_size * d).astype(p.dtype), w, direction)
        return Position(w, after, carry, optimizer_state), loss

    taken: Any = jax.tree.leaves(drawn)[0].shape[0] if real is None else real.any(1).sum()
    taken = taken if num_steps is None else jnp.minimum(taken, num_steps)
    downlink = downlink._replace(num_steps=taken)
    start, each = _start(client, downlink, optimizer, given), (drawn, given.rngs, given.keys)
    if real is None and num_steps is None:
        all_steps = functools.partial(_in_one_loop, step)
        if at_once and taken <= _FEW_STEPS:  # on accelerators the first is apart from the loop
            first_apart = functools.partial(_first_apart, step)
            all_steps = functools.partial(jax.lax.platform_dependent, cpu=all_steps, default=first_apart)
        end, losses = all_steps(start, each)
        loss = losses.mean()
    else:
        end, loss = _own_steps(step, start, each, real, taken)
    total_step_size = taken * jnp.asarray(step_size)
    aux = client.report(downlink, end.params, end.carry, total_step_size)
    kept = _kept_after(given.kept, end._replace(carry=client.carried(end.params, end.carry)))
    if per_client.is_per_client(kept.own):
        own = client.keep(downlink, end.params, end.carry, total_step_size)
        kept = kept._replace(own=per_client.kept_like(kept.own, own))
    before = client.origin(downlink)
    if at_once:
        # Behind a barrier, what all clients share is not the copy for each of them that a loop begins with.
        before = jax.lax.platform_dependent(before, cpu=lambda w: w, default=jax.lax.optimization_barrier)
    uplink = Uplink(tree.subtract(shared_params(end.params), before), aux)
    return LocalResult(uplink, loss, jnp.asarray(taken, jnp.int32), end.statistics, kept)


def _own_steps(
    step: Step, start: Position, each: Any, real: Bool[Array, "steps batch"] | None, taken: Int[Array, ""]
) -> tuple[Position, Float[Array, ""]]:
    """The first ``taken`` steps and their mean loss: of clients that run at once, those that are done wait."""

    def own_step(index: jax.Array, carry: tuple[Position, jax.Array]) -> tuple[Position, jax.Array]:
        position, total = carry
        position, loss = step(position, *jax.tree.map(lambda x: x[index], (each, real)))
        return position, total + loss.astype(total.dtype)

    with jax.named_scope(LOCAL_STEPS):
        end, total = jax.lax.fori_loop(0, taken, own_step, (start, jnp.zeros(())))
    return end, total / taken


def _in_one_loop(step: Step, start: Position, each: Any) -> tuple[Position, Float[Array, " steps"]]:
    """The steps of a pass, given the entries ``[U]`` of each."""
    return jax.lax.scan(lambda position, one: step(position, one, None), start, each)


def _first_apart(step: Step, start: Position, each: Any) -> tuple[Position, Float[Array, " steps"]]:
    """The same; the first step is not part of the loop.

    All clients start from the same parameters. A loop over a batch of clients must begin with a copy for each of them;
    a first step outside reads the parameters themselves. On a GPU its gradient is stored before the step: fused into
    the product that computes the gradient, the step would read a copy of the parameters for each client.
    """
    position, loss = step(start, jax.tree.map(lambda x: x[0], each), None, stored=True)
    rest = jax.tree.map(lambda x: x[1:], each)
    end, losses = _in_one_loop(step, position, rest)
    return end, jnp.concatenate([loss[None], losses])


def _start(
    client: ClientRule, downlink: Downlink, optimizer: optax.GradientTransformation | None, given: PassInput
) -> Position:
    """Where a local pass starts."""
    kept, w = given.kept, client_params(downlink.start, given.own)
    carry = per_client.rows_or(kept.carry, lambda: client.begin(downlink))
    optimizer_state = per_client.rows_or(kept.optimizer, lambda: () if optimizer is None else optimizer.init(w))
    return Position(w, given.statistics, carry, optimizer_state)


def _kept_after(kept: ClientRows, end: Position) -> ClientRows:
    """What a client keeps at the end of a local pass, in the form of ``kept``."""
    names = ("carry", "optimizer", "statistics")
    return kept._replace(**{name: per_client.kept_like(getattr(kept, name), getattr(end, name)) for name in names})


def _stepped(returned: Any, w: Params, carry: Any) -> tuple[Params, Any]:
    """What ``direction`` has returned, checked while it is traced.

    Raises:
      ValueError: one line that says what it must return instead.
    """
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        kind = type(returned).__name__
        raise ValueError(f"direction: returns a {kind}; must return (direction, carry), () for no carry")
    direction, after = returned
    tree.check_like("direction", direction, "the parameters", w)
    if any(map(jnp.iscomplexobj, jax.tree.leaves(direction))) and not any(map(jnp.iscomplexobj, jax.tree.leaves(w))):
        raise ValueError("direction: is complex; must be real, as the parameters are")
    tree.check_like("carry after a step", after, "the carry before", carry)
    tree.check_types("carry after a step", after, carry)
    return direction, after


def client_pass(run: Run, client: ClientRule, shared: RoundInput, own: ClientInput) -> LocalResult:
    """One client's work in a round: the keys, the mini-batches, the local pass.

    Args:
      run: of which the model and what concerns local passes is read, and the attack, which changes what malicious
        clients train on (``poison``), minimise (``loss``) and follow (``gradient``).
      client: what the client computes.
      shared: what is the same for all clients.
      own: what it receives for itself.
    """
    shared = shared.seen_by(own)
    key_of = functools.partial(shared.key_of, client_id=own.client_id)
    longest = jax.tree.leaves(own.examples)[0].shape[0]
    places, real = draw_batches(run, key_of("batches"), own.num_examples, longest)
    if run.deadline is not None:
        places, real = jax.tree.map(lambda x: x[: run.deadline], (places, real))
    keys = None if run.augmentation is None else jax.random.split(key_of("augmentation"), len(places))
    steps = jnp.arange(len(places))
    each_step = lambda name: jax.vmap(jax.random.fold_in, (None, 0))(key_of(name), steps)
    rngs = {name: each_step(f"model.{name}") for name in run.model.streams}
    own_keys = each_step("client rule") if client.keyed else None
    statistics = per_client.rows_or(own.kept.statistics, lambda: shared.model.statistics)
    training_loss = functools.partial(run.model.training_loss, shared.model)
    if client.has_loss:
        training_loss = functools.partial(training_loss, class_counts=class_counts(run, shared, own))
    start, layers = shared.downlink.start, run.model.personal_layers(shared.downlink.start, shared.model)
    own_params = per_client.rows_or(own.kept.own, lambda: client.own(start, layers))  # or what every client begins with
    precision, downlink = run.matmul_precision, shared.downlink._replace(own=own.downlink)
    divided = functools.partial(divided_like_params, mesh=run.mesh, specs=run.specs)

    def loss_fn(params: Params, *others: Any) -> tuple[jax.Array, Statistics]:  # its gradient is divided too
        return training_loss(divided(params), *others)

    with contextlib.nullcontext() if precision == PRECISIONS[0] else jax.default_matmul_precision(precision):
        local = local_pass(
            client,
            loss_fn,
            client.receive(divided(downlink), lambda params: loss_moments(run, shared, own, params)[0]),
            fetch=functools.partial(fetch, run, shared, own),
            drawn=Drawn(places, keys, steps if run.attack and "local_step" in run.attack.needs else None),
            step_size=step_size_of(run, shared.round) if own.step_size is None else own.step_size,
            given=PassInput(statistics, rngs, own.kept, own_keys, own_params, misled(run, shared, own)),
            real=real,
            num_steps=own.num_steps,
            optimizer=run.local_optimizer and value_of(run.local_optimizer),
            at_once=run.batching.is_batched,
        )
    return divided(local)


def step_size_of(run: Run, round_index: Int[Array, ""]) -> Any:
    """The step size of a round."""
    return run.step_size(round_index) if callable(run.step_size) else run.step_size


def sent_pass(run: Run, shared: RoundInput, own: ClientInput) -> LocalResult:
    """The same work of a client of the method, with the message as the server receives it.

    An attacker sends what it has computed, without the noise that the client rule adds. What is compressed is what
    leaves the client, its noise included: a function of it reveals no more.
    """
    local = sent(run.algorithm.client, run.attack, shared, own, client_pass(run, run.algorithm.client, shared, own))
    compressor, kept = run.compression, own.kept.compression
    if compressor is None:
        return local
    memory = per_client.rows_or(kept, lambda: channel.uplink_memory(compressor, local.uplink))
    uplink, memory = channel.send(compressor, local.uplink, memory, shared.key_of("compression", own.client_id))
    after = local.kept._replace(compression=per_client.kept_like(kept, memory))
    return local._replace(uplink=uplink, kept=after)


def sent(
    client: ClientRule, attack: Attack | None, shared: RoundInput, own: ClientInput, local: LocalResult
) -> LocalResult:
    """The result with the message that leaves the client."""
    if not client.sends:
        return local
    uplink = client.send(shared.key_of("send", own.client_id), local.uplink)
    tree.check_returned("send of the client rule:", uplink, local.uplink)
    if attack is not None:
        uplink = tree.where(attack.attackers(own.malicious, shared.round), local.uplink, uplink)
    return local._replace(uplink=uplink)


def draw_batches(
    run: Run, key: PRNGKeyArray, num_examples: Int[Array, ""], longest: int
) -> tuple[Int[Array, "steps batch"], Bool[Array, "steps batch"] | None]:
    """Draws the mini-batches of a local pass.

    Args:
      run: says how many, and how large.
      key: of the draw.
      num_examples: how many entries of the client's list are real.
      longest: entries of the list, padding included.

    Returns:
      Places in the list ``[U, B]``, and which of them are real ``[U, B]``, or None if all are.
    """
    if run.local_steps is None:
        assert run.local_epochs is not None
        orders = key if run.epochs_shuffled else None
        return draw_epochs(orders, num_examples, run.local_epochs, run.batch_length(longest), longest)
    if run.batch_size == FULL:
        return whole_batches(num_examples, run.local_steps, longest)
    return draw_positions(key, num_examples, run.local_steps, run.batch_length(longest)), None
