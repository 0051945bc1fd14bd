"""Crash-proof maps in a mapped file: a dictionary that survives kill -9.

>>> import outlast
>>> with outlast.open("ages.pool") as pool:  # doctest: +SKIP
...     ages = pool.map("ages", key=str, value=int)
...     ages["Ada"] = 36
...     # kill -9 here, and the next process finds it.

Once a call returns, its effect outlives the process. There is nothing to commit. docs/python.md has the rest.
"""

from ._batch import Batch
from ._cache import Cache
from ._errors import (
    DamagedError,
    FullError,
    IntegerOverflowError,
    InvalidError,
    IoError,
    JournalError,
    LockedError,
    MapMismatchError,
    NoSuchMapError,
    NoSuchPoolError,
    NotOpenError,
    OutlastError,
    PossiblyTornError,
    ReadOnlyError,
    RequirementError,
    TooLargeError,
)
from ._map import Map, OrderedMap
from ._outlast import Transaction
from ._pool import Damage, Durability, Journal, MapInfo, Pool, Stats, Verification, anonymous, backup, open

__all__ = [
    "Batch",
    "Cache",
    "Damage",
    "DamagedError",
    "Durability",
    "FullError",
    "IntegerOverflowError",
    "InvalidError",
    "IoError",
    "Journal",
    "JournalError",
    "LockedError",
    "Map",
    "MapInfo",
    "MapMismatchError",
    "NoSuchMapError",
    "NoSuchPoolError",
    "NotOpenError",
    "OrderedMap",
    "OutlastError",
    "Pool",
    "PossiblyTornError",
    "ReadOnlyError",
    "RequirementError",
    "Stats",
    "TooLargeError",
    "Transaction",
    "Verification",
    "anonymous",
    "backup",
    "open",
]
