"""What runs and sweeps would need on an accelerator that is not there: plans, and plans as text or plain values."""

from fedjax_drag.experiment.plan.runs import plan_runs
from fedjax_drag.experiment.plan.sweeps import plan_sweep
from fedjax_drag.experiment.plan.text import as_mapping, as_text

__all__ = ["as_mapping", "as_text", "plan_runs", "plan_sweep"]
