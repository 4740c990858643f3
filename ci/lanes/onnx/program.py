"""A program's work in the lane's processes: each part in a fork, so that a crash can be looked at."""

from __future__ import annotations

import fcntl
import json
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ci.diagnose.explain import nearest
from ci.explain.divergence_report import partial_of
from ci.lanes.onnx import EXPORTED, EXPORTED_SAMPLES, FORMS
from ci.lanes.onnx.graph import digest_without_metadata, load_graph, source_digest
from ci.lanes.onnx.source_places import places_of
from ci.lanes.onnx.steps import CALIBRATION, EXPECTED, SAMPLES, case_of, run_of
from ci.lanes.onnx.worker import answer
from ci.models.arrays import save_one, saved
from ci.models.wheels import located
from ci.outcome import Refused, WorkerDied
from ci.suite.precision import precision_named
from ci.work import in_fork
from provisioning.base.commands import Fix, session
from provisioning.base.errors import CheckFailed
from provisioning.base.files import empty_folder, hash_file

FAILED = ("failed", "message")
"""What a reply has of a case whose failure is a result."""


def ask(order: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """The reply to a part of this order. Raises Refused and WorkerDied."""
    outcome = in_fork(answer, {**order, **more})
    if isinstance(outcome, WorkerDied | Refused):
        raise outcome
    return outcome


@dataclass(frozen=True)
class PreparedModel:
    """As it was exported or checked, with the samples beside it."""

    folder: Path
    facts: Mapping[str, Any]

    @property
    def order(self) -> dict[str, Any]:
        """What further parts have of it."""
        path = self.facts["model"]
        return {"prepared": str(self.folder), "source": path, "model": path}


held: list[PreparedModel] = []
"""The model of this process: its forks compile it."""


def _export(order: dict[str, Any]) -> dict[str, Any]:
    folder = empty_folder(Path(order["export_folder"], "prepared"))
    began = time.monotonic()
    facts = ask(order, do="prepare", into=str(folder), **order["preparing"])
    held.append(PreparedModel(folder, facts))
    graph = load_graph(Path(facts["model"]))
    given = {name: facts[name] for name in ("used", "constant", "notes")}
    samples = {name: hash_file(folder / name) for name in (SAMPLES, CALIBRATION, EXPECTED)}
    rows: dict[str, Any] = {"samples": samples, "given": given}
    rows["model"] = digest_without_metadata(Path(facts["model"]))
    case, place = case_of(order), Path(order["search_path"])
    if case.model:
        # Its record names the file.
        rows["source"] = source_digest(located(case.model, place))
    lines = {name: (place.source, place.code) for name, place in places_of(graph).items() if place.source}
    seconds = round(time.monotonic() - began, 3)
    modules = facts.get("modules", [])
    return {"rows": rows, "lines": lines, "modules": modules, "export_seconds": seconds}


def _quantized(order: Mapping[str, Any], **more: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """What further parts of this order have, and the facts; of programs of one run, the first does it."""
    model, folder = held[0], quantized_folder(order)
    common = {**order, **model.order, "quantized": str(folder)}
    facts = once(folder, lambda into: ask(common, do="quantize", into=str(into), **more))
    used = {**model.facts["used"], "calibrating": facts.get("calibrated_by", 0)}
    path = facts.get("model", model.facts["model"])
    return {**common, "model": path}, {**model.facts, **facts, "used": used}


def quantized_folder(order: Mapping[str, Any]) -> Path:
    return Path(order["export_folder"], f"run {order['quantized as']}")


def once(folder: Path, work: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """Done by the first process that comes to it; the others wait for what it gives."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    known = folder.with_suffix(".json")
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not known.exists():
            try:
                done: dict[str, Any] = {"reply": work(empty_folder(folder))}
            except Refused as refused:
                done = {"refused": dict(refused.details)}
            known.write_text(json.dumps(done), encoding="utf-8")
    done = json.loads(known.read_text(encoding="utf-8"))
    if "refused" in done:
        raise Refused(done["refused"])
    reply: dict[str, Any] = done["reply"]
    return reply


def _compiled(order: dict[str, Any]) -> dict[str, Any]:
    """A chip's contexts, run and compared; what is to be told of its model and samples."""
    model = held[0]
    try:
        common, quantized = _quantized(order, **_named(order))
    except WorkerDied as gone:
        common, quantized = {}, _crash(order, gone)
    reply: Mapping[str, Any]
    if "failed" in quantized:
        reply = {name: quantized.get(name) for name in FAILED}
    else:
        reply = _contexts(order, common)
        if order["chips to estimate"] and "failed" not in reply:
            reply = {**reply, "estimate": _estimate(order, common)}
    return {
        "build_id": model.facts.get("build_id", ""),
        **reply,
        "used": {**model.facts["used"], "calibrating": quantized.get("calibrated_by", 0)},
        "constant": model.facts["constant"],
        "notes": model.facts["notes"],
        "in_float": quantized.get("in_float", False),
    }


def _named(order: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": order["name"]} if "name" in order else {}


def _contexts(order: Mapping[str, Any], common: Mapping[str, Any]) -> dict[str, Any]:
    """The trace of what QNN refuses crashes the provider itself at times. Then it is done without, except
    where the trace is the result; `trace_crash` has how it ended."""
    log, into = Path(order["log"]), Path(order["into"])
    try:
        reply = ask(common, do="case")
    except WorkerDied as gone:
        if not gone.is_own_crash or run_of(order).refused or gone.trouble(log):
            return _crash(order, gone)
        crash = words_of_end(gone, log)
        try:
            reply = ask(common, do="case", trace=False, into=str(empty_folder(into)))
            reply["trace_crash"] = crash
        except WorkerDied as again:
            return _crash(order, again)
    if "failed" in reply or not order.get("flexible"):
        return reply
    return _flexible(order, common, reply)


def _flexible(order: Mapping[str, Any], common: Mapping[str, Any], reply: dict[str, Any]) -> dict[str, Any]:
    """With one context for several chips in place of the first one's, once that is known to be sound."""
    if not all(reply[form]["reload_equal"] for form in FORMS if form in reply):
        words = "the reloaded context gives other outputs than the session that compiled it"
        fix = Fix("{}, then report it to the maker of the provider", session("diagnose", order["log"]))
        error = {"kind": "reload", "message": f"{order['case']['model']}: {words}", "fix": fix}
        raise Refused({**error, "exit_code": CheckFailed.exit_code})
    chips = order["flexible"]
    if len(chips) == 1:
        return reply
    folder = Path(order["into"], order["forms"][0])
    for path in list(folder.iterdir()):
        path.unlink()
    path, into = folder / f"{order['stem']}.onnx", empty_folder(Path(order["scratch"]) / "flexible")
    more = {"path": str(path), "embed": folder.name == FORMS[1], "into": str(into), "chips": list(chips)}
    return {**reply, "for each": ask(common, do="flexible", **more)["near"]}


def _estimate(order: Mapping[str, Any], common: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What QNN says that the model will take; None where the compiler crashes on estimating it."""
    into = empty_folder(Path(order["scratch"]) / "estimate")
    try:
        return ask(common, do="estimate", into=str(into), chips=order["chips to estimate"])
    except WorkerDied as gone:
        if not gone.is_own_crash or gone.trouble(Path(order["log"])):
            raise
        return None


def _crash(order: Mapping[str, Any], gone: WorkerDied) -> dict[str, Any]:
    """How the process ended, if a crash is a result for this case."""
    log = Path(order["log"])
    if not (case_of(order).recorded and gone.is_own_crash) or gone.trouble(log):
        raise gone
    return {"failed": "crash", "message": words_of_end(gone, log)}


def words_of_end(gone: WorkerDied, log: Path) -> str:
    """How a process ended, with what is known of its last words."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    known = nearest(text)
    return f"{gone.sentence(log)}. {known}" if known else gone.sentence(log)


def _mixed(order: dict[str, Any]) -> dict[str, Any]:
    common, facts = _quantized(order, **_named(order))
    mixed = ask(common, do="mixed")
    shutil.copyfile(held[0].folder / SAMPLES, Path(order["into"], SAMPLES))
    return {**mixed, "constant": facts["constant"]}


def _quantized_file(order: dict[str, Any]) -> dict[str, Any]:
    _, facts = _quantized(order, **_named(order))
    for path in quantized_folder(order).glob(f"{order['name']}*"):
        shutil.copyfile(path, Path(order["into"], path.name))
    return {name: facts[name] for name in ("constant", "inputs", "near", "packages", "slices", "used")}


def _losses(order: dict[str, Any]) -> dict[str, Any]:
    common, facts = _quantized(order, **_named(order))
    return {**ask(common, do="losses"), **{name: facts[name] for name in ("near", "used")}}


def _rewritten(order: dict[str, Any]) -> dict[str, Any]:
    return ask(order, do="rewrite")


def _exported_files(order: dict[str, Any]) -> dict[str, Any]:
    """A suite's model and the samples that its code makes, as a user would have them."""
    model, into = held[0], Path(order["into"])
    shutil.copyfile(model.facts["model"], into / EXPORTED)
    samples = into / EXPORTED_SAMPLES
    samples.mkdir()
    given = [sample for name in (SAMPLES, CALIBRATION) for sample in saved(model.folder / name)]
    for number, sample in enumerate(given):
        save_one(samples / f"{number:04}.npz", sample)
    return {"samples": len(given)}


def _script(order: dict[str, Any]) -> dict[str, Any]:
    """Of one operator; the model is of no holder."""
    _export(order)
    common, _ = _quantized(order)
    return ask(common, do="script")


def _estimated(order: dict[str, Any]) -> dict[str, Any]:
    common, _ = _quantized(order, **_named(order))
    return ask(common, do="estimate", chips=order["chips to estimate"])


def _searched(order: dict[str, Any]) -> dict[str, Any]:
    """Where the model on HTP first differs; where a process dies on it, what the search knew then."""
    began, cuts = time.monotonic(), empty_folder(Path(order["scratch"]) / "cuts")
    common, facts = _quantized(order, **_named(order))
    seconds = order["seconds"] - (time.monotonic() - began)
    try:
        result = ask(common, do="diverge", into=str(cuts), seconds=seconds)["result"]
    except WorkerDied:
        if (known := partial_of(cuts)) is None:
            raise
        result = known
    return {**result, "constant": facts["constant"]}


def _scored(order: dict[str, Any]) -> dict[str, Any]:
    common, _ = _quantized(order, **_named(order))
    folders = [str(quantized_folder(order))]
    # What is not quantized adds nothing that quantizing would take away.
    if precision_named(order["exact"]).quantized:
        exact = empty_folder(Path(order["scratch"]) / "exact")
        run = {**common["run"], "precision": order["exact"]}
        ask({**common, "run": run}, do="quantize", model=common["source"], into=str(exact), **_named(order))
        folders.append(str(exact))
    into = empty_folder(Path(order["scratch"]) / "scores")
    return ask(common, do="scores", folders=folders, into=str(into))


Work = Callable[[dict[str, Any]], dict[str, Any]]


def _reporting(work: Work) -> Work:
    """A part that was refused is why the whole is; a part that died ends the process as it did."""

    def reply(order: dict[str, Any]) -> dict[str, Any]:
        try:
            return work(order)
        except Refused as refused:
            return {"error": dict(refused.details)}
        except WorkerDied as gone:
            return gone.as_reply

    return reply


export = _reporting(_export)
compiled = _reporting(_compiled)
mixed = _reporting(_mixed)
quantized_file = _reporting(_quantized_file)
losses = _reporting(_losses)
rewritten = _reporting(_rewritten)
exported_files = _reporting(_exported_files)
estimated = _reporting(_estimated)
searched = _reporting(_searched)
scored = _reporting(_scored)
script = _reporting(_script)
