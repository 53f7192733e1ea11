"""A tile whose dimensions get other numbers."""

from __future__ import annotations

from dataclasses import replace

from .value import Entry, Val


def rename(val: Val, shape: tuple[int, ...], places: dict[int, int]) -> Val:
    """The value with tile dimension `i` become `places[i]`; dimensions of extent 1 may appear and vanish."""

    def moved(entry: Entry) -> Entry:
        return places[entry] if isinstance(entry, int) else entry

    def group(g: tuple[Entry, ...]) -> tuple[Entry, ...]:
        return tuple(moved(e) for e in g)

    if val.affine is not None:
        form = replace(val.affine, coefs={moved(e): c for e, c in val.affine.coefs.items()})
        return replace(val, shape=shape, affine=form)
    if val.onehot is not None:
        return replace(
            val, shape=shape, onehot=val.onehot.renamed(places, lambda v: rename(v, shape, places))
        )
    if val.window is not None or val.stack:
        parts = tuple(rename(p, shape, places) for p in val.parts)
        window = None if val.window is None else val.window.renamed(places)
        stack = tuple(places[d] for d in val.stack)
        return replace(val, shape=shape, stack=stack, parts=parts, window=window)
    return replace(
        val,
        shape=shape,
        groups=tuple(group(g) for g in val.groups),
        zero_tail=frozenset(map(group, val.zero_tail)),
    )
