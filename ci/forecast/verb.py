"""`forecast`: what a phone will take for one model, without a phone, or what AI Hub measured on phones;
`forecast fit` fits its constants."""

from __future__ import annotations

import argparse

from ci.pipeline.compile_flags import PRECISION_HELP, add_model, add_option, one_model_of
from ci.pipeline.flags import add_work, host_selection, work_of
from ci.pipeline.models.user_model import MODEL_HELP
from provisioning.base import answer
from provisioning.base.command_line import Parser, count, repeatable, switch, valued
from provisioning.base.commands import leave_out

EXAMPLES = """\
  qnn-ci forecast model.onnx --precision 8a8w
  qnn-ci forecast model.onnx --precision 16a8w --calibrate samples/ --phone 'Galaxy S25'
  qnn-ci forecast model.onnx --measured 'Galaxy S24=1.42 ms'
  qnn-ci forecast 'object detection' --measured --phone 'Galaxy S25'
  nox -s forecast -- fit -k resnet50
  nox -s forecast -- fit --accept
"""

FIT = "fit"
OF_LANGUAGE_MODELS = ("config.json", "adapter_config.json", "genie_config.json")


def configure(parser: argparse.ArgumentParser) -> None:
    add_option(add_model(parser, f"{MODEL_HELP}; or `fit`; with --measured alone a model's name or use"))
    parser.add_argument("--precision", help=PRECISION_HELP)
    repeatable(parser, "--phone", "NAME", "only this phone: 'Galaxy S25', 'X Elite' [all fitted ones]")
    valued(
        parser,
        "--measured",
        "PHONE=MS",
        "correct the forecast with a measured time ('Galaxy S24=1.42 ms'); without a value, show what"
        " AI Hub measured of models by name or use",
        nargs="?",
        const="",
    )
    fit = parser.add_argument_group(FIT, "compile the models that phones measured, and fit the constants")
    repeatable(fit, "-k", "EXPR", "parts of names with and, or, not and parentheses", dest="expressions")
    switch(fit, "--accept", "write the constants to manifests/accepted/forecast.json")
    how = parser.add_argument_group("how")
    how.add_argument("--jobs", "-j", type=count, metavar="N", help="models to compile in parallel [cores]")
    add_work(how, "a step")


def run(args: argparse.Namespace) -> int:
    from provisioning.base.errors import UsageError

    fits = args.model == FIT
    of_fit = {"-k": args.expressions, "--accept": args.accept}
    of_model = {
        "--precision": args.precision,
        "--phone": args.phone,
        "--measured": args.measured,
        "--calibrate": args.calibrate,
        "--option": args.option,
        "--dimension": args.dimension,
        "--per-channel": args.per_channel,
    }
    for flag, value in (of_model if fits else of_fit).items():
        if value not in (None, False, []):
            raise UsageError(f"{flag} is for {'a model' if fits else FIT}", fix=leave_out(flag))
    if args.accept and args.expressions:
        raise UsageError(
            f"-k {args.expressions[0]!r} --accept would accept these programs alone", fix=leave_out("-k")
        )
    if fits:
        from ci.forecast.fit import fit_forecasts

        return fit_forecasts(host_selection(args), work_of(args), args.expressions, accepts=args.accept)
    from ci.pipeline.forecast import of_language_model
    from ci.pipeline.lane_model import of_lane
    from ci.pipeline.phones import load_forecasts

    table = load_forecasts()
    phones = [table.named(name) for name in args.phone] or [*table.phones]
    if args.measured == "":
        from ci.forecast import hub
        from provisioning.store import Store

        models = hub.found(args.model, hub.tables(table, Store(host_selection(args).store)))
        devices = {table.phones[name].device: name for name in phones}
        answer.add(wheel=table.wheel.version, models=hub.as_dicts(models))
        print(f"measured on phones by AI Hub ({table.wheel.version}), not here")
        print("\n".join(hub.in_words(models, devices)))
        return 0
    model = one_model_of(args)
    speaks = any((Parser.user_folder() / model.typed / name).is_file() for name in OF_LANGUAGE_MODELS)
    if speaks:
        forecasted = of_language_model(model.typed)
    else:
        forecasted = of_lane(model, "forecast").forecasted(model, phones, args.measured).of(phones)
    answer.add(model=model.typed, forecasts=[row.as_dict() for row in forecasted.forecasts])
    answer.add(withheld=forecasted.withheld, fix=forecasted.fix)
    print("\n".join(forecasted.in_words()))
    return int(bool(forecasted.withheld))
