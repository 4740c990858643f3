"""The signatures of a bundle's libraries: the findings of `signing verify`."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from provisioning.base.commands import captured
from provisioning.base.errors import EnvironmentLacking
from provisioning.base.findings import Finding, Report
from provisioning.base.settings import ROOT

SECONDS = 300


def signature_findings(libraries: Sequence[Path], root: Path | None) -> tuple[Finding, ...]:
    """An error for what is not signed or does not fit its hashes, or does not end in `root`.

    Where no root is named, a warning says that somebody unknown signed.
    """
    command = [sys.executable, "-m", "ci", "signing", "verify", "--allow-unchecked", "signature"]
    command += ["--root", str(root.absolute())] if root else ["--allow-unchecked", "root"]
    with tempfile.TemporaryDirectory(prefix="qnn-ci-") as reports:
        command += ["--reports", reports, *(str(path.absolute()) for path in libraries)]
        done = captured(command, cwd=ROOT, timeout=SECONDS)
        try:
            return Report.read(Path(reports) / "signing_verify.json").findings
        except (OSError, ValueError) as error:
            raise EnvironmentLacking(
                f"signatures could not be verified: {done.stderr.strip() or error}",
                fix="nox -s bundle, which has what verifying needs",
            ) from error
