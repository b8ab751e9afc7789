"""What configurations are called where people read them."""

from collections.abc import Sequence

from fedjax_drag.experiment.config.config import Config


def shared(configs: Sequence[Config]) -> str:
    """What all configurations have in common: partition, M, S, U, B and attack; what differs is left out."""

    def common(describe) -> str:
        told = {describe(config) for config in configs}
        return told.pop() if len(told) == 1 else ""

    parts = (
        common(_clients),
        common(_partition),
        common(lambda c: f"{c.cohort_size} per round, {_pass(c)}, {_batch(c)}"),
        common(_attack),
    )
    return "   \N{MIDDLE DOT}   ".join(part for part in parts if part)


def method(config: Config) -> str:
    """What trained: the algorithm, or the rule that it merely lifts."""
    return config.aggregator.name if config.algorithm.name == "from_aggregator" else config.algorithm.name


def _pass(config: Config) -> str:
    return f"{config.local_epochs:g} local epochs" if config.local_epochs else f"{config.local_steps} local steps"


def _batch(config: Config) -> str:
    return "full batches" if config.batch_size == "full" else f"batch {config.batch_size}"


def _clients(config: Config) -> str:
    number = config.partition.arguments.get("num_clients")
    return f"{number} clients" if number else ""  # the data may decide how many there are


def _partition(config: Config) -> str:
    arguments = config.partition.arguments
    match config.partition.name:
        case "dirichlet":
            return f"{'balanced ' * bool(arguments.get('balanced'))}Dirichlet({arguments.get('beta')}) split"
        case "label_affinity":
            return f"label affinity {arguments.get('q')}"
        case "iid":
            return "IID split"
    return f"{config.partition.name} split"


def _attack(config: Config) -> str:
    if config.attack is None or not (config.byzantine_fraction or config.num_byzantine):
        return ""
    share = f"{config.byzantine_fraction:.0%}" if config.num_byzantine is None else config.num_byzantine
    return f"{share} malicious clients ({config.attack.name.replace('_', ' ')})"


def clean(text: str, length: int) -> str:
    """One printable line of bounded length: labels and names may come from anywhere."""
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return text if len(text) <= length else text[: length - 1] + "\N{HORIZONTAL ELLIPSIS}"
