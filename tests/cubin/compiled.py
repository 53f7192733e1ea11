"""Compiles kernels to machine code for an H200, without one, and prints what their PTX holds, as JSON.

A process of its own, for XLA reads its flags once.
"""

import functools
import importlib
import json
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

TARGET = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
  shared_memory_per_core: 233472 threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 4800000000000 l2_cache_size: 62914560 clock_rate_ghz: 1.98
  device_memory_size: 150754820096 shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 minor: 0 }
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}
platform_name: "CUDA" dnn_version_info { major: 9 minor: 10 patch: 0 } device_description_str: "NVIDIA H200"
"""


def cases():
    """The compiled kernels by name, and their arguments."""
    import jax
    import jax.numpy as jnp
    import test_triton_contract as contract
    import test_triton_operators as operators

    import tilejax as tj
    from tilejax import kernels

    s, f32, bf16 = jax.ShapeDtypeStruct, jnp.float32, jnp.bfloat16

    def of(kernel, *args, num_stages=None, **options):
        params = {} if num_stages is None else {"num_stages": num_stages}
        return functools.partial(tj.jit(kernel, backend="triton", compiler_params=params), **options), args

    def gemm(dtype, m=256, k=256, n=256, **options):
        blocks = {"block_m": 128, "block_n": 128, "block_k": 64, **options}
        return of(kernels.gemm, s((m, k), dtype), s((k, n), dtype), **blocks)

    def product(name):
        return of(contract.product(name), *contract.operands(name, "bfloat16"))

    def scan(name):
        op, _, axes = operators.OPERATORS[name]
        return of(operators.scan(op, axes, False), *operators.arguments(name, 64))

    def casts(x):
        """Down to short floats and up again."""
        outs, n = [tj.output_like(x) for _ in range(4)], tj.axis("n", x.shape[0])

        @tj.parallel(1)
        def _(nest):
            at = tj.coord(0), tj.shape(n)
            for out, dtype in zip(outs, ("float16", "bfloat16", "float8_e5m2", "float8_e4m3fn"), strict=True):
                out(*at).store((x[at] * 2).astype(dtype).astype(x.dtype))

        return outs

    def one_program(shape, fn):
        """A kernel of one program that stores what a function makes of its tile and its axes."""

        def kernel(x):
            out, axes = tj.output_like(x), [tj.axis(f"d{i}", n) for i, n in enumerate(shape)]
            here = tj.coord(*(0 for _ in shape)), tj.shape(*axes)

            @tj.parallel(1)
            def _(_):
                out(*here).store(fn(x[here], axes).astype(x.dtype))

            return out

        return kernel

    def scanned(tile, axes):
        return tj.cummax(tile, axes[-1])

    def sorted_within(tile, axes):
        return tj.sort(tile, axes[1])[0]

    def byte_floats(tile, axes):
        least = tj.minimum(-tile, tj.sign(tile))
        return tj.where(least < tile, tj.abs(least), tj.cummax(tile, axes[-1])) + tj.argmax(tile, axes[-1])

    def casts_of_bytes(tile, axes):
        return (tile.astype(jnp.float8_e5m2).astype(jnp.float8_e4m3fn) // 3).astype(tile.dtype)

    heads = (s((1, 2, 512, 64), bf16),) * 3
    steps = {"block_m": 256, "block_n": 128, "block_k": 64}
    return {
        "gemm": gemm(bf16),
        "gemm ragged": gemm(bf16, 257, 249, 250),
        "gemm f32": gemm(f32, block_m=64, block_k=32),
        "gemm int8": gemm(jnp.int8, block_k=128),
        "gemm uint8": gemm(jnp.uint8, block_m=64, block_k=128),
        "gemm e4m3": gemm(jnp.float8_e4m3fn, block_k=128),
        "gemm e5m2": gemm(jnp.float8_e5m2, block_k=128),
        "gemm of four steps": gemm(bf16, num_stages=4, **steps),
        "gemm of five steps": gemm(bf16, num_stages=5, **steps),
        "batch": product("matrices"),
        "batch of small matrices": product("small matrices"),
        "scan of matrices": scan("products of matrices"),
        "attention": of(kernels.flash_attention, *heads, causal=True, block_q=128, block_kv=64),
        "conv2d": of(kernels.conv2d, s((64, 28, 28, 256), bf16), s((3, 3, 256, 256), bf16), padding=1),
        "conv2d of few channels": of(kernels.conv2d, s((8, 112, 112, 3), bf16), s((7, 7, 3, 64), bf16)),
        "conv2d f32": of(kernels.conv2d, s((8, 28, 28, 64), f32), s((3, 3, 64, 64), f32), padding=1),
        "depthwise": of(kernels.depthwise_conv_pool, s((64, 64, 64), f32), s((3, 3, 64), f32)),
        "copy": of(kernels.copy, s((64, 1024), f32)),
        "copy ragged": of(kernels.copy, s((63, 1001), f32)),
        "softmax": of(kernels.softmax, s((64, 4096), bf16)),
        "sobel_median": of(kernels.sobel_median, s((64, 256), f32)),
        "top_k": of(kernels.top_k, s((64, 32000), f32), k=64),
        "long sort": of(kernels.sort, s((4, 5000), f32)),
        "two elements": of(one_program((1, 2), scanned), s((1, 2), f32)),
        "sort of a middle axis": of(one_program((3, 33, 2), sorted_within), s((3, 33, 2), f32)),
        "e4m3": of(one_program((4, 64), byte_floats), s((4, 64), jnp.float8_e4m3fn)),
        "e5m2": of(one_program((4, 64), byte_floats), s((4, 64), jnp.float8_e5m2)),
        "casts of bytes": of(one_program((4, 64), casts_of_bytes), s((4, 64), jnp.float8_e4m3fn)),
        "casts by xla": (tj.jit(casts, backend="xla"), (s((64,), f32),)),
        "long softmax": of(kernels.softmax, s((4, 10**6), f32)),
    }


def main():
    # Only the PTX is dumped: what the other passes write takes ten times as long as they do.
    dump = tempfile.mkdtemp()
    flags = f"--xla_dump_to={dump} --xla_dump_emitter_re=ptx --xla_gpu_autotune_level=0"
    roots = [str(path / "cu13") for path in map(Path, importlib.import_module("nvidia").__path__)]
    os.environ["XLA_FLAGS"] = f"{flags} --xla_gpu_cuda_data_dir={roots[0]}"
    os.environ["JAX_PLATFORMS"] = "cpu"
    sys.path.insert(0, str(Path(__file__).parent.parent))
    import jax
    from jax.experimental import topologies
    from jax.sharding import AbstractDevice, AbstractMesh, SingleDeviceSharding, use_abstract_mesh

    from tilejax import UnsupportedError

    topology = topologies.get_topology_desc(platform="cuda", target_config=TARGET, topology="1x1x1")
    place = SingleDeviceSharding(topology.devices[0])
    device = AbstractDevice(device_kind="NVIDIA H200", num_cores=132, platform="gpu")
    found = {}
    for name, (fn, args) in cases().items():
        args = [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=place) for a in args]
        before = set(Path(dump).glob("*.ptx"))
        try:
            with use_abstract_mesh(AbstractMesh((), (), abstract_device=device)):
                lowered = jax.jit(fn).trace(*args).lower(lowering_platforms=("cuda",))
        except UnsupportedError as error:
            found[name] = {"error": str(error)}
            continue
        compiled = lowered.compile()
        if name == "casts by xla":
            found[name] = {
                "to": sorted(re.findall(r"= (\w+)\[\S* (?:convert|reduce-precision)\(", compiled.as_text()))
            }
            continue
        new = [p.read_text() for p in set(Path(dump).glob("*.ptx")) - before]
        found[name] = _facts("\n".join(text for text in new if ".entry tilejax" in text))
    shutil.rmtree(dump)
    json.dump(found, sys.stdout)


def _facts(ptx):
    return {
        "entries": len(re.findall(r"\.entry tilejax", ptx)),
        "products": sorted(set(re.findall(r"wgmma\.mma_async\.sync\.aligned\.m64n\d+k\d+\.([\w.]+?) ", ptx))),
        "mma.sync": sorted(set(re.findall(r"mma\.sync\.aligned\.m\d+n\d+k\d+\.row\.col\.([\w.]+)", ptx))),
        "predicated": len(re.findall(r"@%p\d+ (?:ld|st)\.global", ptx)),
        "wide": len(re.findall(r"(?:ld|st)\.global[\w.]*\.v4\.", ptx)),
        "copied ahead": ptx.count("cp.async.cg.shared.global"),
        "barriers": ptx.count("bar.sync"),
        "local": len(re.findall(r"(?:ld|st)\.local", ptx)),
    }


if __name__ == "__main__":
    main()
