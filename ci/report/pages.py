"""HTML pages of jinja2 templates. What a template shows is always text: it cannot become markup, nor hide.

A page is one file: style and script are in it, and its policy lets nothing else load or run.
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from provisioning.base.foreign import one_line, visible
from provisioning.base.rendering.text import plural
from provisioning.base.rules import page_of
from provisioning.base.units import size

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

TEMPLATES = Path(__file__).with_name("templates")


def render(template: str, style: str, script: str, **values: Any) -> str:
    """The page of a template, which extends page.html.j2; its style and its script are files beside it."""
    assets = {
        kind: (TEMPLATES / name).read_text(encoding="utf-8")
        for kind, name in (("style", style), ("script", script))
    }
    return _environment().get_template(template).render(**assets, **values)


@cache
def _environment() -> Environment:
    # Late, because it takes 0.1 s, which a stage that writes no page should not wait for.
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    filters = (one_line, plural, size, breakable, digest, page_of)
    environment.filters |= {function.__name__: function for function in filters}
    return environment


def _shown(value: object) -> object:
    """Markup is of a macro or of our own files, and holds what went through here already."""
    return visible(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def breakable(text: str, after: str) -> Markup:
    """A name in which a line may break only after these characters."""
    from markupsafe import Markup

    return Markup("<wbr>").join(re.split(rf"(?<=[{after}])(?=\w)", one_line(text)))


def digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
