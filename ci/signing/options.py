"""The flags of the development signer, which two verbs share, and what they mean."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from provisioning.base.errors import UsageError

if TYPE_CHECKING:
    from ci.signing.development import Binding
    from ci.signing.keys import Identity, Passphrase


def add_identity(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "development signer", "without a key, a chain is made for this run and its keys die with it"
    )
    group.add_argument("--key", type=Path, metavar="PEM", help="private key of the attestation certificate")
    group.add_argument(
        "--chain", type=Path, metavar="PEM", help="its certificates: attestation first, up to the root"
    )
    group.add_argument("--pkcs12", type=Path, metavar="FILE", help="key and chain in one file")
    group.add_argument(
        "--sign-command",
        metavar="COMMAND",
        help="signs for an HSM or KMS, with --chain: SHA-384 digest on stdin, signature on stdout",
    )
    group.add_argument(
        "--algorithm", choices=("ec", "rsa"), default="ec", help="of a chain made for this run"
    )
    add_passphrase(group)
    group.add_argument("--sw-id", default="adsp", help="adsp, cdsp, slpi or a number [%(default)s]")
    group.add_argument("--hw-id", default="0", help="chip and OEM; 0 is any [%(default)s]")
    group.add_argument("--anti-rollback", type=int, default=0, metavar="N", help="version to start from")
    parser.add_argument("--replace", action="store_true", help="put a new signature in an old one's place")


def add_passphrase(group: argparse._ActionsContainer) -> None:
    """Never the passphrase itself: command lines are for all to read."""
    where = group.add_mutually_exclusive_group()
    where.add_argument(
        "--passphrase-env",
        metavar="NAME",
        help="variable with the key's passphrase [QNN_CI_SIGNING_PASSPHRASE]",
    )
    where.add_argument("--passphrase-file", type=Path, metavar="FILE", help="file with it, mode 600")
    where.add_argument("--passphrase-fd", type=int, metavar="N", help="file descriptor with it")


def identity_of(args: argparse.Namespace) -> Identity:
    from ci.signing import keys

    given = [name for name in ("key", "pkcs12", "sign_command") if getattr(args, name) is not None]
    if len(given) > 1:
        raise UsageError("--key, --pkcs12 and --sign-command exclude each other", remedy="give one of them")
    passphrase = passphrase_of(args)
    if args.pkcs12 is not None:
        return keys.from_pkcs12(args.pkcs12, passphrase)
    if not given:
        if args.chain is not None:
            raise UsageError("--chain needs --key or --sign-command", remedy="add the one that has its key")
        return keys.ephemeral(args.algorithm)
    if args.chain is None:
        flag = f"--{given[0].replace('_', '-')}"
        raise UsageError(f"{flag} needs --chain", remedy="add its certificates, attestation first")
    if args.key is not None:
        return keys.from_pem(args.key, args.chain, passphrase)
    return keys.from_command(args.sign_command, args.chain)


def passphrase_of(args: argparse.Namespace) -> Passphrase:
    from ci.signing import process
    from ci.signing.keys import PASSPHRASE_VARIABLE, Passphrase

    variable = args.passphrase_env or PASSPHRASE_VARIABLE
    process.keep_from_children(variable)
    return Passphrase(variable, args.passphrase_file, args.passphrase_fd)


def binding_of(args: argparse.Namespace, serials: tuple[int, ...] = ()) -> Binding:
    from ci.signing.development import Binding

    if not 0 <= args.anti_rollback <= 0xFFFFFFFF:
        raise UsageError(
            f"--anti-rollback {args.anti_rollback}: expected 32 bits", remedy="give a smaller number"
        )
    return Binding(software_id(args.sw_id), number("--hw-id", args.hw_id), serials, args.anti_rollback)


def software_id(text: str) -> int:
    from ci.signing.development import SOFTWARE_IDS

    return SOFTWARE_IDS[text] if text in SOFTWARE_IDS else number("--sw-id", text)


def number(flag: str, text: str) -> int:
    """32 bits, decimal or with 0x."""
    try:
        value = int(text, 0)
    except ValueError:
        value = -1
    if not 0 <= value <= 0xFFFFFFFF:
        raise UsageError(f"{flag} {text}: expected a number of 32 bits", remedy=f"as in {flag} 0x17")
    return value
