"""Flags that many verbs have, and the types of their values."""

from __future__ import annotations

import argparse
import re
import threading
from contextlib import suppress
from typing import Any


def count(text: str) -> int:
    """The type of an argument that is a number of things."""
    if text.isdecimal() and int(text):
        return int(text)
    raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, such as 2, found {text!r}")


TIMEOUT = 900.0
"""Seconds after which a stage ends the work on one program, unless --timeout says otherwise."""


def duration(text: str) -> float:
    """The type of an argument that is a time to wait at most, in seconds."""
    with suppress(ValueError):
        if 0 < (seconds := float(text)) <= threading.TIMEOUT_MAX:
            return seconds
    raise argparse.ArgumentTypeError(
        f"expected a number of seconds above 0, such as {TIMEOUT:g}, found {text!r}"
    )


def add_timeout(parser: argparse._ActionsContainer, work: str, default: float = TIMEOUT) -> None:
    """Add the flag of a time limit for `work`."""
    text = f"end {work} after S seconds [%(default)g]"
    parser.add_argument("--timeout", type=duration, default=default, metavar="S", help=text)


def switch(parser: argparse._ActionsContainer, flag: str, help: str) -> None:
    """Add a flag without a value: true if it is typed."""
    parser.add_argument(flag, action="store_true", help=help)


def add_valued(parser: argparse._ActionsContainer, flag: str, metavar: str, help: str, **more: Any) -> None:
    """Add a flag with a value."""
    parser.add_argument(flag, metavar=metavar, help=help, **more)


def hex_bits(text: str) -> int:
    """The type of an argument that is a word of 32 bits."""
    if re.fullmatch("0[xX][0-9a-fA-F]{1,8}", text):
        return int(text, 16)
    raise argparse.ArgumentTypeError(f"expected 32 bits in hex, such as 0x2, found {text!r}")


def add_purpose(parser: argparse._ActionsContainer) -> None:
    """Add --for, the devices that a signed library is for, and --allow-flags."""
    parser.add_argument(
        "--for",
        dest="purpose",
        choices=("production", "development"),
        default="production",
        help="the devices that it is for; development takes rehearsals and test signatures [%(default)s]",
    )
    parser.add_argument(
        "--allow-flags",
        type=hex_bits,
        default=0,
        metavar="0x…",
        help="metadata flags that your devices are known to take; production refuses all others",
    )


def repeatable(parser: argparse._ActionsContainer, flag: str, metavar: str, help: str, **more: Any) -> None:
    """Add a flag that may be repeated: its values are a list, empty without the flag."""
    parser.add_argument(
        flag, action="append", default=[], metavar=metavar, help=f"{help}; may be repeated", **more
    )
