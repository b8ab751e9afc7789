"""The configurations that come with the package, by name: ``quickstart``, ``paper/drag000_fig3_emnist``.

They are in the folder ``configs`` of an installed package, and of a checkout.
"""

import os
from difflib import get_close_matches
from pathlib import Path

_PACKAGE = Path(__file__).parents[2]


def paths() -> dict[str, Path]:
    """The file of each configuration, by name, in alphabetical order; those of folders come last."""
    folder = next((path for path in (_PACKAGE / "configs", _PACKAGE.parent / "configs") if path.is_dir()), _PACKAGE)
    named = {path.relative_to(folder).with_suffix("").as_posix(): path for path in folder.rglob("*.yaml")}
    return {name: named[name] for name in sorted(named, key=lambda name: ("/" in name, name))}


def find(source: str | os.PathLike[str]) -> Path:
    """The file that is meant by a path, or by the name of a configuration of the package.

    Args:
      source: the path of a file, which wins, or a name; ``configs/`` before it and ``.yaml`` after it may be there.

    Raises:
      FileNotFoundError: there is neither; one line with the names that are close.
    """
    path, known = Path(source), paths()
    name = path.as_posix().removeprefix("configs/").removesuffix(".yaml")
    try:
        if path.is_file() or (path.exists() and name not in known):
            return path
    except (OSError, ValueError) as error:  # too long a name, a null byte
        raise FileNotFoundError(f"configuration {str(source)!r}: {error}") from None
    if name in known:
        return known[name]
    whole = {part: known_name for known_name in known for part in (known_name.rpartition("/")[2], known_name)}
    close = dict.fromkeys(whole[match] for match in get_close_matches(name, whole, n=4))
    hint = f"did you mean {' or '.join(map(repr, close))}?" if close else "'fedjax-drag configs' lists them"
    raise FileNotFoundError(f"configuration {str(source)!r}: no such file, and none of the package; {hint}")


def about(path: Path) -> str:
    """What a configuration is, in one line: the first sentence of its header."""
    header = []
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if not line.startswith("# "):
                break
            header.append(line[2:].strip())
    return " ".join(header)


def command(path: Path) -> str:
    """The command that takes a configuration: ``run``, ``sweep`` or ``arena run``."""
    keys = {line.partition(":")[0] for line in path.read_text(encoding="utf-8").splitlines()}
    return "sweep" if "axes" in keys else "arena run" if "base" in keys else "run"
