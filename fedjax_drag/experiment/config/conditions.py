"""Which keys of a configuration say what a method has to cope with, and which are choices of whoever trains."""

CONDITIONS = frozenset(
    {
        "data",
        "partition",
        "attack",
        "byzantine_fraction",
        "num_byzantine",
        "byzantine_of",
        "forged_messages",
        "root_size",
        "root_bias",
        "root_source",
        "availability",
        "dropout_rate",
        "steps_drawn",
    }
)
"""The data and how they are split, who attacks and how, what the server holds, who answers. Worst cases are over these;
the best setting is over all other keys (the seed is neither), such as rule, method, step size and local work."""


def is_condition(axis: str) -> bool:
    """Whether a key, dotted perhaps, is one of :data:`CONDITIONS` or inside one."""
    return axis.partition(".")[0] in CONDITIONS
