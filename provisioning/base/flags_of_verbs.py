"""Which verb takes a flag that was typed behind another one: manifests/flags.json, made from all verbs."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import TypedDict

from provisioning.base import words_of_others
from provisioning.base.commands import Fix
from provisioning.base.settings import MANIFESTS

OF_ALL = ("-h", "--help", "--debug", "--json")
"""The flags that every verb takes."""
SUITE = "--suite"


class Flag(TypedDict):
    value: str
    """The name of its value; empty if it takes none."""
    field: str
    """The field of a suite that says the same, such as `run.backend`; empty if suites have none."""
    verbs_by_help: Mapping[str, Sequence[str]]


@functools.cache
def flags() -> Mapping[str, Flag]:
    table: Mapping[str, Flag] = json.loads((MANIFESTS / "flags.json").read_text("utf-8"))
    return table


def refer(typed_flag: str, verb: str) -> Fix | None:
    """Say which verb takes a flag that this one does not; None if no verb does."""
    flag = words_of_others.FLAGS.get(typed_flag, typed_flag)
    if flag not in flags():
        return None
    row = flags()[flag]
    leave = f"leave {typed_flag} out"
    table, _, field = row["field"].partition(".")
    if field and verb in _verbs_of(SUITE):
        header = "[[case.NAME.run]]" if table == "run" else "[case.NAME]"
        return Fix(f"{leave}: in a suite it is the field {field} of {header}")
    other = _most_like(verb, _verbs_of(flag), words_of_others.VERBS_OF_FLAGS.get(flag, ""))
    if not other:
        return None
    value = (row["value"],) if row["value"] else ()
    text = next(text for text, verbs in row["verbs_by_help"].items() if other in verbs)
    return Fix(f"{leave}: it is a flag of {{}} ({text})", (*other.split(), flag, *value))


def _most_like(typed: str, verbs: Sequence[str], usual: str) -> str:
    """Return the verb that shares most flags with the typed one, or the usual one; empty without any."""
    others = [verb for verb in verbs if verb != typed]
    own = _flags_of(typed)

    def likeness(verb: str) -> float:
        return len(own & _flags_of(verb)) / len(own | _flags_of(verb))

    return usual if usual in others else max(others, key=likeness, default="")


@functools.cache
def _verbs_of(flag: str) -> Sequence[str]:
    return [verb for verbs in flags()[flag]["verbs_by_help"].values() for verb in verbs]


@functools.cache
def _flags_of(verb: str) -> frozenset[str]:
    return frozenset(flag for flag in flags() if verb in _verbs_of(flag))
