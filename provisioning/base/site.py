"""Where the site that the user named explains a rule or a failure."""

from __future__ import annotations

import os
import re
from urllib.parse import quote

RULES = "rules.html"
"""The site's page with an anchor for each rule of a finding, by its name."""
ERRORS = "errors.html"
"""The page of failures that `diagnose` knows, likewise."""
FAULTS = "findings.html"
"""The page of known faults, likewise."""


def page_of(name: str, page: str = RULES) -> str:
    """Empty if the user named no site."""
    site = os.environ.get("QNN_CI_SITE", "").rstrip("/")
    known = re.fullmatch(r"https?://[^\s<>\"'()\[\]]+", site) is not None
    return f"{site}/{page}#{quote(name)}" if known else ""
