"""A map is a MutableMapping, and more."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import MutableMapping
from pathlib import Path

import outlast
import pytest


def test_a_map_is_a_mutable_mapping(pool: outlast.Pool) -> None:
    ages = pool.map("ages", key=str, value=int)
    assert isinstance(ages, MutableMapping)
    assert not ages and len(ages) == 0
    ages["Ada"] = 36
    ages["Ada"] += 1
    ages.update({"Bob": 40}, Eve=50)
    ages.update([("Ida", 60)])
    assert ages and len(ages) == 4 and ages["Ada"] == 37
    assert "Ada" in ages and "Max" not in ages
    assert ages.get("Max") is None and ages.get("Max", 7) == 7
    assert sorted(ages) == sorted(ages.keys()) == ["Ada", "Bob", "Eve", "Ida"]
    assert dict(ages.items()) == ages == {"Ada": 37, "Bob": 40, "Eve": 50, "Ida": 60}
    assert sorted(ages.values()) == [37, 40, 50, 60] and 40 in ages.values() and ("Bob", 40) in ages.items()
    del ages["Bob"]
    assert ages.pop("Eve") == 50 and ages.pop("Eve", None) is None
    assert ages.setdefault("Ada", 1) == 37 and ages.setdefault("New", 1) == 1
    with pytest.raises(KeyError, match="Bob"):
        ages["Bob"]
    with pytest.raises(KeyError):
        del ages["Bob"]
    with pytest.raises(KeyError):
        ages.pop("Bob")
    taken = [ages.popitem() for _ in range(3)]
    assert sorted(taken) == [("Ada", 37), ("Ida", 60), ("New", 1)]
    with pytest.raises(KeyError):
        ages.popitem()
    ages["x"] = 1
    ages.clear()
    assert ages == {}


def test_changes_tell_what_they_did(pool: outlast.Pool) -> None:
    names = pool.map("names", key=int, value=str)
    assert names.insert(1, "Ada") and not names.insert(1, "Bob")
    assert names.replace(1, "Eve") and not names.replace(2, "Eve")
    assert names.exchange(1, "Ida") == "Eve" and names.exchange(2, "x", "none") == "none"
    assert names.compare_swap(1, "Ida", "Max") and not names.compare_swap(1, "Ida", "Max")
    assert not names.compare_remove(1, "Ida") and names.compare_remove(1, "Max")
    assert names.remove(2) and not names.remove(2)
    assert names.alter(1, lambda found: "new" if found is None else found + "er") == "new"
    assert names.alter(1, lambda found: f"{found}er") == "newer"
    assert names.alter(1, lambda found: None) is None and 1 not in names
    assert names.get_many([1, 2], "?") == ["?", "?"]


def test_counters_are_atomic(pool: outlast.Pool) -> None:
    counts = pool.map("counts", key=str, value="u8")

    def count() -> None:
        for _ in range(60):
            counts.add("k")

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts["k"] == 240 and counts.add("k", -40) == 200
    with pytest.raises(OverflowError):
        counts.add("k", 100)
    with pytest.raises(TypeError, match="values of this map are str"):
        pool.map("texts", key=str, value=str).add("k")


def test_the_map_may_change_while_it_is_iterated(pool: outlast.Pool) -> None:
    squares = pool.map("squares", key=int, value=int)
    squares.update((n, n * n) for n in range(2000))
    assert 1800 < squares.len_estimate() < 2200
    seen = 0
    for key, value in squares.items():
        assert value == key * key
        del squares[key]
        seen += 1
    assert seen == 2000 and not squares


def test_threads_share_an_iterator(pool: outlast.Pool) -> None:
    squares = pool.map("squares", key=int, value=int)
    squares.update((n, n) for n in range(5000))
    keys, seen = iter(squares), []

    def read() -> None:
        for key in keys:
            seen.append(key)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == list(range(5000))


def test_wrong_types_are_refused_with_their_names(pool: outlast.Pool) -> None:
    ages = pool.map("ages", key=str, value="u8")
    with pytest.raises(TypeError, match=r"a key of this map is str: not int"):
        ages[7] = 1  # type: ignore[index]
    with pytest.raises(TypeError, match=r"a value of this map is int \(u8\): not str"):
        ages["Ada"] = "old"
    with pytest.raises(TypeError):
        ages["Ada"] = 1.5
    for number in (256, -1, 1 << 70):
        with pytest.raises(OverflowError):
            ages["Ada"] = number
    with pytest.raises(TypeError):
        assert 7 in ages  # type: ignore[comparison-overlap]
    with pytest.raises(ValueError):
        ages["\ud800"] = 1
    with pytest.raises(outlast.TooLargeError, match="65536"):
        ages["x" * 65537] = 1
    assert ages == {}


def test_a_map_opens_only_with_its_types(pool: outlast.Pool) -> None:
    pool.map("ages", key=str, value=int)
    with pytest.raises(outlast.MapMismatchError, match='map "ages" has value schema i64, not u64') as caught:
        pool.map("ages", key=str, value="u64")
    assert isinstance(caught.value, TypeError)
    with pytest.raises(outlast.MapMismatchError):
        pool.map("ages", key=bytes, value=int)
    with pytest.raises(outlast.MapMismatchError, match="scheme"):
        pool.ordered_map("ages", key=str, value=int)
    with pytest.raises(outlast.MapMismatchError, match="scheme"):
        pool.ordered_map("ages")
    assert pool.map("ages").key_type == "str"
    with pytest.raises(KeyError, match='no map named "other"'):
        pool.map("other")
    for key in ("string", "(u8", "((str,u8),u8)", "(u8,u8,u8,u8,u8)", list, (int,)):
        with pytest.raises(ValueError):
            pool.map("new", key=key, value=int)
    with pytest.raises(TypeError):
        pool.map("new", key=str)
    assert pool.maps() == [outlast.MapInfo("ages", "str", "i64", "dash-eh")]
    assert repr(pool.map("ages")) == "<outlast.Map 'ages': str to i64>"


@pytest.mark.parametrize("name", ["json", "msgpack", "pickle"])
def test_serializers_keep_objects(pool: outlast.Pool, name: str) -> None:
    if name == "msgpack":
        pytest.importorskip("msgpack")
    value = {"name": "Ada", "tags": ["é", None], "age": 36}
    things = pool.map("things", key=str, value=name)
    things["k"] = value
    things["none"] = None
    assert things["k"] == value and things["none"] is None and things.pop("none", 7) is None
    assert things.compare_swap("k", value, [1]) and things["k"] == [1]
    assert [info.value for info in pool.maps()] == [name]


def test_a_map_keeps_its_serializer(pool: outlast.Pool) -> None:
    pool.map("json", key=str, value="json")["k"] = [1]
    assert pool.map("json")["k"] == [1]
    with pytest.raises(outlast.MapMismatchError):
        pool.map("json", key=str, value=bytes)
    with pytest.raises(TypeError):
        pool.map("json")["k"] = {1, 2}


def test_nothing_is_unpickled_unless_asked_for(pool: outlast.Pool) -> None:
    pool.map("things", key=str, value="pickle")["k"] = {1, 2}
    with pytest.raises(outlast.InvalidError, match="can run any code"):
        pool.map("things")
    assert pool.map("things", key=str, value="pickle")["k"] == {1, 2}


def test_values_can_be_large(pool: outlast.Pool) -> None:
    blobs = pool.map("blobs", key=int, value=bytes)
    blob = bytes(range(256)) * 40_000
    blobs[1] = blob
    blobs[2] = memoryview(blob)[:100]  # type: ignore[assignment]
    blobs[3] = bytearray(b"x")  # type: ignore[assignment]
    assert blobs[1] == blob and blobs[2] == blob[:100] and blobs[3] == b"x"
    assert dict(blobs.items())[1] == blob


def test_other_schemes(pool: outlast.Pool) -> None:
    counts = pool.map("counts", key=str, value=int, scheme="clevel")
    counts["k"] = 1
    assert counts.scheme == "clevel" and pool.map("counts", scheme="clevel") == {"k": 1}
    with pytest.raises(outlast.InvalidError):
        pool.map("new", key=str, value=int, scheme="btree")


def test_importing_takes_little_time() -> None:
    # The processor's time, because other programs may keep the machine busy.
    code = "import time; begun = time.process_time(); import outlast; print(time.process_time() - begun)"
    times = [float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(5)]
    assert min(times) < 0.05


def test_the_package_is_small() -> None:
    files = Path(outlast.__file__).parent.rglob("*")
    assert sum(file.stat().st_size for file in files if file.is_file()) < 8_000_000
