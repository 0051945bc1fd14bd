"""What the tests share. At the end, the counts go to the file that OUTLAST_COUNTS names."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import outlast
import pytest

#: Kills, and acknowledged records that were missing after them.
counts: Counter[str] = Counter()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "test.pool"


@pytest.fixture
def pool(path: Path) -> Iterator[outlast.Pool]:
    with outlast.open(path, journal=False) as pool:
        yield pool


@pytest.fixture
def counted() -> Counter[str]:
    return counts


def pytest_terminal_summary(terminalreporter: Any) -> None:
    stats = terminalreporter.stats
    numbers = {name: len(stats.get(name, ())) for name in ("passed", "failed", "skipped", "error")}
    numbers["kills"], numbers["lost"] = counts["kills"], counts["lost"]
    terminalreporter.write_line(f"steps against the model: {counts['steps']}, kills: {counts['kills']}")
    file = os.environ.get("OUTLAST_COUNTS")
    if file:
        Path(file).write_text(json.dumps(numbers))
