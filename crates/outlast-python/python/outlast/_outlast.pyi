"""The native part. The classes of the package derive from these, and document them."""

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, Optional, TypeVar, Union, overload

from typing_extensions import Self
from typing_extensions import TypeVar as TypeVarWithDefault

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")

CK = TypeVarWithDefault("CK", default=Any)
CV = TypeVarWithDefault("CV", default=Any)

_Path = Union[str, os.PathLike[str]]

class Records(Iterator[Any]):
    def __next__(self) -> Any: ...

class Pool:
    def __new__(cls, path: Optional[_Path], mode: str, options: dict[str, Any]) -> Self: ...
    def close(self) -> None:
        """Close the pool: make it durable and mark it as closed cleanly."""
    def sync(self) -> None:
        """Make the effects of all calls that have returned durable against a power loss. Writers wait meanwhile."""
    def wait_durable(self) -> None:
        """Wait until everything done before survives a power loss. With a journal, waiting threads share one sync."""
    def snapshot(self, path: _Path) -> None:
        """Copy the pool to ``path`` as a cleanly closed pool, and replace any file there."""
    def step(self) -> bool:
        """Do one step of background work, for a pool opened with ``background=False``."""
    def drop_map(self, name: str) -> None:
        """Remove a map with all its records, in one step."""
    def prometheus(self, name: str) -> str:
        """Return the pool's numbers as text for Prometheus."""
    @property
    def id(self) -> bytes:
        """The pool's id: 16 random bytes, chosen at creation."""
    def transaction(self, function: Callable[[Transaction], T]) -> T:
        """Run a function as a transaction, and return what it returns.

        The function gets a :class:`Transaction`, through which it reads and changes records of any maps. All of its
        changes are made as one, or none: none if it raises an exception. If another thread has meanwhile changed a
        record that it has read, it runs again, so it must not have effects elsewhere.
        """
    def _verify(self) -> tuple[bool, int, int, Optional[int], list[tuple[int, str]]]: ...
    def _maps(self) -> list[tuple[str, str, str, str]]: ...
    def _durability(self) -> tuple[bool, bool, bool, bool, Optional[float]]: ...
    def _stats(self) -> tuple[int, int, int, int, int]: ...

class Map(Generic[K, V]):
    def __new__(
        cls,
        pool: Pool,
        name: str,
        key: Optional[str],
        value: Optional[str],
        scheme: Optional[str],
        expiry: bool,
        serializer: Callable[[str], Any],
    ) -> Self: ...
    def __getitem__(self, key: K) -> V: ...
    def __setitem__(self, key: K, value: V) -> None: ...
    def __delitem__(self, key: K) -> None: ...
    def __contains__(self, key: object) -> bool: ...
    def __len__(self) -> int: ...
    def __bool__(self) -> bool: ...
    def __iter__(self) -> Iterator[K]: ...
    @overload
    def get(self, key: K, /) -> Optional[V]:
        """Return the value of a key, or ``default``."""
    @overload
    def get(self, key: K, default: V, /) -> V: ...
    @overload
    def get(self, key: K, default: T, /) -> Union[V, T]: ...
    def clear(self) -> None:
        """Remove every record, one after another. ``Pool.drop_map`` removes a map in one step."""
    def insert(self, key: K, value: V) -> bool:
        """Put a value if the key is absent, and return whether it was. Of several threads, exactly one succeeds."""
    def replace(self, key: K, value: V) -> bool:
        """Put a value if the key is present, and return whether it was."""
    def remove(self, key: K) -> bool:
        """Remove a key, and return whether it was present."""
    def exchange(self, key: K, value: V, default: Any = None) -> Any:
        """Put a value, and return the one before, or ``default``."""
    def compare_swap(self, key: K, expected: V, new: V) -> bool:
        """Replace the value of a key if it is ``expected``, byte by byte as it is stored. Return whether it was."""
    def compare_remove(self, key: K, expected: V) -> bool:
        """Remove a key if its value is ``expected``, byte by byte as it is stored. Return whether it was."""
    def alter(self, key: K, change: Callable[[Optional[V]], Optional[V]]) -> Optional[V]:
        """Replace the value of a key by what ``change`` returns for it, in one step.

        ``change`` gets ``None`` if the key is absent; if it returns ``None``, the key is removed. It runs again if
        another thread has changed the value meanwhile. Return the new value.
        """
    def add(self, key: K, amount: int = 1) -> int:
        """Add to an integer, in one step, and return the sum. An absent key counts as 0."""
    def put(self, key: K, value: V, expire: Optional[float] = None) -> None:
        """Put a value. Unless ``expire`` is ``None``, it expires after that many seconds.

        Then the map must be one with expiry.
        """
    def expire(self, key: K, seconds: float) -> bool:
        """Let the record of a key expire after this many seconds, and return whether the key is present."""
    def persist(self, key: K) -> bool:
        """Make the record of a key one that never expires, and return whether the key is present."""
    def ttl(self, key: K) -> Optional[float]:
        """Return the seconds until the record of a key expires, or ``None`` if it never does. An absent key is a
        ``KeyError``."""
    @property
    def expires(self) -> bool:
        """Whether the records of the map can expire."""
    def len_estimate(self) -> int:
        """Estimate the number of records from a sample of the map."""
    @property
    def name(self) -> str:
        """The name of the map."""
    @property
    def key_type(self) -> str:
        """The type of the keys, as the map records it."""
    @property
    def value_type(self) -> str:
        """The type of the values, as the map records it."""
    @property
    def scheme(self) -> str:
        """The scheme of the map, such as ``"dash-eh"``."""
    def _take(self, key: K, default: Any) -> Any: ...
    def _put_all(self, pairs: Iterable[tuple[K, V]]) -> None: ...
    def _values(self) -> Records: ...
    def _items(self) -> Records: ...
    def _salvage(self) -> Records: ...
    def _range(self, bounds: tuple[Any, Any], includes: tuple[bool, bool], is_reverse: bool, part: str) -> Records: ...
    def _range_first(self, bounds: tuple[Any, Any], is_reverse: bool) -> Optional[tuple[K, V]]: ...
    def _prefix(self, prefix: Any, is_reverse: bool) -> Records: ...

class Cache(Generic[CK, CV]):
    def __new__(
        cls,
        pool: Pool,
        name: str,
        key: str,
        value: str,
        bytes: Optional[int],
        records: Optional[int],
        serializer: Callable[[str], Any],
    ) -> Self: ...
    def __getitem__(self, key: CK) -> CV: ...
    def __setitem__(self, key: CK, value: CV) -> None: ...
    def __delitem__(self, key: CK) -> None: ...
    def __contains__(self, key: object) -> bool: ...
    def __len__(self) -> int: ...
    def __bool__(self) -> bool: ...
    def __iter__(self) -> Iterator[CK]: ...
    def get(self, key: CK, default: Any = None, expire_time: bool = False) -> Any:
        """Return the value of a key, or ``default``; with ``expire_time``, also when it expires, or ``None``."""
    def set(self, key: CK, value: CV, expire: Optional[float] = None) -> bool:
        """Put a value, which expires after ``expire`` seconds. Return ``True``."""
    def add(self, key: CK, value: CV, expire: Optional[float] = None) -> bool:
        """Put a value if the key is absent, and return whether it was. Of several threads, exactly one succeeds."""
    def touch(self, key: CK, expire: Optional[float] = None) -> bool:
        """Set when the value of a key expires: after ``expire`` seconds. Return whether the key is present."""
    def pop(self, key: CK, default: Any = None, expire_time: bool = False) -> Any:
        """Remove a key, and return the value that it had, or ``default``; with ``expire_time``, also when it would have
        expired, or ``None``."""
    def delete(self, key: CK) -> bool:
        """Remove a key, and return whether it was present."""
    def clear(self) -> int:
        """Remove every record, and return how many."""
    def expire(self) -> int:
        """Remove the records whose time has passed, and return how many. The pool's background thread does so, too."""
    def volume(self) -> int:
        """Return the space that the records take, in bytes."""
    def stats(self, enable: bool = True, reset: bool = False) -> tuple[int, int]:
        """Return how many lookups found a value, and how many did not; then count further ones, or not, and begin with
        0 again if asked to."""
    def evictions(self) -> int:
        """Return how many records were evicted to make room since the pool was opened."""
    @property
    def name(self) -> str:
        """The name of the cache."""
    @property
    def key_type(self) -> str:
        """The type of the keys, as the cache records it."""
    @property
    def value_type(self) -> str:
        """The type of the values, as the cache records it."""
    def _incr(self, key: CK, delta: Any = None, default: Any = None) -> Any: ...
    def _items(self) -> Records: ...

class Batch:
    def __new__(cls, pool: Pool) -> Self: ...
    def put(self, map: Map[K, V], key: K, value: V, expire: Optional[float] = None) -> None:
        """Add a change: the key gets this value in the map. Of several changes of a key, the last one counts. Unless
        ``expire`` is ``None``, the value expires after that many seconds from this call on."""
    def remove(self, map: Map[K, Any], key: K) -> None:
        """Add a change: the key is removed from the map, if it is present."""
    def require(self, map: Map[K, V], key: K, value: V) -> None:
        """Require that the key has this value before the first change."""
    def require_absent(self, map: Map[K, Any], key: K) -> None:
        """Require that the key is absent before the first change."""
    def __len__(self) -> int: ...
    def _commit(self) -> Optional[int]: ...
    def _forget(self) -> None: ...

class Transaction:
    @overload
    def get(self, map: Map[K, V], key: K, /) -> Optional[V]:
        """Return the value of a key, or ``default``. What the transaction has changed, it reads as changed."""
    @overload
    def get(self, map: Map[K, V], key: K, default: T, /) -> Union[V, T]: ...
    def put(self, map: Map[K, V], key: K, value: V, expire: Optional[float] = None) -> None:
        """Put a value: the key has it in the map once the transaction ends. Unless ``expire`` is ``None``, it expires
        after that many seconds from this call on."""
    def remove(self, map: Map[K, Any], key: K) -> None:
        """Remove a key, if it is present, once the transaction ends."""

def backup(path: _Path, to: _Path, options: dict[str, Any]) -> int: ...
