"""The statement that GitHub attests of programs: what the gate found, for each digest of a .pte."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from provisioning.base.commands import quoted
from provisioning.base.documents import Model
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.base.files import hash_file
from provisioning.sources import Sha256

PREDICATE = "urn:qnn-ci:verdict:1"
LARGEST = 64 << 20
"""The largest bundle, in bytes. GitHub takes predicates of up to 16 MB."""


class AttestedProgram(Model):
    """One program that passed. Figures and costs are those of the report."""

    program: str
    sha256: Sha256
    verdict: Literal["pass"]
    profile: str
    build_id: str
    soc: str
    scheme: str
    figures: Mapping[str, float]
    thresholds: Mapping[str, float]
    costs: Mapping[str, float]
    cached: bool
    """Whether an earlier run found this, with the same inputs."""


class Verdicts(Model):
    schema_: Annotated[Literal[1], Field(alias="schema")]
    repository: str
    commit: str
    ref: str = ""
    """The branch, as `refs/heads/main`."""
    run: str
    workflow: str
    """The one that has it signed."""
    programs: tuple[AttestedProgram, ...]


class Subject(Model):
    name: str
    digest: Mapping[str, str]


class Statement(Model):
    """An in-toto statement."""

    type_: Annotated[Literal["https://in-toto.io/Statement/v1"], Field(alias="_type")]
    subject: tuple[Subject, ...]
    predicateType: Literal["urn:qnn-ci:verdict:1"]  # noqa: N815
    predicate: Verdicts


def facts(program: Path, attestation: Path) -> dict[str, object]:
    """What a statement says of this file. Raises CheckFailed if it says nothing of it.

    The signature is not verified."""
    digest = hash_file(program)
    statements = list(_statements(attestation))
    for statement in statements:
        if any(subject.digest.get("sha256") == digest for subject in statement.subject):
            for verdict in statement.predicate.programs:
                if verdict.sha256 == digest:
                    return _shown(program, attestation, statement.predicate, verdict)
    names = [subject.name for statement in statements for subject in statement.subject]
    raise CheckFailed(
        f"{attestation} says nothing of {program} (sha256 {digest}); it is about"
        f" {', '.join(names[:5]) or 'no program'}{' …' * (len(names) > 5)}",
        fix="name the attestation of this very file, or the file that was attested",
    )


def _shown(
    program: Path, attestation: Path, predicate: Verdicts, verdict: AttestedProgram
) -> dict[str, object]:
    def listed(values: Mapping[str, float]) -> list[str]:
        return [f"{name} {value:g}" for name, value in values.items()]

    verify = ["gh", "attestation", "verify", str(program), "--bundle", str(attestation)]
    verify += ["--repo", predicate.repository, "--signer-workflow", predicate.workflow]
    verify += ["--source-ref", predicate.ref] if predicate.ref else []
    verify += ["--predicate-type", PREDICATE]
    return {
        "what": f"{verdict.verdict} as {verdict.program}",
        "sha256": verdict.sha256,
        "QNN build": verdict.build_id,
        "chip": verdict.soc,
        "scheme": verdict.scheme,
        "accuracy": listed(verdict.figures),
        "thresholds": listed(verdict.thresholds),
        "costs": listed(verdict.costs),
        "found by": f"the gate of {predicate.repository} at {predicate.commit}, {predicate.run}"
        + ", which took it from its cache" * verdict.cached,
        "verified here": "the statement is about the bytes of this file",
        "not verified here": f"who signed it. If you trust these names: {quoted(*verify)}",
    }


def _statements(file: Path) -> Iterator[Statement]:
    """The statements about verdicts in a sigstore bundle, in lines of bundles, or without a signature."""
    try:
        if file.stat().st_size > LARGEST:
            raise CheckFailed(f"{file} has more than {LARGEST} bytes: no attestation is so large")
        text = file.read_text(encoding="utf-8")
        try:
            documents = [json.loads(text)]
        except ValueError:
            documents = [json.loads(line) for line in text.splitlines() if line.strip()]
        for document in documents:
            statement = _payload(document)
            if statement["predicateType"] == PREDICATE:
                yield Statement.model_validate_json(json.dumps(statement))
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}", fix="name the file of an attestation") from error
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        where = ".".join(map(str, error.errors()[0]["loc"])) if isinstance(error, ValidationError) else ""
        raise CheckFailed(
            f"{file}: not an attestation of programs" + f": {where}" * bool(where),
            fix="name a bundle of attest.yml, or what `gh attestation download` wrote",
        ) from error


def _payload(document: Any) -> Any:
    if "dsseEnvelope" not in document:
        return document
    envelope = document["dsseEnvelope"]
    if envelope["payloadType"] != "application/vnd.in-toto+json":
        raise ValueError(envelope["payloadType"])
    return json.loads(base64.b64decode(envelope["payload"], validate=True))
