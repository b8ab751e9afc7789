"""Writes the address of the public repository into every file that names it.

``python scripts/set_repository.py https://github.com/OWNER/fedjax_drag`` replaces the address of ``pyproject.toml``
(``project.urls``), from which all others are told. ``--check`` refuses to release while it is the placeholder.
"""

import argparse
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PLACEHOLDER = "OWNER"
"""In the place of the owner's name before there is a public repository."""

NAME = "fedjax_drag"
"""Of the repository: links in notebooks and pages hold it."""


def address() -> str:
    """The address in ``pyproject.toml``."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Repository"]


def places() -> list[Path]:
    """The files that name the repository."""
    texts = [ROOT / name for name in ("pyproject.toml", "CITATION.cff", "README.md", "docs/install.md")]
    return [*texts, *sorted((ROOT / "notebooks").glob("*.ipynb"))]


def name_of(url: str) -> str:
    """``owner/repository`` of an address.

    Raises:
      ValueError: it is no address of a repository on GitHub.
    """
    found = re.fullmatch(rf"https://github\.com/([A-Za-z0-9]+(?:-[A-Za-z0-9]+)*/{NAME})", url)
    if found is None:
        raise ValueError(f"{url!r}: must be https://github.com/OWNER/{NAME}")
    return found[1]


def check(url: str) -> None:
    """Refuses the placeholder, and an address that is not in every place.

    Raises:
      ValueError: the address is not that of a repository, or a place has another.
    """
    remedy = "python scripts/set_repository.py ADDRESS replaces it"
    if name_of(url).startswith(f"{PLACEHOLDER}/"):
        raise ValueError(f"{url!r}: a placeholder; {remedy}")
    for path in places():
        if f"github.com/{name_of(url)}" not in path.read_text(encoding="utf-8"):
            raise ValueError(f"{path}: does not name {url}; {remedy}")


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument("url", nargs="?", help=f"https://github.com/OWNER/{NAME}")
    given.add_argument("--check", action="store_true", help="fail while the address is the placeholder")
    asked = parser.parse_args()
    try:
        if asked.check:
            check(address())
            return
        old, new = name_of(address()), name_of(asked.url)
    except ValueError as error:
        parser.error(str(error))
    for path in places():
        text = path.read_text(encoding="utf-8")
        path.write_text(
            text.replace(f"github.com/{old}", f"github.com/{new}").replace(f"/github/{old}/", f"/github/{new}/"),
            encoding="utf-8",
        )


if __name__ == "__main__":
    main()
