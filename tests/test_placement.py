"""Where memories may lie on each target, and how much of them."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import tilejax as tj
from tilejax import kernels
from tilejax.backends.placement import METAL, XLA, check_placement, nvidia


def placed(scope=tj.Scope.AUTOMATIC, resource=tj.Resource.AUTO, inner=None, elements=4, pad=0):
    """The traced program of a kernel with one memory, in a nest of `inner` scope if that is given."""

    def kernel(x):
        def use(nest):
            held = tj.memory(tj.layout(tj.shape(elements), (1 + pad,)), jnp.float32, resource)
            held.store(0)

        if inner is None:
            tj.parallel(1, scope=scope)(use)
        else:
            tj.parallel(1, scope=scope)(lambda nest: nest.parallel(1, scope=inner)(use))
        return tj.output_like(x)

    return tj.make_jaxpr(kernel)(np.zeros(1, np.float32))


S, R = tj.Scope, tj.Resource
NVIDIA = nvidia("triton", 227 * 1024)


class TestPlacement:
    @pytest.mark.parametrize(
        ("target", "scope", "resource"),
        [
            *((XLA, s, r) for s in (S.AUTOMATIC, S.WORKER, S.VECTOR) for r in (R.AUTO, R.PRIVATE)),
            *((t, s, r) for t in (NVIDIA, METAL) for s in (S.AUTOMATIC, S.GROUP) for r in (R.AUTO, R.SHARED)),
            *((t, S.WORKER, r) for t in (NVIDIA, METAL) for r in (R.AUTO, R.PRIVATE)),
        ],
    )
    def test_taken(self, target, scope, resource):
        check_placement(placed(scope, resource), target, "k")

    @pytest.mark.parametrize(
        ("target", "scope", "resource"),
        [
            *((XLA, S.WORKER, r) for r in (R.SHARED, R.CLUSTER, R.GLOBAL, R.TENSOR)),
            *((t, S.GROUP, r) for t in (NVIDIA, METAL) for r in (R.PRIVATE, R.CLUSTER, R.GLOBAL, R.TENSOR)),
            *((t, S.WORKER, r) for t in (NVIDIA, METAL) for r in (R.SHARED, R.CLUSTER, R.GLOBAL, R.TENSOR)),
        ],
    )
    def test_resources_that_are_not_there(self, target, scope, resource):
        says = rf"memory held asks for resource {resource.name}.*{target.name}.*under scope {scope.name}"
        with pytest.raises(tj.UnsupportedError, match=rf"(?s)kernel k: {says}.*test_placement\.py"):
            check_placement(placed(scope, resource), target, "k")

    @pytest.mark.parametrize(
        ("target", "scope"),
        [
            *((XLA, s) for s in (S.DEVICE, S.GROUP, S.SUBGROUP)),
            *((t, s) for t in (NVIDIA, METAL) for s in (S.DEVICE, S.SUBGROUP, S.VECTOR)),
        ],
    )
    def test_scopes_that_are_not_there(self, target, scope):
        with pytest.raises(tj.UnsupportedError, match=rf"scope {scope.name}.*backend {target.name}"):
            check_placement(placed(scope), target, "k")

    def test_a_nested_program_has_its_own_scope(self):
        check_placement(placed(S.GROUP, R.PRIVATE, S.WORKER), METAL, "k")
        check_placement(placed(S.WORKER, R.PRIVATE, S.AUTOMATIC), METAL, "k")
        with pytest.raises(tj.UnsupportedError, match=r"SHARED.*under scope WORKER; it takes PRIVATE"):
            check_placement(placed(S.GROUP, R.SHARED, S.WORKER), METAL, "k")

    @pytest.mark.parametrize(("target", "limit"), [(METAL, 32 * 1024), (NVIDIA, 227 * 1024)])
    def test_capacity(self, target, limit):
        elements = limit // 4
        check_placement(placed(elements=elements), target, "k")
        check_placement(placed(S.WORKER, elements=10 * elements), target, "k")
        check_placement(placed(elements=10 * elements), XLA, "k")
        with pytest.raises(tj.UnsupportedError, match=rf"held.*{limit + 4} bytes of SHARED.* has {limit}"):
            check_placement(placed(elements=elements + 1), target, "k")

    def test_padding_counts(self):
        check_placement(placed(elements=4096, pad=1), METAL, "k")
        with pytest.raises(tj.UnsupportedError, match=r"32772 bytes of SHARED.* has 32768"):
            check_placement(placed(elements=4097, pad=1), METAL, "k")

    def test_memories_add_up(self):
        a = np.zeros((64, 64), np.float32)
        check_placement(tj.make_jaxpr(kernels.manual_gemm)(a, a), METAL, "k")
        blocks = {"block_m": 64, "block_n": 64, "block_k": 64}
        total = 4 * (63 * 65 + 64 + 64 * 64)
        with pytest.raises(tj.UnsupportedError, match=rf"memory right .*{total} bytes of SHARED.* has 32768"):
            check_placement(tj.make_jaxpr(kernels.manual_gemm)(a, a, **blocks), METAL, "k")

    @pytest.mark.usefixtures("on_cpu")
    def test_it_is_checked_when_a_kernel_is_compiled(self):
        a = np.ones((8, 8), np.float32)
        np.testing.assert_array_equal(kernels.manual_gemm(a, a, scope=S.WORKER, resource=R.PRIVATE), 8 * a)
        with pytest.raises(tj.UnsupportedError, match="memory left asks for resource SHARED"):
            kernels.manual_gemm(a, a, resource=R.SHARED)
        with pytest.raises(tj.UnsupportedError, match="scope GROUP"):
            kernels.manual_gemm(a, a, scope=S.GROUP)
