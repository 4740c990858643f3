"""A key is made of what a step's request names: changed bytes and other values run again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path

from ci.work.request import File, files_below, key_of, sent_request
from ci.work.request import Folder as ReadFolder
from ci.work.results import CachedResults
from provisioning.base.option_fields import IRRELEVANT
from provisioning.base.settings import ROOT
from tests.conformance.examples import Example, Folder


def read_by(value: object) -> Iterator[File | ReadFolder]:
    """The files and folders in a request."""
    if isinstance(value, File | ReadFolder):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from read_by(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from read_by(inner)
    elif is_dataclass(value):
        for field in fields(value):
            yield from read_by(getattr(value, field.name))


def paths_sent(value: object) -> Iterator[str]:
    """What of a request is a path that is there, by the names of its fields."""
    if isinstance(value, dict):
        for inner in value.values():
            yield from paths_sent(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from paths_sent(inner)
    elif isinstance(value, str) and value.startswith("/") and Path(value).exists():
        yield value


def test_changed_bytes_of_what_a_step_reads_give_another_key(example: Example, folder: Folder) -> None:
    digest = CachedResults(folder.selection.store, "any").digest
    program = example.program(folder)
    for step in example.steps(folder, program):
        request = step.request(program)
        before = key_of(request, digest)
        for place in read_by(request):
            if place.known_by is not None or Path(place.path).is_relative_to(ROOT):
                continue
            for path in files_of(place):
                content = path.read_bytes()
                path.write_bytes(content + b"!")
                assert key_of(step.request(program), digest) != before, f"{step.kind}: {path}"
                path.write_bytes(content)
        assert key_of(step.request(program), digest) == before


def files_of(place: File | ReadFolder) -> list[Path]:
    if isinstance(place, File):
        return [Path(place.path)]
    return [Path(place.path, name) for name in files_below(Path(place.path), place.suffixes)]


def test_a_worker_gets_no_path_that_its_request_does_not_name(example: Example, folder: Folder) -> None:
    program = example.program(folder)
    for step in example.steps(folder, program):
        request = step.request(program)
        named = {place.path for place in read_by(request)}
        deciding = [field.name for field in fields(request) if IRRELEVANT not in field.metadata]
        gets = sent_request(request)
        unnamed = {path for name in deciding for path in paths_sent(gets[name])} - named
        # The suite's own text may name a file, whose bytes are in the request too.
        assert not {path for path in unnamed if path not in str(gets.get("run"))}, step.kind


def test_what_decides_nothing_has_a_reason(example: Example, folder: Folder) -> None:
    program = example.program(folder)
    for step in example.steps(folder, program):
        request = step.request(program)
        reasons = [field.metadata[IRRELEVANT] for field in fields(request) if IRRELEVANT in field.metadata]
        assert all(reasons), step.kind
