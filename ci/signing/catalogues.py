"""Windows catalogues as signatures of Hexagon libraries: what they sign, and whether it holds."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path

from ci.signing.checks import (
    CHAIN,
    FILES,
    NAME,
    ROOT,
    SIGNATURE,
    STRUCTURE,
    TIME_STAMP,
    ExpectedSignature,
    SignatureCheck,
    Status,
    Verification,
)
from provisioning import catalogue as catalogues
from provisioning.build_id import BUILD_ID, build_ids
from provisioning.catalogue import Catalogue, Damaged

SUFFIX = catalogues.SUFFIX
_SAME_BUILD = dt.timedelta(days=3)
"""A build's catalogue is made within these."""


def verify(path: Path, expected: ExpectedSignature) -> Verification:
    """The catalogue, and every file that it names beside it."""
    try:
        catalogue = catalogues.read(path)
    except Damaged as damage:
        return _of(path, (SignatureCheck(STRUCTURE, Status.FAILED, damage.message),))
    signs = catalogue.names
    present = sorted(file for file in path.parent.iterdir() if file.name.lower() in signs and file.is_file())
    checks = [check for file in present for check in _file(file, catalogue, path.name)]
    named = {file.name.lower() for file in present}
    checks += _renamed(path, catalogue, named)
    if not checks:
        message = f"none of the files that it signs is beside it: {', '.join(sorted(signs))}"
        checks = [SignatureCheck(FILES, Status.UNCHECKED, message)]
    return _of(path, (*checks, *_authority(catalogue, expected)))


def verify_library(library: Path, expected: ExpectedSignature) -> Verification | None:
    """The library by the catalogue beside it; None where there is none for it."""
    nearest = catalogues.beside(library)
    if nearest is None:
        return None
    path, catalogue = nearest
    if isinstance(catalogue, Damaged):
        return _of(path, (SignatureCheck(STRUCTURE, Status.FAILED, catalogue.message),))
    return _of(path, (*_file(library, catalogue, path.name), *_authority(catalogue, expected)))


def _of(path: Path, checks: tuple[SignatureCheck, ...]) -> Verification:
    return Verification(checks, catalogue=str(path))


def _file(path: Path, catalogue: Catalogue, signed_in: str) -> Iterator[SignatureCheck]:
    member = catalogue.member(path.name, catalogues.sha256_of(path))
    if member is None:
        if others := catalogue.others_than(path.name):
            message = f"{signed_in} beside {path.name} does not sign it: it signs {others}"
        else:
            message = f"{path.name} is not the file that was signed: {_why(path, catalogue)}"
        yield SignatureCheck(FILES, Status.FAILED, message)
        return
    message = f"{path.name} is the file that was signed, SHA-256 {member.sha256.hex()}"
    yield SignatureCheck(FILES, Status.PASSED, message)
    if member.name != path.name.lower():
        yield SignatureCheck(NAME, Status.FAILED, f"expected the name {member.name}, found {path.name}")


def _renamed(path: Path, catalogue: Catalogue, named: set[str]) -> Iterator[SignatureCheck]:
    """Files under other names that hold what was signed, where the file of the right name is missing."""
    if catalogue.names <= named:
        return
    for other in sorted(path.parent.iterdir()):
        if other == path or other.name.lower() in named or not other.is_file() or other.suffix == SUFFIX:
            continue
        if not _may_be_library(other):
            continue
        member = catalogue.member(other.name, catalogues.sha256_of(other))
        if member is not None and member.name not in named:
            yield from _file(other, catalogue, path.name)


def _may_be_library(path: Path) -> bool:
    with path.open("rb") as stream:
        return stream.read(4) == b"\x7fELF"


def _why(path: Path, catalogue: Catalogue) -> str:
    """Whether it is another build or a change: the build's id has its date, and so does the catalogue."""
    date = f"the catalogue is of {catalogue.created:%Y-%m-%d}"
    for build in build_ids(path):
        built = _day(build)
        if built is not None and abs(catalogue.created - built) > _SAME_BUILD:
            return f"it is of another build, {build}, and {date}"
    return f"it was changed, for {date}, as is its build" if build_ids(path) else f"it was changed; {date}"


def _day(build: str) -> dt.datetime | None:
    if not BUILD_ID.fullmatch(build.encode()):
        return None
    try:
        return dt.datetime.strptime(build.split(".")[3][:6], "%y%m%d").replace(tzinfo=dt.timezone.utc)
    except ValueError:
        return None


def _authority(catalogue: Catalogue, expected: ExpectedSignature) -> Iterator[SignatureCheck]:
    """One check for each part; a part without a problem passed."""
    roots = (expected.root,) if expected.root is not None else catalogues.pinned_roots()
    problems: dict[str, list[str]] = {}
    for part, message in catalogues.problems(catalogue, roots, expected.at):
        problems.setdefault(part, []).append(message)
    leaf, stamp = catalogue.chain[0], catalogue.time_stamp
    root = catalogues.root_of(catalogue.chain, roots)
    good = {
        SIGNATURE: f"by {catalogues.common_name(leaf)}",
        CHAIN: " under ".join(catalogues.common_name(certificate) for certificate in catalogue.chain),
        catalogues.USAGE: "it may sign drivers"
        if catalogues.DRIVER_VERIFICATION in catalogues.usages(leaf)
        else "it may sign code",
        catalogues.VALIDITY: f"{leaf.not_valid_before_utc:%Y-%m-%d} to {leaf.not_valid_after_utc:%Y-%m-%d}",
        ROOT: catalogues.common_name(root) if root is not None else "",
    }
    for part, message in good.items():
        if part not in problems:
            yield SignatureCheck(part, Status.PASSED, message)
    if stamp is not None and TIME_STAMP not in problems:
        at = f"signed at {stamp.moment.isoformat(timespec='seconds')}"
        yield SignatureCheck(TIME_STAMP, Status.PASSED, f"{at}, by {catalogues.common_name(stamp.chain[0])}")
    elif stamp is None:
        # Not essential by itself: where the certificate has expired since, validity fails.
        message = "there is none, so the signature is valid only as long as the signer's certificate"
        yield SignatureCheck("time stamp's absence", Status.UNCHECKED, message)
    for part, messages in problems.items():
        for message in messages:
            yield SignatureCheck(part, Status.FAILED, message)
