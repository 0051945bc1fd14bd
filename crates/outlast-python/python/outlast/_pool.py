"""Pools."""

from __future__ import annotations

import atexit
import os
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional, TypeVar, Union, overload

from . import _outlast
from ._batch import Batch
from ._errors import DamagedError, OutlastError
from ._map import Map, OrderedMap
from ._types import describe

if TYPE_CHECKING:
    from typing_extensions import Self

    from ._cache import Cache

K = TypeVar("K")
V = TypeVar("V")

Path = Union[str, "os.PathLike[str]"]


@dataclass(frozen=True)
class Journal:
    """The settings of a pool's journal. Times are in seconds, sizes in bytes; ``None`` is the library's default."""

    interval: Optional[float] = None
    limit: Optional[int] = None
    directory: Optional[Path] = None
    working_directory: Optional[Path] = None
    keep_working_file: bool = False


class Durability(NamedTuple):
    """Which failures a pool survives."""

    survives_process_death: bool
    survives_power_loss: bool
    """Whether a change survives a power loss without ``wait_durable``, as on persistent memory."""
    confirmed_survives_power_loss: bool
    """Whether what ``wait_durable`` confirms survives a power loss."""
    is_suspect: bool
    journal_interval: Optional[float]


class MapInfo(NamedTuple):
    """A map of a pool."""

    name: str
    key: str
    value: str
    scheme: str


class Damage(NamedTuple):
    """A damaged place of a pool."""

    offset: int
    message: str


class Verification(NamedTuple):
    """What :meth:`Pool.verify` has found."""

    is_sound: bool
    records: int
    used_bytes: int
    leaked_bytes: Optional[int]
    damage: list[Damage]

    def ensure_sound(self) -> None:
        """Raise :class:`DamagedError` unless the pool is sound."""
        if self.is_sound:
            return
        first = self.damage[0] if self.damage else Damage(0, f"{self.leaked_bytes} leaked bytes")
        error = DamagedError(first.message)
        error.offset = first.offset
        raise error


class Stats(NamedTuple):
    """The numbers of a pool, in bytes, except ``references``."""

    size: int
    limit: int
    free_bytes: int
    held_bytes: int
    references: int


class Pool(_outlast.Pool):
    """An open pool: one file that holds many maps. Make one with :func:`outlast.open`.

    Threads can share a pool. It is closed by :meth:`close`, at the end of a ``with`` block, when the last object that
    belongs to it is gone, and when the interpreter exits.
    """

    def __new__(cls, path: Optional[Path], mode: str, options: dict[str, Any]) -> Self:
        pool = super().__new__(cls, path, mode, options)
        pool.path = None if path is None else os.fspath(path)
        pool._process = os.getpid()
        _open_pools.add(pool)
        return pool

    path: Optional[str]
    _process: int

    #: Whether :meth:`close` was called.
    closed: bool = False

    def close(self) -> None:
        """Close the pool: make it durable and mark it as closed cleanly. To close it again does nothing.

        From then on, calls on the pool and its maps raise :class:`NotOpenError`. If this raises another error, the
        pool is closed all the same, and opens as after a crash.
        """
        if not self.closed:
            self.closed = self._process == os.getpid()
            super().close()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<outlast.Pool {self.path!r}>"

    @overload
    def map(
        self, name: str, key: type[K], value: type[V], *, scheme: Optional[str] = None, expiry: bool = False
    ) -> Map[K, V]: ...
    @overload
    def map(
        self, name: str, key: type[K], value: str, *, scheme: Optional[str] = None, expiry: bool = False
    ) -> Map[K, Any]: ...
    @overload
    def map(
        self, name: str, key: Any = None, value: Any = None, *, scheme: Optional[str] = None, expiry: bool = False
    ) -> Map[Any, Any]: ...
    def map(
        self, name: str, key: Any = None, value: Any = None, *, scheme: Optional[str] = None, expiry: bool = False
    ) -> Map[Any, Any]:
        """Open the map ``name``, or create it with these types. Without types, it must exist, and keeps its own.

        With ``expiry``, its records can expire; see :class:`Map`.
        """
        return Map(self, name, key, value, scheme, expiry=expiry)

    @overload
    def ordered_map(self, name: str, key: type[K], value: type[V], *, expiry: bool = False) -> OrderedMap[K, V]: ...
    @overload
    def ordered_map(self, name: str, key: type[K], value: str, *, expiry: bool = False) -> OrderedMap[K, Any]: ...
    @overload
    def ordered_map(
        self, name: str, key: Any = None, value: Any = None, *, expiry: bool = False
    ) -> OrderedMap[Any, Any]: ...
    def ordered_map(
        self, name: str, key: Any = None, value: Any = None, *, expiry: bool = False
    ) -> OrderedMap[Any, Any]:
        """Open the ordered map ``name``, or create it with these types. With ``expiry``, its records can expire."""
        return OrderedMap(self, name, key, value, expiry=expiry)

    def cache(
        self,
        name: str,
        key: Any = "any",
        value: Any = "any",
        *,
        size_limit: Optional[int] = None,
        max_records: Optional[int] = None,
    ) -> Cache[Any, Any]:
        """Open the cache ``name``, or create it; see :class:`Cache`."""
        from ._cache import Cache

        return Cache(self, name, key=key, value=value, size_limit=size_limit, max_records=max_records)

    def maps(self) -> list[MapInfo]:
        """List the maps of the pool."""
        return [
            MapInfo(name, describe(key) or "", describe(value) or "", scheme)
            for name, key, value, scheme in self._maps()
        ]

    def batch(self) -> Batch:
        """Begin a batch: changes of which a crash leaves all or none."""
        return Batch(self)

    async def wait_durable_async(self) -> None:
        """Do :meth:`wait_durable` in another thread."""
        import asyncio  # Here, because it takes longer to import than all of outlast.

        await asyncio.get_running_loop().run_in_executor(None, self.wait_durable)

    def verify(self) -> Verification:
        """Check every structure and every record. Damage is in the result; it is no exception."""
        is_sound, records, used, leaked, damage = self._verify()
        return Verification(is_sound, records, used, leaked, [Damage(*place) for place in damage])

    def durability(self) -> Durability:
        """Return which failures the pool survives."""
        return Durability(*self._durability())

    def stats(self) -> Stats:
        """Return the pool's numbers. :meth:`prometheus` has all of them."""
        return Stats(*self._stats())


#: Pools that the exit of the interpreter closes.
_open_pools: weakref.WeakSet[Pool] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for pool in list(_open_pools):
        # In a forked child, the pools are the parent's.
        if pool._process == os.getpid():
            try:
                pool.close()
            except OutlastError:
                pass  # It is closed already, or opens as after a crash.


def open(
    path: Path,
    mode: str = "c",
    *,
    journal: Union[bool, Journal, None] = None,
    initial_size: Optional[int] = None,
    max_size: Optional[int] = None,
    page_bits: Optional[int] = None,
    background: Optional[bool] = None,
    idle_sync: Optional[bool] = None,
    trim: Optional[bool] = None,
    recovery_threads: Optional[int] = None,
    accept_possibly_torn: Optional[bool] = None,
    require_working_file: Optional[bool] = None,
    progress: Optional[Callable[[int, int], object]] = None,
) -> Pool:
    """Open a pool.

    ``mode`` is ``"c"`` (create the file if there is none), ``"w"`` (the file must exist), ``"x"`` (it must not) or
    ``"r"`` (only read). A new pool has a journal, with which it survives a power loss on an ordinary disk; with
    ``journal=False``, it has none, and with ``journal=True``, an existing one gets a journal. ``progress`` gets the
    parts that are done, and all parts, where opening takes long; any thread may call it, and it must not use the pool.

    While the pool is open, nothing else may write or truncate the file. A lock keeps other users of outlast out, but
    not other programs.
    """
    if journal is True:
        journal = Journal()
    options = {
        "journal": journal,
        "initial_size": initial_size,
        "max_size": max_size,
        "page_bits": page_bits,
        "background": background,
        "idle_sync": idle_sync,
        "trim": trim,
        "recovery_threads": recovery_threads,
        "accept_possibly_torn": accept_possibly_torn,
        "require_working_file": require_working_file,
        "progress": progress,
    }
    return Pool(path, mode, options)


def anonymous(*, max_size: Optional[int] = None) -> Pool:
    """Create a pool in memory, for tests. It ends with the process."""
    return Pool(None, "c", {"max_size": max_size})


def backup(path: Path, to: Path, *, journal: Optional[Journal] = None) -> int:
    """Copy the pool at ``path`` to ``to``, and return the size of the copy in bytes.

    If another process has the pool open, it must have a journal. ``journal`` names the directories, if they are not the
    default ones.
    """
    return _outlast.backup(path, to, {"journal": journal})
