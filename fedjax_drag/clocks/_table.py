"""Clients as fast as the devices of a table."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from fedjax_drag import checks
from fedjax_drag.clocks._clock import Clock, Work, duration


class OfDevices(Clock):
    """The clock that :func:`table` makes.

    Attributes:
      seconds_per_step: of each device, ``[R]`` float32.
      latency: of each device, ``[R]`` float32.
      bandwidth: of each device, ``[R]`` float32; None for messages that take no time.
      drawn: whether a client's device is drawn, or the devices go to the clients in turn.
    """

    seconds_per_step: jax.Array
    latency: jax.Array
    bandwidth: jax.Array | None
    drawn: bool

    def __repr__(self) -> str:
        return f"{self.name}({self.seconds_per_step.shape[0]} devices)"

    @property
    def name(self) -> str:
        return table.__name__

    def seconds(self, key: PRNGKeyArray, work: Work) -> Float[Array, " clients"]:
        number, device = self.seconds_per_step.shape[0], work.client_ids
        if self.drawn:
            draw = lambda client: jax.random.randint(jax.random.fold_in(key, client), (), 0, number)
            device = jax.vmap(draw)(work.client_ids)
        device %= number
        bandwidth = None if self.bandwidth is None else self.bandwidth[device]
        return duration(work, self.seconds_per_step[device], self.latency[device], bandwidth)


_LEAST = 1e-30  # of what is to be above 0 in float32


def table(
    file: str | None = None,
    seconds_per_step: str | Sequence[float] = "seconds_per_step",
    latency: str | float | Sequence[float] = 0.0,
    bandwidth: str | float | Sequence[float] | None = None,
    seconds: float = 1.0,
    bytes_per_second: float = 1.0,
    drawn: bool = False,
) -> Clock:
    """Gives every client the speed of a device, from a CSV file or from numbers.

    Args:
      file: path of a CSV file whose first line names the columns, such as a table of phones, relative to the working
        directory; None where all columns are given as numbers.
      seconds_per_step: name of the column with the time of a local step, or one number for each device.
      latency: name of the column with the time that an answer takes beside that, or numbers, or one for all.
      bandwidth: name of the column with the speed of messages, both ways, or numbers, or one for all; None for messages
        that take no time.
      seconds: in a unit of the times, such as 0.001 where they are in milliseconds.
      bytes_per_second: in a unit of the bandwidth, such as 125 where it is in kilobits a second.
      drawn: whether each client's device is drawn by its id; default client m has that of line ``m modulo R``.

    Returns:
      A :class:`Clock`.

    Raises:
      ValueError: if the file cannot be read, has no such column, or a number is out of range.
    """
    checks.positive("seconds", seconds)
    checks.positive("bytes_per_second", bytes_per_second)
    columns = {} if file is None else _columns(file)

    def numbers(name: str, given: Any, unit: float, low: float) -> np.ndarray:
        if isinstance(given, str):
            if given not in columns:
                allowed = f"must be a column of file={file!r}: {', '.join(columns) or 'none'}"
                raise checks.ArgumentError(name, allowed, given=given)
            given = columns[given]
        try:
            values = np.atleast_1d(np.asarray(given, np.float64)) * unit
        except (TypeError, ValueError):
            raise checks.ArgumentError(name, "must be numbers, one for each device", given=given) from None
        if values.ndim != 1 or not values.size or not (np.isfinite(values) & (values >= low)).all():
            raise checks.ArgumentError(name, f"must be finite and {'>' if low else '>='} 0 of every device")
        return values

    times = numbers("seconds_per_step", seconds_per_step, seconds, 0.0), numbers("latency", latency, seconds, 0.0)
    rates = None if bandwidth is None else numbers("bandwidth", bandwidth, bytes_per_second, _LEAST)
    lengths = {len(one) for one in (*times, *([] if rates is None else [rates]))} - {1}
    if len(lengths) > 1:
        found = " and ".join(map(str, sorted(lengths)))
        raise ValueError(f"table: has {found} devices; must be as many in each column")
    rows = max(lengths, default=1)
    like = lambda values: jnp.asarray(np.broadcast_to(values, rows), jnp.float32)
    return OfDevices(like(times[0]), like(times[1]), None if rates is None else like(rates), drawn)


def _columns(file: str) -> dict[str, list[str]]:
    """The columns of a CSV file by name."""
    try:
        with Path(file).open(newline="", encoding="utf-8-sig") as stream:
            names, *lines = csv.reader(stream)
        return {name.strip(): [line[place] for line in lines if line] for place, name in enumerate(names)}
    except (OSError, ValueError, IndexError) as error:
        allowed = f"must be a CSV file with a line of names; {checks.first_line(error)}"
        raise checks.ArgumentError("file", allowed, given=file) from None
