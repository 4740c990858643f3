"""Records that cross a process."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from ci.suite.accuracy import Pair
from ci.work.plain import to_json


@dataclass(frozen=True)
class Inner:
    name: str
    values: list[float]


@dataclass(frozen=True)
class Outer:
    inner: Inner
    rows: tuple[Inner, ...]
    by_name: dict[str, Inner]
    mixed: list[Any] = field(default_factory=list)


def test_a_record_is_written_as_pythons_own_function_does_and_shares_no_list_with_it() -> None:
    inner = Inner("a", [1.0, 2.5])
    record = Outer(inner, (inner, inner), {"x": inner}, [None, True, {"y": [inner, 1]}, {1}, ("b", 2)])
    assert to_json(record) == asdict(record)
    document = to_json(record)
    document["inner"]["values"].append(3.0)
    document["mixed"][2]["y"].append(2)
    assert (inner.values, len(record.mixed[2]["y"])) == ([1.0, 2.5], 2)


def test_a_tuple_with_names_stays_one() -> None:
    @dataclass(frozen=True)
    class Named:
        pair: Pair

    pair = Pair("output 0", *[[1.0]] * 2)  # type: ignore[arg-type]
    assert to_json(Named(pair)) == asdict(Named(pair)) and isinstance(to_json(Named(pair))["pair"], Pair)
