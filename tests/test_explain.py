"""``explain`` says what the compiler decides, and the lowered module shows that it decides so."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tilejax as tj
from tests.helpers import only
from tilejax import kernels

F = jax.ShapeDtypeStruct((96, 64), jnp.float32)
G = jax.ShapeDtypeStruct((64, 80), jnp.float32)
R, C = tj.axis("r", 1), tj.axis("c", 64)


DEVICE = jax.default_backend()
explain = functools.partial(tj.explain, backend="xla")


def lowered(kernel, *args, **options):
    return tj.jit(kernel, backend="xla").lower(*args, **options).as_text()


def loop(body):
    """A kernel of one pipeline over the rows of ``x``, ``body(step, x, y)``; ``y`` is an updated copy."""

    def kernel(x):
        y = tj.update(x)

        @tj.parallel(1)
        def _(nest):
            nest.pipeline(tj.axis("rows", x.shape[0]))(lambda step: body(step, x, y))

        return y

    return kernel


def test_a_matrix_product():
    blocks = {"block_m": 32, "block_n": 16, "block_k": 8}
    found = explain(kernels.gemm)(F, G, **blocks)
    assert (found.kernel, found.backend, found.platform) == ("gemm", "xla", DEVICE)
    pipeline = only(found.pipelines)
    assert pipeline.name == "pipeline(k_tiles)"
    assert pipeline.overlapped
    assert pipeline.reason == "all steps at once, in one contraction"
    assert found.memories == ()
    mma = only(found.mmas)
    assert mma.dtypes == ("float32", "float32", "float32")
    assert mma.instruction == "dot_general of float32, precision HIGHEST"
    store = only(found.stores)
    assert store.proved == "disjoint, covers the view: what is stored becomes the view"
    for decision in (pipeline, mma, store):
        assert str(decision.loc).startswith("matmul.py:")
    text = lowered(kernels.gemm, F, G, **blocks)
    assert text.count("dot_general") == 1
    assert "HIGHEST" in text
    assert "while" not in text


def test_it_prints_every_part():
    text = str(explain(kernels.manual_gemm)(F, G))
    assert text.splitlines()[0] == f"kernel manual_gemm, backend xla on {DEVICE}"
    for line in (
        "    pipeline(k_tiles) (manual.py:",
        "): overlapped; all steps at once, in one contraction",
        "    left (manual.py:",
        "): PRIVATE, 8444 bytes a program; an array of its own values",
        "    float32 * float32 + float32 (manual.py:",
        "stores:\n    output [96, 80] (manual.py:",
    ):
        assert line in text
    nothing = str(explain(kernels.copy)(F))
    assert "pipelines: none\nmemories: none\nmmas: none\nstores:\n" in nothing


@pytest.mark.parametrize(
    ("scope", "resource"), [(tj.Scope.AUTOMATIC, tj.Resource.AUTO), (tj.Scope.WORKER, tj.Resource.PRIVATE)]
)
def test_memories_have_a_resource_and_their_bytes_with_padding(scope, resource):
    """Rows of 32 padded to 33 elements; the last needs no padding after it."""
    left, right = explain(kernels.manual_gemm)(F, G, scope=scope, resource=resource).memories
    assert (left.name, left.resource, left.nbytes) == ("left", tj.Resource.PRIVATE, (63 * 33 + 32) * 4)
    assert (right.name, right.resource, right.nbytes) == ("right", tj.Resource.PRIVATE, 64 * 32 * 4)
    with pytest.raises(tj.UnsupportedError, match="SHARED"):
        explain(kernels.manual_gemm)(F, G, resource=tj.Resource.SHARED)


def test_a_loop_whose_steps_store_says_what_keeps_or_could_not_help_it():
    def recurrence(step, x, y):
        i = step.index()
        old = y[tj.coord(i, 0), tj.shape(R, C)]
        y(tj.coord(i + 1, 0), tj.shape(R, C)).store(old)

    line = recurrence.__code__.co_firstlineno
    found = explain(loop(recurrence))(F)
    pipeline = only(found.pipelines)
    assert not pipeline.overlapped
    assert pipeline.reason == (
        "one loop with the grid inside, because its steps store to y; "
        f"the load of y (test_explain.py:{line + 2}) may read what the store (test_explain.py:{line + 3}) "
        "of the step before wrote"
    )
    assert only(found.stores).proved.startswith("sequential, in pipeline(rows): disjoint, one update")
    assert "while" in lowered(loop(recurrence), F)

    def apart(step, x, y):
        y(tj.coord(step.index(), 0), tj.shape(R, C)).store(x[tj.coord(step.index(), 0), tj.shape(R, C)])

    reason = only(explain(loop(apart))(F).pipelines).reason
    assert "because its steps store to y; the loads of x (test_explain.py:" in reason
    assert reason.endswith("could run ahead, but gain nothing here")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "because its carry does more than add up; the loads of x"),
        ({"window": 1}, "because its carry does more than add up; window=1 asks for no overlap"),
        ({"interval": 2}, "interval=2 keeps the steps apart, and so in order"),
        ({"start": 3}, "because start and stop restrict it"),
        ({"start": 95}, "it has one step, and no loop is left"),
    ],
)
def test_why_a_carry_is_a_loop(options, reason):
    def kernel(x):
        out = tj.output((1, 64), x.dtype)

        @tj.parallel(1)
        def _(nest):
            @nest.pipeline(tj.axis("rows", 96), carry=tj.zeros(tj.shape(R, C)), **options)
            def total(step, total):
                return total * 2 + x[tj.coord(step.index(), 0), tj.shape(R, C)]

            out(tj.coord(0, 0), tj.shape(R, C)).store(total)

        return out

    pipeline = only(explain(kernel)(F).pipelines)
    assert not pipeline.overlapped
    assert reason in pipeline.reason
    assert ("while" in lowered(kernel, F)) == ("no loop" not in reason)


def test_a_sum_is_one_reduction_and_zero_trips_are_no_steps():
    def total(x, trips):
        out = tj.output((1, 64), x.dtype)

        @tj.parallel(1)
        def _(nest):
            @nest.pipeline(tj.axis("rows", trips), carry=tj.zeros(tj.shape(R, C)))
            def total(step, total):
                return total + x[tj.coord(step.index(), 0), tj.shape(R, C)]

            out(tj.coord(0, 0), tj.shape(R, C)).store(total)

        return out

    explained = explain(total, static_argnames="trips")
    for trips, overlapped, reason in (
        (96, True, "all steps at once, in one reduction"),
        (1, False, "it has one step, and no loop is left"),
        (0, False, "it has no steps"),
    ):
        pipeline = only(explained(F, trips=trips).pipelines)
        assert (pipeline.overlapped, pipeline.reason) == (overlapped, reason)


def test_attention_is_a_loop_since_its_range_depends_on_the_program():
    q = jax.ShapeDtypeStruct((1, 2, 256, 64), jnp.bfloat16)
    found = explain(kernels.flash_attention)(q, q, q, causal=True, block_q=64, block_kv=64)
    reason = only(found.pipelines).reason
    assert "because start and stop restrict it; all before stage score, with the loads of k (" in reason
    assert {m.instruction for m in found.mmas} == {"dot_general of bfloat16"}
    assert only(found.stores).proved.startswith("sequential, in a loop over query_blocks: ")


@pytest.mark.parametrize(
    ("dtype", "acc", "options", "instruction"),
    [
        (jnp.bfloat16, jnp.float32, {}, "dot_general of bfloat16"),
        (jnp.int8, jnp.int32, {}, "dot_general of int8"),
        (jnp.float8_e5m2, jnp.float32, {}, "dot_general of float32"),
        (jnp.float32, jnp.float32, {"precision": "tf32"}, "dot_general of float32, precision HIGH"),
        (
            jnp.float32,
            jnp.float32,
            {"allow_reassociation": False},
            "multiply and add, in a loop over the contracted index",
        ),
    ],
)
def test_the_class_of_instructions_of_an_mma(dtype, acc, options, instruction):
    m, n, k = tj.axis("m", 8), tj.axis("n", 8), tj.axis("k", 8)

    def kernel(a, b):
        out = tj.output((8, 8), acc)

        @tj.parallel(1)
        def _(nest):
            at = tj.coord(0, 0)
            left, right = a[at, tj.shape(m, k)], b[at, tj.shape(k, n)]
            out(at, tj.shape(m, n)).store(tj.mma(left, right, tj.zeros(tj.shape(m, n), acc), **options))

        return out

    x = jax.ShapeDtypeStruct((8, 8), dtype)
    mma = only(explain(kernel)(x, x).mmas)
    assert mma.instruction == instruction
    assert mma.dtypes == (*[jnp.dtype(dtype).name] * 2, jnp.dtype(acc).name)
    text = lowered(kernel, x, x)
    assert ("dot_general" in text) == ("dot_general" in instruction)
    if dtype == jnp.int8:
        assert "(tensor<8x8xi8>, tensor<8x8xi8>) -> tensor<8x8xi32>" in text
    assert ("while" in text) == ("loop" in instruction)


def test_a_convolution():
    image = jax.ShapeDtypeStruct((2, 8, 8, 16), jnp.float32)
    found = explain(kernels.conv2d)(image, jax.ShapeDtypeStruct((3, 3, 16, 8), jnp.float32))
    assert only(found.mmas).instruction == "convolution of float32, precision HIGHEST"


def test_stores():
    """Beside each other, into a part, to places that data says, and into nothing."""

    def kernel(x, places):
        whole = tj.output_like(x)
        part = tj.update(x)
        scattered = tj.output_like(x)
        none = tj.output((0, 64), x.dtype)
        half = tj.axis("half", 48)

        @tj.parallel(half)
        def _(nest):
            i = nest.index()
            pair = x[tj.coord(i * 2, 0), tj.shape(2, C)]
            whole(tj.coord(i * 2, 0), tj.shape(2, C)).store(pair)
            part(tj.coord(i, 0), tj.shape(R, C)).store(x[tj.coord(i, 0), tj.shape(R, C)])
            place = tj.reshape(places[tj.coord(i), tj.shape(1)], tj.shape())
            scattered(tj.coord(place, 0), tj.shape(R, C)).store(0)
            none(tj.coord(0, 0), tj.shape(0, C)).store(0)

        return whole, part, scattered, none

    found = explain(kernel)(F, jax.ShapeDtypeStruct((48,), jnp.int32))
    assert [(s.name, s.proved) for s in found.stores] == [
        ("whole", "disjoint, covers the view: what is stored becomes the view"),
        ("part", "disjoint, one update of a part of the view"),
        ("scattered", "not known to lie side by side: one scatter"),
        ("none", "nothing is stored"),
    ]


def test_it_takes_what_jit_takes_and_raises_what_compiling_would():
    x = np.zeros((96, 64), np.float32)
    wanted = explain(kernels.softmax)(F)
    assert explain(kernels.softmax)(x) == wanted
    assert explain(kernels.softmax, compiler_params={"temporary_bytes": 2**20})(x) == wanted
    assert explain(kernels.softmax, donate_argnums=0)(x) == wanted
    for backend in ("mosaic", "metal", *(["triton"] if DEVICE == "cpu" else [])):
        with pytest.raises(tj.UnsupportedError, match=backend):
            tj.explain(kernels.softmax, backend=backend)(x)
    with pytest.raises(tj.UnsupportedError, match="scope GROUP"):
        explain(kernels.manual_gemm)(F, G, scope=tj.Scope.GROUP)
    with pytest.raises(tj.TileTypeError, match="expected a kernel"):
        explain(3)


def test_what_jit_returned_keeps_its_backend_and_parameters():
    q = jax.ShapeDtypeStruct((1, 4, 512, 64), jnp.float32)
    blocks = {"block_q": 128, "block_kv": 128}
    tight = tj.jit(kernels.flash_attention, backend="xla", compiler_params={"temporary_bytes": 2**18})
    for options in ({}, {"backend": "xla"}):
        assert "a loop over" in only(tj.explain(tight, **options)(q, q, q, **blocks).stores).proved
    roomy = tj.explain(tight, compiler_params={})(q, q, q, **blocks)
    assert roomy.backend == "xla"
    assert "a loop over" not in only(roomy.stores).proved
    with pytest.raises(tj.UnsupportedError, match='backend "mosaic"'):
        tj.explain(tj.jit(kernels.softmax, backend="mosaic"))(F)


def test_a_smaller_budget_is_seen():
    q = jax.ShapeDtypeStruct((1, 4, 512, 64), jnp.float32)
    blocks = {"block_q": 128, "block_kv": 128}
    roomy = explain(kernels.flash_attention)(q, q, q, **blocks)
    tight = explain(kernels.flash_attention, compiler_params={"temporary_bytes": 2**18})(q, q, q, **blocks)
    assert "a loop over" not in only(roomy.stores).proved
    assert "a loop over" in only(tight.stores).proved


def test_documented_kernels_are_taken_by_every_entry_point():
    """The kernel inside is used, with its static arguments."""
    a, b = np.ones((5, 7), np.float32), np.ones((7, 3), np.float32)
    want = np.full((5, 3), 7, np.float32)
    np.testing.assert_array_equal(tj.interpret(kernels.gemm)(a, b, block_k=2), want)
    np.testing.assert_array_equal(tj.jit(kernels.gemm, backend="xla")(a, b, block_k=2), want)
    assert "tile_mma" in str(tj.make_jaxpr(kernels.gemm)(a, b, block_k=2))
    assert len(explain(kernels.gemm)(a, b, block_k=2).mmas) == 1
