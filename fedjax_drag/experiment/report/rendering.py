"""From a template and its content to one HTML file that needs nothing else."""

import base64
import hashlib
import urllib.parse
from pathlib import Path
from typing import Any

from fedjax_drag.experiment.figures.labels import clean

_SUFFIXES = (".html", ".htm")
_SOURCES = Path(__file__).parent / "page"


def render(template: str, content: dict[str, Any], library: str = "") -> str:
    """The page, its scripts allowed by their hashes alone and all other sources forbidden.

    Args:
      template: a file in ``page/``, which extends ``base.html``.
      content: all that the template asks for.
      library: the text of plotly.js; empty for a page without interactive charts.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # here: only a report needs them
    from markupsafe import Markup

    templates = Environment(
        loader=FileSystemLoader(_SOURCES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    script, style = (_SOURCES.joinpath(name).read_text(encoding="utf-8") for name in ("page.js", "page.css"))
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()) for text in (library, script) if text]
    hashes = " ".join(f"'sha256-{digest.decode()}'" for digest in digests)
    parts = {"library": library, "script": script, "style": style, "hashes": hashes}
    templates.globals |= {"clean": clean, "quote": urllib.parse.quote}
    templates.globals |= {name: Markup(text) for name, text in parts.items()}
    return templates.get_template(template).render(content).encode("utf-8", "replace").decode("utf-8")


def plotly_js() -> str:
    """The library that draws interactive charts, of the package plotly; empty where that is not installed."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        return ""
    return get_plotlyjs()


def check_place(name: str, path: Path) -> None:
    """Refuses an argument ``name`` that is a folder or the file of something else than a page."""
    if path.is_dir():
        raise ValueError(f"{name}={str(path)!r}: must be a file, and this is a folder")
    if path.suffix.lower() not in _SUFFIXES:
        raise ValueError(f"{name}={str(path)!r}: must end in {' or '.join(_SUFFIXES)}, as a page does")
