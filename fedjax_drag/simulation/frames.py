"""Histories as tables of pandas, which is imported when one is asked for."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedjax_drag import checks


def frame(columns: Mapping[str, Any]) -> Any:
    """A ``pandas.DataFrame`` of columns.

    Raises:
      ImportError: pandas is not installed.
    """
    try:
        import pandas  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ImportError("to_pandas needs pandas; pip install pandas") from None
    return pandas.DataFrame(dict(columns))


def of_history(history: Mapping[str, np.ndarray], each: str | None = None) -> Any:
    """A history as :meth:`fedjax_drag.simulation.Result.to_pandas` gives it."""
    rounds = history.get("round", np.zeros(0, np.int64))
    if each is None:
        single = {name: x for name, x in history.items() if np.ndim(x) == 1}
        return frame({"round": rounds, **single}).set_index("round")
    checks.one_of("each", each, [name for name, x in history.items() if np.ndim(x) == 2])
    values, kind = history[each], each.partition("_")[0]
    members = np.broadcast_to(np.arange(values.shape[1]), values.shape)
    cohort = history.get("client_ids", members)
    if kind not in ("client", "class", "own") and cohort.shape == values.shape:
        members = cohort  # the others have an entry for each client of the federation
    columns = {"round": np.repeat(rounds, values.shape[1]), "class" if kind == "class" else "client": members.ravel()}
    return frame({**columns, each: values.ravel()}).set_index("round")
