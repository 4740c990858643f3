"""A language model compiled, run and checked, where workers and Genie are stand-ins; and what it reads."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ci.__main__ import VERBS
from ci.lanes.llm.architecture import Architecture, read_architecture
from ci.lanes.llm.compile_needs import CompileNeeds
from ci.lanes.llm.genie import (
    CONFIG,
    PROGRAM,
    emulator_settings,
    refusal,
    require_short,
    require_sizes,
    setting,
    write_config,
)
from ci.lanes.llm.graphs import shared_encodings
from ci.lanes.llm.orders import (
    GENIE,
    RECORD,
    CompileOrder,
    PartDistances,
    Parts,
    Readings,
    Record,
    Rounded,
    SpokenText,
    Window,
    record_of,
)
from ci.lanes.llm.product import fewest_parts, readme_of
from ci.lanes.llm.steps import digests_of, source_of
from ci.lanes.llm.suite import SUITES
from ci.lanes.llm.text import judged_text, prefix_lengths, share_of_runs, windows
from ci.lanes.llm.verb import CHECK
from ci.lanes.llm.verdicts import WINDOWS
from ci.model_commands import run as run_command
from ci.report.collect import report_in, rows_of
from ci.work.outcome import Result
from ci.work.plain import to_json
from provisioning.base.command_line import main
from provisioning.base.commands import SPELLED_INSTALLED
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.base.findings import Finding, Report
from provisioning.base.guard import guard
from provisioning.base.settings import store_path
from provisioning.manifest import soc_named
from qnn_ci.command import program_of
from tests.support.checkpoints import PUBLISHED, shapes_of, write_config_json, write_tokenizer, write_weights
from tests.support.typed import parsed
from tests.unit.test_llm_verdicts import part, reading

ORDER = CompileOrder(
    model="",
    through="genie",
    soc="SM8650",
    precision="16a8w",
    context=128,
    prefill=32,
    parts=1,
    calibration=[[9] * 16],
)


def published(folder: Path, name: str, **changes: Any) -> Architecture:
    (folder / "config.json").write_text(json.dumps(PUBLISHED[name]["config"] | changes))
    return read_architecture(folder)


def genie_config(folder: Path, shape: Architecture, *names: str, soc: str = "SM8650") -> Path:
    binaries = [folder / name for name in names]
    for binary in binaries:
        binary.touch()
    return write_config(folder, shape, binaries, soc_named(soc), context=128, most=5)


class TestCompile:
    """What its worker writes is given."""

    @pytest.fixture
    def model(self, tmp_path: Path) -> Path:
        folder = tmp_path / "model"
        folder.mkdir()
        write_weights(write_tokenizer(write_config_json(folder)), shapes_of())
        return folder

    def compiled(self, model: Path, *flags: str) -> int:
        arguments = ["compile", str(model), "-o", str(model.parent / "out"), *flags]
        return main("python -m ci", "", {name: VERBS[name] for name in ("check", "compile")}, arguments)

    @pytest.mark.parametrize(
        ("flags", "named"),
        [
            ("--soc SM8650 --soc SM8750", "one chip"),
            ("--soc SM1", "SM1"),
            ("--precision 8a8w", "16a8w"),
            ("--precision 16a8w", "--calibrate"),
            ("--precision 16a8w --calibrate nowhere.txt", "nowhere.txt"),
            ("--backend lpai", "--backend"),
            ("--suite mine.toml", "--suite"),
            ("--context 256", "made for 128"),
            ("--through executorch --precision 16a2w", "16a4w"),
            ("--through executorch --precision 8a8w", "--calibrate"),
            ("--through executorch --parts 2", "parts"),
            ("--through executorch --prefill 128", "longer context"),
        ],
    )
    def test_what_cannot_be_compiled_is_refused_before_it_starts(
        self, model: Path, capsys: pytest.CaptureFixture[str], flags: str, named: str
    ) -> None:
        assert program_of("compile", [str(model), *flags.split()], Path.cwd()) == ("ci", "llm")
        assert self.compiled(model, *flags.split()) == 2
        assert named in capsys.readouterr().err and not (model.parent / "out").exists()
        write_config_json(model, eos_token_id=None)
        assert self.compiled(model) == 2
        assert "eos_token_id" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("wrong", "layers", "right"), [(3, 3, 2), (3, 4, 4), (5, 5, 4), (5, 3, 2), (9, 4, 4), (9, 1, 1)]
    )
    def test_a_number_of_parts_that_is_refused_is_answered_by_one_that_works(
        self, model: Path, capsys: pytest.CaptureFixture[str], wrong: int, layers: int, right: int
    ) -> None:
        """In fp16 Genie computes odd ones wrong, and none is without a layer."""
        write_weights(write_config_json(model, num_hidden_layers=layers), shapes_of(layers=layers))
        assert self.compiled(model, "--parts", str(wrong)) == 2
        assert f"--parts {right}" in capsys.readouterr().err

    def test_a_context_beyond_the_window_of_a_model_names_the_window(
        self, model: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        sizes = {"sliding_window": 128, "max_position_embeddings": 512}
        write_config_json(model, model_type="gemma3_text", rope_scaling=None, **sizes)
        assert self.compiled(model, "--context", "256") == 2
        told = capsys.readouterr().err
        assert "sliding_window of 128" in told and "--context 128" in told

    def test_it_writes_over_what_it_wrote_and_over_nothing_else(
        self, model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        out, made = model.parent / "out", model.parent / "made"
        made.mkdir()
        genie_config(made, read_architecture(model), "prefill_0.bin", "decode_0.bin")

        def run_step(step: Any, programs: Sequence[Any]) -> dict[str, Result]:
            facts = {"size": 10, "cpu_seconds": 1.0, "peak": 5, "binaries": 2}
            return {program.name: Result(facts, made) for program in programs}

        monkeypatch.setattr("ci.lanes.llm.product.run_cached_step", run_step)
        monkeypatch.setattr("ci.lanes.llm.product.require_installed", lambda: None)
        # An installed copy has no other command.
        monkeypatch.setattr("provisioning.base.commands.CLONE", False)
        out.mkdir()
        (out / "theirs.bin").touch()
        assert self.compiled(model) == 2 and (out / "theirs.bin").exists()
        (out / "theirs.bin").unlink()
        assert self.compiled(model) == 0
        assert f"try it: qnn-ci run {out} " in capsys.readouterr().out
        record = record_of(out)
        assert set(record.source) == {"config.json", "model.safetensors", "tokenizer.json"}
        # By a folder from where it is typed.
        monkeypatch.chdir(out.parent)
        (out / "prefill_1.bin").touch()
        (out.parent / "outside.txt").touch()
        earlier = replace(record, files={**record.files, "prefill_1.bin": "", "../outside.txt": ""})
        (out / RECORD).write_text(earlier.to_json())
        assert self.compiled(model, "-o", "out") == 0
        assert (out / "prefill_0.bin").exists() and not (out / "prefill_1.bin").exists()
        assert (out.parent / "outside.txt").exists()

    @pytest.mark.parametrize(
        ("name", "precision", "layers", "parts"),
        [
            ("SmolLM2-135M", "fp16", 30, 1),
            ("Llama-3.2-1B", "fp16", 16, 4),
            ("Llama-3.2-1B", "16a8w", 16, 5),
            ("Llama-3.2-1B", "fp16", 11, 4),
            ("Llama-3.2-3B", "fp16", 28, 8),
        ],
    )
    def test_parts_are_no_larger_than_a_gigabyte(
        self, tmp_path: Path, name: str, precision: str, layers: int, parts: int
    ) -> None:
        shape = published(tmp_path, name, num_hidden_layers=layers)
        assert fewest_parts(shape, precision) == parts
        for count in (parts, layers):
            spans = [shape.part(number, count) for number in range(count)]
            numbers = [layer for first, last in spans for layer in range(first, last)]
            assert all(first < last for first, last in spans) and numbers == list(range(layers))

    @pytest.mark.parametrize(
        ("layers", "parts", "precision", "calibrated", "minutes", "gigabytes"),
        [(2, 2, "16a8w", 8184, 7.65, 9.9), (16, 5, "16a8w", 1536, 13.5, 9.7), (16, 4, "fp16", 0, 3.8, 5.8)],
    )
    def test_what_a_compile_needs_is_said_before_it(
        self,
        tmp_path: Path,
        layers: int,
        parts: int,
        precision: str,
        calibrated: int,
        minutes: float,
        gigabytes: float,
    ) -> None:
        """As 1B's true shape was measured."""
        shape = published(tmp_path, "Llama-3.2-1B", num_hidden_layers=layers)
        order = replace(ORDER, parts=parts, precision=precision, calibration=[[0] * calibrated])
        needs = CompileNeeds.of(shape, order, pace=1.0)
        assert needs.seconds / 60 == pytest.approx(minutes, rel=0.3)
        assert needs.memory / 1e9 == pytest.approx(gigabytes, rel=0.2)
        assert len(list(needs.lines(tmp_path / "not" / "there"))) == 1
        [_, memory, disk] = replace(needs, memory=1e15, disk=1e15).lines(tmp_path)
        assert "memory" in memory and "--parts" in memory and "disk" in disk


class TestGenie:
    @pytest.mark.parametrize(
        ("name", "ropes"),
        [
            (
                "Llama-3.2-1B",
                {
                    "type": "rope",
                    "rope-dim": 32,
                    "rope-theta": 500000,
                    "rope-scaling": {
                        "rope-type": "llama3",
                        "factor": 32.0,
                        "low-freq-factor": 1.0,
                        "high-freq-factor": 4.0,
                        "original-max-position-embeddings": 8192,
                    },
                },
            ),
            ("Qwen3-0.6B", {"type": "rope", "rope-dim": 64, "rope-theta": 1000000}),
            ("Phi-4-mini", {"type": "rope", "rope-dim": 48, "rope-theta": 10000}),
            (
                "gemma-3-1b-it",
                [
                    {"type": "rope", "rope-dim": 128, "rope-theta": 1000000},
                    {"type": "rope", "rope-dim": 128, "rope-theta": 10000, "prefix": "local_"},
                ],
            ),
        ],
    )
    def test_its_configuration_is_written_from_the_model(self, tmp_path: Path, name: str, ropes: Any) -> None:
        """Of most keys that are wrong Genie says nothing, and speaks nonsense."""
        shape, config = published(tmp_path, name), PUBLISHED[name]["config"]
        dialog = json.loads(genie_config(tmp_path, shape, "a.bin", "b.bin", soc="SM8750").read_text())[
            "dialog"
        ]
        engine, model = dialog["engine"], dialog["engine"]["model"]
        assert model["positional-encoding"] == ropes
        assert model["binary"]["ctx-bins"] == ["a.bin", "b.bin"]
        assert engine["backend"]["QnnHtp"]["kv-dim"] == shape.head_dim
        words = {"bos-token": config["bos_token_id"], "eos-token": config["eos_token_id"]}
        assert dialog["context"] == {"version": 1, "size": 128, "n-vocab": config["vocab_size"], **words}
        assert (dialog["sampler"]["top-k"], dialog["max-num-tokens"]) == (1, 5)
        extension = json.loads((tmp_path / engine["backend"]["extensions"]).read_text())
        assert extension["devices"][0]["soc_id"] == 69 and extension["devices"][0]["dsp_arch"] == "v79"

    def test_it_begins_no_text_where_the_tokenizer_begins_none(self, tmp_path: Path) -> None:
        shape = read_architecture(write_config_json(tmp_path, bos_token_id=None))
        assert setting(genie_config(tmp_path, shape), "context", "bos-token") == -1

    @pytest.mark.parametrize(
        "text", ["{,}", "[]", '{"dialog": 1}', '{"dialog": {"context": {}}}', '{"dialog": {"context": 3}}']
    )
    def test_a_configuration_that_its_user_broke_is_refused(self, tmp_path: Path, text: str) -> None:
        (tmp_path / CONFIG).write_text(text)
        with pytest.raises(UsageError, match="genie_config"):
            setting(tmp_path / CONFIG, "context", "bos-token")

    def test_what_it_refuses_is_explained_by_what_is_known_of_it(self) -> None:
        said = "Config specifies context->size=256, but loaded max-CL=128\nGenieDialog_create: status -1\n"
        assert "`context.size`" in refusal(said, "ended with 3").fix

    @pytest.mark.parametrize("tokens", [96, 97])
    def test_a_prompt_to_which_it_says_nothing_is_refused(self, tokens: int) -> None:
        with pytest.raises(UsageError) if tokens > 96 else contextlib.nullcontext():
            require_short(range(tokens), 128, 32)

    @pytest.mark.parametrize(
        ("context", "prefill"), [(128, 64), (128, 96), (256, 128), (256, 192), (128, 8), (200, 32)]
    )
    def test_sizes_with_which_it_speaks_nonsense_are_refused(self, context: int, prefill: int) -> None:
        require_sizes(128, 32)
        with pytest.raises(UsageError):
            require_sizes(context, prefill)

    @pytest.mark.parametrize(
        ("sizes", "loaded"),
        [
            ((1_600_000_000, 1_600_000_000), ["prefill_0.bin", "decode_0.bin"]),
            ((1_600_000_001, 1_600_000_000), ["decode_0.bin"]),
            ((3_200_000_001, 3_200_000_000), ["decode_0.bin"]),
            ((0, 3_200_000_001), "decode"),
        ],
    )
    def test_binaries_too_large_for_the_emulator_leave_the_prompt_to_decode(
        self, tmp_path: Path, sizes: tuple[int, int], loaded: list[str] | str
    ) -> None:
        shape, names = read_architecture(write_config_json(tmp_path)), ["prefill_0.bin", "decode_0.bin"]
        config = genie_config(tmp_path, shape, *names)
        for name, size in zip(names, sizes, strict=True):
            os.truncate(tmp_path / name, size)
        if isinstance(loaded, list):
            assert emulator_settings(config)["dialog"]["engine"]["model"]["binary"]["ctx-bins"] == loaded
            (tmp_path / "decode_0.bin").unlink()
            loaded = r"decode_0\.bin"
        with pytest.raises(UsageError, match=loaded):
            emulator_settings(config)

    def test_zero_is_exact_in_a_cache_and_all_that_float_puts_there_has_an_integer(self) -> None:
        seen = np.array([-3.0, 1.0], np.float32)
        cache = shared_encodings([{"past_key_0_out": seen}])["past_key_0_in"]
        zero, *others = cache.integers(np.array([0.0, *seen], np.float32)).astype(int)
        assert zero == cache.zero == 128
        assert [(integer - cache.zero) * cache.scale for integer in others] == pytest.approx(
            seen, abs=cache.scale
        )


@pytest.mark.parametrize("text", ["{}", "[", '{"order": 3}'])
def test_a_record_of_another_release_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / RECORD).write_text(text)
    with pytest.raises(UsageError):
        record_of(tmp_path)


@pytest.mark.parametrize(
    ("run", "named"),
    [
        ('precision = "8a8w"', "16a8w"),
        ('precision = "16a16w"\nthrough = "executorch"', "16a8w"),
        ('precision = "fp16"\nthrough = "executorch"\nparts = 2', "parts"),
    ],
)
def test_what_a_way_does_not_offer_is_refused(tmp_path: Path, run: str, named: str) -> None:
    suite = tmp_path / "llm.toml"
    head = 'schema = 2\n[case.mine]\nperplexity = 20\n[[case.mine.run]]\nlane = "llm"\n'
    suite.write_text(f'{head}{run}\nsocs = ["SM8650"]\n')
    with pytest.raises(UsageError, match=named):
        SUITES.all_programs([suite])


def typed(name: str, *words: object) -> int:
    """The exit code of `run` or `check`."""
    verb: Any = {"run": run_command, "check": CHECK}[name]
    arguments = parsed(verb, *words)
    return guard(lambda: verb.run(arguments), debug=False)


@dataclass
class Compiled:
    """A model of two parts as compile left it in `out`, and its worker, a stand-in."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch
    asked: list[dict[str, Any]] = field(default_factory=list)

    def write(
        self,
        *,
        calibrated: Sequence[int] = (9,) * 16,
        sizes: tuple[int, int] = (0, 0),
        source: Mapping[str, str] | None = None,
        files: Mapping[str, str] | None = None,
        form: str = "",
        words: Mapping[str, int] | None = None,
        text: str = "a " * 3000,
    ) -> None:
        """`source` are digests of the checkpoint when it was compiled; `files` are of both folders."""
        model, out = self.folder / "model", self.folder / "out"
        for folder in (model, out):
            folder.mkdir(exist_ok=True)
            write_tokenizer(folder, words, form=form, special="a")
            for name, content in (files or {}).items():
                (folder / name).write_text(content)
        shape = read_architecture(write_config_json(model, num_hidden_layers=2))
        binaries = ["prefill_0.bin", "decode_0.bin"]
        genie_config(out, shape, *binaries)
        order = replace(ORDER, model=str(model), parts=2, calibration=[[*calibrated]])
        # Digests of gigabytes would take a minute.
        names = ["tokenizer.json", CONFIG, *([] if any(sizes) else binaries)]
        record = Record(
            order=order,
            size=1,
            source={**source_of(order, store_path()), **(source or {})},
            files=digests_of(store_path(), {name: out / name for name in names}),
        )
        (out / RECORD).write_text(record.to_json())
        for name, size in zip(binaries, sizes, strict=True):
            os.truncate(out / name, size)
        (self.folder / "text.txt").write_text(text)

    def check(
        self,
        *flags: object,
        read: Sequence[Window] = tuple(reading()),
        genie: Sequence[Window] = tuple(reading()),
        rounding: Sequence[Window] = tuple(reading(0.1)),
        parts: Sequence[PartDistances] = (),
    ) -> int:
        noise = {name: list(rounding) for name in (WINDOWS, "prefill_genie", "decode_genie")}

        def answer(**order: Any) -> dict[str, Any]:
            self.asked.append(order)
            answers: dict[str, Any] = {
                "rounding": Rounded(noise, [{"hidden_1": 24.0}] * 2),
                "figures": Readings({f"{order['kind']}_htp": list(read)}),
                "genie": Readings({"decode_genie": list(genie)}),
                "parts": Parts([part for part in parts if part.kind == order["kind"]]),
            }
            return to_json(answers[order["do"]])

        def encoded(_: Path, texts: Sequence[str], **__: object) -> list[list[int]]:
            return [[0] * len(text.split()) for text in texts]

        self.asked.clear()
        self.monkeypatch.setenv("QNN_CI_REPORTS", str(self.folder / "reports"))
        ask = contextlib.nullcontext(answer)
        self.monkeypatch.setattr("ci.lanes.llm.commands.ask_worker", lambda *_: ask)
        self.monkeypatch.setattr("ci.lanes.llm.commands.encode_texts", encoded)
        return typed("check", self.folder / "out", "--text", self.folder / "text.txt", *flags)

    @property
    def findings(self) -> list[Finding]:
        return [*Report.read(self.folder / "reports" / "check.json").findings]


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compiled:
    model = Compiled(tmp_path, monkeypatch)
    model.write()
    return model


class TestCheck:
    def test_all_of_it_is_measured_and_reported(
        self, compiled: Compiled, capsys: pytest.CaptureFixture[str]
    ) -> None:
        right = [part(0, "prefill", 24, 24), part(1, "decode", 24, 24)]
        assert compiled.check(parts=right) == 0
        assert [(order["do"], order["kind"]) for order in compiled.asked] == [
            ("rounding", ""),
            ("figures", "prefill"),
            ("figures", "decode"),
            ("genie", ""),
            ("parts", "prefill"),
            ("parts", "decode"),
        ]
        report = report_in(compiled.folder / "reports" / "check.json")
        assert isinstance(report.metrics["programs"], dict)
        [name] = report.metrics["programs"]
        # As the report's page reads it.
        row = rows_of(report, "programs")[name]
        assert row.passed and (row.precision, row.soc) == ("16a8w", "SM8650") and row.bytes
        assert {(part.output, part.db, part.least_db) for part in row.parts} == {("hidden_1", 24.0, 20.0)}
        assert all(isinstance(readings, dict) for readings in row.figures.values()) and row.figures
        assert "hidden_1" not in capsys.readouterr().out
        assert compiled.check("--on", "parts", parts=right) == 0
        assert {order["do"] for order in compiled.asked} == {"rounding", "parts"}
        shown = capsys.readouterr().out
        assert "Genie was not run" in shown
        assert "decode_1, layers 1 to 1: SQNR of hidden_1 against float: 24.0 dB (at least 20.0 dB)" in shown
        for flags in ((), ("--on", "parts")):
            wrong = [part(0, "prefill", 20, 21), part(1, "decode", 19, 21)]
            assert compiled.check(*flags, parts=wrong) == 1
            assert "goes wrong in decode_1, layers 1 to 1" in compiled.findings[0].message
            assert "prefill_0, layers 0 to 0" in capsys.readouterr().out

    @pytest.mark.parametrize(("count", "warned"), [(30, {"llm-float"}), (60, set())])
    def test_a_float_model_that_is_hardly_better_than_a_unigram_is_warned_of(
        self, compiled: Compiled, capsys: pytest.CaptureFixture[str], count: int, warned: set[str]
    ) -> None:
        """All words are as frequent, so that a unigram's perplexity is their number. The model's is e³."""
        words = {"a" * (number + 1): number for number in range(count)}
        compiled.write(words=words, text=" ".join(words) * 200)
        assert compiled.check("--on", "parts", rounding=reading(0.1, loss=3.0)) == 0
        assert "perplexity is 20.09 " in capsys.readouterr().out
        assert {finding.rule for finding in compiled.findings} == warned

    def test_a_marker_of_the_template_that_is_no_token_is_warned_of(self, compiled: Compiled) -> None:
        template = "<|user|> {{ messages[0]['content'] }} {% for m in messages %}a {% endfor %}"
        files = {
            "chat_template.jinja": template,
            "tokenizer_config.json": '{"tokenizer_class": "PreTrainedTokenizerFast"}',
        }
        compiled.write(files=files)
        assert compiled.check("--on", "parts") == 0
        assert [finding.rule for finding in compiled.findings] == ["llm-template"]
        assert "<|user|>" in compiled.findings[0].message

    def test_it_is_held_to_its_limits_and_the_users(self, compiled: Compiled) -> None:
        half, few = reading(share=0.5), reading(0.4)
        for flags, read, code in (
            ((), half, 1),
            (("--top1", "0.4"), half, 0),
            ((), few, 1),
            (("--divergence", "0.5", "--divergence-99", "0.5"), few, 0),
            (("--perplexity-ratio", "0.5"), reading(), 1),
        ):
            assert compiled.check(*flags, read=read) == code
            assert {finding.rule for finding in compiled.findings} == ({"llm-accuracy"} if code else set())
        assert compiled.check(genie=half) == 1 and "Genie's decode" in compiled.findings[0].message
        assert compiled.check(rounding=reading(0.1, 0.89)) == 0
        assert [finding.rule for finding in compiled.findings] == ["llm-rounding"]

    @pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
    def test_a_checkpoint_that_changed_since_it_was_compiled_is_compiled_again(
        self, compiled: Compiled, capsys: pytest.CaptureFixture[str], name: str
    ) -> None:
        compiled.write(source={name: "another"})
        assert compiled.check() == 0
        assert f"changed since it was compiled: {name}" in capsys.readouterr().err
        assert compiled.check(read=reading(9.0)) == 1
        assert {finding.fix.partition(",")[0] for finding in compiled.findings} == {"compile it again"}

    def test_another_checkpoint_is_named_with_its_files_and_the_causes_fix(self, compiled: Compiled) -> None:
        shutil.copytree(compiled.folder / "model", other := compiled.folder / "other")
        write_config_json(other, num_hidden_layers=2, rope_theta=10000.0)
        wrong = [part(0, "prefill", 1, 24)]
        assert compiled.check("--on", "parts", parts=wrong) == 1
        cause = compiled.findings[0].fix
        assert compiled.check("--on", "parts", "--checkpoint", other, parts=wrong) == 1
        fix = compiled.findings[0].fix
        assert str(other) in fix and "config.json" in fix and fix.endswith(cause)

    def test_what_is_compiled_into_a_folder_of_the_checkpoint_is_no_change_of_it(
        self, compiled: Compiled, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (compiled.folder / "model" / "out").mkdir()
        (compiled.folder / "model" / "out" / CONFIG).write_text("{}")
        assert compiled.check() == 0
        assert "changed since" not in capsys.readouterr().err

    @pytest.mark.parametrize("name", ["README.md", "prefill_0.bin", CONFIG, "tokenizer.json", "decode_0.bin"])
    @pytest.mark.parametrize("gone", [True, False])
    def test_what_was_edited_or_lost_since_it_was_compiled_is_to_be_compiled_again(
        self, compiled: Compiled, name: str, gone: bool
    ) -> None:
        """No figure would tell a part of another compile from a layer that QNN computes otherwise, and Genie
        speaks nonsense by another rope without a word. The README is the user's."""
        file = compiled.folder / "out" / name
        file.write_text("another")
        if gone:
            file.unlink()
        wrong = name != "README.md"
        assert compiled.check() == wrong and bool(compiled.asked) is not wrong
        for finding in compiled.findings:
            assert name in finding.message and finding.fix.startswith("compile it again")

    @pytest.mark.parametrize(
        ("written", "flags", "named"),
        [
            ({"sizes": (3_200_000_000, 3_200_000_000)}, "", ""),
            ({"sizes": (3_200_000_001, 0)}, "", "prefill"),
            ({"sizes": (0, 3_200_000_001)}, "", "decode"),
            ({"sizes": (3_200_000_001, 3_200_000_001)}, "--on parts", ""),
            # The text is "a a a …", whose tokens are all 0.
            ({"calibrated": [0] * 40}, "", "quantized by"),
            ({"calibrated": [1] * 40}, "", ""),
            ({}, "--tokens 4000", "3000 tokens"),
            ({}, "--checkpoint nowhere", "--checkpoint FOLDER"),
            (
                {
                    "files": {
                        "chat_template.jinja": "a a",
                        "tokenizer_config.json": '{"tokenizer_class": "PreTrainedTokenizerFast"}',
                    },
                    "form": "a $A",
                },
                "",
                "twice",
            ),
        ],
    )
    def test_what_cannot_be_checked_is_refused_before_the_emulator_works(
        self,
        compiled: Compiled,
        capsys: pytest.CaptureFixture[str],
        written: dict[str, Any],
        flags: str,
        named: str,
    ) -> None:
        """The emulator's limit is for one process, and each kind of binary has one."""
        compiled.write(**written)
        assert compiled.check(*flags.split()) == (2 if named else 0)
        assert bool(compiled.asked) is not bool(named) and named in capsys.readouterr().err

    def test_a_checkpoint_that_has_moved_is_named_by_a_flag(self, compiled: Compiled) -> None:
        moved = (compiled.folder / "model").rename(compiled.folder / "moved")
        assert compiled.check("--checkpoint", moved) == 0
        assert {order["compiled"]["model"] for order in compiled.asked} == {str(moved)}

    def test_a_text_that_is_not_utf_8_is_named(
        self, compiled: Compiled, capsys: pytest.CaptureFixture[str]
    ) -> None:
        latin = compiled.folder / "latin.txt"
        latin.write_bytes("caf\u00e9 ".encode("latin-1") * 3000)
        assert compiled.check("--text", latin) == 2
        assert f"{latin} is not UTF-8 text at byte 3" in capsys.readouterr().err


@pytest.mark.parametrize("through", ["genie", "executorch"])
def test_what_is_said_keeps_the_space_that_its_first_word_begins_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], through: str
) -> None:
    """sentencepiece's words begin with it, and alone its first one loses it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    words = {"\u2581when": 3, "\u2581error": 4, "s": 5, "\u2581": 6}
    tokenizer = Tokenizer(models.WordLevel(words, "\u2581"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    genie_config(tmp_path, read_architecture(write_config_json(tmp_path)), "decode_0.bin")
    (tmp_path / PROGRAM).touch()
    order = replace(ORDER, model=str(tmp_path), through=through)
    (tmp_path / RECORD).write_text(Record(order=order, size=1, source={}, files={}).to_json())
    asked: list[object] = []

    def genie(config: Path, prompt: Sequence[int], most: int, *, timeout: float) -> SpokenText:
        asked.append((config.name, prompt, most))
        return SpokenText([4, 5], "length")

    def program(**order: Any) -> dict[str, Any]:
        asked.append((order["do"], order["prompt"], order["most"]))
        return {"tokens": [4, 5], "stopped": "length"}

    monkeypatch.setattr("ci.lanes.llm.commands.ask_worker", lambda *_: contextlib.nullcontext(program))
    monkeypatch.setattr("ci.lanes.llm.commands.generate", genie)
    assert typed("run", tmp_path, "when", "--tokens", "2") == 0
    out, err = capsys.readouterr()
    assert out == "when errors\n" and "2 tokens, stopped by length" in err
    assert asked == [(CONFIG if through == "genie" else "answer", [3], 2)]


class TestTexts:
    @pytest.mark.parametrize(("context", "count"), [(128, 12), (1024, 8), (8192, 2)])
    def test_a_long_context_is_quantized_by_fewer_windows(
        self, tmp_path: Path, context: int, count: int
    ) -> None:
        shape = read_architecture(write_tokenizer(write_config_json(tmp_path)))
        text = tmp_path / "text.txt"
        text.write_text("a " * (count * (context - 1)))
        assert [len(row) for row in windows(tmp_path, shape, text, context)] == [context] * count
        text.write_text("a " * (count * (context - 1) - 1))
        with pytest.raises(CheckFailed):
            windows(tmp_path, shape, text, context)

    TEMPLATE = (
        "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }} [end] {% endfor %}"
        "{% if add_generation_prompt %}[assistant] {% endif %}"
    )

    @pytest.mark.parametrize("template", [True, False])
    def test_a_share_of_the_windows_are_chats_with_the_tokens_that_begin_and_end_turns(
        self, tmp_path: Path, template: bool
    ) -> None:
        names = ["<s>", "[user]", "[assistant]", "[end]", "a"]
        folder, text = write_config_json(tmp_path, eos_token_id=3), tmp_path / "text.txt"
        words = {name: index for index, name in enumerate(names)}
        file = write_tokenizer(folder, words, form="<s> $A", special="<s>") / "tokenizer.json"
        special = {
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        added = [{"id": index, "content": name, **special} for index, name in enumerate(names[:4])]
        file.write_text(json.dumps(json.loads(file.read_text()) | {"added_tokens": added}))
        settings = {"bos_token": "<s>", "tokenizer_class": "PreTrainedTokenizerFast"}
        chat = {"chat_template": self.TEMPLATE} if template else {}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings | chat))
        text.write_text("a " * 2000)
        rows = windows(folder, read_architecture(folder), text, 128)
        chats = [index for index, row in enumerate(rows) if 3 in row]
        assert chats == [1, 5, 9] and {len(row) for row in rows} == {128}
        assert {1, 2} <= set(rows[1]) if template else rows[1].count(3) == 4
        # A second one would be calibrated and judged, and no text has it.
        assert all(row[0] == 0 and (0, 0) not in itertools.pairwise(row) for row in rows)

    def test_a_passage_of_another_text_is_known_wherever_it_begins(self) -> None:
        known = [range(1000)]
        assert share_of_runs(range(5000, 6000), known) == 0
        assert share_of_runs([*range(5000, 5900), *range(301, 401)], known) == pytest.approx(0.1, abs=0.02)

    @pytest.mark.parametrize(
        ("context", "lengths"), [(128, [40, 20, 20, 40]), (43, [20] * 4), (44, [40, 20, 20, 40])]
    )
    def test_every_third_prefix_takes_more_than_one_block(self, context: int, lengths: list[int]) -> None:
        """Where the context has room for a first token, 32 + 8 and two that are said."""
        assert prefix_lengths(4, 32, context) == lengths

    @pytest.mark.parametrize(("words", "enough"), [(1002, True), (1001, False)])
    def test_a_text_too_short_for_its_prefixes_is_refused(
        self, tmp_path: Path, words: int, enough: bool
    ) -> None:
        """The longest have 32 + 8 tokens, each of the other 48 ends 20 later, and two tokens follow."""
        shape = read_architecture(write_tokenizer(write_config_json(tmp_path)))
        text = tmp_path / "text.txt"
        text.write_text("a " * words)
        with contextlib.nullcontext() if enough else pytest.raises(UsageError):
            judged_text(replace(ORDER, model=str(tmp_path)), shape, text, 100, 49)

    @pytest.mark.parametrize(("whole", "last"), [(True, 1024), (False, 26)])
    def test_genies_last_text_goes_to_the_contexts_end_though_ours_is_shorter(
        self, tmp_path: Path, whole: bool, last: int
    ) -> None:
        """Without a graph for prefill it would take hours to come there, and ends where the windows do."""
        shape = read_architecture(write_tokenizer(write_config_json(tmp_path)))
        text, order = tmp_path / "text.txt", replace(ORDER, model=str(tmp_path), context=1024)
        text.write_text("a b " * 150)
        end = judged_text(order, shape, text, 100, 3, fills_context=whole).texts[-1]
        assert len(shape.beginning) + len(end.prompt) + len(end.tokens) == last
        # Genie takes no longer prompt.
        assert len(end.prompt) <= 1024 - 32
        assert [*end.prompt, *end.tokens] == ([0, 5] * 600)[: last - len(shape.beginning)]


@pytest.mark.parametrize(("spelled", "begins"), [("1", "qnn-ci bundle "), ("", "nox -s bundle -- ")])
def test_the_readme_of_a_compiled_model_names_commands_as_this_copy_types_them(
    spelled: str, begins: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SPELLED_INSTALLED, spelled)
    sizes: dict[str, Any] = {"context": 128, "prefill": 32, "parts": 1, "calibration": []}
    order = CompileOrder(model="Llama", through=GENIE, soc="SM8750", precision="fp16", **sizes)
    assert f"`{begins}--profile wheels-2.51 " in readme_of(order)
