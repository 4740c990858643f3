"""Where the site that the user named explains a rule or a failure."""

from __future__ import annotations

import os
import re
from urllib.parse import quote

ERRORS = "errors.html"
"""The site's page with an anchor for each, by its name."""


FAULTS = "faults.html"
"""The site's page of known faults, likewise."""


def page_of(name: str, page: str = ERRORS) -> str:
    """Empty if the user named no site."""
    site = os.environ.get("QNN_CI_SITE", "").rstrip("/")
    known = re.fullmatch(r"https?://[^\s<>\"'()\[\]]+", site) is not None
    return f"{site}/{page}#{quote(name)}" if known else ""
