"""Caches."""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Callable, Optional, TypeVar, Union

from . import _outlast
from ._pool import Path, Pool, open
from ._types import describe, schema_of, serializer_for, value_schema_of

if TYPE_CHECKING:
    from typing_extensions import Self
    from typing_extensions import TypeVar as TypeVarWithDefault

    K = TypeVarWithDefault("K", default=Any)
    V = TypeVarWithDefault("V", default=Any)
else:
    K = TypeVar("K")
    V = TypeVar("V")
F = TypeVar("F", bound=Callable[..., Any])

_MISSING: Any = object()

#: The bound of a cache for which none is given.
_SIZE_LIMIT = 1 << 30

#: The pools that caches have opened, by process and path.
_pools: weakref.WeakValueDictionary[str, _Shared] = weakref.WeakValueDictionary()
#: Reentrant, because the collector can finalize a cache anywhere.
_pools_lock = threading.RLock()


class _Shared:
    """A pool that a cache has opened. Other caches of this process that name the same path share it."""

    def __init__(self, path: Path, options: dict[str, Any]) -> None:
        self.pool = open(path, **options)
        self.caches = 1

    @staticmethod
    def of(path: Path, options: dict[str, Any]) -> _Shared:
        # In a forked child, the pools are the parent's.
        name = f"{os.getpid()} {os.path.realpath(os.fspath(path))}"
        with _pools_lock:
            shared = _pools.get(name)
            if shared is not None:
                shared.caches += 1
                if not shared.pool.closed:
                    return shared
            _pools[name] = shared = _Shared(path, options)
            return shared

    def leave(self) -> None:
        with _pools_lock:
            self.caches -= 1
            if self.caches == 0 and self.pool._process == os.getpid():
                self.pool.close()


class Cache(_outlast.Cache[K, V]):
    """A cache: a hash map that evicts records when it is full, and whose records can expire.

    >>> import outlast
    >>> with outlast.Cache("pages.pool", size_limit=64 << 20) as pages:  # doctest: +SKIP
    ...     pages.set("/", "<html>", expire=60)
    ...     pages["/"]

    It outlives its process, even SIGKILL, with its contents, their times, and what it knows about their use. The first
    argument is the path of a pool or an open pool, which can hold several caches of different names. A path is opened
    with the options of :func:`outlast.open`, once for all caches of the process that name it, and closed with the last
    of them.

    The bound is ``size_limit`` bytes (default: 1 GiB) or ``max_records``. Keys and values are of type ``"any"`` unless
    other types are given: ``None``, ``bool``, ``int``, ``float``, ``str``, ``bytes``, and tuples, lists and dicts of
    them. With ``value="pickle"``, values can be anything that can be pickled; only open files that you trust with it.

    Threads can share a cache. Each method on one key is one step.
    """

    pool: Pool
    _leave: Optional[Callable[[], Any]]
    _bound: tuple[Optional[int], Optional[int]]

    def __new__(
        cls,
        file: Union[Pool, Path],
        name: str = "cache",
        *,
        key: Any = "any",
        value: Any = "any",
        size_limit: Optional[int] = None,
        max_records: Optional[int] = None,
        **options: Any,
    ) -> Self:
        if isinstance(file, Pool):
            if options:
                raise TypeError(f"the pool is open already, so it takes no {', '.join(options)}")
            pool, shared = file, None
        else:
            shared = _Shared.of(file, options)
            pool = shared.pool
        if size_limit is None and max_records is None:
            size_limit = _SIZE_LIMIT
        try:
            types = schema_of(key), value_schema_of(value)
            cache = super().__new__(cls, pool, name, *types, size_limit, max_records, serializer_for(value))
        except BaseException:
            if shared is not None:
                shared.leave()
            raise
        cache.pool, cache._leave, cache._bound = pool, None, (size_limit, max_records)
        if shared is not None:
            # It is called once: by `close`, or when the cache is collected.
            finalizer = weakref.finalize(cache, shared.leave)
            finalizer.atexit = False
            cache._leave = finalizer
        return cache

    def __repr__(self) -> str:
        types = f"{describe(self.key_type)} to {describe(self.value_type)}"
        return f"<outlast.{type(self).__name__} {self.name!r}: {types}>"

    def incr(self, key: K, delta: Any = 1, default: Any = 0) -> Any:
        """Add to the number of a key, in one step, and return the sum.

        An absent key counts as ``default``; if that is ``None``, raise ``KeyError``. A number that is present keeps
        the time at which it expires.
        """
        return self._incr(key, delta, default)

    def decr(self, key: K, delta: Any = 1, default: Any = 0) -> Any:
        """Subtract from the number of a key; see :meth:`incr`."""
        return self._incr(key, -delta, default)

    def memoize(
        self,
        name: Optional[str] = None,
        *,
        typed: bool = False,
        expire: Optional[float] = None,
        ignore: Any = (),
    ) -> Callable[[F], F]:
        """Return a decorator that keeps the results of a function.

        The key is made of ``name`` (default: the function's module and qualified name) and the arguments, except
        those whose position or name is in ``ignore``. With ``typed``, arguments of different types that are equal, such
        as 1 and 1.0, have results of their own even where the type of the keys does not tell them apart. Results
        expire after ``expire`` seconds.

        ``function.__cache_key__(...)`` returns the key of a call, and ``function.__wrapped__`` is the function itself.
        The type of the keys must be ``"any"``.
        """
        if callable(name):
            raise TypeError("name is a function: write @cache.memoize()")
        if self.key_type != schema_of("any"):
            raise TypeError('memoize needs a cache with keys of type "any"')

        def decorate(function: F) -> F:
            base = name or f"{function.__module__}.{function.__qualname__}"

            def key_of(*args: Any, **kwargs: Any) -> Any:
                kept = tuple(arg for number, arg in enumerate(args) if number not in ignore)
                named = tuple((word, kwargs[word]) for word in sorted(kwargs) if word not in ignore)
                key: tuple[Any, ...] = (base, kept, named)
                if typed:
                    types = [type(arg).__qualname__ for arg in kept]
                    types += [type(arg).__qualname__ for _, arg in named]
                    key += (tuple(types),)
                return key

            @functools.wraps(function)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                key = key_of(*args, **kwargs)
                result = self.get(key, _MISSING)
                if result is _MISSING:
                    result = function(*args, **kwargs)
                    self.set(key, result, expire)
                return result

            wrapper.__cache_key__ = key_of  # type: ignore[attr-defined]
            return wrapper  # type: ignore[return-value]

        return decorate

    def items(self) -> Iterator[tuple[K, V]]:
        """Iterate over all records. This is no use of a record."""
        return self._items()

    def close(self) -> None:
        """Close the pool, if this is the last cache of a path that the process has opened."""
        if self._leave is not None:
            self._leave()

    def __reduce__(self) -> Any:
        """Pickle what opens the cache again: its path, name, types and bound. Only one process can have it open."""
        types = describe(self.key_type), describe(self.value_type)
        if self.pool.path is None:
            raise TypeError("the cache is in memory")
        return _reopen, (type(self), self.pool.path, self.name, types, self._bound)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.close()


def _reopen(
    kind: type[Cache[Any, Any]], path: str, name: str, types: tuple[str, str], bound: tuple[Any, Any]
) -> Cache[Any, Any]:
    key, value = types
    return kind(path, name, key=key, value=value, size_limit=bound[0], max_records=bound[1])
