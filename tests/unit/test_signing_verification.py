"""What verification catches, by name, and what it cannot know."""

from __future__ import annotations

import datetime as dt
import random
import struct
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, utils
from cryptography.x509.oid import ExtendedKeyUsageOID
from hypothesis import given, settings
from hypothesis import strategies as st

from ci.signing import chain, development, image, inspection, mbn, require_signed, scheme, verification
from ci.signing.development import Binding
from ci.signing.verification import Expected, Status
from provisioning.base.findings import Severity
from tests.support import chains
from tests.support.mbn import signed_file, take_apart
from tests.support.skels import Skel

LIBRARY = Skel().encode()
SIGNED = development.sign(LIBRARY, chains.identity(), Binding(serials=(0xABC,)))
ROOT = chains.identity().root
GOOD = Expected(root=ROOT, software_id=4, serial=0xABC)


def failed(data: bytes, expected: Expected = GOOD) -> set[str]:
    return {check.part for check in verification.verify(data, expected).failed}


def unchecked(data: bytes, expected: Expected = GOOD) -> set[str]:
    checks = verification.verify(data, expected).checks
    return {check.part for check in checks if check.status is Status.UNCHECKED}


def flipped(at: int, data: bytes = SIGNED) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 1 << (at % 8)
    return bytes(changed)


def part_at(name: str) -> int:
    """Somewhere in the middle of a part of the container."""
    _, signed = image.parse(SIGNED)
    assert signed is not None
    part = signed.container.part(name)
    return signed.hash_segment.offset + (part.start + part.end) // 2


def test_a_good_file_is_verified() -> None:
    assert verification.verify(SIGNED, GOOD).verdict() == "verified"


def test_without_a_root_nothing_is_proven() -> None:
    result = verification.verify(SIGNED)
    assert (result.verdict(), [c.part for c in result.unproven()]) == ("not proven", ["root"])


def test_the_caller_may_do_without_a_root() -> None:
    assert verification.verify(SIGNED).verdict(["root"]) == "verified"


def test_an_unsigned_library_fails_as_unsigned() -> None:
    assert failed(LIBRARY) == {"unsigned"}


@pytest.mark.parametrize(
    ("at", "part"),
    [
        (0x10, "headers"),
        (52 + 2 * 32 + 12, "headers"),
        (part_at(mbn.METADATA), "signature"),
        (part_at(mbn.HASHES), "signature"),
        (part_at(mbn.SIGNATURE), "signature"),
        (part_at(mbn.CERTIFICATES), "chain"),
        (0x2000 + 300, "segments"),
        (0x3000 + 100, "segments"),
    ],
)
def test_a_flipped_bit_is_named_by_where_it_is(at: int, part: str) -> None:
    assert part in failed(flipped(at))


def test_every_sampled_bit_is_caught_or_in_a_range_that_is_listed() -> None:
    ranges = verification.verify(SIGNED, GOOD).unhashed
    hashed = [at for at in range(len(SIGNED)) if not any(r.start <= at < r.end for r in ranges)]
    missed = [at for at in random.Random(6).sample(hashed, 350) if not failed(flipped(at))]
    assert missed == []


def test_a_bit_outside_every_hash_is_listed_and_not_caught() -> None:
    ranges = verification.verify(SIGNED, GOOD).unhashed
    assert {r.what for r in ranges} == {
        "zero padding",
        "section headers",
        "outside every segment (section data that is never loaded)",
    }
    assert [at for r in ranges for at in (r.start, r.end - 1) if failed(flipped(at))] == []


@pytest.mark.parametrize("keep", [0, 10, 52, 200, 0x1000, 0x1100, 0x2000, 0x3000, 0x3200])
def test_truncation_is_caught(keep: int) -> None:
    assert failed(SIGNED[:keep]) != set()


def test_swapped_segments_are_named() -> None:
    first, second = 52 + 2 * 32, 52 + 3 * 32
    data = bytearray(SIGNED)
    data[first : first + 32], data[second : second + 32] = (
        data[second : second + 32],
        data[first : first + 32],
    )
    assert {"headers", "segments"} <= failed(bytes(data))


def test_a_rewritten_segment_with_a_rewritten_hash_still_fails_the_signature() -> None:
    other = development.sign(Skel(content=b"other code here!!").encode(), chains.identity("rsa"), Binding())
    start = take_apart(SIGNED).hash_segment_at
    apart = take_apart(other)
    forged = bytearray(SIGNED)
    table = start + 48 + len(apart.metadata)
    forged[table : table + 48 * len(apart.hashes)] = b"".join(apart.hashes)
    assert "signature" in failed(bytes(forged))


def test_another_librarys_hash_segment_does_not_fit() -> None:
    other = development.sign(Skel(content=b"other code here!!").encode(), chains.identity(), Binding())
    assert "segments" in failed(other[:0x2000] + SIGNED[0x2000:])


def test_an_extra_byte_in_the_hash_segment_belongs_to_nothing() -> None:
    data = bytearray(SIGNED)
    at = 52 + 32 + 16
    struct.pack_into("<I", data, at, struct.unpack_from("<I", data, at)[0] + 16)
    assert "structure" in failed(bytes(data))


def test_a_segment_over_the_hash_segment_is_a_fault() -> None:
    data = bytearray(SIGNED)
    struct.pack_into("<I", data, 52 + 4 * 32 + 4, 0x1100)
    assert "structure" in failed(bytes(data))


def test_padding_after_the_certificates_must_be_ff() -> None:
    data = bytearray(SIGNED)
    segment = take_apart(SIGNED).segments[1]
    end = segment[2] + segment[3]
    if data[end - 1] != 0xFF:
        data = bytearray(development.sign(LIBRARY, chains.bent(), Binding()))
        segment = take_apart(bytes(data)).segments[1]
        end = segment[2] + segment[3]
    data[end - 1] = 0xFE
    assert "chain" in failed(bytes(data))


def test_a_foreign_root_is_named() -> None:
    assert failed(SIGNED, Expected(root=chains.identity("rsa").root)) == {"root"}


def test_a_whole_foreign_chain_is_named() -> None:
    foreign = development.sign(LIBRARY, chains.identity("rsa"), Binding())
    assert failed(foreign, Expected(root=ROOT)) == {"root"}


def test_a_chain_that_leaves_out_its_root_is_completed_by_the_given_one() -> None:
    whole = chains.identity()
    from dataclasses import replace

    data = development.sign(LIBRARY, replace(whole, chain=whole.chain[:-1]), Binding())
    assert verification.verify(data, Expected(root=ROOT)).verdict() == "verified"


LONG_AGO = chains.NOW - dt.timedelta(days=400)
SERVER_AUTH = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
UNKNOWN = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b"\x05\x00")


@pytest.mark.parametrize(
    ("bend", "part"),
    [
        ({"attestation": {"start": LONG_AGO}}, "validity"),
        ({"attestation": {"start": chains.NOW + dt.timedelta(days=9)}}, "validity"),
        ({"root": {"start": LONG_AGO}}, "validity"),
        ({"attestation": {"ca": True}}, "usage"),
        ({"attestation": {"signs": False}}, "usage"),
        ({"attestation": {"extension": SERVER_AUTH}}, "usage"),
        ({"attestation": {"extension": UNKNOWN}}, "usage"),
        ({"root": {"ca": False}}, "usage"),
        ({"root": {"signs": False}}, "usage"),
        ({"attestation": {"issuer": chains.name("nobody")}}, "chain"),
    ],
)
def test_a_bent_chain_is_named(bend: dict[str, Any], part: str) -> None:
    bend = {role: dict(changes) for role, changes in bend.items()}
    issuer = bend.get("attestation", {}).pop("issuer", None)
    identity = chains.bent(**bend) if issuer is None else chains.bent_issuer(issuer)
    data = development.sign(LIBRARY, identity, Binding())
    assert failed(data, Expected(root=identity.root)) == {part}


def test_a_ca_below_its_limit_is_named() -> None:
    whole = chains.identity().chain
    certificates = [whole[0], whole[1], whole[1], whole[2]]
    faults = chain.check(certificates, ROOT, dt.datetime.now(dt.timezone.utc))
    assert any("CA certificates below it" in fault.message for fault in faults)


def test_validity_is_judged_at_the_moment_asked_for() -> None:
    later = dt.datetime.now(dt.timezone.utc) + dt.timedelta(days=4000)
    assert failed(SIGNED, Expected(root=ROOT, at=later)) == {"validity"}


@pytest.mark.parametrize(
    ("expected", "part"),
    [
        (Expected(root=ROOT, software_id=0x17), "software id"),
        (Expected(root=ROOT, hardware_id=1), "hardware id"),
        (Expected(root=ROOT, serial=0xABD), "serial"),
    ],
)
def test_a_binding_to_something_else_is_named(expected: Expected, part: str) -> None:
    assert failed(SIGNED, expected) == {part}


def test_a_serial_asked_of_an_unbound_library_fails() -> None:
    data = development.sign(LIBRARY, chains.identity(), Binding())
    assert failed(data, Expected(root=ROOT, serial=1)) == {"serial"}


@pytest.mark.parametrize(
    ("version", "expected", "part"),
    [
        (5, Expected(serial=1), "serial"),
        (7, Expected(serial=1), "serial"),
        (7, Expected(hardware_id=1), "hardware id"),
    ],
)
def test_a_binding_that_a_container_does_not_show_leaves_the_question_open(
    version: int, expected: Expected, part: str
) -> None:
    data = legacy(version)[0] if version < 6 else vendors(version)
    result = verification.verify(data, expected)
    assert part in {check.part for check in result.unproven(["root", "signature"])}


def test_a_bound_library_says_that_no_device_was_named() -> None:
    assert unchecked(SIGNED, Expected(root=ROOT)) == {"serial"}


def legacy(version: int, tamper: bool = False) -> tuple[bytes, x509.Certificate]:
    """A library signed as the public documents describe versions 3 and 5."""
    key, certificates = chains.legacy()
    plain = Skel(sections=False).encode()
    parts = {"signature": bytes(256), "certificates": chain.join(certificates)}
    _, unsigned = image.parse(signed_file(plain, version, digest="sha256", **parts))
    assert unsigned is not None
    digest = scheme.legacy_digest(unsigned.signed_part, 4, 0x1234)
    modulus = key.public_key().public_numbers().n
    block = b"\x00\x01" + b"\xff" * (256 - 3 - len(digest)) + b"\x00" + digest
    raw = pow(int.from_bytes(block, "big"), key.private_numbers().d, modulus).to_bytes(256, "big")
    parts["signature"] = raw if not tamper else raw[:-1] + bytes([raw[-1] ^ 1])
    return signed_file(plain, version, digest="sha256", **parts), certificates[-1]


@pytest.mark.parametrize("version", [3, 5])
def test_the_public_scheme_of_older_containers_is_checked(version: int) -> None:
    data, root = legacy(version)
    expected = Expected(root=root, software_id=4, hardware_id=0x1234)
    assert verification.verify(data, expected).verdict() == "verified"


@pytest.mark.parametrize("version", [3, 5])
def test_a_bad_signature_in_an_older_container_is_named(version: int) -> None:
    data, root = legacy(version, tamper=True)
    assert failed(data, Expected(root=root)) == {"signature"}


def vendors(version: int) -> bytes:
    metadata = mbn.Metadata(software_id=4).pack()
    parts = {
        "signature": bytes(104),
        "certificates": chain.join(chains.identity().chain),
        "metadata": metadata,
    }
    return signed_file(Skel(sections=False).encode(), version, digest="sha384", **parts)


@pytest.mark.parametrize("version", [6, 7])
def test_what_is_not_public_is_not_checked_and_not_good(version: int) -> None:
    result = verification.verify(vendors(version), Expected(root=ROOT))
    assert (result.verdict(), [c.part for c in result.unproven()]) == ("not proven", ["signature"])


def test_an_unknown_hash_algorithm_leaves_the_hashes_unproven() -> None:
    data = bytearray(vendors(7))
    struct.pack_into("<I", data, 0x1000 + 40 + 16, 9)
    result = verification.verify(bytes(data), Expected(root=ROOT))
    assert {"hash table", "headers", "segments"} <= {c.part for c in result.unproven(["signature"])}


def test_a_changed_statement_fails_the_signature() -> None:
    assert failed(flipped(SIGNED.index(b"DEVELOPMENT SIGNATURE"))) == {"signature"}


def test_a_signature_with_a_key_of_another_chain_fails() -> None:
    key, _ = chains.legacy()
    digest = b"\1" * 48
    signature = key.sign(digest, padding.PKCS1v15(), utils.Prehashed(hashes.SHA384()))
    assert not scheme.verify_digest(chains.identity("rsa").chain[0].public_key(), signature, digest)


@given(
    st.lists(st.tuples(st.integers(0, len(SIGNED) - 1), st.integers(0, 255)), max_size=12),
    st.integers(0, 400),
)
@settings(max_examples=60, deadline=None)
def test_mutated_files_never_crash(changes: list[tuple[int, int]], cut: int) -> None:
    data = bytearray(SIGNED[: len(SIGNED) - cut])
    for at, value in changes:
        data[at % len(data)] = value
    assert verification.verify(data, GOOD).verdict() in ("verified", "failed", "not proven")


@given(st.binary(max_size=500), st.integers(0, 0x9E0))
@settings(max_examples=60, deadline=None)
def test_mutated_hash_segments_never_crash(patch: bytes, at: int) -> None:
    data = bytearray(SIGNED)
    data[0x1000 + at : 0x1000 + at + len(patch)] = patch
    assert verification.verify(bytes(data[: len(SIGNED)]), GOOD).checks


def test_require_signed_takes_a_signed_library_and_warns_of_its_kind(tmp_path: Path) -> None:
    (path := tmp_path / "lib.so").write_bytes(SIGNED)
    found = require_signed([path])
    assert [(f.rule, f.severity) for f in found if f.severity is not Severity.NOTE] == [
        ("signing.development-only", Severity.WARNING)
    ]


@pytest.mark.parametrize(
    ("content", "rule"),
    [(LIBRARY, "signing.unsigned"), (b"", "signing.structure"), (flipped(0x2000 + 300), "signing.segments")],
)
def test_require_signed_refuses(tmp_path: Path, content: bytes, rule: str) -> None:
    (path := tmp_path / "lib.so").write_bytes(content)
    errors = [f.rule for f in require_signed([path]) if f.severity is Severity.ERROR]
    assert errors == [rule]


def test_require_signed_names_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert [f.rule for f in require_signed([tmp_path / "gone.so"])] == ["signing.unreadable"]


@pytest.mark.parametrize("version", [3, 5, 6, 7])
def test_inspection_tells_the_container_version(tmp_path: Path, version: int) -> None:
    data = legacy(version)[0] if version < 6 else vendors(version)
    (path := tmp_path / "lib.so").write_bytes(data)
    one = inspection.inspect(path)
    assert (one.kind, one.mbn_version, one.problems) == ("signed", version, ())


def test_inspection_reads_ids_from_older_certificates(tmp_path: Path) -> None:
    (path := tmp_path / "lib.so").write_bytes(legacy(5)[0])
    one = inspection.inspect(path)
    assert (one.software_id, one.hardware_id, one.oem_id) == (4, 0x1234, 1)
    assert f"01 {4:016X} SW_ID" in one.certificates[0].organisational_units


def test_inspection_calls_a_bound_library_a_test_signature(tmp_path: Path) -> None:
    (path := tmp_path / "lib.so").write_bytes(SIGNED)
    text = inspection.as_text(inspection.inspect(path))
    assert "test signature" in text and "0x00000abc" in text and scheme.STATEMENT in text


def test_what_a_file_says_cannot_steer_a_terminal(tmp_path: Path) -> None:
    name = chains.name("att\x1b[2J", "unit\x07")
    identity = chains.bent(attestation={"subject": name})
    data = bytearray(development.sign(LIBRARY, identity, Binding()))
    at = data.index(b"DEVELOPMENT SIGNATURE")
    data[at : at + 2] = b"\x1b]"
    (path := tmp_path / "lib.so").write_bytes(data)
    text = inspection.as_text(inspection.inspect(path))
    later = verification.verify(data, Expected(at=chains.NOW + dt.timedelta(days=99)))
    text += "".join(check.message for check in later.checks)
    assert "\\x1b[2J" in text and not any(c in text for c in "\x1b\x07")


def test_a_huge_file_is_refused_without_reading_it(tmp_path: Path) -> None:
    path = tmp_path / "huge.so"
    with path.open("wb") as stream:
        stream.write(SIGNED)
        stream.truncate(1 << 33)
    assert {check.part for check in verification.verify_file(path).failed} == {"structure"}
