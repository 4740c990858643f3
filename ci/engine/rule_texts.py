"""What the rules of the stages mean, for code scanning. Those of `validate` are in its own catalogue."""

from __future__ import annotations

RULES = {
    "parity-missing-in-buck": "CMake has a source or header in a pair, and Buck has not",
    "parity-missing-in-cmake": "Buck has it, and CMake has not",
    "parity-missing-file": "a file is named that does not exist",
    "parity-header-renamed": "Buck gives a header out by a name that is not its file's",
    "parity-unknown-file": "a file that no build knows, or a Python package",
    "parity-glob-empty": "a pattern matches nothing, in either build",
    "parity-exclude-empty": "an exclude takes nothing out",
    "parity-listed-twice": "a Buck library names a source twice",
    "parity-compiled-twice": "two libraries compile a source, or CMake hands it on (PUBLIC)",
    "parity-dependency-missing-in-buck": "CMake links a library, and Buck does not",
    "parity-dependency-missing-in-cmake": "Buck depends on a library, and CMake does not",
    "parity-dependency-unmapped": "a dependency of a pair is nowhere in the mapping",
    "parity-heavy-dependency": "a library depends on what only few may",
    "parity-unmapped-target": "a library with code is in no pair",
    "parity-target-missing": "a pair names a library that its build does not declare",
    "parity-pin-drift": "a version is not the one that another place says",
    "parity-pin-missing": "a place does not say a version that it should",
    "parity-stale-entry": "a listed difference no longer exists",
    "parity-not-evaluated": "something could not be evaluated; others may follow from it",
    "parity-evaluator-disagrees": "a configured build says otherwise than the evaluator",
}
