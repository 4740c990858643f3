"""`forecast`: what a phone will take for one model, without a phone, or what AI Hub measured on phones;
`forecast fit` fits its constants."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from ci.pipeline.compile_flags import PRECISION_HELP, add_model, add_option, one_model_of
from ci.pipeline.flags import add_work, host_selection, work_of
from ci.pipeline.models.user_model import MODEL_HELP
from ci.pipeline.options import OneModel
from provisioning.base import answer
from provisioning.base.command_line import Parser, count, repeatable

EXAMPLES = """\
  qnn-ci forecast model.onnx --precision 8a8w
  qnn-ci forecast model.onnx --precision 16a8w --calibrate samples/ --phone 'Galaxy S25'
  qnn-ci forecast model.onnx --measured 'Galaxy S24=1.42 ms'
  qnn-ci forecast model.onnx --simulate --phone 'Galaxy S25'
  qnn-ci forecast 'object detection' --measured --phone 'Galaxy S25'
  nox -s forecast -- fit
  nox -s forecast -- fit --kept --without resnet50 --without vit
  nox -s forecast -- fit --lane executorch --accept
"""

FIT = "fit"
OF_AI_HUB = ""
"""The value of --measured without one."""
OF_LANGUAGE_MODELS = ("config.json", "adapter_config.json", "genie_config.json")


def configure(parser: argparse.ArgumentParser) -> None:
    add_option(add_model(parser, f"{MODEL_HELP}; or `fit`; with --measured alone a model's name or use"))
    parser.add_argument("--precision", help=PRECISION_HELP)
    repeatable(parser, "--phone", "NAME", "this phone alone: 'Galaxy S25', 'X Elite' [all that were fitted]")
    parser.add_argument(
        "--measured",
        nargs="?",
        const=OF_AI_HUB,
        metavar="PHONE=MS",
        help="what one phone took: the others' forecasts by it ('Galaxy S24=1.42 ms'); alone: what AI Hub"
        " measured of models by name or use",
    )
    parser.add_argument(
        "--simulate",
        action="store_true",
        help="also what QNN's simulator (not documented) says of each phone's chip: a compile each",
    )
    fit = parser.add_argument_group(FIT, "compile the models that phones measured, and fit the constants")
    repeatable(fit, "-k", "EXPR", "parts of names with and, or, not and parentheses", dest="expressions")
    repeatable(fit, "--without", "MODEL", "leave this model out of the fit; with --kept, judge it by that")
    fit.add_argument("--lane", choices=("onnx", "executorch"), help="whose constants [onnx]")
    fit.add_argument(
        "--kept", action="store_true", help="compile only what has no accepted estimate, or what -k names"
    )
    fit.add_argument("--shard", metavar="I/N", help="compile the I-th of N parts; a run without it then fits")
    fit.add_argument("--list", action="store_true", help="list the programs, and compile none")
    fit.add_argument(
        "--accept", action="store_true", help="write the constants to manifests/accepted/forecast.json"
    )
    how = parser.add_argument_group("how")
    how.add_argument("--jobs", "-j", type=count, metavar="N", help="compiles side by side [cores]")
    add_work(how, "a step")


def run(args: argparse.Namespace) -> int:
    from provisioning.base.errors import UsageError

    fits = args.model == FIT
    of_fit = {"-k": args.expressions, "--without": args.without, "--shard": args.shard, "--list": args.list}
    of_fit |= {"--lane": args.lane, "--kept": args.kept}
    of_model = {"--precision": args.precision, "--phone": args.phone, "--measured": args.measured is not None}
    of_model |= {"--calibrate": args.calibrate, "--option": args.option}
    of_model |= {
        "--simulate": args.simulate,
        "--dimension": args.dimension,
        "--per-channel": args.per_channel,
    }
    for flag, given in (of_model if fits else {**of_fit, "--accept": args.accept}).items():
        if given:
            raise UsageError(f"{flag} is for {'a model' if fits else FIT}", fix=f"leave {flag} out")
    if fits and args.accept and args.expressions and not args.kept:
        raise UsageError(
            f"-k {args.expressions[0]!r} --accept would accept these programs alone",
            fix="add --kept: the others keep their accepted estimates",
        )
    if fits:
        from ci.forecast.fit import FitOptions, fit_forecasts

        words, without = tuple(args.expressions), tuple(args.without)
        return fit_forecasts(
            FitOptions(
                host_selection(args),
                work_of(args),
                args.lane or "onnx",
                args.kept,
                words,
                args.shard or "",
                without,
                args.accept,
                args.list,
            )
        )
    from ci.pipeline.forecast import of_language_model
    from ci.pipeline.one_model import of_lane
    from ci.pipeline.phones import load_forecasts

    table = load_forecasts()
    phones = [table.named(name) for name in args.phone] or [*table.phones]
    if args.measured == OF_AI_HUB:
        from ci.forecast.phones import found, in_words

        models = found(args.model, table, host_selection(args).store)
        answer.add(wheel=table.wheel.version, models=[model.as_dict() for model in models])
        print("\n".join(in_words(models, phones, table)))
        return 0
    model = one_model_of(args)
    speaks = any((Parser.user_folder() / model.typed / name).is_file() for name in OF_LANGUAGE_MODELS)
    forecasted = (
        of_language_model(model.typed)
        if speaks
        else of_lane(model, "forecast").forecasted(model, args.measured)
    )
    shown = [forecast for forecast in forecasted.forecasts if forecast.phone in phones]
    answer.add(model=model.typed, forecasts=[row.as_dict() for row in shown])
    answer.add(withheld=forecasted.withheld, fix=forecasted.fix)
    print("\n".join(forecasted.in_words(shown)))
    simulates = args.simulate and not speaks
    if simulates:
        simulate(model, {phone: table.phones[phone].soc for phone in phones})
    return int(bool(forecasted.withheld) and not simulates)


def simulate(model: OneModel, phones: Mapping[str, str]) -> None:
    """Print what QNN's simulator says of these phones, by their chips."""
    from ci.pipeline.one_model import of_lane
    from ci.pipeline.simulated import CAVEAT, in_words

    found = of_lane(model, "forecast").simulated_on(model, sorted({*phones.values()}))
    answer.add(simulated={phone: round(found[soc].us / 1000, 5) for phone, soc in phones.items()})
    for phone, soc in phones.items():
        print(f"{phone}  {in_words(found[soc])}")
    print(CAVEAT)
