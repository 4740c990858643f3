"""Reading programs and context binaries: what is inside, and what a runtime would say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ci.artifacts.against_sdk import LoadVerdict, compare_with_sdk
from ci.artifacts.program import CompiledProgram, ContextStrings, parse
from ci.inspect import verb
from tests.support.programs import BUILD_ID, context, options, program
from tests.support.typed import run_here

WHOLE = program()


def _program(data: bytes) -> CompiledProgram:
    content = parse(data)
    assert isinstance(content, CompiledProgram)
    return content


class TestReading:
    def test_a_method_has_its_tensors_and_its_operators_on_the_cpu(self) -> None:
        (method,) = _program(WHOLE).methods
        assert method.name == "forward"
        assert [str(value) for value in method.inputs] == ["float32[1, 3, 8, 8]"]
        assert [str(value) for value in method.outputs] == ["float32[1, 10]"]
        assert (method.kernels, method.delegate_calls) == ({"aten::erf.out": 1}, 1)
        assert method.planned_bytes == 1024

    def test_a_delegate_says_what_it_was_compiled_for_twice(self) -> None:
        (delegate,) = _program(WHOLE).delegates
        assert delegate.options is not None and delegate.context is not None
        assert (delegate.options.soc_id, delegate.options.arch, delegate.options.vtcm_mb) == (57, 75, 8)
        assert delegate.context == ContextStrings(len(context()), (BUILD_ID,), ("SM8650",), (75,), (8 << 20,))


@pytest.mark.parametrize(("online", "when"), [(False, "ahead of time"), (True, "on the device")])
def test_the_command_says_what_a_delegate_was_compiled_for(
    online: bool, when: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.pte"
    path.write_bytes(program(spec=options(57, 75, 8, online)))
    assert run_here(verb, path) == 0
    out = capsys.readouterr().out
    assert [word for word in ("SoC id 57", "HTP v75", "8 MB VTCM", when) if word not in out] == []


class TestAgainst:
    @pytest.fixture
    def sdk(self, tmp_path: Path) -> Path:
        return self._sdk(tmp_path, BUILD_ID, 75, 79)

    def _sdk(self, root: Path, build_id: str, *arches: int) -> Path:
        (root / "lib/aarch64-android").mkdir(parents=True)
        (root / "lib/aarch64-android/libQnnHtp.so").write_bytes(b"\x7fELF" + build_id.encode() + b"\0")
        for arch in arches:
            (root / f"lib/hexagon-v{arch}").mkdir()
        return root

    def test_the_same_build_with_the_arch_loads(self, sdk: Path) -> None:
        assert compare_with_sdk(parse(WHOLE), sdk) == LoadVerdict(
            True, (f"both are QNN {BUILD_ID}", "it has HTP v75")
        )

    @pytest.mark.parametrize(
        "silent", [ContextStrings(8, (), (), (), ()), ContextStrings(8, (BUILD_ID,), (), (), ())]
    )
    def test_each_part_is_judged_by_itself(self, sdk: Path, silent: ContextStrings) -> None:
        whole = _program(WHOLE)
        (named,) = whole.delegates
        both = replace(whole, delegates=(named, replace(named, context=silent, options=None)))
        answer = compare_with_sdk(both, sdk)
        assert not answer.loads and all(
            reason.startswith("delegate 1: it names no") for reason in answer.says
        )

    def test_an_older_runtime_cannot_load_it_and_the_error_is_named(self, tmp_path: Path) -> None:
        answer = compare_with_sdk(parse(WHOLE), self._sdk(tmp_path, "v2.37.0.250724175447", 75))
        assert not answer.loads and "error 5000" in answer.says[0]

    def test_a_newer_runtime_is_no_promise(self, tmp_path: Path) -> None:
        answer = compare_with_sdk(parse(WHOLE), self._sdk(tmp_path, "v2.51.0.261001104044", 75))
        assert answer.loads and "does not promise" in answer.says[0]

    def test_an_arch_that_the_sdk_lacks_is_named(self, sdk: Path) -> None:
        answer = compare_with_sdk(parse(program(data=context("SM8850", 81))), sdk)
        assert not answer.loads and {"v81", "v75", "v79"} <= {
            *answer.says[0].replace(",", " ").replace(":", " ").split()
        }

    @pytest.mark.parametrize(("chip", "arch", "code"), [("SM8650", 75, 0), ("SM8850", 81, 1)])
    def test_the_command_ends_with_1_where_the_sdk_cannot_load_it(
        self, sdk: Path, tmp_path: Path, chip: str, arch: int, code: int
    ) -> None:
        (tmp_path / "model.pte").write_bytes(program(data=context(chip, arch)))
        assert run_here(verb, tmp_path / "model.pte", "--against", sdk) == code
