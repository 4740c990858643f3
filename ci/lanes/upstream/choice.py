"""Which tests of which suites a run takes: lists asked of workers, and what the flags choose of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from ci.child import WARM
from ci.jobs import Job, default_slots
from ci.lanes.upstream.accepted import AcceptedTests, load_tests
from ci.lanes.upstream.flags import UpstreamOptions
from ci.lanes.upstream.judge import Judge
from ci.lanes.upstream.process import UpstreamPlan
from ci.lanes.upstream.suite import UpstreamSuite, machinery, worker_environment
from ci.lanes.upstream.verdict import TestNames
from ci.plain import read
from ci.results import CachedResults, surroundings, toolkit_of
from ci.runner import ready_runner
from ci.suite.installed import find_as_workers
from ci.suite.options import Choice, matcher, parse_shard, shard
from ci.work import Home, Template, asked
from provisioning.base.commands import Fix, quoted, session
from provisioning.base.errors import CheckFailed, EnvironmentLacking, UsageError
from provisioning.base.settings import DEFAULT_PROFILE, DEFAULT_SOC
from provisioning.environment import resolve

JudgedBy = Callable[[AcceptedTests, Path], Judge]
"""What judges a suite on a chip; the path is that of its logs."""

START_SECONDS = 15.0
"""A process's start. Less work than this is not shared."""
START_LIMIT = 300.0
"""Seconds for a list of tests."""


def prepare(
    suites: Sequence[UpstreamSuite],
    options: UpstreamOptions,
    environ: Mapping[str, str],
    started: ExitStack,
    judged_by: JudgedBy,
) -> list[UpstreamPlan]:
    """The suites with tests that the flags choose. All are listed before the first test runs, so that a
    mistyped expression does not cost hours. Of several suites, an expression need match in one alone."""
    choice = options.choice
    alone = len(suites) > 1
    plans = {
        suite.name: make_plan(suite, options, environ, judged_by, to_list_alone=alone) for suite in suites
    }
    for plan in plans.values():
        started.callback(plan.template.close)
    slots = options.work.jobs or default_slots()
    with ThreadPoolExecutor(slots) as pool:
        listing = {name: pool.submit(list_tests, plan, alone=alone) for name, plan in plans.items()}
        listed = {name: tests.result() for name, tests in listing.items()}
    runs: list[UpstreamPlan] = []
    unmatched = set(choice.words)
    for name, plan in plans.items():
        tests = listed[name]
        unmatched -= {word for word in unmatched if any(map(matcher([word]), tests))}
        chosen = choose(plan, choice, options.sample, tests)
        # A suite that has lost all its tests is no suite without a match.
        if chosen or not tests:
            slots = min(plan.slots, 1 + int(sum(job.seconds for job in chosen) / START_SECONDS))
            work = replace(plan.work, jobs=slots)
            runs.append(replace(plan, programs=tuple(chosen), tests=tuple(tests), work=work))
    if unmatched or not runs:
        flags = [word for name in sorted(unmatched or choice.words) for word in ("-k", name)]
        if not unmatched:
            flags += ["--sample", options.sample] if options.sample is not None else []
            flags += ["--shard", choice.shard] if choice.shard else []
        version = plan.machinery.versions["executorch"]
        raise UsageError(
            f"no test of executorch {version} matches {quoted(*flags)}",
            fix=session(*plan.suite.command, "--list"),
        )
    return runs


def make_plan(
    suite: UpstreamSuite,
    options: UpstreamOptions,
    environ: Mapping[str, str],
    judged_by: JudgedBy,
    *,
    to_list_alone: bool,
) -> UpstreamPlan:
    """Everything except the list of tests, which may need a worker."""
    selection, work = options.selection, options.work
    qnn_environment = resolve(selection, environ)
    find_as_workers(qnn_environment)
    suite.check(selection.soc)
    qnn_environment.explain()
    runner = ready_runner(environ, selection.reports)
    slots = work.jobs or default_slots()
    environment = worker_environment(qnn_environment, environ, runner.path, slots)
    logs = Path(selection.reports, suite.folder).absolute()
    accepted = load_tests(suite.name, selection.profile, selection.soc)
    on = machinery(suite, qnn_environment, environment, runner, selection.store)
    judge = judged_by(accepted, logs)
    if on.is_of_another_release(accepted.measured):
        judge = replace(judge, of_another_release=True)
        if options.accept:
            raise UsageError(
                f"--accept: the tests are those of executorch {on.versions['executorch']}, and what is"
                f" accepted of {suite.name} is of {accepted.measured}",
                fix="unset EXECUTORCH_ROOT, or leave out --accept",
            )
    home = Home(
        {**environment, WARM: "" if to_list_alone else "1"},
        logs,
        f"{suite.worker}:prepare",
        "the tests",
        Fix("run it as `{}`, which installs what they need", suite.command),
        arguments=(suite.name, str(logs)),
    )
    return UpstreamPlan(
        programs=(),
        selection=selection,
        work=work,
        logs=logs,
        suite=suite,
        machinery=on,
        template=Template(home),
        judge=judge,
        usual=load_tests(suite.name, DEFAULT_PROFILE, DEFAULT_SOC),
        slots=slots,
    )


def choose(plan: UpstreamPlan, choice: Choice, sample: str | None, tests: Sequence[str]) -> list[Job]:
    """The tests that the flags name, sorted."""
    matches = matcher(choice.words, whole=True)
    jobs = [plan.job(test) for test in sample_of(sample, tests) if matches(test)]
    return sorted(shard(jobs, *parse_shard(choice.shard or "1/1")), key=lambda job: job.name)


SAMPLE = 40
"""Of so many tests, `--sample` has one."""


def sample_of(part: str | None, tests: Sequence[str]) -> Sequence[str]:
    """The tests of `--sample`: a few. Of `--sample I/N`: every N-th; the N parts together are the whole.

    A hash chooses the same tests each time, and other tests that come or go do not change the choice."""
    if part is None:
        return tests
    if part:
        index, count = parse_shard(part, "--sample")
        return [test for test in tests if _hash(test) % count == index - 1]
    return [test for test in tests if _hash(test) % SAMPLE == 0] or tests[:1]


def _hash(test: str) -> int:
    return int(sha256(test.encode()).hexdigest(), 16)


def list_tests(plan: UpstreamPlan, *, alone: bool) -> list[str]:
    """Every test of the suite; with `alone`, its processes end then.

    The list is no verdict, so --no-cache does not apply."""
    template, store = plan.template, plan.selection.store
    results = CachedResults(store, "lists of tests")
    toolkit = toolkit_of(template.home, store, template)
    key = {
        **surroundings(store, template.home.environment, toolkit),
        "suite": plan.suite.model_dump(mode="json"),
    }
    key |= plan.machinery.key(results)
    cached = results.find(key)
    if cached is None:
        log = plan.logs / "list.log"
        try:
            reply = asked(template, f"{plan.suite.worker}:listed", log, START_LIMIT, {})
        except CheckFailed as error:
            message = f"the tests could not be listed ({error.message})"
            raise EnvironmentLacking(message, fix=template.home.fix) from error
        cached = results.keep(plan.suite.name, key, reply)
    if alone:
        # It takes memory, and its suite's turn may be hours away.
        template.close()
    results.close()
    return [*read(TestNames, cached.facts).tests]
