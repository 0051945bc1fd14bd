"""A module in the place of diskcache, over outlast, for as much of diskcache's own tests as applies.

`plugin.py` lists the tests that do not apply. What is here beyond names is what differs between the interfaces: a
directory in place of a file, arguments that have no meaning here, and `check`.
"""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import Any, Optional

import outlast


class EmptyDirWarning(UserWarning):
    pass


class Timeout(Exception):
    pass


class Disk:
    pass


class JSONDisk(Disk):
    pass


UNKNOWN = object()
DEFAULT_SETTINGS: dict[str, Any] = {}
EVICTION_POLICY: dict[str, Any] = {}


class Cache(outlast.Cache[Any, Any]):
    def __new__(cls, directory: Any = None, *, shards: int = 0, timeout: float = 0) -> Any:
        directory = tempfile.mkdtemp() if directory is None else directory
        cache = super().__new__(cls, Path(directory) / "cache.pool", value="pickle", journal=False)
        cache.directory = str(directory)
        return cache

    directory: str

    def __reduce__(self) -> Any:
        return type(self), (self.directory,)

    def read(self, key: Any) -> Any:
        return io.BytesIO(self[key])

    def check(self) -> list[Any]:
        self.pool.verify().ensure_sound()
        return []

    def reset(self, name: str, value: Any) -> None:
        """Nothing is culled behind the back of these tests, and lookups count unless `stats` says otherwise."""
        if name not in ("cull_limit", "statistics"):
            raise NotImplementedError(name)

    def get(
        self, key: Any, default: Any = None, expire_time: bool = False, tag: bool = False, retry: bool = False
    ) -> Any:
        found = super().get(key, default, expire_time)
        return (*(found if expire_time else (found,)), None) if tag else found

    def set(
        self, key: Any, value: Any, expire: Optional[float] = None, read: bool = False, retry: bool = False
    ) -> bool:
        return super().set(key, value.read() if read else value, expire)

    def add(self, key: Any, value: Any, expire: Optional[float] = None, retry: bool = False) -> bool:
        return super().add(key, value, expire)

    def incr(self, key: Any, delta: Any = 1, default: Any = 0, retry: bool = False) -> Any:
        return super().incr(key, delta, default)


class FanoutCache(Cache):
    """Threads do not wait for each other, so there are no shards."""


class Index(outlast.Map[Any, Any]):
    def __new__(cls) -> Any:
        directory = tempfile.mkdtemp()
        pool = outlast.open(Path(directory) / "index.pool", journal=False)
        index = super().__new__(cls, pool, "index", "any", "pickle")
        index.directory = directory
        return index

    directory: str
