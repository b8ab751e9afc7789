"""Formulas as MathML, which browsers draw by themselves: the pages need neither a script nor the network."""

import html
import re
from pathlib import Path

from latex2mathml.converter import convert

_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def on_page_content(content: str, **_) -> str:
    """Called by MkDocs with the HTML of a page's text."""

    def drawn(match: re.Match[str]) -> str:
        tag, formula = match.groups()
        markup = convert(html.unescape(formula), display="block" if tag == "div" else "inline")
        return f'<{tag} class="formula">{markup}</{tag}>'

    return _FORMULA.sub(drawn, content)


def on_post_build(config, **_) -> None:
    """Called by MkDocs at the end: the links of an arena's page to files of a checkout lead to pages of the site."""
    for page in Path(config["site_dir"], "arena").glob("*.html"):
        text = page.read_text(encoding="utf-8").replace('href="../rules.md"', 'href="../rules.html"')
        source = re.compile(r'href="\.\./\.\./fedjax_drag/(aggregators|algorithms|clients)/_?(\w+)\.py"')
        page.write_text(source.sub(r'href="../api/\1.html#fedjax_drag.\1.\2"', text), encoding="utf-8")
