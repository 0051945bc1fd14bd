"""The exceptions of outlast. All are subclasses of :class:`OutlastError`."""

from __future__ import annotations

from typing import Optional


class OutlastError(Exception):
    """Any failure of outlast. No error loses data.

    ``offset`` is where in the pool the damage is, if the error is about damage, and otherwise ``None``.
    """

    offset: Optional[int] = None

    def __str__(self) -> str:
        # KeyError would quote the message.
        return str(self.args[-1]) if self.args else ""


class InvalidError(OutlastError, ValueError):
    """An argument is out of range or does not apply."""


class TooLargeError(InvalidError):
    """The key or the value is too long."""


class IoError(OutlastError, OSError):
    """The system reported an error. ``errno`` is its number."""


class NoSuchPoolError(OutlastError, FileNotFoundError):
    """There is no file at this path."""


class NoSuchMapError(OutlastError, KeyError):
    """The pool has no map of this name."""


class MapMismatchError(OutlastError, TypeError):
    """A map of this name exists with other types, or with another scheme."""


class LockedError(OutlastError):
    """Another process has the pool open, or another handle in this one."""


class ReadOnlyError(OutlastError):
    """The pool is open read-only."""


class NotOpenError(OutlastError, ValueError):
    """The pool was closed, the map was dropped, or this process is a fork of the one that opened the pool."""


class FullError(OutlastError, OSError):
    """There is no space: in the pool, on the disk, or in the address space."""


class IntegerOverflowError(OutlastError, OverflowError):
    """The sum is not a value of the map's type."""


class DamagedError(OutlastError):
    """The pool is damaged, or the file is no pool."""


class PossiblyTornError(DamagedError):
    """A power loss may have torn the pool, or it is a copy of a pool in use."""


class JournalError(DamagedError):
    """The pool's journal or its working file is missing, incomplete, or another pool's."""


class RequirementError(OutlastError):
    """A requirement of a batch does not hold, so nothing was changed.

    ``index`` is the number of the requirement, from 0, in the order in which they were added.
    """

    def __init__(self, index: int) -> None:
        super().__init__(f"requirement {index} of the batch does not hold; nothing was changed")
        self.index = index


def make(name: str, message: str, offset: Optional[int], errno: Optional[int]) -> OutlastError:
    """Make the exception for an error of the native part."""
    kind: type[OutlastError] = globals()[name]
    has_number = errno is not None and issubclass(kind, OSError)
    error = kind(errno, message) if has_number else kind(message)
    error.offset = offset
    return error
