"""Random kernels of the kinds that people write: products, filters, rows, scans, attention, sums by segment.

The compiler has a fast way for each of these. They vary in sizes, blocks, dtypes, kinds of loops and what is
done before and after, so that every fast way meets what is almost but not quite its case.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import tilejax as tj
from tests.fuzz_text import FLOATS, Kernel, Text

SIZES = [1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17]
BLOCKS = [1, 2, 3, 4, 5, 8]


def random_pattern(seed: int) -> Kernel:
    """A kernel of some familiar kind."""
    writer = _Patterns(seed)
    kinds = [writer.product, writer.product, writer.filter, writer.filter, writer.filter, writer.rows]
    writer.pick([*kinds, writer.online, writer.scan, writer.attention, writer.segments])()
    return writer.finish(writer.args)


class _Patterns(Text):
    """Each method writes one kernel; values are integers that every float dtype of theirs holds exactly."""

    def __init__(self, seed: int):
        super().__init__(seed)
        self.args: dict[str, Any] = {}

    # Parts

    def length(self) -> int:
        return self.pick(SIZES)

    def block(self) -> int:
        return self.pick(BLOCKS)

    def define(self, **extents: int) -> None:
        for name, extent in extents.items():
            self.axis_lines.append(f'    {name} = tj.axis("{name}", {extent})')

    def argument(self, name: str, shape: tuple[int, ...], dtype: str, finite: bool = False) -> None:
        array = self.array(shape, dtype)
        wide = array.astype(np.float64)
        small = np.nan_to_num(np.clip(wide, -4, 4))
        self.args[name] = np.where(np.isfinite(wide) | finite, small, wide).astype(array.dtype)

    def output(self, name: str, shape: tuple[int, ...], dtype: str) -> None:
        self.emit(f"{name} = tj.output({shape}, {dtype!r}, init={self.pick([0, 0, 5])})")

    def nest(self, name: str, **axes: str) -> None:
        """Opens a parallel nest; each index gets the name of its keyword."""
        self.emit(f"@tj.parallel({', '.join(axes.values())})")
        self.open(f"def _({name}):")
        for index, axis in axes.items():
            self.emit(f"{index} = {name}.index({axis})")

    def loop(self, nest: str, axis: str, carry: str = "", limits: str = "") -> str:
        """The decorator of a loop over `axis`."""
        kind = self.pick(["pipeline", "pipeline", "serial"])
        options = [f"carry={carry}"] if carry else []
        options += [f"window={self.number(1, 3)}"] if kind == "pipeline" and self.chance(30) else []
        return f"@{nest}.{kind}({', '.join([axis, *options, *([limits] if limits else [])])})"

    def touched(self, name: str) -> str:
        """Something done to a tile before its use; zeros beyond an edge may change by it."""
        text = self.pick(
            ["{}"] * 5 + ["{} + 1", "-{}", "tj.maximum({}, 1)", "tj.where({} > 0, {}, 2)", "2 * {}"]
        )
        return text.replace("{}", name)

    def bounds(self, exact: bool) -> str:
        return ", tj.Bounds.ASSUME" if exact and self.chance(50) else ""

    # Products

    def product(self) -> None:
        """A blocked matrix product, perhaps batched, with operands stored either way round."""
        m, n, k = self.length(), self.length(), self.length()
        bm, bn, bk = self.block(), self.block(), self.block()
        kind = self.pick(["float32", "float32", "float16", "bfloat16", "int8"])
        acc = "int32" if kind == "int8" else "float32"
        out = self.pick([acc, kind]) if kind != "int8" else acc
        batches = self.pick([0, 0, 1, 2, 3])
        lead, at, tile = ((batches,), "z, ", "one, ") if batches else ((), "", "")
        turned = {name: self.chance(25) for name in "AB"}
        self.argument("A", (*lead, *((k, m) if turned["A"] else (m, k))), kind)
        self.argument("B", (*lead, *((n, k) if turned["B"] else (k, n))), kind)
        self.argument("bias", (n,), acc)
        steps = tj.cdiv(k, bk)
        self.define(gm=tj.cdiv(m, bm), gn=tj.cdiv(n, bn), gb=batches, kt=steps, mm=bm, nn=bn, kk=bk, one=1)
        self.output("C", (*lead, m, n), out)
        self.nest("nest", **({"z": "gb"} if batches else {}), i="gm", j="gn")
        limits = f"stop={self.pick([str(steps - 1), str(steps + 1), 'i + 1'])}" if self.chance(20) else ""
        start = f"tj.zeros(tj.shape(mm, nn), {acc!r})"
        if self.chance(25):
            start = f"tj.broadcast_to(bias[tj.coord(j * {bn}), tj.shape(nn)], tj.shape(mm, nn))"
        self.emit(self.loop("nest", "kt", start, limits))
        self.open("def acc(step, acc):")
        self.emit("s = step.index()")
        edges = {"mm": (f"i * {bm}", m % bm), "nn": (f"j * {bn}", n % bn), "kk": (f"s * {bk}", k % bk)}
        for name, axes in (("A", ("mm", "kk")), ("B", ("kk", "nn"))):
            axes = axes[::-1] if turned[name] else axes
            origin = f"{at}{', '.join(edges[a][0] for a in axes)}"
            bounds = self.bounds(all(edges[a][1] == 0 for a in axes))
            self.emit(
                f"{name.lower()} = {name}[tj.coord({origin}), tj.shape({tile}{', '.join(axes)}){bounds}]"
            )
            if batches:
                self.emit(f"{name.lower()} = tj.reshape({name.lower()}, tj.shape({', '.join(axes)}))")
            if self.chance(40):
                self.emit(f"{name.lower()} = {self.touched(name.lower())}")
        exact = ", allow_reassociation=False" if self.chance(15) else ""
        self.emit(f"return tj.mma(a, b, acc{exact})")
        self.close()
        if self.chance(40):
            self.emit(f"acc = acc + bias[tj.coord(j * {bn}), tj.shape(nn)]")
        if self.chance(40):
            self.emit("acc = tj.maximum(acc, 0)")
        origin = f"{at}i * {bm}, j * {bn}"
        self.emit(f"C(tj.coord({origin}), tj.shape({tile}mm, nn)).store(acc.astype({out!r}))")
        self.close()
        self.emit("return C")

    # Filters

    def filter(self) -> None:
        """What a small window sees at each pixel of an image with channels: weighted, contracted, ordered."""
        h, w, c, o = self.length(), self.length(), self.pick([1, 2, 3]), self.pick([1, 2, 4])
        fh, fw, sh, sw = (
            self.pick([1, 2, 3]),
            self.pick([1, 2, 3, 4]),
            self.pick([1, 1, 2]),
            self.pick([1, 1, 2]),
        )
        top, left = self.pick([0, 1, 1, 2]), self.pick([0, 1, 1, -1])
        oh, ow = tj.cdiv(h, sh), tj.cdiv(w, sw) + self.pick([0, 0, 1])
        dtype = self.pick(["float32", "float32", "float16", "bfloat16", "int32", "int8"])
        total = "float32" if dtype in FLOATS else "int32"
        by, bx = self.pick([1, 1, 1, 2, 3]), self.pick([1, 1, 1, 2, 4])
        self.argument("X", (h, w, c), dtype)
        # Finite: of a filter's NaN at a place outside the image XLA's convolutions make 0, not NaN.
        self.argument("F", (fh, fw, c, o), "int8" if dtype == "int32" else dtype, finite=True)
        self.define(
            gy=tj.cdiv(oh, by), gx=tj.cdiv(ow, bx), oy=by, ox=bx, fy=fh, fx=fw, cc=c, oo=o, tap=fh * fw
        )
        self.define(best=min(fh * fw, 2))
        self.output("P", (oh, ow, c), total)
        self.output("Q", (oh, ow, o), total)
        self.output("R", (oh, ow, c), dtype)
        self.nest("nest", y="gy", x="gx")
        origin = f"y * {by * sh} - {top}, x * {bx * sw} - {left}, 0"
        fill = self.pick(["0"] * 3 + ["1"])
        if by == bx == 1 and self.chance(80):
            pixels = ""
            self.emit(f"t = X(tj.coord({origin}), tj.shape(fy, fx, cc)).load({fill})")
        else:
            pixels = "oy, ox, "
            self.define(ry=(by - 1) * sh + fh, rx=(bx - 1) * sw + fw)
            self.emit(f"t = X(tj.coord({origin}), tj.shape(ry, rx, cc)).load({fill})")
            place = f"e.index(oy) * {sh} + e.index(fy), e.index(ox) * {sw} + e.index(fx), e.index(cc)"
            self.emit(f"t = tj.reindex(t, tj.shape(oy, ox, fy, fx, cc), lambda e: tj.coord({place}))")
        if self.chance(30):
            self.emit(f"t = {self.touched('t')}")
        self.emit("f = F[tj.coord(0, 0, 0, 0), tj.shape(fy, fx, cc, oo)]")
        self.emit("k = tj.reshape(F[tj.coord(0, 0, 0, 0), tj.shape(fy, fx, cc, 1)], tj.shape(fy, fx, cc))")
        weight = self.pick(["k", "k", "(tj.iota(fy) - 1)", "(tj.iota(fx) * tj.iota(fy))", "2"])
        weight = weight if weight == "2" else f"{weight}.astype({total!r})"
        over = self.pick(["fy, fx", "fx, fy"])
        self.emit(f"p = tj.sum(t.astype({total!r}) * {weight}, tj.shape({over})).astype({total!r})")
        if dtype == "int32":
            self.emit("t8 = t.astype('int8')")
        a = "t8" if dtype == "int32" else "t"
        exact = ", allow_reassociation=False" if self.chance(15) else ""
        self.emit(f"q = tj.mma({a}, f, tj.zeros(tj.shape({pixels}oo), {total!r}){exact})")
        shape = f"{pixels}cc" if pixels else "cc"
        taps = f"tj.reshape(t, tj.shape({pixels}tap, cc))"
        at = self.number(0, fh * fw - 1)
        self.emit(
            self.pick(
                [
                    f"r = tj.{self.pick(['max', 'min'])}(t, tj.shape(fy, fx))",
                    f"r = tj.gather(tj.sort({taps}, tap, descending={self.chance(50)})[0], {at}, tap)",
                    f"r = tj.gather(tj.sort({taps}, tap)[1], {at}, tap).astype({dtype!r})",
                    f"r = tj.argmax({taps}, tap).astype({dtype!r})",
                    f"r = tj.gather(tj.gather(t, {fh - 1}, fy), {self.number(-1, fw)}, fx)",
                    f"r = tj.gather(tj.cummax({taps}, tap), {at}, tap)",
                    "r = tj.min(tj.max(t, fy), fx) - tj.min(t, tj.shape(fx, fy))",
                    f"r = tj.gather({taps}, {at}, tap)",
                    f"r = tj.sum(tj.top_k({taps}, tap, best)[{self.number(0, 1)}], best).astype({dtype!r})",
                ]
            )
        )
        self.emit(f"r = tj.broadcast_to(r, tj.shape({shape}))")
        there = f"y * {by}, x * {bx}, 0"
        for name, last in (("P", "cc"), ("Q", "oo"), ("R", "cc")):
            ref = f"{name}(tj.coord({there}), tj.shape(oy, ox, {last}))"
            self.emit(f"{ref}.store({name.lower()})")
        self.close()
        self.emit("return P, Q, R")

    # Rows

    def rows(self) -> None:
        """Whole rows at once, with padding columns of some fill: what softmax and its kin do."""
        r, c, br = self.length(), self.length(), self.block()
        dtype = self.pick(["float32", "float16", "bfloat16", "int32", "uint8"])
        self.argument("X", (r, c), dtype)
        self.argument("W", (c,), dtype)
        self.define(g=tj.cdiv(r, br), rr=br, cc=c + self.pick([0, 0, 1, 5]))
        self.output("Y", (r, c), dtype)
        self.output("Z", (r,), "float32")
        self.output("J", (r,), "int32")
        self.nest("nest", i="g")
        fill = self.pick(["0", "3"] + ['float("-inf")'] * 2 * (dtype in FLOATS))
        self.emit(f"x = X(tj.coord(i * {br}, 0), tj.shape(rr, cc)).load({fill})")
        self.emit("m = tj.max(x, cc)")
        self.emit(f"e = tj.where(x == m, 2, {self.pick(['0', 'tj.clip(x, -1, 1)'])}).astype('float32')")
        self.emit(f"s = tj.sum({self.pick(['e', 'tj.where(e > 0, e, 1)'])}, cc)")
        self.emit("j = tj.argmax(x, cc).astype('int32')")
        if self.chance(50):
            self.emit("e = e - s" if self.chance(50) else "e = tj.maximum(e, s)")
        if self.chance(50):
            self.emit("e = e * W[tj.coord(0), tj.shape(cc)].astype('float32')")
        self.emit(f"Y(tj.coord(i * {br}, 0), tj.shape(rr, cc)).store(e.astype({dtype!r}))")
        self.emit(f"Z(tj.coord(i * {br}), tj.shape(rr)).store(s)")
        self.emit(f"J(tj.coord(i * {br}), tj.shape(rr)).store(j)")
        self.close()
        self.emit("return Y, Z, J")

    def online(self) -> None:
        """Rows in blocks of columns: a carry of maximum and count, then a second loop that stores."""
        r, c, br, bc = self.length(), self.length(), self.block(), self.block()
        dtype = self.pick(["float32", "float16", "bfloat16", "int32"])
        self.argument("X", (r, c), dtype)
        self.define(g=tj.cdiv(r, br), s=tj.cdiv(c, bc), rr=br, cc=bc)
        self.output("Y", (r, c), dtype)
        self.nest("nest", i="g")
        least = "-100"
        carry = f"(tj.full(tj.shape(rr), {least}, {dtype!r}), tj.zeros(tj.shape(rr)))"
        load = f"X(tj.coord(i * {br}, k * {bc}), tj.shape(rr, cc)).load({self.pick([least, '0'])})"
        self.emit(self.loop("nest", "s", carry))
        self.open("def state(step, state):")
        self.emit("k = step.index()")
        self.emit("m, n = state")
        self.emit(f"x = {load}")
        self.emit("top = tj.maximum(m, tj.max(x, cc))")
        self.emit("n = tj.where(m == top, n, 0.0) + tj.sum((x == top).astype('float32'), cc)")
        self.emit("return top, n")
        self.close()
        self.emit("m, n = state")
        self.emit(self.loop("nest", "s"))
        self.open("def _(step):")
        self.emit("k = step.index()")
        self.emit(f"x = {load}")
        self.emit(f"y = {self.pick(['x - m', 'tj.where(x == m, n, 0.0)', 'n - x', 'tj.minimum(x, n)'])}")
        self.emit(f"Y(tj.coord(i * {br}, k * {bc}), tj.shape(rr, cc)).store(y.astype({dtype!r}))")
        self.close()
        self.close()
        self.emit("return Y")

    def scan(self) -> None:
        """A blocked scan along rows or columns: the carry is what the blocks before gave."""
        r, c, br, bc = self.length(), self.length(), self.block(), self.block()
        dtype, op = self.pick(["float32", "float16", "int32", "int8"]), self.pick(["cumsum", "cummax"])
        down = self.chance(40)
        self.argument("X", (c, r) if down else (r, c), dtype)
        self.define(g=tj.cdiv(r, br), s=tj.cdiv(c, bc), rr=br, cc=bc)
        self.output("Y", (c, r) if down else (r, c), dtype)
        self.nest("nest", i="g")
        wide = "float32" if dtype in FLOATS else dtype
        first = "0" if op == "cumsum" else "-100"
        self.emit(self.loop("nest", "s", f"tj.full(tj.shape(rr), {first}, {wide!r})"))
        self.open("def _(step, carry):")
        place = [f"i * {br}", f"step.index() * {bc}"]
        axes = ["rr", "cc"]
        if down:
            place, axes = place[::-1], axes[::-1]
        ref = f"(tj.coord({', '.join(place)}), tj.shape({', '.join(axes)}))"
        self.emit(f"x = X{ref}.load({first}).astype({wide!r})")
        self.emit(f"y = tj.{op}(x, cc)")
        self.emit("y = y + carry" if op == "cumsum" else "y = tj.maximum(carry, y)")
        self.emit(f"Y{ref}.store(y.astype({dtype!r}))")
        if op == "cumsum":
            self.emit(
                self.pick(
                    [f"return carry + tj.sum(x, cc).astype({wide!r})", f"return tj.gather(y, {bc - 1}, cc)"]
                )
            )
        else:
            self.emit(
                self.pick(["return tj.maximum(carry, tj.max(x, cc))", f"return tj.gather(y, {bc - 1}, cc)"])
            )
        self.close()
        self.close()
        self.emit("return Y")

    # More

    def attention(self) -> None:
        """Attention with weights 0 and 1: queries in blocks, keys in a loop that may stop at the diagonal."""
        heads, group, q, kv, d = (
            self.pick([1, 2]),
            self.pick([1, 2]),
            self.length(),
            self.length(),
            self.pick([1, 2, 4]),
        )
        bq, bk, dv = self.block(), self.block(), self.pick([1, 3])
        dtype, causal = self.pick(["float32", "float16"]), self.chance(50)
        self.argument("Q", (heads * group, q, d), dtype)
        self.argument("K", (heads, kv, d), dtype)
        self.argument("V", (heads, kv, dv), dtype)
        self.define(gh=heads * group, gq=tj.cdiv(q, bq), s=tj.cdiv(kv, bk), qq=bq, kk=bk, dd=d, vv=dv, one=1)
        self.output("O", (heads * group, q, dv), "float32")
        self.nest("nest", h="gh", i="gq")
        self.emit(f"q = tj.reshape(Q[tj.coord(h, i * {bq}, 0), tj.shape(one, qq, dd)], tj.shape(qq, dd))")
        state = (
            "(tj.full(tj.shape(qq), -1000, 'float32'), tj.zeros(tj.shape(qq)), tj.zeros(tj.shape(qq, vv)))"
        )
        stop = f"stop=tj.cdiv((i + 1) * {bq}, {bk})" if causal and self.chance(80) else ""
        self.emit(self.loop("nest", "s", state, stop))
        self.open("def state(step, state):")
        self.emit("m, l, acc = state")
        self.emit(f"k0 = step.index() * {bk}")
        for name, last in (("K", "dd"), ("V", "vv")):
            load = f"{name}[tj.coord(h // {group}, k0, 0), tj.shape(one, kk, {last})]"
            self.emit(f"{name.lower()} = tj.reshape({load}, tj.shape(kk, {last}))")
        self.emit("w = tj.mma(q, k, tj.zeros(tj.shape(qq, kk)))")
        seen = f"k0 + tj.iota(kk) < {kv}"
        if causal:
            seen = f"({seen}) & (k0 + tj.iota(kk) <= i * {bq} + tj.iota(qq))"
        self.emit(f"w = tj.where({seen}, w, -1000.0)")
        self.emit("top = tj.maximum(m, tj.max(w, kk))")
        self.emit("p = ((w == top) & (w > -1000.0)).astype('float32')")
        self.emit("keep = (m == top).astype('float32')")
        self.emit(f"acc = tj.mma(p.astype({dtype!r}), v, acc * keep)")
        self.emit("return top, l * keep + tj.sum(p, kk), acc")
        self.close()
        self.emit("m, l, acc = state")
        self.emit("acc = tj.where(l == 0, 0, acc - l)")
        self.emit(f"O(tj.coord(h, i * {bq}, 0), tj.shape(one, qq, vv)).store(acc)")
        self.close()
        self.emit("return O")

    def segments(self) -> None:
        """Sums by segment, element by element or as a product with a mask."""
        n, c, k = self.length(), self.pick([1, 2, 5]), self.pick([1, 3, 4])
        self.args["ids"] = self.arrays.integers(-1, k + 1, n).astype(np.int32)
        self.argument("X", (n, c), self.pick(["float32", "int32"]))
        kind = "float32" if self.args["X"].dtype == np.float32 else "int32"
        b = self.block()
        self.define(s=n, one=1, cc=c, kk=k, bb=b, t=tj.cdiv(n, b))
        self.output("S", (k, c), kind)
        if self.chance(50):
            self.nest("nest")
            self.emit(self.loop("nest", "s"))
            self.open("def _(step):")
            self.emit("ref = S(tj.coord(entry(ids, step.index()), 0), tj.shape(one, cc))")
            self.emit("ref.store(ref.load() + X[tj.coord(step.index(), 0), tj.shape(one, cc)])")
            self.close()
        else:
            self.nest("nest")
            self.emit(self.loop("nest", "t", f"tj.zeros(tj.shape(kk, cc), {kind!r})"))
            self.open("def total(step, total):")
            self.emit(f"i = step.index() * {b}")
            self.emit("mine = ids(tj.coord(i), tj.shape(bb)).load(-1) == tj.iota(kk)")
            self.emit("x = X[tj.coord(i, 0), tj.shape(bb, cc)]")
            self.emit(f"return total + tj.sum(tj.where(mine, x, 0), bb).astype({kind!r})")
            self.close()
            self.emit("S(tj.coord(0, 0), tj.shape(kk, cc)).store(total)")
        self.close()
        self.emit("return S")
