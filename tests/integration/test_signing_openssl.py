"""Signature and chain of a rehearsal, checked by `openssl` and a second reading, not by ci.signing."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from ci.signing.lpai import rehearsal
from tests.support import chains
from tests.support.mbn import Apart, take_apart
from tests.support.needs import program
from tests.support.skels import Skel

pytestmark = pytest.mark.needs("openssl")


def openssl(*words: object, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [program("openssl"), *map(str, words)], input=stdin, capture_output=True, timeout=60, check=False
    )


def pem(der: bytes) -> bytes:
    text = base64.encodebytes(der)
    return b"-----BEGIN CERTIFICATE-----\n" + text + b"-----END CERTIFICATE-----\n"


@pytest.fixture
def apart(tmp_path: Path) -> Apart:
    apart = take_apart(rehearsal.sign(Skel().encode(), chains.signer()))
    # The file holds r and s, 48 bytes each; openssl wants DER.
    r, s = (int.from_bytes(half, "big") for half in (apart.signature[:48], apart.signature[48:]))
    (tmp_path / "signed").write_bytes(apart.signed)
    (tmp_path / "signature").write_bytes(encode_dss_signature(r, s))
    for role, der in zip(("attestation", "ca", "root"), apart.certificates, strict=True):
        (tmp_path / f"{role}.pem").write_bytes(pem(der))
    key = openssl("x509", "-in", tmp_path / "attestation.pem", "-noout", "-pubkey").stdout
    (tmp_path / "key.pem").write_bytes(key)
    return apart


def check_signature(directory: Path) -> bytes:
    key, signature = directory / "key.pem", directory / "signature"
    return openssl("dgst", "-sha384", "-verify", key, "-signature", signature, directory / "signed").stdout


def check_chain(directory: Path, root: str) -> int:
    untrusted = ("-untrusted", directory / "ca.pem", directory / "attestation.pem")
    return openssl("verify", "-x509_strict", "-CAfile", directory / root, *untrusted).returncode


def test_openssl_accepts_the_signature_and_over_nothing_else(apart: Apart, tmp_path: Path) -> None:
    assert check_signature(tmp_path) == b"Verified OK\n"
    (tmp_path / "signed").write_bytes(apart.signed[:-1] + b"\x01")
    assert b"Verification" in check_signature(tmp_path) and b"OK" not in check_signature(tmp_path)


def test_openssl_accepts_the_chain_up_to_its_root_and_no_other(apart: Apart, tmp_path: Path) -> None:
    assert check_chain(tmp_path, "root.pem") == 0
    (tmp_path / "other.pem").write_bytes(chains.other_signer().root_pem)
    assert check_chain(tmp_path, "other.pem") != 0
