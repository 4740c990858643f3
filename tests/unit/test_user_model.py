"""MODEL, --precision and --input of the everyday commands."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest

from ci.__main__ import VERBS
from ci.inspect import verb as inspect_verb
from ci.lanes.executorch import HEAD as PYTORCH
from ci.lanes.executorch.model_options import ExecutorchOptions
from ci.lanes.executorch.steps import ExecutorchPlan
from ci.lanes.executorch.typed_program import program_of, require_done
from ci.models.inputs import GraphSignature, Tensor, order_files, read_inputs, shares_of
from ci.models.user_model import modules_in, user_model, where_paths_begin
from ci.one_model.model import OneModel
from ci.one_model.named_files import require_program
from ci.suite.precision import precision_named, scheme_named
from ci.work.jobs import WorkOptions
from ci.work.outcome import Failure, Result
from provisioning.base.command_line import check_words, main
from provisioning.base.commands import Fix
from provisioning.base.errors import CheckFailed, ToolkitError, UnknownName, UsageError
from provisioning.base.settings import ROOT, Selection


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with zipfile.ZipFile(tmp_path / "My Net.pt2", "w") as archive:
        archive.writestr("x/models/model.json", "{}")
    with zipfile.ZipFile(tmp_path / "weights.pt2", "w") as archive:
        archive.writestr("x/data.pkl", "")
    (tmp_path / "cut.pt2").write_bytes((tmp_path / "My Net.pt2").read_bytes()[:40])
    (tmp_path / "models.py").write_text("from nets import net")
    (tmp_path / "net.onnx").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("text", "name", "factory"),
    [
        ("My Net.pt2", "my-net", "My Net.pt2"),
        ("models.py:net", "models-net", "models:net"),
        ("models.py:models", "models", "models:models"),
        ("models.py:make", "models", "models:make"),
        ("ci.models:Net", "models-net", "ci.models:Net"),
        ("net.onnx", "net", ""),
    ],
)
def test_names_every_kind_of_model(folder: Path, text: str, name: str, factory: str) -> None:
    (folder / "models.py").write_text("from nets import make, net, models")
    model = user_model(text, folder)
    assert (model.name, model.factory, model.search_path) == (name, factory, folder)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("absent.pt2", UsageError),
        ("models.py", UsageError),
        ("models.py:ne", UsageError),
        ("net.txt", UsageError),
        ("cut.pt2", CheckFailed),
        ("weights.pt2", CheckFailed),
    ],
)
def test_refuses_what_is_no_model(folder: Path, text: str, error: type[ToolkitError]) -> None:
    with pytest.raises(error) as caught:
        user_model(text, folder)
    assert caught.value.fix


@pytest.fixture
def strangers(folder: Path) -> Path:
    """What lies in a folder of somebody who has not read the pages."""
    (folder / "net.py").write_text("def net():\n    ...\ndef other():\n    ...\n")
    (folder / "checkpoint").mkdir()
    (folder / "checkpoint" / "config.json").write_text("{}")
    (folder / "empty").mkdir()
    (folder / "saved").mkdir()
    (folder / "saved" / "saved_model.pb").touch()
    return folder


@pytest.mark.parametrize(
    ("text", "kind", "typed"),
    [
        ("a.pte", "ExecuTorch program", ("run", "a.pte")),
        ("a.dlc", "converter", ("inspect", "a.dlc")),
        ("a.tflite", "LiteRT", ("compile", "a.onnx", "-o", "out")),
        ("a.h5", "Keras", ("compile", "a.onnx", "-o", "out")),
        ("a.pb", "TensorFlow", ("compile", "a.onnx", "-o", "out")),
        ("saved", "SavedModel", ("compile", "saved.onnx", "-o", "out")),
        ("suite.toml", "suite", ("gate", "--suite", "suite.toml")),
        ("checkpoint/model.safetensors", "one file of a checkpoint", ("compile", "checkpoint", "-o", "out")),
        ("https://huggingface.co/meta/Llama-1B", "download", ("compile", "Llama-1B", "-o", "out")),
        ("meta/Llama-3.2-1B", "hf download meta/Llama", ("compile", "Llama-3.2-1B", "-o", "out")),
        ("https://example.com/net.onnx", "curl", ("compile", "net.onnx", "-o", "out")),
        ("a.gguf", "llama.cpp", ()),
        ("a.safetensors", "load_file", ()),
        ("a.ipynb", "nbconvert --to script a.ipynb", ()),
        ("a.npz", "--calibrate", ()),
        ("net.py:Net.forward", "net.py:net", ()),
        ("empty", "empty folder", ()),
        ("", "empty", ()),
    ],
)
def test_what_is_no_model_is_named_with_the_command_that_takes_it(
    strangers: Path, text: str, kind: str, typed: tuple[str, ...]
) -> None:
    with pytest.raises(UsageError) as caught:
        user_model(text, strangers)
    assert kind in caught.value.message + caught.value.fix
    fix = caught.value.fix
    command = fix.command if isinstance(fix, Fix) else ()
    assert command == typed
    if typed:
        verb, *words = typed
        check_words("qnn-ci", verb, VERBS[verb], words)


@pytest.mark.parametrize(
    ("name", "kind", "typed"),
    [
        ("a.tflite", "LiteRT", ("compile", "a.onnx", "-o", "out")),
        ("net.py", "Python", ()),
        ("a.toml", "suite", ("gate", "--suite", "a.toml")),
        ("a.npy", "arrays", ()),
    ],
)
def test_what_is_no_program_is_named_with_what_to_do(
    strangers: Path, name: str, kind: str, typed: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    (strangers / name).touch()
    monkeypatch.chdir(strangers)
    inspect = check_words("qnn-ci", "inspect", VERBS["inspect"], [name])
    for refuse in (lambda: require_program(Path(name), name), lambda: inspect_verb.run(inspect)):
        with pytest.raises(UsageError) as caught:
            refuse()
        fix = caught.value.fix
        assert kind in caught.value.message and isinstance(fix, Fix) and fix.commands
        assert fix.command == typed


@pytest.mark.parametrize(
    ("text", "meant"),
    [("net.py::net", "net.py:net"), ("net.py:net()", "net.py:net"), ("nets.models.net", "nets.models:net")],
)
def test_another_spelling_of_a_function_is_corrected(strangers: Path, text: str, meant: str) -> None:
    with pytest.raises(UnknownName) as caught:
        user_model(text, strangers)
    assert caught.value.near == meant
    assert user_model(meant, strangers).factory.endswith(":net")


@pytest.mark.parametrize("text", ["net", "net.py"])
def test_a_file_without_its_function_is_told_which_it_has(strangers: Path, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        user_model(text, strangers)
    assert "net.py:net" in caught.value.fix and "net.py:other" in caught.value.fix


def test_a_file_without_a_function_is_told_what_to_write(tmp_path: Path) -> None:
    for source, written in (("import sys\n", "return model"), ("class Net(Module): ...\n", "return Net()")):
        (tmp_path / "bare.py").write_text(source)
        for text in ("bare.py", "bare.py:net"):
            with pytest.raises(UsageError) as caught:
                user_model(text, tmp_path)
            assert written in caught.value.fix and caught.value.fix.endswith("name bare.py:net")


def test_several_precisions_in_one_word_are_a_flag_each() -> None:
    for read in (scheme_named, precision_named):
        with pytest.raises(UsageError) as caught:
            read("fp16,8a8w")
        assert isinstance(caught.value.fix, Fix)
        flags = caught.value.fix.flags
        assert flags == ("--precision", "fp16", "--precision", "8a8w")
        args = check_words("qnn-ci", "compile", VERBS["compile"], ["net.py:net", "-o", "out", *flags])
        assert args.precisions == ["fp16", "8a8w"]


@pytest.mark.parametrize(
    ("word", "of_pytorch", "of_onnx"),
    [
        ("int4", "16a4w", ""),
        ("bf16", "fp16", "fp16"),
        ("bfloat16", "fp16", "fp16"),
        ("fp32", "fp16", "fp16"),
        ("fp8", "8a8w", "8a8w"),
    ],
)
def test_a_format_of_others_is_answered_with_what_is_meant(word: str, of_pytorch: str, of_onnx: str) -> None:
    for read, meant in ((scheme_named, of_pytorch), (precision_named, of_onnx)):
        with pytest.raises(UsageError) as caught:
            read(word)
        flags = caught.value.fix.flags if isinstance(caught.value.fix, Fix) else ()
        assert flags == (("--precision", meant) if meant else ())


@pytest.mark.parametrize("word", ["16a8w", "u16u8", "w8a16", "W8A16", "u16/u8"])
def test_one_precision_has_many_names(word: str) -> None:
    assert (scheme_named(word), precision_named(word).name) == ("16a8w", "u16u8")


def test_a_precision_of_one_lane_alone_is_refused_in_the_other() -> None:
    assert scheme_named("w4a16_block") == "16a4w_block"
    for refused in (
        lambda: precision_named("w4a16"),
        lambda: scheme_named("u7u7"),
        lambda: scheme_named("7a"),
    ):
        with pytest.raises(UsageError):
            refused()


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (lambda: Path("width.txt").read_text(), True),
        (lambda: os.open(b"width.txt", os.O_RDONLY), True),
        (lambda: Path("/nowhere/width.txt").read_text(), False),
        (lambda: subprocess.run(["no-such-program"], check=False), False),
    ],
    ids=["relative", "in bytes", "absolute", "a program"],
)
def test_where_paths_begin_is_told_of_relative_files_alone(found: Callable[[], object], told: bool) -> None:
    with pytest.raises(FileNotFoundError) as error:
        found()
    assert bool(where_paths_begin(error.value)) == told


def test_relative_paths_of_a_single_model_begin_where_its_user_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "net.py").write_text("def make(): ...")
    monkeypatch.chdir(tmp_path)
    selection = Selection("wheels", "x86_64-linux", "SM8650", tmp_path, tmp_path)
    model = OneModel(selection, "models/net.py:make", PYTORCH, ExecutorchOptions())
    assert program_of(model).working_folder == tmp_path
    in_suite = program_of(model, suite=tmp_path / "models" / "suite.toml")
    assert in_suite.working_folder == tmp_path / "models"


def test_a_node_that_a_single_model_has_not_is_a_slip_of_the_command_and_of_no_suite(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("def make(): ...")
    selection = Selection("wheels", "x86_64-linux", "SM8650", tmp_path, tmp_path)
    program = program_of(OneModel(selection, f"{tmp_path}/net.py:make", PYTORCH, ExecutorchOptions()))
    plan = ExecutorchPlan((program,), selection, WorkOptions(), tmp_path, {}, {}, tmp_path, {}, {})
    failure = Failure("suite", "cpu_nodes = 'nope' matches no node")
    with pytest.raises(UsageError) as caught:
        require_done(program, plan, {program.name: Result(failure=failure)})
    assert "--keep-on-cpu" in caught.value.fix and str(program.suite) not in caught.value.fix


@pytest.mark.parametrize("name", ["net.onnx", "net.pt2"])
@pytest.mark.parametrize(
    ("content", "named"),
    [
        (f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 9\n", "git lfs pull"),
        ("\n<!DOCTYPE html>\n<html><title>Sign in</title></html>", "web page"),
    ],
)
def test_a_file_that_was_not_downloaded_whole_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: str, named: str
) -> None:
    (tmp_path / name).write_text(content)
    typed = ["compile", str(tmp_path / name), "-o", str(tmp_path / "out")]
    assert main("python -m ci", "", {"compile": VERBS["compile"]}, typed) == CheckFailed.exit_code
    assert named in capsys.readouterr().err


def test_source_in_another_encoding_than_it_says_is_refused_with_the_line_that_says_it(
    tmp_path: Path,
) -> None:
    code = "# Größe\ndef model(): ...\n"
    (tmp_path / "net.py").write_bytes(code.encode("latin-1"))
    with pytest.raises(CheckFailed) as refused:
        user_model("net.py:model", tmp_path)
    line = re.findall("`(.+)`", refused.value.fix)[0]
    (tmp_path / "net.py").write_bytes(f"{line}\n{code}".encode("latin-1"))
    assert user_model("net.py:model", tmp_path).name == "net"


def test_a_file_with_a_class_alone_is_told_the_function_to_write(tmp_path: Path) -> None:
    file = tmp_path / "nets.py"
    file.write_text("class Data(list): ...\nclass Net(torch.nn.Module): ...\n")
    with pytest.raises(UsageError) as refused:
        user_model("nets.py", tmp_path)
    function = re.findall("`(def .+)`", refused.value.fix)[0]
    assert "Net()" in function
    file.write_text(f"{file.read_text()}{function}\n")
    assert user_model(refused.value.fix.rpartition(" ")[2], tmp_path).name == "nets-net"


@pytest.mark.parametrize(
    ("name", "members", "line"),
    [
        ("net.pth", ["net/data.pkl"], "load_state_dict"),
        ("net.pt", ["net/data.pkl", "net/constants.pkl", "net/code/net.py"], "Net()"),
        ("net.pt2", ["net/data.pkl", "net/constants.pkl"], "Net()"),
        ("old.pth", [], "load_state_dict"),
    ],
)
@pytest.mark.parametrize("verb", ["compile", "run", "inspect"])
def test_a_file_of_torch_is_named_with_the_function_that_makes_a_model_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str, name: str, members: list[str], line: str
) -> None:
    path = tmp_path / name
    path.write_bytes(b"\x80\x02")
    if members:
        with zipfile.ZipFile(path, "w") as archive:
            for member in members:
                archive.writestr(member, "")
    more = ("-o", str(tmp_path / "out")) if verb == "compile" else ()
    code = main("python -m ci", "", {verb: VERBS[verb]}, [verb, str(path), *more])
    assert code in (CheckFailed.exit_code, UsageError.exit_code)
    errors = capsys.readouterr().err
    assert name in errors and "def make_net():" in errors and line in errors and "DLC" not in errors


def test_what_is_installed_in_the_users_folder_is_no_module_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / ".venv/lib/python3/site-packages"
    installed.mkdir(parents=True)
    for folder, name in ((tmp_path, "a_model_of_the_user"), (installed, "a_package_of_the_user")):
        (folder / f"{name}.py").write_text("")
        monkeypatch.syspath_prepend(folder)
        monkeypatch.setitem(sys.modules, name, importlib.import_module(name))
    assert modules_in(tmp_path) == [str(tmp_path / "a_model_of_the_user.py")]


def test_this_toolkit_below_the_users_folder_is_no_module_of_the_user() -> None:
    from ci.models.shipped import audio

    assert audio.__file__ not in modules_in(ROOT.parent)
    assert audio.__file__ in modules_in(ROOT / "ci" / "models" / "shipped")


SIGNATURE = GraphSignature(tuple(Tensor(name, "float32", (2,)) for name in ("wave", "mel", "state")), ())


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    made = {}
    for number, name in enumerate("abcd", 1):
        path = tmp_path / f"{name}.npy"
        numpy.save(path, numpy.full(2, number, "float32"))
        made[name] = str(path)
    return made


@pytest.mark.parametrize(
    ("given", "values"),
    [
        (("{a}", "{b}", "{c}"), (1, 2, 3)),
        (("{a}", "wave={b}", "{c}"), (2, 1, 3)),
        (("state={a}", "{b}", "{c}"), (2, 3, 1)),
    ],
)
def test_files_without_a_name_are_the_inputs_that_no_other_names_in_order(
    files: dict[str, str], given: tuple[str, ...], values: tuple[int, ...]
) -> None:
    sample = read_inputs([text.format(**files) for text in given], SIGNATURE)
    assert [*sample] == ["wave", "mel", "state"]
    assert tuple(array[0] for array in sample.values()) == values


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (("{a}", "{b}", "{c}", "{d}"), UsageError),
        (("wave={a}", "wave={b}", "{c}"), UsageError),
        # Nobody said what the third is.
        (("{a}", "{b}"), CheckFailed),
    ],
)
def test_too_many_files_and_too_few_are_refused(
    files: dict[str, str], given: tuple[str, ...], error: type[Exception]
) -> None:
    with pytest.raises(error):
        read_inputs([text.format(**files) for text in given], SIGNATURE)


@pytest.mark.parametrize(
    ("count", "inferences", "calibration", "judging", "ranging"),
    [
        # A lone sample does both.
        (1, None, None, 1, 1),
        (2, None, None, 1, 1),
        (4, None, None, 2, 2),
        # A quarter judges, at most 16, and at most 200 calibrate.
        (40, None, None, 10, 30),
        (1000, None, None, 16, 200),
        (40, 3, 5, 3, 5),
    ],
)
def test_a_sample_of_the_users_judges_or_calibrates_and_the_suite_limits_both(
    count: int, inferences: int | None, calibration: int | None, judging: int, ranging: int
) -> None:
    compared, calibrating = shares_of(count, inferences, calibration)
    assert (len(compared), len(calibrating)) == (judging, ranging)
    assert len({*compared, *calibrating}) == (1 if count == 1 else judging + ranging)
    assert {*compared, *calibrating} <= {*range(count)}


@pytest.mark.parametrize(("compared", "calibrating"), [(8, 32), (2, 32), (8, 24), (1, 0)])
def test_samples_that_are_written_for_a_rewritten_model_judge_it_as_they_judged_the_first(
    compared: int, calibrating: int
) -> None:
    samples = range(compared), range(100, 100 + calibrating)
    files = order_files(*samples)
    judging, ranging = shares_of(len(files), compared, None)
    assert [files[number] for number in judging] == [*samples[0]]
    assert [files[number] for number in ranging] == [*samples[1]] or not calibrating
