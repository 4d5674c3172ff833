"""For mkdocs: roles such as :func:`name`, which docstrings use, are shown as plain code."""

import re


def on_page_content(html: str, **_: object) -> str:
    """Called by mkdocs with each page's HTML."""
    return re.sub(r":(?:func|meth|class|mod|attr):(<code>)~?", r"\1", html)
