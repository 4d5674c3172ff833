"""The playground: one page that asks the API of the server it came from."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

_HERE = Path(__file__).parent
_SCRIPTS = ("tokens.js", "speed.js", "talk.js", "page.js", "settings.js")


def load_page() -> tuple[bytes, dict[str, str]]:
    """The page in UTF-8 and the headers to serve it with.

    Style and scripts are put into the page, so that it is one request; the policy in the headers lets exactly
    these run, by their SHA-256, and lets them ask nobody but the server.
    """
    style = (_HERE / "style.css").read_text(encoding="utf-8")
    script = '"use strict";\n' + "\n".join((_HERE / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    html = (_HERE / "index.html").read_text(encoding="utf-8")
    page = html.replace("<!--style-->", style).replace("<!--script-->", script)
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    headers = {
        "Content-Type": "text/html; charset=utf-8",
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }
    return page.encode("utf-8"), headers


def _hash(source: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode('utf-8')).digest()).decode()}'"
