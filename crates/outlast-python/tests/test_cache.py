"""Caches, with the interface that users of diskcache know."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import outlast
import pytest


@pytest.fixture
def cache(pool: outlast.Pool) -> outlast.Cache[Any, Any]:
    return pool.cache("cache", value="pickle")


def test_values_are_set_and_got(cache: outlast.Cache[Any, Any]) -> None:
    assert not cache and len(cache) == 0
    for key in ("a", b"a", 1, 2.5, None, (1, "x"), [1], 2**100):
        assert cache.set(key, {"key": key})
        assert cache[key] == cache.get(key) == {"key": key} and key in cache
    assert cache and len(cache) == 8
    assert sorted(cache, key=repr) == sorted(["a", b"a", 1, 2.5, None, (1, "x"), [1], 2**100], key=repr)
    assert dict((repr(key), value) for key, value in cache.items())["'a'"] == {"key": "a"}
    cache["a"] = {1, 2}
    assert cache["a"] == {1, 2}
    del cache["a"]
    with pytest.raises(KeyError):
        cache["a"]
    with pytest.raises(KeyError):
        del cache["a"]
    assert cache.get("a") is None and cache.get("a", 7) == 7 and "a" not in cache
    assert cache.delete(1) and not cache.delete(1)
    assert cache.clear() == 6 and len(cache) == 0 and list(cache) == []
    assert repr(cache) == "<outlast.Cache 'cache': any to pickle>" and cache.name == "cache"


def test_values_expire(cache: outlast.Cache[Any, Any]) -> None:
    now = time.time()
    cache.set("soon", 1, expire=0.02)
    cache.set("late", 2, expire=60)
    cache.set("never", 3)
    value, expires = cache.get("late", expire_time=True)
    assert value == 2 and now + 59 < expires < now + 70
    assert cache.get("never", expire_time=True) == (3, None)
    time.sleep(0.05)
    assert cache.get("soon") is None and cache.get("soon", 7, expire_time=True) == (7, None)
    assert "soon" not in cache and len(cache) == 2
    assert cache.touch("late") and cache.get("late", expire_time=True) == (2, None)
    assert cache.touch("late", expire=0) and "late" not in cache and not cache.touch("late")
    cache.set("x", 1, expire=60)
    cache.set("x", 1)
    assert cache.get("x", expire_time=True) == (1, None)


def test_expire_removes_what_nobody_looks_at() -> None:
    pool = outlast.Pool(None, "c", {"background": False})
    cache = pool.cache("cache")
    for number in range(100):
        cache.set(number, number, expire=0.5 if number % 2 else None)
    time.sleep(0.6)
    assert len(cache) == 100, "nobody has looked"
    assert cache.expire() == 50 and len(cache) == 50 and cache.expire() == 0


def test_add_happens_once(cache: outlast.Cache[Any, Any]) -> None:
    assert cache.add("k", 1, expire=60) and not cache.add("k", 2)
    assert cache["k"] == 1 and cache.get("k", expire_time=True)[1] > time.time()
    added: list[int] = []

    def add(number: int) -> None:
        for key in range(200):
            if cache.add(key, number):
                added.append(key)

    threads = [threading.Thread(target=add, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(added) == list(range(200))


def test_numbers_are_added_to(cache: outlast.Cache[Any, Any]) -> None:
    assert cache.incr("n") == 1 and cache.incr("n", 5) == 6 and cache.decr("n", 2) == 4 and cache["n"] == 4
    assert cache.incr("m", default=5) == 6 and cache.decr("l", default=5) == 4 and cache.incr("f", 0.5) == 0.5
    cache.set("n", 10, expire=60)
    assert cache.incr("n") == 11 and cache.get("n", expire_time=True)[1] > time.time()
    with pytest.raises(KeyError):
        cache.incr("absent", default=None)
    cache["text"] = "x"
    with pytest.raises(TypeError):
        cache.incr("text")

    def count() -> None:
        for _ in range(300):
            cache.incr("sum")

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache["sum"] == 1200


def test_pop_takes_a_value_once(cache: outlast.Cache[Any, Any]) -> None:
    cache.set("k", 1, expire=60)
    value, expires = cache.pop("k", expire_time=True)
    assert value == 1 and expires > time.time() and "k" not in cache
    assert cache.pop("k") is None and cache.pop("k", 7) == 7 and cache.pop("k", expire_time=True) == (None, None)
    cache["k"] = None
    assert cache.pop("k", 7) is None


def test_stats_count_lookups(cache: outlast.Cache[Any, Any]) -> None:
    cache["k"] = 1
    assert cache.stats() == (0, 0)
    for _ in range(10):
        cache["k"]
        cache.get("k", expire_time=True)
    cache.get("absent")
    assert cache.stats(reset=True) == (20, 1) and cache.stats(enable=False) == (0, 0)
    cache["k"]
    assert cache.stats() == (0, 0)
    cache["k"]
    assert cache.stats() == (1, 0)


def test_a_full_cache_evicts(pool: outlast.Pool) -> None:
    records = pool.cache("records", int, int, max_records=100)
    for number in range(1000):
        records[number] = number
        records.get(0)
    assert 50 < len(records) <= 100 and records.evictions() == 1000 - len(records) and 0 in records
    counts = pool.cache("counts", int, "any", max_records=100)
    for number in range(1000):
        counts.incr(number, number)
        counts.add(-number, 0)
        counts.incr(-7, 0)
        assert len(counts) <= 101
    small = pool.cache("bytes", int, bytes, size_limit=100_000)
    for number in range(1000):
        small[number] = b"x" * 1000
        assert small.volume() <= 100_000
    assert len(small) > 50
    small[999] = b"x" * 200_000
    assert 999 not in small, "it is larger than the cache"
    assert small.add(1001, b"x" * 200_000) and 1001 not in small


def test_results_are_kept(cache: outlast.Cache[Any, Any]) -> None:
    calls: list[Any] = []

    @cache.memoize(expire=60, ignore={"verbose", 2})
    def area(width: int, height: int = 1, *args: Any, verbose: bool = False, **more: Any) -> int:
        calls.append((width, height))
        return width * height

    assert area(2, 3) == area(2, 3) == area(2, 3, verbose=True) == area(2, 3, "ignored") == 6
    assert area(2, height=3) == 6 and area(2, height=3, b=1, a=2) == area(2, height=3, a=2, b=1)
    assert calls == [(2, 3)] * 3
    key = area.__cache_key__(2, 3)  # type: ignore[attr-defined]
    assert cache.get(key, expire_time=True)[1] > time.time()
    del cache[key]
    assert area(2, 3) == 6 and len(calls) == 4
    assert area.__wrapped__(2, 3) == 6 and len(calls) == 5  # type: ignore[attr-defined]

    @cache.memoize("nothing", typed=True)
    def nothing(of: Any) -> None:
        calls.append(of)

    calls.clear()
    for _ in range(2):
        assert nothing(1) is None and nothing(1.0) is None and nothing(True) is None
    assert calls == [1, 1.0, True]
    with pytest.raises(TypeError, match="write @cache.memoize"):
        cache.memoize(nothing)  # type: ignore[arg-type]


def test_a_cache_can_have_a_file_of_its_own(path: Path) -> None:
    with outlast.Cache(path, journal=False, key=str, value="json") as pages:
        pages.set("/", ["<html>"], expire=60)
        with pytest.raises(outlast.LockedError):
            outlast.open(path)
    with pytest.raises(outlast.NotOpenError):
        pages["/"]
    pages.close()
    with outlast.Cache(path, key=str, value="json") as pages:
        assert pages["/"] == ["<html>"] and pages.volume() > 0
    with pytest.raises(outlast.MapMismatchError):
        outlast.Cache(path)
    with outlast.open(path) as pool:
        with pytest.raises(TypeError, match="journal"):
            outlast.Cache(pool, journal=False)
        with pytest.raises(TypeError, match="one bound"):
            pool.cache("new", size_limit=1000, max_records=10)
        with pytest.raises(ValueError):
            pool.cache("new", max_records=0)
        with pytest.raises(TypeError, match="memoize"):
            pool.cache("cache", str, "json").memoize()
        with pool.cache("cache", str, "json") as pages:
            pass
        assert pages["/"] == ["<html>"], "the pool was open before"
        with pytest.raises(outlast.InvalidError, match="can run any code"):
            pool.cache("pickles", value="pickle/1")


def test_caches_of_a_process_share_a_file(path: Path) -> None:
    one = outlast.Cache(path, journal=False, value="pickle", max_records=10)
    other = outlast.Cache(os.path.relpath(path), value="pickle", max_records=10)
    one["k"] = {1, 2}
    assert other["k"] == {1, 2} and other.pool is one.pool
    same = pickle.loads(pickle.dumps(one))
    assert same["k"] == {1, 2} and same.pool is one.pool and same._bound == (None, 10)
    with pytest.raises(outlast.MapMismatchError):
        outlast.Cache(path)
    one.close()
    one.close()
    assert other["k"] == {1, 2}, "the file stays open for the others"
    del other
    assert same["k"] == {1, 2}
    same.close()
    assert same.pool.closed
    with pytest.raises(outlast.NotOpenError):
        one["k"]
    again = outlast.Cache(path, value="pickle")
    assert again["k"] == {1, 2} and not again.pool.closed
    pool = again.pool
    del again
    gc.collect()
    assert pool.closed, "a cache that nobody holds any more is closed"
    with pytest.raises(TypeError, match="in memory"):
        pickle.dumps(outlast.anonymous().cache("cache"))


def test_a_cache_can_be_read_only(path: Path) -> None:
    with outlast.Cache(path, journal=False) as cache:
        cache["k"] = 1
        cache.set("l", 2, expire=0.02)
    time.sleep(0.05)
    with outlast.Cache(path, mode="r") as cache:
        assert cache["k"] == 1 and cache.get("l") is None and len(cache) == 1 and cache
        with pytest.raises(outlast.ReadOnlyError):
            cache["k"] = 2


def test_threads_open_and_close_caches(path: Path) -> None:
    def work() -> None:
        for number in range(50):
            with outlast.Cache(path, journal=False) as cache:
                cache.incr("sum")
                cache[number] = number

    with outlast.Cache(path, journal=False):
        pass
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with outlast.Cache(path) as cache:
        assert cache["sum"] == 200 and len(cache) == 51


def test_a_cache_is_warm_after_a_kill(path: Path, counted: Counter[str]) -> None:
    read, acknowledge = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            cache = outlast.Cache(path, journal=False, max_records=200_000)
            for number in range(100_000):
                cache.set(number, str(number), expire=600)
                os.write(acknowledge, b".")
        finally:
            os._exit(1)
    os.close(acknowledge)
    with os.fdopen(read, "rb") as pipe:
        done = len(pipe.read(2000))
        os.kill(child, signal.SIGKILL)
        done += len(pipe.read())
    os.waitpid(child, 0)
    counted["kills"] += 1
    with outlast.Cache(path, max_records=200_000) as cache:
        lost = sum(cache.get(number) != str(number) for number in range(done))
        counted["lost"] += lost
        assert done > 1999 and lost == 0 and cache.pool.verify().is_sound
