"""What verification catches, and what it cannot know."""

from __future__ import annotations

import datetime as dt
import itertools
import random
import struct
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID

from ci.signing import certificates, mbn, rehearsal, signed_library, signed_writer, verification
from ci.signing.verification import ExpectedSignature, Purpose, SignedBy
from tests.support import chains
from tests.support.mbn import signed_file, take_apart
from tests.support.skels import Skel

development = partial(ExpectedSignature, purpose=Purpose.DEVELOPMENT)
LIBRARY = Skel().encode()
SIGNED = signed_writer.sign_library(LIBRARY, chains.signer(), (0xABC,))
ROOT = chains.signer().root
GOOD = development(root=ROOT, software_id=4, serial=0xABC)


def failed(data: bytes, expected: ExpectedSignature = GOOD) -> set[str]:
    return {check.part for check in verification.verify(data, expected).failed}


def flipped(at: int) -> bytes:
    changed = bytearray(SIGNED)
    changed[at] ^= 1 << (at % 8)
    return bytes(changed)


def patched(at: int, value: int) -> bytes:
    changed = bytearray(SIGNED)
    struct.pack_into("<I", changed, at, value)
    return bytes(changed)


def part_at(name: str) -> int:
    """Somewhere in the middle of a part of the container."""
    _, signed = signed_library.parse(SIGNED)
    assert signed is not None
    part = signed.container.part(name)
    return signed.hash_segment.offset + (part.start + part.end) // 2


def test_a_good_file_is_verified() -> None:
    result = verification.verify(SIGNED, GOOD)
    assert (result.verdict(), result.signer, result.under_root) == ("verified", SignedBy.REHEARSAL, True)


def test_without_a_root_nothing_is_proven_unless_the_caller_allows_it() -> None:
    result = verification.verify(SIGNED, development(serial=0xABC))
    assert (result.verdict(), [c.part for c in result.unproven()]) == ("not proven", ["root"])
    assert (result.verdict(["root"]), result.under_root) == ("verified", False)


def test_an_unsigned_library_fails_as_unsigned() -> None:
    result = verification.verify(LIBRARY, GOOD)
    assert ([c.part for c in result.failed], result.signer) == (["unsigned"], SignedBy.UNSIGNED)


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (flipped(0x10), "headers"),
        (flipped(52 + 2 * 32 + 12), "headers"),
        (flipped(part_at(mbn.METADATA)), "signature"),
        (flipped(part_at(mbn.HASHES)), "signature"),
        (flipped(part_at(mbn.SIGNATURE)), "signature"),
        (flipped(part_at(mbn.CERTIFICATES)), "chain"),
        (flipped(0x2000 + 300), "segments"),
        (flipped(0x3000 + 100), "segments"),
        (flipped(SIGNED.index(b"REHEARSAL OF SIGNING:")), "signature"),
        (patched(52 + 32 + 16, take_apart(SIGNED).segments[1][3] + 16), "structure"),
        (patched(52 + 4 * 32 + 4, 0x1100), "structure"),
    ],
)
def test_a_change_is_named_by_where_it_is(data: bytes, part: str) -> None:
    assert part in failed(data)


def test_every_sampled_bit_is_caught_or_in_a_range_that_is_listed() -> None:
    ranges = verification.verify(SIGNED, GOOD).unverified
    listed = [any(r.start <= at < r.end for r in ranges) for at in range(len(SIGNED))]
    pick = random.Random(6)
    hashed = pick.sample([at for at, outside in enumerate(listed) if not outside], 80)
    assert [at for at in hashed if not failed(flipped(at))] == []
    assert [at for r in ranges for at in (r.start, r.end - 1) if failed(flipped(at))] == []


@pytest.mark.parametrize("keep", [0, 52, 0x1100, 0x3000, -1000, -4])
def test_truncation_is_caught(keep: int) -> None:
    assert failed(SIGNED[:keep]) != set()


@pytest.mark.parametrize("byte", [b"\0", b"x"])
def test_bytes_that_no_header_names_are_damage_and_a_section_is_listed(byte: bytes) -> None:
    assert failed(SIGNED + 4096 * byte) == {"structure"}
    padding = take_apart(SIGNED).hash_segment_at - 1
    assert failed(SIGNED[:padding] + byte + SIGNED[padding + 1 :]) == (
        {"structure"} if byte.strip(b"\0") else set()
    )
    assert [r.what for r in verification.verify(SIGNED, GOOD).unverified][-1] == "section headers"


def forged(chain: list[x509.Certificate], signature: bytes, version: int = 6) -> bytes:
    """Other content with hashes that fit, under a chain that is not the forger's."""
    return signed_file(
        Skel(content=b"other code here!!", sections=False).encode(),
        version,
        digest="sha384",
        signature=signature,
        certificates=certificates.join(chain),
        metadata=mbn.Metadata(software_id=4).pack(),
    )


@pytest.mark.parametrize("version", [6, 7])
@pytest.mark.parametrize(
    "signature", [bytes(96), b"\x01" * 96, take_apart(SIGNED).signature], ids=["zeros", "ones", "moved"]
)
def test_a_forged_rehearsal_fails_though_its_statement_was_dropped(signature: bytes, version: int) -> None:
    data = forged(list(chains.signer().chain), signature, version)
    result = verification.verify(data, development(root=ROOT))
    assert ({c.part for c in result.failed}, result.signer) == ({"signature"}, SignedBy.DAMAGED)
    assert result.verdict(["root", "signature"]) == "failed"


def test_a_signature_of_zeros_is_none_whoever_signed() -> None:
    data = forged(list(chains.bent().chain), bytes(104))
    assert failed(data, development()) == {"signature"}


@pytest.mark.parametrize("version", [6, 7])
def test_a_signature_that_is_not_public_is_not_checked_and_not_good(version: int) -> None:
    chain = list(chains.bent().chain)
    result = verification.verify(forged(chain, b"\x01" * 104, version), development(root=chain[-1]))
    assert (result.verdict(), [c.part for c in result.unproven()]) == ("not proven", ["signature"])
    assert (result.verdict(["signature"]), result.signer) == ("verified", SignedBy.KNOWN)
    assert verification.verify(forged(chain, b"\x01" * 104, version)).signer is SignedBy.UNKNOWN


def test_an_unknown_hash_algorithm_leaves_the_hashes_unproven() -> None:
    data = bytearray(forged(list(chains.bent().chain), b"\x01" * 104, 7))
    struct.pack_into("<I", data, 0x1000 + 40 + 16, 9)
    result = verification.verify(bytes(data))
    assert {"hash table", "headers", "segments"} <= {c.part for c in result.unproven(["signature"])}


def test_a_chain_under_another_root_is_named() -> None:
    other = development(root=chains.other_signer().root)
    assert failed(SIGNED, other) == {"root"}
    assert not verification.verify(SIGNED, other).under_root


LONG_AGO = chains.NOW - dt.timedelta(days=400)
SERVER_AUTH = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
OTHER_HOSTS = x509.NameConstraints(None, [x509.DNSName("example.org")])
UNKNOWN = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b"\x05\x00")


@pytest.mark.parametrize(
    "bend",
    [
        {"attestation": {"start": LONG_AGO}},
        {"attestation": {"start": chains.NOW + dt.timedelta(days=9)}},
        {"root": {"start": LONG_AGO}},
        {"attestation": {"ca": True}},
        {"attestation": {"signs": False}},
        {"attestation": {"extension": SERVER_AUTH}},
        {"attestation": {"extension": UNKNOWN}},
        {"attestation": {"extension": OTHER_HOSTS}},
        {"attestation": {"plain": True}},
        {"attestation": {"certifies": True}},
        {"root": {"extension": SERVER_AUTH}},
        {"root": {"extension": OTHER_HOSTS}},
        {"root": {"ca": False}},
        {"root": {"signs": False}},
        {"attestation": {"issuer": chains.name("nobody")}},
    ],
)
def test_a_bent_chain_does_not_hold(bend: dict[str, Any]) -> None:
    signer = chains.bent(**bend)
    signed = signed_writer.sign_library(LIBRARY, signer)
    assert failed(signed, development(root=signer.root)) == {"chain"}


@pytest.mark.parametrize(("limit", "parts"), [(0, {"chain"}), (1, set())])
def test_a_ca_below_its_limit_is_named(limit: int, parts: set[str]) -> None:
    root, authority, key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(3))
    names = [chains.name(word) for word in ("root", "authority", "attestation")]
    chain = (
        chains.certificate(names[2], key, names[1], authority, ca=False),
        chains.certificate(names[1], authority, names[0], root, ca=True),
        chains.certificate(names[0], root, names[0], root, ca=True, path_length=limit),
    )
    signed = signed_writer.sign_library(LIBRARY, rehearsal.KeyAndChain(chain, key))
    assert failed(signed, development(root=chain[-1])) == parts


def test_a_chain_that_does_not_hold_says_nothing_of_its_signer() -> None:
    signer = chains.bent(attestation={"start": LONG_AGO})
    data = forged(list(signer.chain), b"\x01" * 104)
    result = verification.verify(data, development(root=signer.root))
    assert (result.signer, result.verdict(["signature"])) == (SignedBy.UNKNOWN, "failed")


@pytest.mark.parametrize("ending", [1, 2, 3])
def test_a_chain_may_leave_its_root_out_and_nothing_else(ending: int) -> None:
    signer = chains.signer()
    signed = signed_writer.sign_library(LIBRARY, rehearsal.KeyAndChain(signer.chain[:ending], signer.key))
    assert failed(signed, development(root=signer.root)) == (set() if ending > 1 else {"chain"})


def test_a_path_length_in_the_attestation_certificate_says_nothing() -> None:
    # `CA:FALSE,pathlen:0`, as instructions for OEMs have it.
    value = bytes.fromhex("3003020100")
    length = x509.UnrecognizedExtension(x509.ObjectIdentifier("2.5.29.19"), value)
    chain = chains.bent(attestation={"constraints": length}).chain
    data = forged(list(chain), b"\x01" * 104)
    assert verification.verify(data, ExpectedSignature(root=chain[-1])).verdict(["signature"]) == "verified"


def test_validity_is_judged_at_the_moment_asked_for() -> None:
    later = chains.NOW + dt.timedelta(days=4000)
    assert failed(SIGNED, development(root=ROOT, at=later)) == {"chain"}


@pytest.mark.parametrize(
    ("expected", "part"),
    [
        (development(root=ROOT, software_id=0x17), "software id"),
        (development(root=ROOT, hardware_id=1), "hardware id"),
        (development(root=ROOT, serial=0xABD), "serial"),
    ],
)
def test_a_binding_to_something_else_is_named(expected: ExpectedSignature, part: str) -> None:
    assert failed(SIGNED, expected) == {part}


AUTHORITY_KEYS = [ec.generate_private_key(ec.SECP384R1()) for _ in range(3)]


def oem_chain(unit: str = "OEM") -> list[x509.Certificate]:
    """Attestation, CA and root of somebody who signs for devices that people buy."""
    key, authority, root = AUTHORITY_KEYS
    names = [chains.name(word, unit) for word in ("attestation", "authority", "root")]
    return [
        chains.certificate(names[0], key, names[1], authority, ca=False),
        chains.certificate(names[1], authority, names[2], root, ca=True, path_length=0),
        chains.certificate(names[2], root, names[2], root, ca=True),
    ]


OEM = oem_chain()
SIGNATURE = b"\x01" * 104
UNBOUND = mbn.Metadata(software_id=4).pack()
BOUND = mbn.Metadata(software_id=4, serials=(0xABC,)).pack()
V7_UNBOUND, V7_BOUND = (
    mbn.V7_METADATA.pack(2, *(0,) * 17, *serials, *(0,) * 5, b"", 0)
    for serials in ((0,) * 8, (0xABC, *(0,) * 7))
)


def oem_file(area: bytes, metadata: bytes = UNBOUND, version: int = 6, **parts: bytes) -> bytes:
    library = Skel(sections=False).encode()
    return signed_file(
        library,
        version,
        digest="sha384",
        signature=SIGNATURE,
        certificates=area,
        metadata=metadata,
        **parts,
    )


def for_production(data: bytes, root: x509.Certificate = OEM[-1], serial: int | None = None) -> str:
    result = verification.verify(data, ExpectedSignature(root=root, serial=serial))
    return result.verdict(["signature"])


@pytest.mark.parametrize(
    ("version", "metadata", "verdict"),
    [
        (6, UNBOUND, "verified"),
        (6, BOUND, "failed"),
        (7, V7_UNBOUND, "verified"),
        (7, V7_BOUND, "failed"),
        (7, UNBOUND, "not proven"),
    ],
)
def test_production_takes_what_is_bound_to_no_single_device(
    version: int, metadata: bytes, verdict: str
) -> None:
    data = oem_file(certificates.join(OEM), metadata, version)
    assert for_production(data) == for_production(data, serial=None) == verdict
    assert for_production(data, serial=0xABC) != "verified"


def test_a_signature_that_is_bound_to_a_device_needs_its_serial_for_development_too() -> None:
    assert verification.verify(SIGNED, development(root=ROOT)).verdict() == "not proven"
    assert verification.verify(SIGNED, GOOD).verdict() == "verified"


def test_production_takes_no_rehearsal_and_no_test_key() -> None:
    unbound = signed_writer.sign_library(LIBRARY, chains.signer())
    assert failed(unbound, ExpectedSignature(root=ROOT)) == {"production"}
    test = oem_chain("General Use Test Key 0 (for testing only)")
    result = verification.verify(oem_file(certificates.join(test)), ExpectedSignature(root=test[-1]))
    assert ({check.part for check in result.failed}, result.signer) == ({"production"}, SignedBy.TEST)


@pytest.mark.parametrize(
    "said", ["QTI general use TEST KEY 4", "only ours (for testing only)", "qtestsign Root CA - NOT SECURE"]
)
@pytest.mark.parametrize("of", ["attestation", "root"])
def test_a_test_key_is_one_whichever_part_of_its_name_says_so(of: str, said: str) -> None:
    names = {"attestation": chains.name("att"), "root": chains.name("root"), of: chains.name(said)}
    row = {"subject": names["root"], "issuer": names["root"]}
    bent = chains.bent(attestation={"subject": names["attestation"], "issuer": names["root"]}, root=row)
    assert for_production(oem_file(certificates.join(bent.chain)), bent.root) == "failed"


@pytest.mark.parametrize(
    "key", [rsa.generate_private_key(65537, 1024), ec.generate_private_key(ec.SECP224R1())], ids=["rsa", "ec"]
)
def test_an_attestation_key_that_anybody_can_find_signs_nothing(key: object) -> None:
    chain = list(chains.bent(attestation={"key": key}).chain)
    assert for_production(oem_file(certificates.join(chain)), chain[-1]) == "failed"


def der(chain: list[x509.Certificate]) -> list[bytes]:
    return [certificate.public_bytes(Encoding.DER) for certificate in chain]


def chain_mutants() -> Iterator[tuple[str, list[bytes]]]:
    """Chains in which one thing is not as in the OEM's."""
    good, stranger = der(OEM), der(list(chains.bent().chain)) + der(oem_chain("stranger"))
    for at in range(len(good) + 1):
        for number, other in enumerate(stranger):
            yield f"unrelated {number} at {at}", [*good[:at], other, *good[at:]]
        for number, certificate in enumerate(good):
            yield f"certificate {number} again at {at}", [*good[:at], certificate, *good[at:]]
    for order in itertools.permutations(range(len(good))):
        if list(order) != sorted(order):
            yield f"order {order}", [good[number] for number in order]
    for number in range(len(good) - 1):
        yield f"without certificate {number}", good[:number] + good[number + 1 :]
    pick = random.Random(109)
    for number, certificate in enumerate(good):
        for at in pick.sample(range(4, len(certificate)), 25):
            changed = bytearray(certificate)
            changed[at] ^= 1 << pick.randrange(8)
            yield f"byte {at} of certificate {number}", [*good[:number], bytes(changed), *good[number + 1 :]]


def test_production_takes_no_chain_but_the_path_from_leaf_to_root() -> None:
    assert for_production(oem_file(certificates.join(OEM))) == "verified"
    assert for_production(oem_file(certificates.join(OEM[:-1]))) == "verified"
    mutants = dict(chain_mutants())
    assert len(mutants) > 100
    verdicts = {name: for_production(oem_file(b"".join(ders))) for name, ders in mutants.items()}
    assert [name for name, verdict in verdicts.items() if verdict == "verified"] == []


def v6_metadata(flags: int) -> bytes:
    return mbn.Metadata(software_id=4, flags=flags).pack()


def v7_metadata(flags: int = 0, life_cycle: int = 0) -> bytes:
    return mbn.V7_METADATA.pack(2, *(0,) * 27, 0, life_cycle, 0, b"", flags)


V7_OFF = 0x155555


@pytest.mark.parametrize(
    ("version", "metadata", "allowed", "verdict"),
    [
        (6, v6_metadata(2), 0, "not proven"),
        (6, v6_metadata(1 << 31), 2, "not proven"),
        (6, v6_metadata(2), 0xA, "verified"),
        (6, v6_metadata(4), 4, "failed"),
        (7, v7_metadata(V7_OFF), 0, "verified"),
        (7, v7_metadata(V7_OFF ^ 3), 0, "not proven"),
        (7, v7_metadata(V7_OFF ^ 3), 2, "verified"),
        (7, v7_metadata(V7_OFF ^ 0xC0), 0x80, "failed"),
        (7, v7_metadata(life_cycle=0xD), 0, "verified"),
        (7, v7_metadata(life_cycle=2), 0, "failed"),
        (7, v7_metadata() + b"\0", 0, "not proven"),
        (6, struct.pack("<I", 2) + UNBOUND[4:], 0, "not proven"),
    ],
)
@pytest.mark.parametrize("by", ["metadata", "qti_metadata"])
def test_production_takes_metadata_whose_meaning_somebody_answers_for(
    version: int, metadata: bytes, allowed: int, verdict: str, by: str
) -> None:
    parts = {"metadata": UNBOUND if version == 6 else V7_UNBOUND, by: metadata}
    data = oem_file(certificates.join(OEM), version=version, **parts)
    expected = ExpectedSignature(root=OEM[-1], allowed_flags=allowed)
    assert verification.verify(data, expected).verdict(["signature"]) == verdict
    assert verification.verify(data, development(root=OEM[-1])).verdict(["signature"]) == "verified"


def test_a_flag_is_named_by_its_place() -> None:
    data = oem_file(certificates.join(OEM), v6_metadata(0x202))
    (flags,) = (
        check
        for check in verification.verify(data, ExpectedSignature(root=OEM[-1])).checks
        if check.part == "flags"
    )
    place = data.index(struct.pack("<I", 0x202))
    assert all(word in flags.message for word in ("0x2 (use_soc_hw_version)", "0x200 (debug)", f"{place:#x}"))
    assert "--allow-flags 0x202" in flags.fix


def test_what_nobody_verified_is_named() -> None:
    data = oem_file(certificates.join(OEM), qti_signature=b"Q" * 104, qti_certificates=b"\xff" * 16)
    names = {range_.what for range_ in verification.verify(data, ExpectedSignature(root=OEM[-1])).unverified}
    wanted = {"QTI signature", "QTI certificates", "metadata", "hash table"}
    assert {f"{name} of the hash segment" for name in wanted} <= names
    assert not any("hash segment" in range_.what for range_ in verification.verify(SIGNED, GOOD).unverified)
