"""Whether a folder for Genie fits itself: its configuration, its binaries and its tokenizer."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ci.artifacts.program import CompiledProgram, ContextStrings, read
from provisioning.base.commands import Fix
from provisioning.base.errors import CheckFailed
from provisioning.base.findings import Finding, Severity
from provisioning.manifest import load_socs

_LENGTH = re.compile(r"cl_?(\d{2,6})(?!\d)")
"""The context's length in a graph's name, as AI Hub and our `compile` write it."""

AGAIN = Fix("write it again: {}", ("compile", "FOLDER", "-o", "OUT"))


def check(config: Path, root: Path) -> Iterator[Finding]:
    """`config` is read where it lies; its subject is its place in the package."""
    place = config.relative_to(root).as_posix()
    try:
        dialog = json.loads(config.read_text(encoding="utf-8"))["dialog"]
        engine = dialog["engine"]
        names = [str(name) for name in engine["model"]["binary"]["ctx-bins"]]
        tokenizer = str(dialog["tokenizer"]["path"])
        words, length = dialog["context"]["n-vocab"], dialog["context"]["size"]
        extension = str(engine["backend"].get("extensions", ""))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        message = f"expected Genie's configuration, found {error!r}"
        yield _finding("genie-config", place, message, AGAIN)
        return
    missing = [name for name in (*names, tokenizer, extension) if name and not _beside(config, name)]
    if missing:
        yield _finding(
            "genie-missing",
            place,
            f"it names {', '.join(missing)}, which is no file beside it",
            "put it there: the paths are relative to the folder that Genie is started in",
        )
    contexts: dict[str, ContextStrings] = {}
    for name in names:
        if name in missing:
            continue
        try:
            contents = read(config.parent / name)
        except CheckFailed as error:
            yield _finding(
                "genie-binary", f"{place}: {name}", error.message, "copy it again, or compile it again"
            )
            continue
        if isinstance(contents, CompiledProgram):
            message = "expected a QNN context binary, found an ExecuTorch program"
            yield _finding(
                "genie-binary", f"{place}: {name}", message, "name the context binaries in ctx-bins"
            )
        else:
            contexts[name] = contents
    yield from _one_of_all(place, contexts)
    yield from _length(place, contexts, length)
    if tokenizer not in missing:
        yield from _tokenizer(place, config.parent / tokenizer, words, dialog["context"])
    if extension and extension not in missing:
        yield from _extension(place, config.parent / extension, contexts)


def _finding(rule: str, subject: str, message: str, fix: str, severity: Severity = Severity.ERROR) -> Finding:
    return Finding(rule, severity, subject, message, fix)


def _beside(config: Path, name: str) -> bool:
    return (config.parent / name).is_file()


def _one_of_all(place: str, contexts: Mapping[str, ContextStrings]) -> Iterator[Finding]:
    """All binaries of one model are of one QNN build and for one chip."""
    for what, of in (
        ("QNN build", lambda context: context.build_ids),
        ("chip", lambda context: context.socs),
        ("HTP arch", lambda context: tuple(f"v{arch}" for arch in context.arches)),
    ):
        groups: dict[tuple[str, ...], list[str]] = {}
        for name, context in contexts.items():
            groups.setdefault(of(context), []).append(name)
        if len(groups) > 1:
            rows = [f"{', '.join(key) or 'none'}: {', '.join(files)}" for key, files in groups.items()]
            message = f"its binaries are not of one {what}: {'; '.join(rows)}"
            yield _finding("genie-mixed", place, message, "compile all of them in one run")
            return


def _length(place: str, contexts: Mapping[str, ContextStrings], length: object) -> Iterator[Finding]:
    named = {
        int(text)
        for context in contexts.values()
        for graph in context.graphs
        for text in _LENGTH.findall(graph)
    }
    if named and length not in named:
        yield _finding(
            "genie-context",
            place,
            f"context.size is {length}, and the graphs are for {', '.join(map(str, sorted(named)))}",
            f'"size": {max(named)}, or compile for --context {length}',
        )


def _tokenizer(place: str, file: Path, words: object, context: Mapping[str, Any]) -> Iterator[Finding]:
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        pieces = document["model"]["vocab"]
        numbers = pieces.values() if isinstance(pieces, dict) else range(len(pieces))
        added = [token["id"] for token in document.get("added_tokens") or ()]
        most = max((*numbers, *added), default=-1)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        message = f"{file.name}: expected a tokenizer of the tokenizers library, found {error!r}"
        yield _finding("genie-tokenizer", place, message, "copy tokenizer.json of the checkpoint")
        return
    if isinstance(words, int) and most >= words:
        yield _finding(
            "genie-tokenizer",
            place,
            f"{file.name} has the token {most}, and n-vocab is {words}: it belongs to another model",
            "copy tokenizer.json of the checkpoint that was compiled",
        )
    for name in ("bos-token", "eos-token"):
        value = context.get(name, -1)
        for token in value if isinstance(value, list) else [value]:
            if isinstance(token, int) and isinstance(words, int) and token >= words:
                message = f"{name} is {token}, and n-vocab is {words}"
                yield _finding("genie-tokenizer", place, message, "take both of the same checkpoint")


def _extension(place: str, file: Path, contexts: Mapping[str, ContextStrings]) -> Iterator[Finding]:
    try:
        devices: Sequence[Mapping[str, Any]] = (
            json.loads(file.read_text(encoding="utf-8")).get("devices") or []
        )
        said = [(device.get("soc_id", device.get("soc_model")), device.get("dsp_arch")) for device in devices]
    except (OSError, ValueError, TypeError, AttributeError) as error:
        message = f"{file.name}: expected the settings of the HTP backend, found {error!r}"
        yield _finding("genie-config", place, message, AGAIN)
        return
    arches = sorted({f"v{arch}" for context in contexts.values() for arch in context.arches})
    chips = sorted({name for context in contexts.values() for name in context.socs})
    socs = load_socs()
    for number, arch in said:
        named = next((name for name, soc in socs.items() if soc.id == number), "")
        if arch and arches and arch not in arches:
            found = f"{file.name} says {arch}, and the binaries are for {', '.join(arches)}"
        elif named and chips and named not in chips:
            found = f"{file.name} says {named} ({number}), and the binaries are for {', '.join(chips)}"
        else:
            continue
        yield _finding("genie-chip", place, found, "compile for that chip, or correct the file")
