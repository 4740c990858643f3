"""Does this executorch work with this QNN? The compiler is asked."""

from __future__ import annotations

import re
from collections.abc import Iterator

from provisioning.base.commands import Fix, session
from provisioning.components import QNN_SDK
from provisioning.executorch_chips import chip_instead
from provisioning.validation import CouldNotRun, NotApplicable, Problem, rule
from provisioning.validation.compiler_probe import Answer
from provisioning.validation.context import ComponentTree, Context
from provisioning.validation.versions import hiding_packages, tree_of

_NO_DEVICE = 14001


@rule("compiler-answers", asks_compiler=True)
def compiler_answers(context: Context) -> Iterator[Problem]:
    tree = tree_of(context, QNN_SDK)
    if context.pipe:
        raise NotApplicable(f"the compiler would wait without end for {context.pipe}")
    if not context.answers:
        raise NotApplicable("the SDK was provisioned for devices only, so it cannot lower models")
    if hiding_packages(context):
        raise NotApplicable("python-path tells why the compiler cannot be asked")
    for soc, answer in context.answers.items():
        if answer.step == "absent":
            raise CouldNotRun(
                f"{answer.detail} in {answer.interpreter}",
                Fix("run it as a session, which installs the pinned packages: {}", ("validate",)),
            )
        if answer.step == "probe":
            raise CouldNotRun(
                f"asking the compiler of executorch in {answer.interpreter} failed: {answer.detail}",
                "put flatc on PATH, or name it in FLATC_EXECUTABLE" if "flatc" in answer.detail else "",
            )
        if not answer.made_device:
            yield _refusal(_unopened_library(context, answer) or soc, soc, answer, tree)
            continue
        if not answer.compiles:
            yield Problem(
                soc,
                f"the compiler creates an HTP device, and compiles no program of one layer: {answer.detail}",
                Fix("restore the SDK's libraries: {}", ("store", "repair")) if tree.origin == "store" else "",
            )
            continue
        builds = {build_id for library in context.libraries for build_id in library.build_ids}
        if builds and answer.build_id not in builds:
            yield Problem(
                soc,
                f"the compiler loaded QNN {answer.build_id}, which is not in {tree.label}"
                f" ({', '.join(sorted(builds))})",
            )


_UNOPENED = re.compile(r"Cannot Open QNN library (?:\S*/)?([^\s/,]+)")


def _unopened_library(context: Context, answer: Answer) -> str:
    """The place of the library that the compiler could not open: other rules may say why."""
    host = [library for library in context.libraries if library.system == "host"]
    match = _UNOPENED.search(answer.detail)
    name = match[1] if match else "libQnnHtp.so" if answer.step == "build id" else ""
    return f"{host[0].place.rpartition('/')[0]}/{name}" if host and name else ""


def _refusal(subject: str, soc: str, answer: Answer, tree: ComponentTree) -> Problem:
    if answer.step == "adaptor":
        return Problem(
            subject,
            f"executorch in {answer.interpreter} has no working QNN adaptor: {answer.detail}",
            "install executorch's wheel for Linux on x86-64, or build its QNN backend",
        )
    if answer.step == "build id":
        return Problem(
            subject,
            f"the compiler cannot load libQnnHtp.so of {tree.label}: {answer.detail}",
            Fix("restore the SDK's libraries: {}", ("store", "repair")) if tree.origin == "store" else "",
        )
    if answer.step == "soc":
        return Problem(subject, answer.detail, chip_instead(soc, answer.chips))
    if answer.code == _NO_DEVICE:
        return Problem(
            answer.build_id,
            f"executorch does not work with this QNN: creating an HTP device for {soc} failed with"
            f" {_NO_DEVICE}, invalid device configuration. The two are of releases that do not work together;"
            f" QNN said: {answer.detail.partition('; ')[0]}",
        )
    code = f" with {answer.code}" if answer.code is not None else ""
    fix = session("diagnose", str(answer.code)) if answer.code is not None else ""
    return Problem(subject, f"creating an HTP device failed{code}: {answer.detail}", fix)
