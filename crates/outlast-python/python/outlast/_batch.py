"""Batches."""

from __future__ import annotations

from typing import Any

from . import _outlast
from ._errors import RequirementError


class Batch(_outlast.Batch):
    """Changes of several records, of which a crash leaves all or none. Make one with :meth:`Pool.batch`.

    >>> with pool.batch() as batch:  # doctest: +SKIP
    ...     batch.put(names, 1, "Ada")
    ...     batch.put(numbers, "Ada", 1)

    At the end of the block, the changes are made; if an exception leaves the block, none is. Readers can see a part
    of a batch while it is made.
    """

    def commit(self) -> None:
        """Make all changes, and empty the batch. If a requirement does not hold, raise :class:`RequirementError`."""
        failed = self._commit()
        if failed is not None:
            raise RequirementError(failed)

    def __enter__(self) -> Batch:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            self.commit()
        else:
            self._forget()
