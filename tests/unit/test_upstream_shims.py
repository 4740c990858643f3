"""Absent modules can be imported and named, and raise when really used."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import typing
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ci.lanes.upstream import shims

ABSENT = "qnn_ci_absent"


@pytest.fixture(autouse=True)
def stand_in() -> Iterator[None]:
    shims.forget()
    assert shims.install([ABSENT]) == [ABSENT]
    yield
    sys.meta_path.pop()
    for name in [name for name in sys.modules if name.partition(".")[0] == ABSENT]:
        del sys.modules[name]


def absent(name: str = "thing") -> typing.Any:
    return getattr(importlib.import_module(ABSENT), name)


class Uses:
    call = staticmethod(lambda x: x())
    index = staticmethod(lambda x: x[0])
    loop = staticmethod(lambda x: list(x))
    truth = staticmethod(lambda x: bool(x))
    check = staticmethod(lambda x: isinstance(1, x))
    subclass = staticmethod(lambda x: issubclass(int, x))
    inherit = staticmethod(lambda x: _inherit(x))
    enter = staticmethod(lambda x: x.__enter__())
    store = staticmethod(lambda x: setattr(x, "field", 1))
    nested = staticmethod(lambda x: x.models.resnet18(pretrained=True))


def _inherit(base: typing.Any) -> type:
    class Sub(base):  # type: ignore[misc]
        pass

    return Sub


@pytest.mark.parametrize("use", [name for name in vars(Uses) if not name.startswith("_")])
def test_every_real_use_raises_and_is_remembered(use: str) -> None:
    action: Callable[[object], object] = getattr(Uses, use)
    with pytest.raises(shims.NotAvailableHere, match=ABSENT):
        action(absent())
    assert shims.touched_modules()[0].startswith(f"{ABSENT}.thing")


def test_an_installed_module_is_never_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "qnn_ci_present.py").write_text("real = True\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert shims.install(["json", "qnn_ci_present"]) == []
    assert importlib.import_module("qnn_ci_present").real is True
    assert json.loads("1") == 1
