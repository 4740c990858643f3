"""Hexagon libraries: who signed them, whether that holds, and signing them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from provisioning.base.findings import Finding


def require_signed(paths: Iterable[Path]) -> list[Finding]:
    """One error for each file that is no signed Hexagon library or whose hashes do not fit it.

    For stages that ship libraries to LPAI. A development signature is a warning: retail devices refuse it.
    Whose signature it is needs a root certificate: `python -m ci signing verify --root`.
    """
    from ci.signing.verification import signed_findings

    return signed_findings(paths)
