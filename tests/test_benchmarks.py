"""The benchmarks cover every kernel, compare what they time, and report it; no timing is asserted."""

from __future__ import annotations

import dataclasses
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import __main__ as command
from benchmarks import gpu_cases, report
from benchmarks.cases import DTYPES, SIZES, cases
from benchmarks.run import Result, Spread, Stages, agree, alternate, measure, nameless
from tilejax import kernels

SMALL = [case for case in cases(dtypes=["float32"]) if case.size == "small"]


def test_every_kernel_has_every_size_in_float32_and_bfloat16():
    documented = {name for name in kernels.__all__ if name != "Window"}
    for dtype in ("float32", "bfloat16"):
        found = {(case.kernel, case.size) for case in cases(dtypes=[dtype])}
        assert found == {(kernel, size) for kernel in documented for size in SIZES}
    assert {case.kernel for case in cases(dtypes=["int8"])} == {"gemm"}


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.kernel)
def test_kernel_and_rivals_agree(case):
    args = [jnp.asarray(x) for x in case.args()]
    got = jax.tree.leaves(case.ours(*args, **case.options))
    for rival in case.rivals.values():
        agree(
            case,
            got,
            jax.tree.leaves(jax.jit(rival, static_argnames=tuple(case.options))(*args, **case.options)),
        )


def test_every_kernel_is_timed_on_a_gpu():
    timed = {case.name.split()[0] for case in gpu_cases.cases()}
    assert set(kernels.__all__) - {"Window"} <= timed


def test_patterns_pick_cases():
    assert {case.kernel for case in cases(["row_m*"])} == {"row_max", "row_min"}
    assert [case.name for case in cases(["gemm/512*"], ["int8"])] == ["gemm/512x512x512/int8"]
    assert not list(cases(["no such kernel"]))
    with pytest.raises(SystemExit):
        command.main(["no such kernel"])


def test_a_wrong_result_is_not_timed():
    case = next(cases(["row_sum"], ["float32"]))
    right = [np.asarray(case.ours(*case.args()))]
    agree(case, right, right)
    with pytest.raises(AssertionError, match="row_sum/64x128/float32, result 0: off by"):
        agree(case, right, [right[0] + np.float32(1)])
    with pytest.raises(AssertionError, match="shape"):
        agree(case, right, [right[0][1:]])
    with pytest.raises(AssertionError, match="float16"):
        agree(case, right, [right[0].astype(np.float16)])
    wrong = dataclasses.replace(case, rivals={"jnp": lambda x: x.sum(-1) + 1})
    with pytest.raises(AssertionError, match="off by"):
        next(measure(wrong, 0.0))


def test_the_same_code_is_seen():
    x = jnp.ones((4, 5))
    same, other = (
        jax.jit(f).lower(x).compile().as_text() for f in (lambda y: (y * 2).sum(1), lambda y: y.max())
    )
    code = nameless(jax.jit(lambda renamed: jnp.sum(renamed * 2, 1)).lower(x).compile().as_text())
    assert nameless(same) == code
    assert nameless(other) != code


def test_calls_alternate():
    order = []
    samples = alternate({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 0.0)
    assert len(samples["a"]) == len(samples["b"]) == 5
    changes = [y for x, y in itertools.pairwise(order) if x != y]
    assert len(changes) >= 5


def _result(kernel: str, ratio: float, *, size: str = "cache", dtype: str = "float32") -> Result:
    stages = Stages(0.01, 0.02, 0.1, 0.001, 0, "")
    warm = {"tilejax": Spread(1e-3, 2e-3, 3e-3), "rival": Spread(1e-3, 2e-3 * ratio, 3e-3)}
    return Result(
        kernel,
        "jnp",
        size,
        (4, 5),
        dtype,
        {"tilejax": stages, "rival": stages},
        warm,
        Spread(0, ratio, 9),
        True,
        0.5,
    )


def test_tables():
    results = [_result("a", 2.0), _result("a", 8.0), _result("a", 0.5, dtype="bfloat16"), _result("b", 0.013)]
    lines = report.summary(results).splitlines()
    assert lines[0] == "| kernel | small | cache | large | ragged | bfloat16 | worst |"
    assert lines[2] == "| `a` |  | 4.00 |  |  | 0.50 | 0.50 |"
    assert lines[3] == "| `b` |  | 0.013 |  |  |  | 0.013 |"
    row = report.details(results).splitlines()[2]
    assert row == "| `a` | 4x5 | float32 | 2.00 | 0 to 9.00 | 1.00 | 1.00 | 1.00 | 50% | same |"


def test_the_command_prints_and_writes_a_report(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(command.rivals_torch, "load", lambda: None)
    files = {name: tmp_path / f"report.{name}" for name in ("json", "png", "markdown")}
    flags = [part for name, path in files.items() for part in (f"--{name}", str(path))]
    command.main(["row_sum/64x128/*", "--quick", "--dtype", "float32", *flags])
    printed = capsys.readouterr().out
    assert files["markdown"].read_text() in printed
    (row,) = json.loads(files["json"].read_text())["results"]
    assert row["shape"] == [64, 128]
    assert set(row["stages"]["tilejax"]) == {"trace", "lower", "compile", "run", "temporaries", "code"}
    assert 0 < row["warm"]["tilejax"]["low"] <= row["warm"]["tilejax"]["median"]
    assert files["png"].read_bytes().startswith(b"\x89PNG")


def test_the_list_names_the_cases(capsys):
    command.main(["--list"])
    assert capsys.readouterr().out.split() == [case.name for case in cases(dtypes=DTYPES)]
