"""Random expressions, written top down: each asks for operands of the axes and dtypes that it needs."""

from __future__ import annotations

import math
from dataclasses import replace

from tests.fuzz_text import (
    DTYPES,
    FLOATS,
    INTS,
    LIMITS,
    NUMBERS,
    STORED_BOUND,
    Index,
    Scope,
    Text,
    Value,
)

FLOAT_BINARY = {
    "{0} + {1}": lambda a, b: a + b,
    "{0} - {1}": lambda a, b: a + b,
    "{0} * {1}": lambda a, b: a * b,
    "tj.maximum({0}, {1})": max,
    "tj.minimum({0}, {1})": max,
    "tj.where({0} > {1}, {0}, {1})": max,
    "tj.where({0} == 0, {1}, 2)": lambda a, b: max(a, b, 2),
}
FLOAT_UNARY = {
    "-{0}": lambda a: a,
    "tj.abs({0})": lambda a: a,
    "tj.sign({0})": lambda a: 1,
    "tj.floor({0} * 0.5)": lambda a: a,
    "tj.round({0} * 0.5)": lambda a: a,
    "tj.ceil({0} * 0.25)": lambda a: a,
    "{0} % 5": lambda a: 5,
    "{0} // 3": lambda a: a,
    "{0} // -2": lambda a: a,
    "{0} ** 2": lambda a: a * a,
    "tj.clip({0}, -2, 3)": lambda a: 3,
    "tj.where(tj.isnan({0}), 1, {0})": lambda a: max(a, 1),
    "{0} + 1": lambda a: a + 1,
    "2 * {0}": lambda a: 2 * a,
}
INT_BINARY = [
    *("{0} + {1}", "{0} - {1}", "{0} * {1}", "{0} & {1}", "{0} | {1}", "{0} ^ {1}"),
    *("{0} // ({1} | 1)", "{0} % ({1} | 1)", "{0} << {1}", "{0} >> {1}"),
    *("tj.maximum({0}, {1})", "tj.minimum({0}, {1})", "tj.where({0} > {1}, {0}, {1})"),
]
INT_UNARY = [
    *("-{0}", "~{0}", "tj.abs({0})", "tj.sign({0})", "{0} ** 3", "tj.clip({0}, 1, 9)"),
    *("{0} % 7", "{0} // -3", "{0} + 1"),
]
BOOL_BINARY = ["{0} & {1}", "{0} | {1}", "{0} ^ {1}", "tj.logical_and({0}, {1})", "tj.logical_or({0}, {1})"]
COMPARISONS = ["{0} < {1}", "{0} <= {1}", "{0} > {1}", "{0} >= {1}", "{0} == {1}", "{0} != {1}"]
ORDERS = ["unordered_tree", "unordered_tree", "ordered_tree", "fold_left", "fold_right"]

Axes = tuple[str, ...]


class Expressions(Text):
    """Every method writes lines and returns a value of `dtype` whose axes are among `axes`.

    `fuel` is how deep the operands may go. Two parts are left to the writer of nests."""

    def load(self, scope: Scope, axes: Axes, dtype: str) -> Value:
        """A tile of some view, rather one of this dtype."""
        raise NotImplementedError

    def load_element(self, scope: Scope) -> Value:
        """One element of some view."""
        raise NotImplementedError

    def loop_header(self, scope: Scope, carry: str | None) -> tuple[list[Index], bool]:
        """The decorator of a loop: its indices, and whether it is a pipeline."""
        raise NotImplementedError

    def expression(self, scope: Scope, axes: Axes, dtype: str, fuel: int) -> Value:
        if fuel <= 0 or self.chance(15):
            value = self._leaf(scope, axes, dtype)
        else:
            rules = [*([self._elementwise] * 4), self._cast, self._reduction, self._loop, self._broadcast]
            rules += [self._gather, self._reindex]
            if axes:
                rules += [self._scan, self._order, self._reshape, self._associative_scan]
            if dtype in ("float32", "int32"):
                rules += [self._mma] * 2
            value = self.pick(rules)(scope, axes, dtype, fuel - 1)
        scope.values.append(value)
        return value

    def _leaf(self, scope: Scope, axes: Axes, dtype: str) -> Value:
        kind = self.pick(["load"] * 6 + ["known"] * 2 + ["memory"] * 2 + ["constant", "iota", "index"])
        if kind == "load":
            value = self.load(scope, axes, dtype) if self.chance(92) else self.load_element(scope)
            return value if value.dtype == dtype else self._as(value, dtype)
        known = [v for v in scope.values if v.dtype == dtype and set(v.axes) <= set(axes)]
        if kind == "known" and known:
            return self.pick(known)
        memories = [m for m in scope.memories if m.dtype == dtype and set(m.axes) <= set(axes)]
        if kind == "memory" and memories:
            memory = self.pick(memories)
            return self.let(f"{memory.name}.load()", memory.axes, dtype, memory.bound)
        if kind == "iota" and axes:
            axis = self.pick(axes)
            return self.let(f"tj.iota({axis}).astype({dtype!r})", (axis,), dtype, self.extents[axis])
        if kind == "index" and scope.indices:
            index = self.pick(scope.indices)
            text = f"tj.full(tj.shape(), {index.name}).astype({dtype!r})"
            return self.let(text, (), dtype, index.extent)
        number = self.pick([0, 1]) if dtype == "bool" else self.pick([1, 0, 2, 3])
        over = self.some(axes)
        return self.let(f"tj.full({self.shape(over)}, {number}, {dtype!r})", over, dtype, number)

    # Elementwise

    def _elementwise(self, scope: Scope, axes: Axes, dtype: str, fuel: int) -> Value:
        if dtype == "bool":
            return self._truth(scope, axes, fuel)
        x = self.expression(scope, axes, dtype, fuel)
        if self.chance(25):
            if dtype in INTS:
                return self.let(self.pick(INT_UNARY).format(x.name), x.axes, dtype)
            text = self.pick(FLOAT_UNARY)
            grows = FLOAT_UNARY[text]
            if grows(x.bound) > LIMITS[dtype]:
                x = self.tame(x, math.isqrt(LIMITS[dtype]) // 2)
            return self.let(text.format(x.name), x.axes, dtype, grows(x.bound))
        y = self.expression(scope, axes, dtype, fuel)
        if self.chance(20):
            cond = self.expression(scope, axes, "bool", fuel)
            text = f"tj.where({cond.name}, {x.name}, {y.name})"
            return self.let(text, self.union(cond, x, y), dtype, max(x.bound, y.bound))
        if dtype in INTS:
            return self.let(self.pick(INT_BINARY).format(x.name, y.name), self.union(x, y), dtype)
        text = self.pick(FLOAT_BINARY)
        grows = FLOAT_BINARY[text]
        if grows(x.bound, y.bound) > LIMITS[dtype]:
            x, y = (self.tame(v, math.isqrt(LIMITS[dtype]) // 2) for v in (x, y))
        return self.let(text.format(x.name, y.name), self.union(x, y), dtype, grows(x.bound, y.bound))

    def _truth(self, scope: Scope, axes: Axes, fuel: int) -> Value:
        kind = self.pick(["compare", "binary", "not", "nan"])
        operand = {"compare": self.pick(NUMBERS), "nan": self.pick(FLOATS)}.get(kind, "bool")
        x = self.expression(scope, axes, operand, fuel)
        if kind in ("not", "nan"):
            return self.let(f"~{x.name}" if kind == "not" else f"tj.isnan({x.name})", x.axes, "bool")
        y = self.expression(scope, axes, operand, fuel)
        text = self.pick(COMPARISONS if kind == "compare" else BOOL_BINARY)
        return self.let(text.format(x.name, y.name), self.union(x, y), "bool")

    def _cast(self, scope: Scope, axes: Axes, dtype: str, fuel: int) -> Value:
        return self._as(self.expression(scope, axes, self.pick(DTYPES), fuel), dtype)

    def _as(self, x: Value, dtype: str) -> Value:
        bound = x.bound if x.dtype in FLOATS else {"int32": 2**31, "bool": 1}.get(x.dtype, 255)
        return self.let(f"{x.name}.astype({dtype!r})", x.axes, dtype, bound)

    # Shape

    def _broadcast(self, scope: Scope, axes: Axes, dtype: str, fuel: int) -> Value:
        x = self.expression(scope, axes, dtype, fuel)
        return self._over(x, self.shuffled(sorted({*x.axes, *self.some(axes)})))

    def _over(self, x: Value, axes: Axes) -> Value:
        """`x` with exactly these axes, in this order."""
        return self.let(f"tj.broadcast_to({x.name}, {self.shape(axes)})", axes, x.dtype, x.bound)

    def _with_axis(self, x: Value, axis: str) -> Value:
        return x if axis in x.axes else self._over(x, (axis, *x.axes))

    def _reshape(self, scope: Scope, axes: Axes, dtype: str, fuel: int) -> Value:
        """From two axes to one, or from another axis of the same extent."""
        axis = self.pick(axes)
        n = self.extents[axis]
        others = tuple(a for a in axes if a != axis)
        factors = [p for p in range(2, n) if n % p == 0]
        if factors and self.chance(60):
            p = self.pick(factors)
            pair = (self.axis(p), self.axis(n // p))
            x = self.expression(scope, (*others, *pair), dtype, fuel)
            kept = tuple(a for a in x.axes if a not in pair)
            x = self._over(x, (*kept, *pair))
            return self.let(
                f"tj.reshape({x.name}, {self.shape((*kept, axis))})", (*kept, axis), dtype, x.bound
            )
        other = self.axis(n)
        x = self._over(self.expression(scope, (*others, other), dtype, fuel), self.shuffled((*others, other)))
        over = tuple(axis if a == other else a for a in x.axes)
        how = self.pick(["relabel", "reshape"])
        return self.let(f"tj.{how}({x.name}, {self.shape(over)})", over, dtype, x.bound)

    def _gather(self, scope: Scope, axes: Axes, dtype: str, fuel: int) -> Value:
        """The gathered axis is another one, or (take along axis) one that the index has too."""
        along = bool(axes) and self.chance(30)
        source = self.pick(axes) if along else self.extra(axes)
        index = self.expression(scope, axes, "int32", fuel)
        index = self._with_axis(index, source) if along else index
        if self.chance(60):
            index = self.let(f"{index.name} % {self.extents[source] + 2} - 1", index.axes, "int32")
        x = self.expression(scope, tuple(dict.fromkeys((*axes, source))), dtype, fuel)
        x = self._with_axis(x, source)
        fallback = f", fallback={self.pick([0, 1])}" if self.chance(30) else ""
        over = dict.fromkeys((*(a for a in x.axes if a != source), *index.axes))
        text = f"tj.gather({x.name}, {index.name}, {source}{fallback})"
        return self.let(text, over, dtype, max(x.bound, 1))

    def _reindex(self, scope: Scope, axes: Axes, dtype: str, fuel: int) -> Value:
        sources = (*(self.extra(axes) for _ in range(self.number(0, 1))), *self.some(axes))
        x = self._over(self.expression(scope, sources, dtype, fuel), self.shuffled(sources))
        over = self.some(axes)
        entries = []
        for _ in x.axes:
            terms = [str(self.number(-1, 2))]
            terms += [f"e.index({a}) * {self.pick([1, 1, 2, -1])}" for a in over if self.chance(50)]
            terms += [index.name for index in scope.indices if self.chance(20)]
            entries.append(" + ".join(terms))
        text = f"tj.reindex({x.name}, {self.shape(over)}, lambda e: tj.coord({', '.join(entries)}))"
        return self.let(text, over, dtype, x.bound)

    # Reduction and contraction

    def _reduction(self, scope: Scope, axes: Axes, dtype: str, fuel: int) -> Value:
        more = tuple(dict.fromkeys(self.extra(axes) for _ in range(self.pick([1, 1, 2]))))
        x = self.expression(scope, (*axes, *more), dtype, fuel)
        return self.remove(x, tuple(a for a in x.axes if a in more))

    def remove(self, x: Value, gone: Axes) -> Value:
        """`x` without the axes `gone`."""
        if not gone:
            return x
        kept = tuple(a for a in x.axes if a not in gone)
        gone = self.shuffled(gone)
        over = gone[0] if len(gone) == 1 and self.chance(50) else self.shape(gone)
        n = self.size(gone)
        if n == 1 and self.chance(60):
            return self.let(f"tj.reshape({x.name}, {self.shape(kept)})", kept, x.dtype, x.bound)
        if x.dtype == "bool":
            return self.let(f"tj.{self.pick(['any', 'all'])}({x.name}, {over})", kept, "bool")
        ops = ["add", "add"]
        ops += ["maximum", "minimum"] if n else []
        ops += ["multiply"] if x.dtype in INTS else []
        ops += ["reducer"] if self.size(x.axes) <= 100 else []
        ops += ["arg"] if n and len(gone) == 1 else []
        op, order = self.pick(ops), self.pick(ORDERS)
        if op == "arg":
            text = f"tj.{self.pick(['argmax', 'argmin'])}({x.name}, {gone[0]}).astype({x.dtype!r})"
            return self.let(text, kept, x.dtype, n)
        if op in ("maximum", "minimum"):
            return self.let(f"tj.reduce({x.name}, {over}, tj.{op}, order={order!r})", kept, x.dtype, x.bound)
        x = self.tame(x, max(LIMITS.get(x.dtype, 0) // max(n, 1), 1))
        if op == "reducer":
            fn = "a * 3 - b" if x.dtype in INTS and order.startswith("fold") else "a + b"
            op = f"Reducer(lambda a, b: {fn}, 0)"
        text = f"tj.reduce({x.name}, {over}, tj.{op}, order={order!r}).astype({x.dtype!r})"
        return self.let(text, kept, x.dtype, n * x.bound)

    def _mma(self, scope: Scope, axes: Axes, dtype: str, fuel: int) -> Value:
        contracted = tuple(dict.fromkeys(self.extra(axes) for _ in range(self.pick([1, 1, 1, 2]))))
        acc = self.expression(scope, axes, dtype, fuel)
        a, b = self._factors(scope, axes, contracted, dtype, fuel)
        acc = self._over(acc, self.shuffled(sorted({*self.union(acc, a, b)} - {*contracted})))
        bound = acc.bound + a.bound * b.bound * self.size(contracted)
        return self.let(self._mma_text(a, b, acc.name), acc.axes, dtype, bound)

    def _mma_text(self, a: Value, b: Value, acc: str) -> str:
        exact = ", allow_reassociation=False" if self.chance(25) else ""
        return f"tj.mma({a.name}, {b.name}, {acc}{exact})"

    def _factors(self, scope: Scope, axes: Axes, contracted: Axes, dtype: str, fuel: int) -> list[Value]:
        """Two operands for a sum of products in `dtype`; both have the contracted axes."""
        floats = dtype == "float32"
        kind = self.pick(FLOATS if floats else ["int8", "uint8"])
        operands = []
        for _ in range(2):
            x = self.expression(scope, (*self.some(axes), *contracted), kind, fuel)
            for axis in contracted:
                x = self._with_axis(x, axis)
            operands.append(self.tame(x, 8))
            kind = kind if floats else self.pick(["int8", "uint8"])
        return operands

    # Scans and order

    def _scan(self, scope: Scope, axes: Axes, dtype: str, fuel: int) -> Value:
        axis = self.pick(axes)
        x = self._with_axis(self.expression(scope, axes, "int8" if dtype == "bool" else dtype, fuel), axis)
        op = self.pick(["cumsum", "cummax", "cummin"] + (["cumprod"] if x.dtype in INTS else []))
        n = max(self.extents[axis], 1)
        if op == "cumsum":
            x = self.tame(x, max(LIMITS.get(dtype, 0) // n, 1))
        reverse = ", reverse=True" if self.chance(40) else ""
        bound = n * x.bound if op == "cumsum" else x.bound
        y = self.let(f"tj.{op}({x.name}, {axis}{reverse})", x.axes, x.dtype, bound)
        return self.let(f"{y.name} > 0", y.axes, dtype) if dtype == "bool" else y

    def _associative_scan(self, scope: Scope, axes: Axes, dtype: str, fuel: int) -> Value:
        """Of one tile, or of the pairs (factor, term) of affine maps."""
        axis = self.pick(axes)
        limit = max(LIMITS.get(dtype, 0) // max(self.extents[axis], 1), 1)
        x = self.tame(self._with_axis(self.expression(scope, axes, dtype, fuel), axis), limit)
        bound = self.extents[axis] * x.bound
        reverse = ", reverse=True" if self.chance(40) else ""
        if dtype == "bool" or self.chance(40):
            op = "a ^ b" if dtype == "bool" else self.pick(["tj.maximum(a, b)", "a + b", "b"])
            text = f"tj.associative_scan(lambda a, b: {op}, {x.name}, {axis}{reverse})"
            return self.let(text, x.axes, dtype, bound)
        f = self.tame(self._with_axis(self.expression(scope, axes, dtype, fuel), axis), 1)
        over = self.shuffled(self.union(x, f))
        f, x = self._over(f, over), self._over(x, over)
        op = "lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1])"
        text = f"tj.associative_scan({op}, ({f.name}, {x.name}), {axis}{reverse})[1]"
        return self.let(text, over, dtype, bound)

    def _order(self, scope: Scope, axes: Axes, dtype: str, fuel: int) -> Value:
        """Values or indices of a sort, or of the first few."""
        axis = self.pick(axes)
        indices = dtype == "int32" and self.chance(60)
        operand = self.pick(NUMBERS) if indices else dtype
        if self.chance(50):
            x = self._with_axis(self.expression(scope, axes, operand, fuel), axis)
            text, over = f"tj.sort({x.name}, {axis}, descending={self.chance(50)})", x.axes
        else:
            source = self.extra(axes, low=self.extents[axis])
            others = (*(a for a in axes if a != axis), source)
            x = self._with_axis(self.expression(scope, others, operand, fuel), source)
            text = f"tj.top_k({x.name}, {source}, {axis}, largest={self.chance(50)})"
            over = tuple(axis if a == source else a for a in x.axes)
        return self.let(f"{text}[{int(indices)}]", over, dtype, x.bound)

    # Loops with a carry

    def _loop(self, scope: Scope, axes: Axes, dtype: str, fuel: int) -> Value:
        """The final carry: a fold of something, or of anything. Some carry two tiles, or a count of steps."""
        if not 0 < scope.depth < 4 or scope.points > 100:
            return self._leaf(scope, axes, dtype)
        if self.chance(20):
            return self._loop_of_two(scope, axes, dtype, fuel)
        init = self._start(scope, axes, dtype, fuel)
        over = init.axes
        counts = self.chance(25)
        indices, is_pipeline = self.loop_header(scope, f"({init.name}, 0)" if counts else init.name)
        step, result, carry, count = self.fresh("n"), self.fresh("v"), self.fresh("c"), self.fresh("k")
        self.open(f"def {result}({step}, {carry}):")
        if counts:
            self.emit(f"{carry}, {count} = {carry}")
        body = self.enter(scope, step, indices, is_pipeline)
        if counts:
            body.values.append(Value(count, (), "int32"))
        before = Value(carry, over, dtype, LIMITS.get(dtype, 0))
        after = self._after(body, before, math.prod(index.extent for index in indices), fuel)
        self.emit(f"return {after.name}, {count} + 1" if counts else f"return {after.name}")
        self.close()
        if counts:
            self.emit(f"{result}, {count} = {result}")
            scope.values.append(Value(count, (), "int32"))
        return Value(result, over, dtype, max(after.bound, init.bound))

    def _start(self, scope: Scope, axes: Axes, dtype: str, fuel: int) -> Value:
        over = self.shuffled(self.some(axes))
        return self._over(self.tame(self.expression(scope, over, dtype, min(fuel, 1)), STORED_BOUND), over)

    def _loop_of_two(self, scope: Scope, axes: Axes, dtype: str, fuel: int) -> Value:
        """Each step makes each of two tiles of both, as an online softmax does."""
        starts = [self._start(scope, axes, d, fuel) for d in (dtype, self.pick(DTYPES))]
        indices, is_pipeline = self.loop_header(scope, f"({starts[0].name}, {starts[1].name})")
        step, result, carry = self.fresh("n"), self.fresh("v"), self.fresh("c")
        self.open(f"def {result}({step}, {carry}):")
        body = self.enter(scope, step, indices, is_pipeline)
        before = [replace(v, name=f"{carry}[{i}]", bound=STORED_BOUND) for i, v in enumerate(starts)]
        body.values += before * 2
        after = [self.tame(self.expression(body, v.axes, v.dtype, fuel), STORED_BOUND) for v in before]
        new = ", ".join(self._over(x, v.axes).name for x, v in zip(after, before, strict=True))
        self.emit(f"return {new}")
        self.close()
        first, second = (replace(v, name=f"{result}[{i}]", bound=STORED_BOUND) for i, v in enumerate(starts))
        scope.values.append(second)
        return first

    def enter(self, scope: Scope, step: str, indices: list[Index], is_pipeline: bool) -> Scope:
        """The scope of a loop's body, once its indices are bound."""
        for index in indices:
            self.emit(f"{index.name} = {step}.index({index.name[2:]})")
        return scope.inside(step, indices, is_pipeline)

    def _after(self, body: Scope, before: Value, trips: int, fuel: int) -> Value:
        """The next carry, and the bound of the last."""
        own, over, dtype = before.name, before.axes, before.dtype
        kinds = ["any"] if dtype == "bool" else ["add", "add", "max", "mul", "where", "any"]
        kinds += ["mma"] * 2 if dtype in ("float32", "int32") else []
        kind = self.pick(kinds)
        trips = max(trips, 1)
        if kind == "any":
            body.values.append(before)
            return self._over(self.tame(self.expression(body, over, dtype, fuel), STORED_BOUND), over)
        if kind == "mma":
            contracted = (self.extra(over),)
            a, b = self._factors(body, over, contracted, dtype, fuel)
            bound = STORED_BOUND + trips * a.bound * b.bound * self.size(contracted)
            return self._new(self._mma_text(a, b, own), before, bound)
        x = self.expression(body, over, dtype, fuel)
        if kind == "add":
            x = self.tame(x, max((LIMITS.get(dtype, 0) - STORED_BOUND) // trips, 1))
            text = f"{own} + {x.name}" if self.chance(60) else f"{self._over(x, over).name} + {own}"
            return self._new(text, before, STORED_BOUND + trips * x.bound)
        if kind == "mul":
            return self._new(f"{own} * {self.tame(x, 1).name}", before, STORED_BOUND)
        x = self.tame(x, STORED_BOUND)
        if kind == "max":
            return self._new(f"tj.{self.pick(['maximum', 'minimum'])}({own}, {x.name})", before, STORED_BOUND)
        cond = self.expression(body, over, "bool", fuel)
        text = f"tj.where({cond.name}, {x.name}, {own})"
        return self._new(f"tj.broadcast_to({text}, {self.shape(over)})", before, STORED_BOUND)

    def _new(self, text: str, before: Value, bound: int) -> Value:
        name = self.fresh("v")
        self.emit(f"{name} = {text}")
        return Value(name, before.axes, before.dtype, bound)
