"""Reading programs and context binaries: what is inside, what is damaged, and what a runtime would say."""

from __future__ import annotations

import argparse
import contextlib
import json
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ci.inspect import verb
from ci.suites.programs.against_sdk import Answer, against
from ci.suites.programs.flatbuffer import Malformed, Reader, Table
from ci.suites.programs.program import Context, Options, Program, parse, read
from provisioning.base.errors import CheckFailed, UsageError
from tests.support.programs import BUILD_ID, context, no_options, options, program

WHOLE = program()


def _program(data: bytes) -> Program:
    found = parse(data)
    assert isinstance(found, Program)
    return found


class TestReading:
    def test_a_method_has_its_tensors_and_its_operators_on_the_cpu(self) -> None:
        (method,) = _program(WHOLE).methods
        assert (method.name, [str(each) for each in method.inputs]) == ("forward", ["float32[1, 3, 8, 8]"])
        assert (method.kernels, method.delegate_calls) == ({"aten::erf.out": 1}, 1)
        assert method.planned_bytes == 1024

    def test_a_delegate_says_what_it_was_compiled_for_twice(self) -> None:
        (delegate,) = _program(WHOLE).delegates
        assert delegate.options is not None and delegate.context is not None
        assert (delegate.options.soc_id, delegate.options.arch, delegate.options.vtcm_mb) == (57, 75, 8)
        assert delegate.context == Context(len(context()), (BUILD_ID,), ("SM8650",), (75,), (8 << 20,))

    @pytest.mark.parametrize(
        ("number", "name"), [(0, "unknown"), (1, "gpu"), (2, "htp"), (3, "dsp"), (4, "lpai"), (5, "unknown")]
    )
    def test_a_processor_has_its_name(self, number: int, name: str) -> None:
        made = program(spec=options(backend_type=number, precision=1, online=True))
        (delegate,) = _program(made).delegates
        assert delegate.options is not None and delegate.options.processor == name
        assert (delegate.options.precision, delegate.options.online_prepare) == ("fp16", True)

    def test_a_delegate_of_another_backend_has_no_context_of_qnn(self, tmp_path: Path) -> None:
        found = _program(program(backend="XnnpackBackend", spec=no_options(), inline=True))
        assert found.delegates[0].options == Options(0, 0, 0, False, "unknown", "unknown")
        assert found.delegates[0].segment is None
        assert found.delegates[0].context is None
        assert against(found, tmp_path).loads

    def test_what_has_a_build_id_alone_is_a_context_binary(self) -> None:
        found = parse(b"\x02\x00" + context("SM8850", 81, 4 << 20))
        assert isinstance(found, Context)
        assert (found.socs, found.arches, found.vtcm_bytes) == (("SM8850",), (81,), (4 << 20,))


class TestDamage:
    @pytest.mark.parametrize("data", [b"", b"\0" * 7, b"PK\x03\x04" * 40], ids=["empty", "short", "zip"])
    def test_what_is_neither_is_said_to_be_neither(self, data: bytes, tmp_path: Path) -> None:
        path = tmp_path / "model.pte"
        path.write_bytes(data)
        with pytest.raises(CheckFailed, match="an ExecuTorch program or a QNN context binary, found neither"):
            read(path)

    def test_a_file_cut_short_says_so(self) -> None:
        with pytest.raises(Malformed, match="cut short"):
            parse(WHOLE[:-10])

    def test_a_list_longer_than_the_file_is_refused_not_shortened(self) -> None:
        place = WHOLE.index(options()) - 4
        with pytest.raises(Malformed, match="says it has"):
            parse(WHOLE[:place] + b"\xff\xff\xff\x00" + WHOLE[place + 4 :])

    @pytest.mark.parametrize(
        ("length", "size", "base"),
        [(23, 400, 400), (24, len(WHOLE) + 1, 400), (24, 400, len(WHOLE) + 1)],
        ids=["short", "program beyond the end", "segments beyond the end"],
    )
    def test_a_header_that_cannot_be_is_refused(self, length: int, size: int, base: int) -> None:
        damaged = WHOLE[:12] + struct.pack("<IQQ", length, size, base) + WHOLE[32:]
        with pytest.raises(Malformed, match=rf"a header of {size} bytes and segments at {base}"):
            parse(damaged)

    @pytest.mark.parametrize("number", [1, -1])
    def test_an_operator_that_is_not_there_is_refused(self, number: int) -> None:
        with pytest.raises(Malformed, match=f"a reference to operator {number} of 1"):
            parse(program(operator=number))

    @given(st.data())
    def test_bytes_changed_anywhere_are_read_or_refused(self, data: st.DataObject) -> None:
        head = len(WHOLE) - len(context()) - 2000
        changes = data.draw(
            st.lists(st.tuples(st.integers(0, max(1, head)), st.integers(0, 255)), min_size=1, max_size=8)
        )
        damaged = bytearray(WHOLE)
        for place, value in changes:
            damaged[place] = value
        with contextlib.suppress(Malformed):
            assert isinstance(parse(bytes(damaged)), Program | Context)

    @given(st.integers(0, len(WHOLE)))
    @example(12)
    @example(31)
    def test_cut_anywhere_it_is_read_or_refused(self, length: int) -> None:
        with contextlib.suppress(Malformed):
            assert isinstance(parse(WHOLE[:length]), Program | Context)

    @given(st.binary(max_size=400))
    def test_anything_behind_the_mark_is_read_or_refused(self, tail: bytes) -> None:
        with contextlib.suppress(Malformed):
            assert isinstance(parse(b"\x10\0\0\0ET12" + tail), Program)


class TestFlatbuffer:
    """One table of one field, which is a list of bytes; every number of it may be another."""

    def table(self, *, fields: int = 6, target: int = 4, count: int = 3, listed: bytes = b"abc") -> Table:
        head = struct.pack("<IHHHHiI", 12, fields, 8, 4, 0, 8, target)
        return Reader(head + struct.pack("<I", count) + listed).root()

    def test_a_whole_one_is_read(self) -> None:
        assert bytes(self.table().bytes(0)) == b"abc"
        assert self.table().numbers(0, "B") == [97, 98, 99]
        assert (self.table().numbers(1, "B"), self.table().text(1), self.table().table(1)) == ([], "", None)

    @pytest.mark.parametrize("size", [2, 5, 24])
    def test_a_list_of_fields_that_cannot_be_is_refused(self, size: int) -> None:
        with pytest.raises(Malformed, match="a bad list of fields"):
            self.table(fields=size)

    @pytest.mark.parametrize("target", [11, 1 << 31])
    def test_an_offset_to_the_end_or_beyond_is_refused(self, target: int) -> None:
        with pytest.raises(Malformed, match="points outside"):
            self.table(target=target).bytes(0)

    @pytest.mark.parametrize(("count", "code"), [(4, "B"), (2, "H"), (1 << 31, "B")])
    def test_a_list_beyond_the_end_is_refused(self, count: int, code: str) -> None:
        with pytest.raises(Malformed, match=f"says it has {count} elements"):
            self.table(count=count).numbers(0, code)


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
        assert against(parse(WHOLE), sdk) == Answer(True, (f"both are QNN {BUILD_ID}", "it has HTP v75"))

    @pytest.mark.parametrize("silent", [Context(8, (), (), (), ()), Context(8, (BUILD_ID,), (), (), ())])
    def test_each_part_is_judged_by_itself(self, sdk: Path, silent: Context) -> None:
        whole = _program(WHOLE)
        (named,) = whole.delegates
        both = replace(whole, delegates=(named, replace(named, context=silent, options=None)))
        answer = against(both, sdk)
        assert not answer.loads and all(
            reason.startswith("delegate 1: it names no") for reason in answer.says
        )

    def test_the_arch_of_the_options_serves_where_the_context_names_none(self, sdk: Path) -> None:
        whole = _program(program(spec=options(arch=73)))
        (delegate,) = whole.delegates
        unnamed = replace(delegate, context=Context(8, (BUILD_ID,), (), (), ()))
        answer = against(replace(whole, delegates=(unnamed,)), sdk)
        assert not answer.loads and "it is for HTP v73" in answer.says[0]

    def test_a_folder_that_is_not_there_is_wrong_use(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="expected the folder of an SDK"):
            against(parse(WHOLE), tmp_path / "none")

    def test_an_older_runtime_cannot_load_it_and_the_error_is_named(self, tmp_path: Path) -> None:
        answer = against(parse(WHOLE), self._sdk(tmp_path, "v2.37.0.250724175447", 75))
        assert not answer.loads and "error 5000" in answer.says[0]

    def test_a_newer_runtime_is_no_promise(self, tmp_path: Path) -> None:
        answer = against(parse(WHOLE), self._sdk(tmp_path, "v2.51.0.261001104044", 75))
        assert answer.loads and "does not promise" in answer.says[0]

    def test_an_arch_that_the_sdk_lacks_is_named(self, sdk: Path) -> None:
        answer = against(parse(program(data=context("SM8850", 81))), sdk)
        assert not answer.loads and "HTP v81, and this has v75, v79 alone" in answer.says[0]

    def test_a_folder_without_qnn_is_no_sdk(self, tmp_path: Path) -> None:
        with pytest.raises(CheckFailed, match=r"expected lib/\*/libQnnHtp\.so with a build id"):
            against(parse(WHOLE), tmp_path)


class TestVerb:
    def test_a_library_of_qnn_is_no_context_binary(self, tmp_path: Path) -> None:
        path = tmp_path / "lib Skel.so"
        path.write_bytes(b"\x7fELF" + bytes(100) + BUILD_ID.encode() + b"\0")
        with pytest.raises(CheckFailed, match="found an ELF library") as caught:
            self._run(path)
        assert caught.value.remedy == f"python -m ci signing inspect '{path}'"

    def _run(self, path: Path, *, against: Path | None = None, as_json: bool = False) -> int:
        return verb.run(argparse.Namespace(file=path, against=against, json=as_json))

    def test_text_names_everything_that_is_asked_about(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = tmp_path / "model.pte"
        path.write_bytes(WHOLE)
        assert self._run(path) == 0
        text = capsys.readouterr().out
        for part in (
            "method forward",
            "on the CPU: aten::erf.out",
            BUILD_ID,
            "SM8650",
            "v75",
            "8 MB",
            "aligned",
        ):
            assert part in text

    def test_json_is_one_document(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = tmp_path / "model.pte"
        path.write_bytes(WHOLE)
        assert self._run(path, as_json=True) == 0
        document = json.loads(capsys.readouterr().out)
        assert document["delegates"][0]["context"]["build_ids"] == [BUILD_ID]
