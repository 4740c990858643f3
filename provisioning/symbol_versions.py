"""Symbol versions that a library needs or defines, such as GLIBC_2.34, and the order of their numbers."""

from __future__ import annotations

from collections.abc import Iterable


def highest_version(names: Iterable[str], family: str) -> str | None:
    """The highest number of `GLIBC`, `GLIBCXX` or `CXXABI`, as `2.34`.

    Private versions such as GLIBC_PRIVATE are no numbers and have no order: compare them by name.
    """
    begins = f"{family}_"
    numbers = [name.removeprefix(begins) for name in names if name.startswith(begins)]
    known = (number for number in numbers if number.replace(".", "").isdecimal())
    return max(known, key=version_key, default=None)


def version_key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part)
