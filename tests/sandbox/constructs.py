"""Functions that use each construct of the language that code may use. Called plainly, they say what is right."""
# mypy: ignore-errors
# ruff: noqa: B026, B905, C408, C409, C416, E731, N817, PIE804, RET505, RUF005, SIM222, UP028, UP031

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final


def arithmetic(job: Any) -> Any:
    """A docstring."""
    return [7 + 2, 7 - 2, 7 * 2, 7 / 2, 7 // 2, 7 % 2, 7**2, -7, +7, ~7, 7 << 2, 7 >> 1, 6 | 1, 6 ^ 3, 6 & 3]


def comparisons(job: Any) -> Any:
    x = 2
    return [1 < x <= 3, x == 2, x != 2, x > 2, x >= 2, x is None, x is not None, x in (1, 2), x not in (1, 2)]


def logic(job: Any) -> Any:
    return [not 1, 0 or 2, 1 and 3, "yes" if job else "no"]


def constants(job: Any) -> Any:
    return [True, None, ..., 1_000, 0x10, 1e3, "ab", r"\d", len(b"ab")][3:]


def displays(job: Any) -> Any:
    a, b = [1, 2], {"x": 1}
    return [[*a, 3], (*a, 3), sorted({*a, 3}), {**b, "y": 2}, a + [4], b | {"z": 3}]


def comprehensions(job: Any) -> Any:
    pairs = [(1, 2), (3, 4)]
    return [
        [x + y for x, y in pairs if x > 1],
        sorted({x for x, _ in pairs}),
        {str(x): y for x, y in pairs},
        sum(x * y for x, y in pairs),
        [[x for x in range(n)] for n in range(3)],
        [x for pair in pairs for x in pair],
        [first for first, *_ in pairs],
    ]


def slices(job: Any) -> Any:
    x = list(range(10))
    x[1:3] = [11, 12, 13]
    del x[0]
    del x[-2:]
    return [x, x[2:], x[:2], x[::2], x[-1], "abc"[1]]


def formatting(job: Any) -> Any:
    n, width = 3.14159, 8
    return [f"{n:>{width}.2f}|{n!r}|{n=:.1f}", "{:>4}|{name}".format(1, name="x"), "%s-%d" % ("a", 2), f"{'ab'}"]


def unpacking(job: Any) -> Any:
    a, (b, *c), *d = 1, (2, 3, 4), 5, 6
    [e, f] = "ef"
    g = h = 7
    a, b = b, a
    return [a, b, c, d, e, f, g, h]


def augmented_names(job: Any) -> Any:
    a, b, c = 7, [1], 6
    alias = b
    a += 1
    a -= 2
    a *= 3
    a //= 2
    a **= 2
    a %= 50
    a <<= 2
    a >>= 1
    c |= 1
    c ^= 3
    c &= 5
    x = 1.0
    x /= 4
    b += [2]
    return [a, b, c, x, alias]


def augmented_items(job: Any) -> Any:
    calls: list[int] = []

    def place() -> int:
        calls.append(1)
        return 0

    x = [[1], 5, 6, 7]
    inner = x[0]
    x[place()] += [2]
    x[1] += 1
    x[2:] += [8]
    job["n"] = 1
    job["n"] -= 3
    return [x, inner, len(calls), job["n"]]


def augmented_attributes(job: Any) -> Any:
    class Box:
        def __init__(self) -> None:
            self.items = [1]
            self.n = 1

    calls: list[int] = []
    box = Box()

    def get() -> Any:
        calls.append(1)
        return box

    alias = box.items
    get().items += [2]
    box.n *= 5
    return [box.items, alias, len(calls), box.n]


def annotated(job: Any) -> Any:
    x: int = 1
    y: Undefined  # noqa: F842, F821
    z: Undefined = 2  # noqa: F821

    def inner(a: Undefined, *b: Undefined, c: Undefined = 3, **d: Undefined) -> Undefined:  # noqa: F821
        return [a, b, c, d]

    return [x, z, inner(1, 2, c=4, d=5)]


def calls(job: Any) -> Any:
    def collect(a: Any, /, b: Any = 2, *rest: Any, c: Any = 3, **more: Any) -> Any:
        return [a, b, rest, c, more]

    args, kwargs = [1, 2], {"c": 4, "d": 5}
    return [
        collect(1),
        collect(*args),
        collect(*args, *args),
        collect(0, *args, **kwargs),
        collect(0, **kwargs),
        collect(0, **kwargs, **{"e": 6}),
        collect(b=1, *[0]),
        max(*args),
        "-".join(map(str, args)),
        dict(**kwargs),
    ]


def lambdas(job: Any) -> Any:
    add = lambda a, b=1, *rest, **more: a + b + len(rest) + len(more)
    return [add(1), add(1, 2, 3, x=4), sorted([3, 1, 2], key=lambda x: -x)]


def closures(job: Any) -> Any:
    count = 0

    def bump() -> int:
        nonlocal count
        count += 1
        return count

    return [bump(), bump(), count]


def recursion(job: Any, n: int = 5) -> Any:
    return 1 if n < 2 else n * recursion(job, n - 1)


def generators(job: Any) -> Any:
    def numbers(n: int) -> Any:
        sent = yield 0
        for x in range(n):
            yield x
        yield from [10, sent]
        return

    run = numbers(2)
    return [next(run), run.send("s"), list(run)]


def decorators(job: Any) -> Any:
    def twice(function: Any) -> Any:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return 2 * function(*args, **kwargs)

        return wrapped

    @twice
    def number(n: int) -> int:
        return n

    return number(21)


def classes(job: Any) -> Any:
    class Shape:
        """A shape."""

        sides = 0

        def __init__(self, name: str, **more: Any) -> None:
            self.name = name
            self.more = more

        @property
        def title(self) -> str:
            return self.name.title()

        @classmethod
        def made(cls, name: str) -> Any:
            return cls(name)

        @staticmethod
        def two() -> int:
            return 2

        def describe(self) -> str:
            return f"{self.name} has {self.sides}"

    class Square(Shape):
        sides: int = 4

        def describe(self) -> str:
            return super().describe() + "!"

    square = Square.made("square")
    square.color = "red"
    del square.color
    return [square.describe(), square.title, square.two(), Square("x", a=1).more, hasattr(square, "color")]


def conditions(job: Any) -> Any:
    if job:
        return "full"
    elif job == {}:
        x = "empty"
    else:
        x = "none"
    return x


def loops(job: Any) -> Any:
    seen = []
    for i, (a, b) in enumerate([(1, 2), (3, 4)]):
        if i == 5:
            break
        seen.append(a + b)
    else:
        seen.append(-1)
    n = 0
    while n < 5:
        n += 1
        if n == 2:
            continue
        if n == 4:
            break
    else:
        n = 100
    return [seen, n]


def matches(job: Any) -> Any:
    def kind(value: Any) -> Any:
        match value:
            case 0 | 1:
                return "small"
            case int(n) if n > 100:
                return "large"
            case [x, *rest]:
                return ["list", x, rest]
            case {"a": a, **others}:
                return ["dict", a, others]
            case str() as text:
                return text.upper()
            case None:
                return "none"
            case complex(real=r):
                return r
            case _:
                return "other"

    return [kind(value) for value in (1, 500, [1, 2, 3], {"a": 1, "b": 2}, "x", None, 2j, 3.5)]


def exceptions(job: Any) -> Any:
    said = []
    try:
        try:
            raise KeyError("x")
        except (KeyError, IndexError) as error:
            said.append(str(error))
            raise ValueError("y") from error
        finally:
            said.append("finally")
    except ValueError as error:
        said.append(str(error))
    try:
        pass
    except ValueError:
        said.append("no")
    else:
        said.append("else")
    try:
        assert 1 == 2, "assertion"
    except AssertionError as error:
        said.append(str(error))
    return said


def own_exceptions(job: Any) -> Any:
    class Refused(Exception):
        def __init__(self, code: int) -> None:
            self.code = code

    try:
        raise Refused(7)
    except Refused as error:
        return [error.code, str(error), error.args]


def contexts(job: Any) -> Any:
    from decimal import Decimal, localcontext

    with localcontext() as outer, localcontext() as inner:
        outer.prec = 20
        inner.prec = 3
        third = str(Decimal(1) / Decimal(3))
    with localcontext():
        return [third, outer.prec]


def imports(job: Any) -> Any:
    import json
    import math as m
    import urllib.parse as p
    from collections import Counter as C
    from itertools import chain, count  # noqa: F401

    return [json.dumps({}), m.floor(1.5), p.quote("a b"), C("aab")["a"], list(chain([1], [2]))]


def walrus(job: Any) -> Any:
    if (n := 5) > 3:
        return [n, [y := 1, y**2]]
    return None


def deletion(job: Any) -> Any:
    x, y = {"a": 1, "b": 2}, 1
    del x["a"], y
    return x


def printing(job: Any) -> Any:
    print("a", 1, sep="-", end="")
    print()
    print(*[1, 2], **{"sep": ","})
    return None


def globals_(job: Any) -> Any:
    global counter
    counter = 1
    counter += 1
    return counter


def properties(job: Any) -> Any:
    job["list"] = [1]
    job["list"].append(2)
    job.setdefault("n", 1)
    job |= {"m": 2}
    return [job.get("list"), sorted(job), "n" in job, len(job), job.pop("m")]


def builtin_functions(job: Any) -> Any:
    return [
        *(abs(-1), all([1]), any([0]), bin(5), bool(1), chr(65), divmod(7, 2), hex(10), oct(8), ord("A"), pow(2, 3)),
        *(round(1.5), sum([1, 2]), min(2, 1), max([1, 2]), list(reversed([1, 2])), sorted("ba"), list(zip("a", "b"))),
        *(list(map(str, [1])), list(filter(None, [0, 1])), list(enumerate("a")), isinstance(1, int), repr("a")),
        *(int("5"), float("1.5"), str(1), tuple([1]), list("ab"), dict(a=1), sorted(set("a")), callable(len)),
        *(next(iter([1])), getattr(job, "nothing", "default"), hash(1), slice(1, 2).start, format(3.14159, ".2f")),
    ]


def pass_(job: Any) -> None:
    pass


CONSTRUCTS: Final[dict[str, Callable[..., Any]]] = {
    name: value for name, value in dict(globals()).items() if inspect.isfunction(value) and value.__module__ == __name__
}
"""The functions by name. Each takes the job, a dictionary, and returns JSON."""
