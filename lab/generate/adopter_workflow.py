"""manifests/workflow.yml: how another repository calls the gate, with the permissions that its jobs need."""

from __future__ import annotations

import yaml

from provisioning.base.settings import ROOT

WORKFLOW = """\
name: QNN
on: {{pull_request: {{}}, merge_group: {{}}, push: {{branches: [main]}}, workflow_dispatch: {{}}}}
permissions: {{}}
jobs:
  qnn:
    permissions: {{{permissions}}} # to list the caches of your default branch, and to check it out
    uses: OWNER/qnn-ci/.github/workflows/gate.yml@COMMIT # VERSION
    with:
      suite: ci/models.toml
"""


def text() -> str:
    gate = yaml.safe_load((ROOT / ".github" / "workflows" / "gate.yml").read_text(encoding="utf-8"))
    asked: dict[str, set[str]] = {}
    for job in gate["jobs"].values():
        for scope, level in job["permissions"].items():
            asked.setdefault(scope, set()).add(level)
    # `write` includes `read`.
    rights = [f"{scope}: {max(levels)}" for scope, levels in asked.items()]
    return WORKFLOW.format(permissions=", ".join(rights))
