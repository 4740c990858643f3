"""What the newest QNN build prints that the one before did not, and which rules match no message any more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ci.diagnose.rules import failure_rules
from lab.builds import provision
from lab.builds.table import load_builds
from lab.messages import messages_in
from provisioning.base.rendering import plural
from provisioning.base.settings import store_path
from provisioning.components import QNN_SDK
from provisioning.manifest import load_profile
from provisioning.store import Store


def changes() -> tuple[str, str, dict[str, list[str]]]:
    """The older and the newer build, and what differs."""
    builds = load_builds()
    pinned, store = load_profile(builds.profile).components[QNN_SDK], store_path()
    older, newer = sorted(builds.builds, key=lambda build: build.build_id)[-2:]
    rows = []
    for build in (newer, older):
        root = provision(build, pinned, Store(store))
        rows.append(messages_in(root))
    return older.qnn, newer.qnn, compared(*rows)


def compared(new: Mapping[str, str], old: Mapping[str, str]) -> dict[str, list[str]]:
    """What a newer build prints and an older did not, what it prints no more, and the rules that match none
    of its messages any more. Messages are by their keys."""
    texts = ["\n".join(rows.values()).encode("utf-8", "replace") for rows in (new, old)]
    rules = [
        {rule.id for rule in failure_rules().values() if any(part.search(text) for part in rule.patterns)}
        for text in texts
    ]
    return {
        "gained": sorted(new.keys() - old.keys()),
        "lost": sorted(old.keys() - new.keys()),
        "rules": sorted(rules[1] - rules[0]),
    }


def markdown(older: str, newer: str, found: Mapping[str, Sequence[str]]) -> str:
    """Counts and rules; the messages themselves are the vendor's."""
    rules = ", ".join(f"`{rule}`" for rule in found["rules"]) or "none"
    return (
        f"## Messages\n\nQNN {newer} against {older}: {plural(len(found['gained']), 'message')} gained,"
        f" {len(found['lost'])} lost. Rules of manifests/diagnose/ that match none any more: {rules}.\n"
    )
