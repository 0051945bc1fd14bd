"""Ordered maps: ranges and prefixes, both ways."""

from __future__ import annotations

import outlast
import pytest


def test_ranges_are_like_slices(pool: outlast.Pool) -> None:
    log = pool.ordered_map("log", key=int, value=str)
    log.update((n, str(n)) for n in (5, -3, 9, 0))
    assert list(log) == [-3, 0, 5, 9] and list(reversed(log)) == [9, 5, 0, -3]
    assert [key for key, _ in log.range(0, 9)] == [0, 5]
    assert [key for key, _ in log.range(0, 9, include_low=False, include_high=True)] == [5, 9]
    assert list(log.range(1)) == [(5, "5"), (9, "9")]
    assert list(log.range(high=0, reverse=True)) == [(-3, "-3")]
    assert list(log.range(reverse=True))[0] == (9, "9")
    assert list(log.range(9, 0)) == []
    assert log.first() == (-3, "-3") and log.last() == (9, "9")
    assert log.floor(4) == (0, "0") and log.floor(-4) is None
    assert log.ceiling(6) == (9, "9") and log.ceiling(10) is None
    assert log.remove_range(0, 9) == 2 and list(log) == [-3, 9]
    assert log.popitem() == (-3, "-3")
    with pytest.raises(TypeError):
        log.range("a", "b")  # type: ignore[arg-type]


def test_prefixes_of_strings(pool: outlast.Pool) -> None:
    files = pool.ordered_map("files", key=str, value=int)
    files.update({"doc/a": 1, "src/a": 2, "src/b": 3, "srcs": 4})
    assert list(files.prefix("src/")) == [("src/a", 2), ("src/b", 3)]
    assert list(files.prefix("src", reverse=True)) == [("srcs", 4), ("src/b", 3), ("src/a", 2)]
    assert len(list(files.prefix(""))) == 4
    raw = pool.ordered_map("raw", key=bytes, value=int)
    raw.update({b"\xff": 1, b"\xff\xff": 2, b"\xfe": 3})
    assert [value for _, value in raw.prefix(b"\xff")] == [1, 2]


def test_prefixes_of_tuples(pool: outlast.Pool) -> None:
    mails = pool.ordered_map("mails", key=("u64", "u8", str), value=int)
    mails.update({(7, 1, "inbox"): 1, (7, 2, "sent"): 2, (8, 1, "inbox"): 3})
    assert [value for _, value in mails.prefix((7,))] == [1, 2]
    assert [value for _, value in mails.prefix(7, reverse=True)] == [2, 1]
    assert [value for _, value in mails.prefix((7, 2))] == [2]
    with pytest.raises(ValueError, match="fewer parts"):
        mails.prefix((7, 2, "sent"))
    with pytest.raises(TypeError):
        mails.prefix(("x",))
    small = pool.ordered_map("small", key=("i16", "u8"), value="u8")
    small.update({(-2, 0): 1, (-2, 255): 2, (-1, 0): 3, (3, 7): 4})
    assert [value for _, value in small.prefix(-2)] == [1, 2]
    assert [value for _, value in small.prefix(3)] == [4]
    with pytest.raises(ValueError, match="have none"):
        pool.ordered_map("numbers", key=int, value=int).prefix(1)


def test_a_hash_map_has_no_order(pool: outlast.Pool) -> None:
    ages = pool.map("ages", key=str, value=int)
    assert not hasattr(ages, "range")
    with pytest.raises(TypeError):
        reversed(ages)  # type: ignore[arg-type]
