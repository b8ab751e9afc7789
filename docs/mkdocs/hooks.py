"""Formulas as MathML, which browsers draw by themselves: the pages need neither a script nor the network."""

import html
import re

from latex2mathml.converter import convert

_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def on_page_content(content: str, **_) -> str:
    """Called by MkDocs with the HTML of a page's text."""

    def drawn(match: re.Match[str]) -> str:
        tag, formula = match.groups()
        markup = convert(html.unescape(formula), display="block" if tag == "div" else "inline")
        return f'<{tag} class="formula">{markup}</{tag}>'

    return _FORMULA.sub(drawn, content)
