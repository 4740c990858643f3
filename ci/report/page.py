"""One self-contained HTML page.

It is a tree of elements, so no text of a report can become markup. Style and script are inlined, and the
page's policy allows nothing else to load or run.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from xml.etree.ElementTree import Element, tostring

from ci.report.elements import element


def page_of(title: str, main: Element, *, script: str = "") -> str:
    style = asset("page.css")
    policy = f"default-src 'none'; style-src '{_digest(style)}'"
    if script:
        policy += f"; script-src '{_digest(script)}'"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        element("style", style),
    )
    body = element("body", main, *([element("script", script)] if script else []))
    page = element("html", head, body, lang="en")
    return "<!DOCTYPE html>\n" + tostring(page, encoding="unicode", method="html") + "\n"


def asset(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
