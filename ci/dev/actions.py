"""manifests/actions.toml, generated from the files under .github/, which Dependabot renews."""

from __future__ import annotations

import re
from pathlib import Path

from provisioning.base.errors import CheckFailed
from provisioning.base.settings import ROOT

HEAD = """\
# What the workflows stand on. Written by `nox -s generate` from the files under .github/; not to be edited.
# Dependabot renews those: the token of a workflow may not push workflows.
"""

_USES = re.compile(r"^\s*(?:- )?uses:\s*(?P<name>[^\s@$]+)@(?P<commit>\S+)(?:\s+#\s*(?P<version>\S+))?", re.M)
_RUNNER = re.compile(r"^\s*(?:runs-on|default):.*?\b(ubuntu-[\w.]+)", re.M)
_PYTHON = re.compile(r"^  python-version:\n(?:    .*\n)*?    default: \"(\S+)\"", re.M)


def table(root: Path = ROOT) -> str:
    """Raises CheckFailed where two files differ, or where an action has no full commit and version."""
    texts = {path: path.read_text(encoding="utf-8") for path in sorted((root / ".github").rglob("*.yml"))}
    pins: dict[str, tuple[str, str]] = {}
    for path, text in texts.items():
        for match in _USES.finditer(text):
            name, commit, version = match["name"], match["commit"], match["version"] or ""
            if not re.fullmatch("[0-9a-f]{40}", commit) or not re.fullmatch(r"v[\d.]+", version):
                raise CheckFailed(
                    f"{path.relative_to(root)}: {name}@{commit}: expected a full commit and `# VERSION`",
                    fix="pin it as the other actions are",
                )
            if pins.setdefault(name, (version, commit)) != (version, commit):
                raise CheckFailed(
                    f"{path.relative_to(root)}: {name} is pinned at {version}, elsewhere at {pins[name][0]}",
                    fix="use one of them everywhere",
                )
    lines = [HEAD]
    for name, pattern in (("runner", _RUNNER), ("python", _PYTHON)):
        values = sorted({match[1] for text in texts.values() for match in pattern.finditer(text)})
        if len(values) != 1:
            raise CheckFailed(f".github/: expected one {name}, found {', '.join(values) or 'none'}")
        lines.append(f'{name} = "{values[0]}"\n')
    lines.append("\n[actions]\n")
    lines += [
        f'"{name}" = {{ version = "{version}", commit = "{commit}" }}\n'
        for name, (version, commit) in sorted(pins.items())
    ]
    return "".join(lines)
