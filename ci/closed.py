"""The environment of a process that does a user's work: what manifests/variables.toml lets in, and no more.

Little can reach the work, then, and all of that is in its key or no input."""

from __future__ import annotations

import hashlib
import resource
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache
from typing import Literal

from pydantic import Field

from provisioning.base.documents import Model, load
from provisioning.base.settings import MANIFESTS


class PlaceVariables(Model):
    passed: tuple[str, ...]
    text: tuple[str, ...]
    temporary: tuple[str, ...]
    roots: tuple[str, ...]


class Transport(Model):
    passed: tuple[str, ...]
    in_key: tuple[str, ...]


class Asked(Model):
    by_libraries: tuple[str, ...]
    secrets: tuple[str, ...]


class Variables(Model):
    schema_: Literal[1] = Field(alias="schema")
    fixed: dict[str, str]
    place: PlaceVariables
    transport: Transport
    hidden: tuple[str, ...]
    upstream: tuple[str, ...]
    asked: Asked
    limits: dict[str, int]


@cache
def table() -> Variables:
    return load(MANIFESTS / "variables.toml", Variables)


def closed(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a worker whose stage has `environ`. What its lane and suite declare comes on top."""
    place, transport = table().place, table().transport
    places = (*place.passed, *place.text, *place.temporary)
    names = (*places, *transport.passed, *transport.in_key)
    return {**table().fixed, **{name: environ[name] for name in names if name in environ}}


def without_hidden(environ: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """What the process finds in its environment, and what only its worker is told."""
    hidden = {name: value for name, value in environ.items() if name in table().hidden}
    return {name: value for name, value in environ.items() if name not in hidden}, hidden


def limits() -> Iterator[tuple[int, int, int]]:
    """What a process that does a user's work may use: each limit's number, soft and hard."""
    fixed = {getattr(resource, f"RLIMIT_{name}"): most for name, most in table().limits.items()}
    others = (getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_"))
    for number in sorted({*others} - {resource.RLIMIT_DATA}):
        soft, hard = resource.getrlimit(number)
        if number in fixed:
            soft = hard = fixed[number] if hard == resource.RLIM_INFINITY else min(fixed[number], hard)
        yield number, soft, hard


def not_passed(asked: Mapping[str, str], environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The variables that the work asked for, did not find, and that are set for the user: each with the field
    that passes it. `asked` says whose code asked: `user` or `library`."""
    known = table().asked
    for name, reader in sorted(asked.items()):
        told = reader == "user" or name in known.by_libraries
        if told and name in environ and not name.startswith("QNN_CI_"):
            secret = any(fnmatchcase(name, secret) for secret in known.secrets)
            yield name, "secrets" if secret else "variables"


def declared(names: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    return {name: environ[name] for name in names if name in environ}


def key_of_declared(names: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    return {name: _digest(environ.get(name)) for name in sorted(names)}


def _digest(value: str | None) -> str:
    """Values may be secrets."""
    return "" if value is None else hashlib.sha256(value.encode("utf-8", "surrogateescape")).hexdigest()[:16]
