"""Maps whose records expire."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import outlast
import pytest


@pytest.mark.parametrize("is_ordered", [False, True])
@pytest.mark.parametrize("kind", [str, int])
def test_records_expire(pool: outlast.Pool, is_ordered: bool, kind: Any) -> None:
    open_map = pool.ordered_map if is_ordered else pool.map
    map = open_map("map", kind, kind, expiry=True)
    a, b, c = (kind(number) for number in (1, 2, 3))
    map.put(a, b, expire=60)
    map.put(b, c, expire=60)
    map[c] = a
    assert map.expires and map[a] == b and map[b] == c and map.expire(b, 0.02)
    left = map.ttl(a)
    assert left is not None and 50 < left <= 60 and map.ttl(c) is None
    time.sleep(0.05)
    assert b not in map and map.get(b) is None and len(map) == 2 and sorted(map) == [a, c]
    with pytest.raises(KeyError):
        map.ttl(b)
    assert not map.expire(b, 60) and not map.persist(b)
    assert map.replace(a, c) and (map.ttl(a) or 0) > 50, "a new value keeps the time"
    assert map.persist(a) and map.ttl(a) is None
    assert map.expire(a, 60) and (map.ttl(a) or 0) > 50
    map[a] = b
    assert map.ttl(a) is None
    assert map.expire(a, 0) and a not in map
    map.put(c, b)
    assert map[c] == b


def test_any_duration_is_a_time(pool: outlast.Pool) -> None:
    map = pool.map("map", str, str, expiry=True)
    for forever in (math.inf, 1e300, 1e12):
        map.put("k", "v", expire=forever)
        assert map.ttl("k") is None
    for past in (0, -1, -math.inf):
        map.put("k", "v", expire=past)
        assert "k" not in map
    with pytest.raises(ValueError, match="not a number"):
        map.put("k", "v", expire=math.nan)
    with pytest.raises(TypeError):
        map.put("k", "v", expire="soon")  # type: ignore[arg-type]


def test_counters_keep_their_time(pool: outlast.Pool) -> None:
    counts = pool.map("counts", str, int, expiry=True)
    counts.put("k", 1, expire=60)
    assert counts.add("k") == 2 and counts.alter("k", lambda found: (found or 0) * 5) == 10
    assert (counts.ttl("k") or 0) > 50


def test_batches_set_times(pool: outlast.Pool) -> None:
    map = pool.map("map", str, str, expiry=True)
    with pool.batch() as batch:
        batch.put(map, "a", "1", expire=60)
        batch.put(map, "b", "2")
    assert (map.ttl("a") or 0) > 50 and map.ttl("b") is None
    with pytest.raises(ValueError, match="without expiry"):
        pool.batch().put(pool.map("plain", str, str), "a", "1", expire=60)


def test_transactions_set_times(pool: outlast.Pool) -> None:
    map, plain = pool.map("map", str, str, expiry=True), pool.map("plain", str, str)
    map["a"] = "1"

    def change(t: outlast.Transaction) -> None:
        t.put(map, "b", t.get(map, "a", "") + "2", expire=60)
        t.put(map, "a", "3")

    pool.transaction(change)
    assert map["b"] == "12" and (map.ttl("b") or 0) > 50 and map["a"] == "3" and map.ttl("a") is None
    with pytest.raises(ValueError, match="without expiry"):
        pool.transaction(lambda t: t.put(plain, "a", "1", expire=60))
    assert "a" not in plain


def test_a_map_has_expiry_or_not(pool: outlast.Pool) -> None:
    plain = pool.map("plain", str, str)
    assert not plain.expires
    for call in (lambda: plain.put("k", "v", expire=1), lambda: plain.ttl("k"), lambda: plain.persist("k")):
        with pytest.raises(ValueError, match="without expiry"):
            call()
    with pytest.raises(outlast.MapMismatchError, match="expiry"):
        pool.map("plain", str, str, expiry=True)
    with pytest.raises(outlast.MapMismatchError, match="expiry"):
        pool.map("plain", expiry=True)
    pool.map("expiring", int, int, expiry=True)
    assert pool.map("expiring").expires and pool.map("expiring", int, int).expires


def test_times_outlive_the_process(path: Path) -> None:
    with outlast.open(path, journal=False) as pool:
        map = pool.map("map", str, str, expiry=True)
        map.put("soon", "v", expire=0.05)
        map.put("late", "v", expire=60)
    time.sleep(0.1)
    with outlast.open(path, journal=False) as pool:
        map = pool.map("map")
        assert list(map) == ["late"] and (map.ttl("late") or 0) > 50
        assert pool.verify().is_sound
