"""The process that measures: it alone has the device, and it may die without taking the record with it."""

import contextlib
import gc
import multiprocessing
import time
from typing import Any

import jax
import psutil

from benchmarks.accelerator.part import Outcome, reason

_START_SECONDS, _END_SECONDS = 120, 10


class TimeUpError(Exception):
    """A case took too long, and its process was ended."""


class Worker:
    """A process that measures one case after another, started when it is first needed.

    Args:
      sizes: name of the size of the cases.
    """

    def __init__(self, sizes: str = ""):
        self.sizes, self._process, self._pipe = sizes, None, None

    def measure(self, part: str, case: str, seconds: float) -> Outcome:
        """What comes of one case; the process ends with a case that fails, which may have left it in any state.

        Raises:
          TimeUpError: it took longer than ``seconds``.
        """
        if self._process is None:
            self._start()
        assert self._process is not None
        assert self._pipe is not None
        try:
            self._pipe.send((part, case, self.sizes))
            if not self._pipe.poll(seconds):
                self.close(busy=True)
                raise TimeUpError(f"took more than {seconds:.0f} s")
            outcome = self._pipe.recv()
        except (EOFError, ConnectionError):
            self._process.join()
            outcome = {"failed": f"the process ended with status {self._process.exitcode}"}
        if "failed" in outcome:
            self.close()
        return outcome

    def machine(self) -> dict[str, Any]:
        """What the process computes on."""
        return self.measure("", "", _START_SECONDS)

    def close(self, busy: bool = False) -> None:
        """Ends the process and those that it has started, at once where it is ``busy`` with a case."""
        if self._process is None:
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self._process.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
        assert self._pipe is not None
        self._pipe.close()  # on which a process that waits for a case ends by itself
        if not busy:
            self._process.join(_END_SECONDS)
        self._process.kill()
        self._process.join()
        self._process = self._pipe = None

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs,))
        self._process.start()
        theirs.close()


def serve(pipe: Any) -> None:
    """The process: measures every case that it is asked for, until nobody asks any more."""
    _have_cpu_too()
    before = ""
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            part, case, sizes = pipe.recv()
            if before and part != before:  # what the part before has compiled is not needed any more
                jax.clear_caches()
                gc.collect()
            before = part
            pipe.send(outcome_of(part, case, sizes) if part else machine())


def machine() -> dict[str, Any]:
    """What this process computes on."""
    device = jax.devices()[0]
    return {"platform": device.platform, "device": device.device_kind, "jax": jax.__version__}


def outcome_of(part: str, case: str, sizes: str) -> Outcome:
    """Measures a case in this process."""
    from benchmarks.accelerator.parts import PARTS
    from benchmarks.accelerator.sizes import SIZES

    started = time.perf_counter()
    (chosen,) = (one for one in PARTS if one.name == part)
    try:
        found: Outcome = {"rows": chosen.cases(SIZES[sizes])[case]()}
    except Exception as error:
        found = {"failed": reason(error)}
    return found | {"seconds": round(time.perf_counter() - started, 2)}


def _have_cpu_too() -> None:
    """Makes the CPU available beside the device, as two devices, so that both can be compared."""
    platforms = jax.config.values["jax_platforms"]
    if platforms and "cpu" not in platforms.split(","):
        jax.config.update("jax_platforms", f"{platforms},cpu")
    if jax.config.values["jax_num_cpu_devices"] <= 0:
        jax.config.update("jax_num_cpu_devices", 2)
