"""Children are killed with signal 9 at random moments. Nothing that they have acknowledged is missing afterwards."""

from __future__ import annotations

import os
import pickle
import random
import signal
import struct
import time
from collections import Counter
from pathlib import Path
from typing import Any, Optional

import outlast
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from sortedcontainers import SortedDict  # type: ignore[import-untyped, unused-ignore]

LIVES = 20
#: Steps of the model test, at least.
STEPS = 10_000


@pytest.mark.parametrize("journal", [False, True])
def test_nothing_acknowledged_is_lost(path: Path, counted: Counter[str], journal: bool) -> None:
    def write(acknowledge: int, following: int) -> None:
        pool = outlast.open(path, journal=journal)
        numbers = pool.map("numbers", key=int, value="u64")
        texts = pool.ordered_map("texts", key=(int, str), value="json")
        while True:
            key = (following // 10, str(following))
            if following % 3 == 0:
                with pool.batch() as batch:
                    batch.put(numbers, following, following * 7)
                    batch.put(texts, key, {"number": following})
            else:
                numbers[following] = following * 7
                texts[key] = {"number": following}
            os.write(acknowledge, struct.pack("=Q", following))
            following += 1

    following, randomness = 0, random.Random(7)
    for _ in range(LIVES // 2):
        read, acknowledge = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.close(read)
                write(acknowledge, following)
            finally:
                os._exit(1)
        os.close(acknowledge)
        with os.fdopen(read, "rb") as pipe:
            end: Optional[float] = None
            while end is None or time.monotonic() < end:
                assert len(pipe.read(8)) == 8, "the child ended before it was killed"
                following += 1
                end = end or time.monotonic() + randomness.uniform(0.01, 0.15)
            os.kill(child, signal.SIGKILL)
            while len(pipe.read(8)) == 8:
                following += 1
        os.waitpid(child, 0)
        counted["kills"] += 1
        with outlast.open(path, journal=journal) as pool:
            numbers, texts = pool.map("numbers"), pool.ordered_map("texts")
            for n in range(following):
                is_there = numbers.get(n) == n * 7 and texts.get((n // 10, str(n))) == {"number": n}
                counted["lost"] += not is_there
            if following % 3 == 0:
                assert (following in numbers) == ((following // 10, str(following)) in texts), "half a batch"
            assert pool.verify().is_sound
    assert counted["lost"] == 0


# ---- Against a model ------------------------------------------------------------


class Child:
    """A process that has the pool open, does what it is told, and can be killed."""

    def __init__(self, path: Path, journal: bool) -> None:
        to_child, self.to_child = os.pipe()
        from_child, answers = os.pipe()
        self.process = os.fork()
        if self.process == 0:
            try:
                os.close(self.to_child)
                os.close(from_child)
                self.serve(path, journal, os.fdopen(to_child, "rb"), answers)
            finally:
                os._exit(1)
        os.close(to_child)
        os.close(answers)
        self.answers = os.fdopen(from_child, "rb")

    @staticmethod
    def serve(path: Path, journal: bool, commands: Any, answers: int) -> None:
        pool = outlast.open(path, journal=journal)
        maps: dict[str, Any] = {
            "hash": pool.map("hash", key=str, value="json"),
            "ordered": pool.ordered_map("ordered", key=int, value=str),
        }
        while True:
            try:
                map, name, arguments = pickle.load(commands)
            except EOFError:
                pool.close()
                os._exit(0)
            try:
                if name == "batch":
                    with pool.batch() as batch:
                        for change, *rest in arguments:
                            getattr(batch, change)(maps[map], *rest)
                    result: Any = None
                else:
                    result = getattr(maps[map], name)(*arguments)
                    if name in ("items", "range", "__reversed__"):
                        result = list(result)
            except KeyError:
                result = "KeyError"
            os.write(answers, pickle.dumps(result))

    def call(self, map: str, name: str, *arguments: Any) -> Any:
        self.send(map, name, *arguments)
        return pickle.load(self.answers)

    def send(self, map: str, name: str, *arguments: Any) -> None:
        os.write(self.to_child, pickle.dumps((map, name, arguments)))

    def kill(self) -> None:
        os.kill(self.process, signal.SIGKILL)
        self.end()

    def end(self) -> None:
        os.close(self.to_child)
        os.waitpid(self.process, 0)
        self.answers.close()


TEXTS = st.sampled_from(["", "a", "b", "é" * 20, "key"]) | st.text(max_size=4)
NUMBERS = st.integers(-8, 8)
CHANGES = st.tuples(st.just("put"), NUMBERS, st.text(max_size=3)) | st.tuples(st.just("remove"), NUMBERS)
OBJECTS = st.none() | st.integers() | st.text() | st.lists(st.booleans())


def machine(directory: Path, counted: Counter[str]) -> type[RuleBasedStateMachine]:
    """Return the class of a machine whose pools are in this directory."""

    class Model(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.hash: dict[str, Any] = {}
            self.ordered: SortedDict = SortedDict()

        @initialize(journal=st.booleans())
        def open(self, journal: bool) -> None:
            counted["pools"] += 1
            self.path, self.journal = directory / f"{counted['pools']}.pool", journal
            self.child = Child(self.path, journal)

        def check(self, map: str, name: str, *arguments: Any, expected: Any) -> None:
            counted["steps"] += 1
            assert self.child.call(map, name, *arguments) == expected

        @rule(key=TEXTS, value=OBJECTS)
        def set(self, key: str, value: Any) -> None:
            self.hash[key] = value
            self.check("hash", "__setitem__", key, value, expected=None)

        @rule(key=NUMBERS, value=st.text(max_size=30))
        def set_ordered(self, key: int, value: str) -> None:
            self.ordered[key] = value
            self.check("ordered", "__setitem__", key, value, expected=None)

        @rule(key=TEXTS)
        def get(self, key: str) -> None:
            self.check("hash", "__getitem__", key, expected=self.hash.get(key, "KeyError"))

        @rule(key=TEXTS, value=OBJECTS)
        def insert(self, key: str, value: Any) -> None:
            self.check("hash", "insert", key, value, expected=key not in self.hash)
            self.hash.setdefault(key, value)

        @rule(key=TEXTS, value=OBJECTS)
        def replace(self, key: str, value: Any) -> None:
            self.check("hash", "replace", key, value, expected=key in self.hash)
            if key in self.hash:
                self.hash[key] = value

        @rule(key=TEXTS)
        def pop(self, key: str) -> None:
            self.check("hash", "pop", key, "absent", expected=self.hash.pop(key, "absent"))

        @rule(key=NUMBERS)
        def delete(self, key: int) -> None:
            expected = None if key in self.ordered else "KeyError"
            self.ordered.pop(key, None)
            self.check("ordered", "__delitem__", key, expected=expected)

        @rule(key=NUMBERS, expected=st.text(max_size=2), new=st.text(max_size=2))
        def swap(self, key: int, expected: str, new: str) -> None:
            is_equal = self.ordered.get(key) == expected
            self.check("ordered", "compare_swap", key, expected, new, expected=is_equal)
            if is_equal:
                self.ordered[key] = new

        @rule(low=NUMBERS, high=NUMBERS)
        def range(self, low: int, high: int) -> None:
            expected = [(key, self.ordered[key]) for key in self.ordered.irange(low, high, (True, False))]
            self.check("ordered", "range", low, high, expected=expected)

        @rule(key=NUMBERS)
        def neighbours(self, key: int) -> None:
            above = next(self.ordered.irange(key, None), None)
            below = next(self.ordered.irange(None, key, reverse=True), None)
            record = {None: None, **{key: (key, self.ordered[key]) for key in self.ordered}}
            self.check("ordered", "ceiling", key, expected=record[above])
            self.check("ordered", "floor", key, expected=record[below])

        @rule(changes=st.lists(CHANGES))
        def batch(self, changes: list[tuple[Any, ...]]) -> None:
            for change, key, *value in changes:
                if change == "put":
                    self.ordered[key] = value[0]
                else:
                    self.ordered.pop(key, None)
            self.check("ordered", "batch", *changes, expected=None)

        @rule()
        def clear(self) -> None:
            self.check("hash", "clear", expected=None)
            self.hash.clear()

        @rule()
        def compare_all(self) -> None:
            assert dict(self.child.call("hash", "items")) == self.hash
            self.check("ordered", "items", expected=list(self.ordered.items()))
            self.check("ordered", "__reversed__", expected=list(reversed(self.ordered)))

        @rule()
        def kill(self) -> None:
            self.child.kill()
            self.start_again()

        @rule(key=TEXTS, value=OBJECTS, pause=st.floats(0, 0.0005))
        def kill_in_the_middle(self, key: str, value: Any, pause: float) -> None:
            self.child.send("hash", "__setitem__", key, value)
            time.sleep(pause)
            self.child.kill()
            self.start_again(key)
            found = self.child.call("hash", "get", key, "absent")
            before = self.hash.get(key, "absent")
            assert found in (before, value), "neither the value before nor the new one"
            if found != "absent":
                self.hash[key] = found

        def start_again(self, under_way: Optional[str] = None) -> None:
            """Start another child, which must find everything but the change that was under way."""
            counted["kills"] += 1
            self.child = Child(self.path, self.journal)
            found = dict(self.child.call("hash", "items"))
            for key in (found.keys() | self.hash.keys()) - {under_way}:
                counted["lost"] += found.get(key, "absent") != self.hash.get(key, "absent")
            assert self.child.call("ordered", "items") == list(self.ordered.items())

        def teardown(self) -> None:
            if hasattr(self, "child"):
                self.child.end()
                with outlast.open(self.path, journal=self.journal) as pool:
                    assert pool.verify().is_sound
                    assert pool.map("ordered") == self.ordered
                self.path.unlink()

    return Model


def test_a_pool_is_like_a_dict_and_a_sorted_dict(tmp_path: Path, counted: Counter[str]) -> None:
    begun = counted["steps"]
    configuration = settings(
        max_examples=60, stateful_step_count=60, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    while counted["steps"] < begun + STEPS:
        run_state_machine_as_test(machine(tmp_path, counted), settings=configuration)
    assert counted["lost"] == 0
