"""What ``explain`` says of Triton beside the PTX that it makes: copies ahead, and the units that multiply."""

import json
import os
import re
import subprocess
import sys

import pytest

SCRIPT = """
import glob, json, sys
import jax, jax.numpy as jnp
import tilejax as tj
from tilejax import kernels

def array(*shape, dtype=jnp.bfloat16):
    return jax.ShapeDtypeStruct(shape, dtype)

def horner(x):
    out = tj.output((64, 512), jnp.float32)
    r, c = tj.axis("r", 64), tj.axis("c", 512)

    @tj.parallel(1)
    def _(nest):
        @nest.pipeline(tj.axis("k", 16), carry=tj.zeros(tj.shape(r, c)))
        def total(step, total):
            return total * 2 + x[tj.coord(step.index() * 64, 0), tj.shape(r, c)]

        out(tj.coord(0, 0), tj.shape(r, c)).store(total)

    return out

f32, square = jnp.float32, array(1024, 1024)
wide, q = array(1024, 1024, dtype=f32), array(1, 4, 1024, 64)
CASES = {
    "bfloat16": (kernels.gemm, [square, square], {}, {}),
    "one stage": (kernels.gemm, [square, square], {}, {"num_stages": 1}),
    "float32": (kernels.gemm, [wide, wide], {}, {}),
    "tf32": (kernels.gemm, [wide, wide], {"precision": "tf32"}, {}),
    "highest": (kernels.gemm, [wide, wide], {"precision": "highest"}, {}),
    "attention": (kernels.flash_attention, [q, q, q], {"causal": True}, {}),
    "no dot": (horner, [wide], {}, {}),
}
found, known = {}, set()
for name, (kernel, args, options, params) in CASES.items():
    said = tj.explain(kernel, backend="triton", compiler_params=params)(*args, **options)
    tj.jit(kernel, backend="triton", compiler_params=params).lower(*args, **options).compile()
    new = set(glob.glob(f"{sys.argv[1]}/*ptx*")) - known
    known |= new
    found[name] = {
        "pipelines": [[p.overlapped, p.reason] for p in said.pipelines],
        "mmas": [m.instruction for m in said.mmas],
        "ptx": "".join(open(path).read() for path in new),
    }
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    place = tmp_path_factory.mktemp("dump")
    flags = f"--xla_dump_to={place} --xla_dump_emitter_re=.* --xla_gpu_dump_llvmir=true"
    script = place / "script.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": os.getcwd()}
    run = [sys.executable, str(script), str(place)]
    out = subprocess.run(run, env=environment, check=True, capture_output=True, text=True).stdout
    return json.loads(out.splitlines()[-1])


@pytest.mark.parametrize(
    "name", ["bfloat16", "one stage", "float32", "tf32", "highest", "attention", "no dot"]
)
def test_the_ptx_is_as_explained(found, name):
    said = found[name]
    ptx = said["ptx"]
    assert ptx
    ((overlapped, reason),) = said["pipelines"]
    assert ("cp.async." in ptx) == ("cp.async" in reason)
    assert overlapped == (name not in ("one stage", "no dot")), reason
    units = re.findall(r"(?:wgmma\.mma_async|mma)\.sync\S*", ptx)
    tensor = all(m.startswith("tensor cores") for m in said["mmas"]) and bool(said["mmas"])
    assert bool(units) == tensor
    short = {"bfloat16": "bf16", "tf32": "tf32"}
    for kind in re.findall(r"tensor cores: (\w+)", " ".join(said["mmas"])):
        assert any(short[kind] in unit for unit in units)
