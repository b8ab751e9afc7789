"""Checks that a selection goes with a run, on shapes alone."""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_drag import checks, per_client, tree
from fedjax_drag.selection import Candidates, Observed, StartLoss
from fedjax_drag.selection._selection import KNOWLEDGE
from fedjax_drag.simulation.program import programs
from fedjax_drag.simulation.run import Run


def check_selection(run: Run) -> None:
    """Refuses a selection that does not go with the method, or returns what is no cohort.

    Raises:
      ValueError: one line that says what is allowed.
    """
    selection, name, size = run.selection, f"selection={run.selection.name}", (run.cohort_size,)
    for need in sorted(selection.needs):
        checks.one_of(f"{name}: needs", need, KNOWLEDGE)
    if selection.max_staleness is not None and "exchange" in run.algorithm.needs:
        raise ValueError(f"{name}: must be one whose clients start in the round, as {run.algorithm.name} has no server")
    federation, ids = jax.ShapeDtypeStruct((run.num_clients,), jnp.int32), jax.ShapeDtypeStruct(size, jnp.int32)

    def play(examples: jax.Array) -> tuple[Any, Any, Any]:
        known = lambda need, value: value if need in selection.needs else None
        losses = known("candidate_losses", lambda client_ids, batch_size=None: jnp.zeros(client_ids.shape))
        seconds = None if run.clock is None else (lambda client_ids: jnp.zeros(client_ids.shape))
        candidates = Candidates(examples, jnp.ones(examples.shape, bool), jnp.int32(0), losses, seconds)
        before = selection.init(run.num_clients)
        found = selection.select(jax.random.key(0), before, candidates, run.cohort_size)
        here, loss = jnp.ones(size, bool), jnp.zeros(size)
        seen = Observed(found.client_ids, here, here, jnp.zeros(size, jnp.int32), jnp.int32(0))
        seen = seen._replace(
            start_loss=known("start_loss", StartLoss(loss, loss)), train_loss=known("train_loss", loss)
        )
        return found, before, selection.observe(before if found.memory is None else found.memory, seen)

    with checks.explained(name, "name in needs what it asks, and return a fedjax_drag.selection.Selected"):
        found, before, after = jax.eval_shape(play, federation)
    if difference := tree.mismatch(found.client_ids, ids):
        raise ValueError(f"{name}: select returns client_ids {difference}")
    tree.check_returned(f"{name}: observe", after, before)
    if "selection_weight" in run.algorithm.needs and found.weight is None:
        allowed = "must be one whose weights are known, such as uniform or weighted"
        raise ValueError(f"{name}: {run.algorithm.name} needs weights that make a sum unbiased; {allowed}")
    if selection.needs and run.algorithm.guarantee is not None:
        allowed = "must ask nothing of them under differential privacy, as weighted"
        raise ValueError(f"{name}: asks clients for their losses, which they would send without noise; {allowed}")
    rows = lambda: per_client.found_in(jax.eval_shape(programs.start, run, jax.random.key(0)))
    if selection.repeats and ("client_ids" in run.algorithm.needs or rows()):
        allowed = "must draw without replacement"
        raise ValueError(f"{name}: a client can be in a cohort twice, and the run keeps something of each; {allowed}")
