"""Command line: `python -m benchmarks --help`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from . import report, rivals_torch
from .cases import DTYPES, cases
from .dispatch import dispatch
from .run import measure


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Times the documented kernels against jnp, in pairs."
    )
    parser.add_argument(
        "pattern", nargs="*", help="a kernel (softmax, 'row_*') or a case ('*/4096x4096/*'); all by default"
    )
    parser.add_argument("--quick", action="store_true", help="a quarter of a second a case, not a whole one")
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=DTYPES)
    parser.add_argument("--list", action="store_true", help="name the cases and stop")
    for name in ("json", "png", "markdown"):
        parser.add_argument(f"--{name}", metavar="FILE", help=f"write the report as {name}")
    options = parser.parse_args(arguments)
    chosen = list(cases(options.pattern, options.dtype))
    if not chosen:
        parser.error(f"no case matches {' '.join(options.pattern)}; --list names them")
    if options.list:
        print(*(case.name for case in chosen), sep="\n")
        return
    seconds = 0.25 if options.quick else 1.0
    torch = rivals_torch.load()
    command = " ".join(["python -m benchmarks", *(sys.argv[1:] if arguments is None else arguments)])
    print(f"{report.machine()}; {len(chosen)} cases; milliseconds, tilejax|jnp")
    results = []
    for case in chosen:
        for result in measure(case, seconds, torch):
            results.append(result)
            print(report.line(result), flush=True)
    calls = dispatch(seconds)
    text = report.markdown(results, calls, command)
    print("\n" + text)
    if options.markdown:
        Path(options.markdown).write_text(text)
    if options.json:
        Path(options.json).write_text(report.as_json(results, calls, command))
    if options.png:
        report.png(results, options.png)


if __name__ == "__main__":
    main()
