"""Maps and ordered maps."""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, Mapping, MutableMapping, ValuesView
from typing import TYPE_CHECKING, Any, Callable, Optional, TypeVar

from . import _outlast
from ._errors import DamagedError
from ._types import describe, schema_of, serializer_for, value_schema_of

if TYPE_CHECKING:
    from typing_extensions import Self

K = TypeVar("K")
V = TypeVar("V")

_MISSING: Any = object()


class _Items(ItemsView[K, V]):
    """The items of a map, which are read in one pass."""

    _mapping: Map[K, V]

    def __iter__(self) -> Iterator[tuple[K, V]]:
        return self._mapping._items()


class _Values(ValuesView[V]):
    """The values of a map, which are read in one pass."""

    _mapping: Map[Any, V]

    def __iter__(self) -> Iterator[V]:
        return self._mapping._values()


class Map(_outlast.Map[K, V], MutableMapping[K, V]):
    """A map of a pool, as a dictionary. Make one with :meth:`Pool.map`.

    Each operation on one key is atomic, and once it returns, its effect survives the death of the process. Threads can
    share a map. ``len(map)`` counts the records, so it takes time; :meth:`len_estimate` is fast.

    The records of a map that was made with ``expiry=True`` can expire: :meth:`put` and :meth:`expire` set a time. Once
    it has passed, the record is absent for every operation. ``map[key] = value`` makes records that never expire. What
    changes the value of a record, such as :meth:`replace`, :meth:`alter` and :meth:`add`, leaves its time as it is.

    Iterating takes no lock, and other threads, and the loop itself, may change the map: a record that is there all
    the time is seen once; one that is inserted or removed meanwhile, once or not at all.
    """

    def __new__(
        cls,
        pool: Any,
        name: str,
        key: Any = None,
        value: Any = None,
        scheme: Optional[str] = None,
        *,
        expiry: bool = False,
    ) -> Self:
        key_schema = None if key is None else schema_of(key)
        value_schema = None if value is None else value_schema_of(value)
        return super().__new__(cls, pool, name, key_schema, value_schema, scheme, expiry, serializer_for(value))

    def __repr__(self) -> str:
        types = f"{describe(self.key_type)} to {describe(self.value_type)}"
        return f"<outlast.{type(self).__name__} {self.name!r}: {types}>"

    def items(self) -> ItemsView[K, V]:
        """Return a view of the records."""
        return _Items(self)

    def values(self) -> ValuesView[V]:
        """Return a view of the values."""
        return _Values(self)

    def pop(self, key: K, default: Any = _MISSING) -> Any:
        """Remove a key, and return the value that it had. If it is absent, return ``default``, if given."""
        value = self._take(key, default)
        if value is _MISSING:
            raise KeyError(key)
        return value

    def popitem(self) -> tuple[K, V]:
        """Remove some record, and return it: of an ordered map, the first one."""
        while True:
            for key in self:
                value = self._take(key, _MISSING)
                if value is not _MISSING:
                    return key, value
                break
            else:
                raise KeyError("the map is empty")

    def setdefault(self, key: K, default: Any = None) -> Any:
        """Return the value of a key. If it is absent, insert ``default`` first. Of several threads, one inserts."""
        while True:
            value = self.get(key, _MISSING)
            if value is not _MISSING:
                return value
            if self.insert(key, default):
                return default

    def update(self, other: Any = (), /, **kwargs: Any) -> None:
        """Put the records of a mapping or of an iterable of pairs. Each record is an operation of its own."""
        named: Any = kwargs.items()
        if isinstance(other, Mapping):
            other = other.items()
        elif hasattr(other, "keys"):
            other = ((key, other[key]) for key in other.keys())  # noqa: SIM118
        self._put_all(other)
        if kwargs:
            self._put_all(named)

    def get_many(self, keys: Iterable[K], default: Any = None) -> list[Any]:
        """Return the values of several keys, in their order."""
        return [self.get(key, default) for key in keys]

    def salvage(self, on_damage: Optional[Callable[[DamagedError], object]] = None) -> Iterator[tuple[K, V]]:
        """Iterate over all records that can be read. ``on_damage`` is called for each damaged place."""
        for record in self._salvage():
            if not isinstance(record, DamagedError):
                yield record
            elif on_damage is not None:
                on_damage(record)


class OrderedMap(Map[K, V]):
    """A map in the order of its keys. Make one with :meth:`Pool.ordered_map`.

    Numbers are ordered by value, ``str`` and ``bytes`` by their bytes (for ``str``, this is the order of the code
    points), tuples part by part.
    """

    def __new__(cls, pool: Any, name: str, key: Any = None, value: Any = None, *, expiry: bool = False) -> Self:
        return super().__new__(cls, pool, name, key, value, "phast", expiry=expiry)

    def __reversed__(self) -> Iterator[K]:
        return self._range((None, None), (True, True), True, "keys")

    def first(self) -> Optional[tuple[K, V]]:
        """Return the record with the least key, or ``None``."""
        return self._range_first((None, None), False)

    def last(self) -> Optional[tuple[K, V]]:
        """Return the record with the greatest key, or ``None``."""
        return self._range_first((None, None), True)

    def floor(self, key: K) -> Optional[tuple[K, V]]:
        """Return the record with the greatest key that is not above ``key``, or ``None``."""
        return self._range_first((None, key), True)

    def ceiling(self, key: K) -> Optional[tuple[K, V]]:
        """Return the record with the least key that is not below ``key``, or ``None``."""
        return self._range_first((key, None), False)

    def range(
        self,
        low: Optional[K] = None,
        high: Optional[K] = None,
        *,
        include_low: bool = True,
        include_high: bool = False,
        reverse: bool = False,
    ) -> Iterator[tuple[K, V]]:
        """Iterate over the records from ``low`` to ``high``, which, as in a slice, does not belong to it by default."""
        return self._range((low, high), (include_low, include_high), reverse, "items")

    def prefix(self, prefix: Any, *, reverse: bool = False) -> Iterator[tuple[K, V]]:
        """Iterate over the records whose keys begin with a string, or with the first parts of a tuple."""
        return self._prefix(prefix, reverse)

    def remove_range(
        self, low: Optional[K] = None, high: Optional[K] = None, *, include_low: bool = True, include_high: bool = False
    ) -> int:
        """Remove the records of a range, and return how many. Each removal is an operation of its own."""
        keys = self._range((low, high), (include_low, include_high), False, "keys")
        return sum(self.remove(key) for key in keys)
