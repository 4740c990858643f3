"""One operation on a store, in a process of its own: arguments STORE COMPONENT OP.

COMPONENT is a file of its definition as JSON. OP is `provision[:target,…]`, `repair` or `gc`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from provisioning.base.command_line import guarded
from provisioning.base.progress import Progress
from provisioning.manifest import Component
from provisioning.store import Store


def operate(store: Store, component: Component, operation: str) -> int:
    name, _, targets = operation.partition(":")
    progress = Progress(sys.stderr)
    if name == "repair":
        for tree in store.trees():
            store.repair(tree, component, progress=progress)
    elif name == "gc":
        store.gc(lambda tree: False, all_downloads=True, progress=progress)
    else:
        chosen = frozenset(filter(None, targets.split(",")))
        tree = store.provision("qnn-sdk", component, chosen, progress=progress)
        sys.stdout.write(f"{tree.root}\n")
    return 0


def main(argv: list[str]) -> int:
    store, definition, operation = argv
    component = Component.model_validate_json(Path(definition).read_text(encoding="utf-8"))
    return guarded(lambda: operate(Store(Path(store)), component, operation), debug=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
