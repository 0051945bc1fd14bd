"""Compares outlast with other stores that Python programs use. See scripts/python-speed.

Every store gets the same records, in the same random order: a `str` of eleven characters, and 16 bytes. A store that is
slow is stopped after some seconds; the rates are of what it has done until then.
"""

from __future__ import annotations

import dbm
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from typing import Any, Callable

import diskcache
import lmdb
import outlast
import rocksdict
import sqlitedict

#: The most seconds for an operation of a store.
SECONDS = 10.0
#: How many records are worked on between two looks at the clock.
ROW = 1000
#: The value of every record.
VALUE = bytes(16)


class Store:
    """A store that behaves as a dictionary. The others override what differs."""

    #: What survives kill -9, and what a power loss.
    survives = ""

    def __init__(self, store: Any) -> None:
        self.store = store

    def set(self, keys: list[str]) -> None:
        store = self.store
        for key in keys:
            store[key] = VALUE

    def get(self, keys: list[str]) -> None:
        store = self.store
        for key in keys:
            store[key]

    def items(self) -> Iterable[Any]:
        return self.store.items()  # type: ignore[no-any-return]

    def close(self) -> None:
        if hasattr(self.store, "close"):
            self.store.close()


class Dbm(Store):
    def items(self) -> Iterator[Any]:
        return ((key, self.store[key]) for key in self.store.keys())  # noqa: SIM118


class Outlast(Store):
    def __init__(self, path: str, journal: bool = False, ordered: bool = False) -> None:
        self.pool = outlast.open(path, journal=journal)
        super().__init__((self.pool.ordered_map if ordered else self.pool.map)("records", key=str, value=bytes))

    def close(self) -> None:
        self.pool.close()


class OutlastUpdate(Outlast):
    def set(self, keys: list[str]) -> None:
        self.store.update((key, VALUE) for key in keys)


class OutlastCache(Store):
    def __init__(self, path: str) -> None:
        super().__init__(outlast.Cache(path, journal=False, key=str, value=bytes))


class DiskCache(Store):
    """With its defaults: 1 GiB, as outlast's, and no statistics."""

    def __init__(self, path: str) -> None:
        super().__init__(diskcache.Cache(path))

    def items(self) -> Iterator[Any]:
        return ((key, self.store[key]) for key in self.store)


class Lmdb(Store):
    """Each change is a transaction of its own, which is not synced. Lookups share one."""

    def __init__(self, path: str) -> None:
        super().__init__(lmdb.open(path, map_size=8 << 30, sync=False))

    def set(self, keys: list[str]) -> None:
        begin = self.store.begin
        for key in keys:
            with begin(write=True) as transaction:
                transaction.put(key.encode(), VALUE)

    def get(self, keys: list[str]) -> None:
        with self.store.begin() as transaction:
            for key in keys:
                transaction.get(key.encode())

    def items(self) -> Iterator[Any]:
        with self.store.begin() as transaction:
            yield from transaction.cursor()


STORES: list[tuple[str, str, Callable[[str], Store]]] = [
    ("dict", "nothing", lambda path: Store({})),
    ("outlast", "kill; snapshots", Outlast),
    ("outlast, `update`", "kill; snapshots", OutlastUpdate),
    ("outlast, ordered", "kill; snapshots", lambda path: Outlast(path, ordered=True)),
    ("outlast, journal", "kill; power loss, but for 10 ms", lambda path: Outlast(path, journal=True)),
    ("outlast, `Cache`", "kill; snapshots", OutlastCache),
    ("lmdb, no sync", "kill", Lmdb),
    ("rocksdict", "kill", lambda path: Store(rocksdict.Rdict(path))),
    ("dbm, as installed", "if closed", lambda path: Dbm(dbm.open(path, "n"))),
    ("diskcache, `Index`", "kill", lambda path: Store(diskcache.Index(path))),
    ("diskcache, `Cache`", "kill", DiskCache),
    ("sqlitedict, autocommit", "power loss", lambda path: Store(sqlitedict.SqliteDict(path, autocommit=True))),
]


def rate(work: Callable[[list[str]], None], keys: list[str]) -> float:
    """Return operations per second."""
    begun, done = time.perf_counter(), 0
    for start in range(0, len(keys), ROW):
        row = keys[start : start + ROW]
        work(row)
        done += len(row)
        if time.perf_counter() - begun > SECONDS:
            break
    return done / (time.perf_counter() - begun)


def rate_of_items(items: Iterable[Any]) -> float:
    begun, done = time.perf_counter(), 0
    for _ in items:
        done += 1
        if done % ROW == 0 and time.perf_counter() - begun > SECONDS:
            break
    return done / (time.perf_counter() - begun)


def main(records: int) -> None:
    keys = [f"key{number:08}" for number in range(records)]
    randomness = random.Random(7)
    randomness.shuffle(keys)
    print(f"{records:,} records, Python {sys.version.split()[0]}, {os.cpu_count()} processors, thousand a second\n")
    print("| store | survives | set | get | iterate |")
    print("|---|---|---:|---:|---:|")
    for name, survives, make in STORES:
        directory = tempfile.mkdtemp()
        try:
            store = make(os.path.join(directory, "store"))
            set_rate = rate(store.set, keys)
            there = keys[: sum(1 for _ in store.items())] if set_rate * SECONDS < records else keys[:]
            randomness.shuffle(there)
            get_rate = rate(store.get, there)
            iteration_rate = rate_of_items(store.items())
            store.close()
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        rates = " | ".join(f"{rate / 1000:,.0f}" for rate in (set_rate, get_rate, iteration_rate))
        print(f"| {name} | {survives} | {rates} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
