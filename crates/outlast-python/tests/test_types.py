"""What Rust writes, Python reads, and the other way round. `examples/types.rs` has the same list."""

from __future__ import annotations

import math
import os
import subprocess
from pathlib import Path
from typing import Any

import outlast
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

#: The name of a map, its types, and its record.
RECORDS: list[tuple[str, Any, Any, Any, Any]] = [
    ("str", str, "u64", "Ada", 36),
    ("bytes", bytes, bytes, b"\x00\xff", b""),
    ("u64", "u64", str, 2**64 - 1, "é"),
    ("i64", int, int, -1, -(2**63)),
    ("u8", "u8", "i8", 200, -100),
    ("i16", "i16", "u16", -30_000, 60_000),
    ("u32", "u32", "i32", 4_000_000_000, -2_000_000_000),
    ("i128", "i128", "u128", -7, 2**128 - 1),
    ("f64", float, "f32", -2.5, 1.5),
    ("f64 in blocks", str, float, "pi", 3.25),
    ("bool", bool, bool, True, False),
    ("arrays", "[u8;4]", "[u8;12]", b"abcd", b"0123456789ab"),
    ("arrays in place", "[u8;3]", "u64", b"abc", 7),
    ("tuples in place", ("i32", "u16"), ("u8", bool), (-5, 7), (3, True)),
    ("tuples", (int, float), "u64", (-5, -0.5), 7),
    ("ending", ("u64", str), ("i32", bytes), (7, "x"), (-1, b"\t")),
    ("strings first", (str, "u64"), (bytes, bool, str), ("a\0b", 7), (b"\0\0", True, "\0")),
    ("nested", (("u8", "u8"), "u16"), str, ((1, 2), 3), "deep"),
]


def rust(task: str, path: Path) -> str:
    program = os.environ.get("OUTLAST_TYPES")
    if program is None:
        pytest.skip("scripts/python-test builds the program in Rust, and names it in OUTLAST_TYPES")
    return subprocess.check_output([program, task, str(path)], text=True)


def test_python_reads_what_rust_writes(path: Path) -> None:
    rust("write", path)
    with outlast.open(path, "w") as pool:
        for name, key_type, value_type, key, value in RECORDS:
            ordered = pool.ordered_map(f"{name}, ordered", key_type, value_type)
            for map in (pool.map(name, key_type, value_type), ordered):
                assert list(map.items()) == [(key, value)], name
                assert map[key] == value and key in map
        assert len(pool.maps()) == 2 * len(RECORDS)
        assert pool.map("str")["Ada"] == 36
        with pytest.raises(outlast.MapMismatchError, match='"str" has value schema u64, not i64'):
            pool.map("str", key=str, value=int)
        assert pool.verify().is_sound


def test_rust_reads_what_python_writes(path: Path) -> None:
    with outlast.open(path) as pool:
        for name, key_type, value_type, key, value in RECORDS:
            pool.map(name, key_type, value_type)[key] = value
            pool.ordered_map(f"{name}, ordered", key_type, value_type)[key] = value
    assert rust("check", path) == f"{2 * len(RECORDS)} maps are as Rust would have written them\n"


FLOATS = st.floats(allow_nan=False)
TYPES: list[tuple[Any, Any]] = [
    (str, st.text()),
    (bytes, st.binary()),
    (int, st.integers(-(2**63), 2**63 - 1)),
    ("u64", st.integers(0, 2**64 - 1)),
    ("i8", st.integers(-128, 127)),
    ("u32", st.integers(0, 2**32 - 1)),
    ("i128", st.integers(-(2**127), 2**127 - 1)),
    ("u128", st.integers(0, 2**128 - 1)),
    (float, FLOATS.filter(lambda number: math.copysign(1, number) > 0 or number != 0)),
    ("f32", st.floats(width=32, allow_nan=False).filter(lambda number: math.copysign(1, number) > 0 or number != 0)),
    (bool, st.booleans()),
    ("[u8;5]", st.binary(min_size=5, max_size=5)),
    (("i16", "u8"), st.tuples(st.integers(-(2**15), 2**15 - 1), st.integers(0, 255))),
    ((int, str), st.tuples(st.integers(-5, 5), st.text(max_size=3))),
    (("u8", "i64", bytes), st.tuples(st.integers(0, 3), st.integers(-3, 3), st.binary(max_size=2))),
    ((str, "i8"), st.tuples(st.text("\0\1ab", max_size=3), st.integers(-2, 2))),
    (
        (bytes, str, bool),
        st.tuples(st.binary(max_size=2), st.text("\0\1a\x7f", max_size=2), st.booleans()),
    ),
    ((bool, ("u8", float)), st.tuples(st.booleans(), st.tuples(st.integers(0, 2), FLOATS.map(lambda n: n or 0.0)))),
]


@pytest.mark.parametrize("kind,strategy", TYPES, ids=[str(kind) for kind, _ in TYPES])
def test_keys_are_in_the_order_of_python(kind: Any, strategy: Any) -> None:
    pool = outlast.anonymous()

    @settings(max_examples=60, deadline=None)
    @given(st.lists(strategy, max_size=20))
    def check(keys: list[Any]) -> None:
        for value in ("u64", str):
            map = pool.ordered_map("map", kind, value)
            map.clear()
            map.update((key, 1 if value == "u64" else "x") for key in keys)
            assert list(map) == sorted(set(keys))
            assert list(reversed(map)) == sorted(set(keys), reverse=True)
            pool.drop_map("map")

    check()


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda parts: (
        st.lists(parts, max_size=3)
        | st.lists(parts, max_size=3).map(tuple)
        | st.dictionaries(st.text() | st.integers(), parts, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None)
@given(ANY, ANY)
def test_any_object_reads_as_it_was_written(key: Any, value: Any) -> None:
    things = outlast.anonymous().map("things", key="any", value="any")
    things[key] = value
    assert things[key] == value and list(things.items()) == [(key, value)]
    assert repr(list(things)[0]) == repr(key) and repr(things[key]) == repr(value), "the types, too"


def test_keys_of_different_types_differ() -> None:
    things = outlast.anonymous().map("things", key="any", value="any")
    keys = [1, 1.0, True, "1", b"1", (1,), [1], None, 2**63, -(2**63), -(2**63) - 1, 2**512, {1: 2}]
    for number, key in enumerate(keys):
        things[key] = number
    assert [things[key] for key in keys] == list(range(len(keys)))
    assert things.key_type == "any/1" and repr(things) == "<outlast.Map 'things': any to any>"
    for wrong in (object(), 1j, {1, 2}, [object()], bytearray(b"x")):
        with pytest.raises(TypeError, match="a key of this map is None, bool, int"):
            things[wrong] = 1
    deep: Any = None
    for _ in range(100):
        deep = [deep]
    with pytest.raises(ValueError, match="too deep"):
        things["deep"] = deep
    with pytest.raises(outlast.InvalidError, match="no order"):
        outlast.anonymous().ordered_map("things", key="any", value="any")


def test_floats_are_kept_bit_by_bit() -> None:
    floats = outlast.anonymous().map("floats", key=float, value=float)
    floats[0.0], floats[-0.0], floats[math.nan] = math.inf, -0.0, math.nan
    assert len(floats) == 3 and math.copysign(1, floats[-0.0]) == -1 and math.isnan(floats[math.nan])
    small = outlast.anonymous().map("floats", key=str, value="f32")
    with pytest.raises(OverflowError, match="infinity"):
        small["x"] = 1e300
    small["x"] = math.inf
    assert small["x"] == math.inf
