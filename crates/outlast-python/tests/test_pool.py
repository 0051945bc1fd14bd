"""The life of a pool, and what programs can get wrong."""

from __future__ import annotations

import asyncio
import errno
import gc
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable

import outlast
import pytest


def in_python(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a program in a new interpreter."""
    command = [sys.executable, "-W", "ignore", "-c", code, *map(str, arguments)]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)


def in_fork(run: Callable[[], str]) -> str:
    """Run a function in a forked child, and return what it returns."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            result = run()
        except BaseException as error:
            result = f"raised {error!r}"
        os.write(write, result.encode())
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as output:
        return output.read()


# ---- Life -----------------------------------------------------------------------


def test_a_pool_reopens_as_it_was(path: Path) -> None:
    with outlast.open(path) as pool:
        pool.map("ages", key=str, value=int)["Ada"] = 36
        assert repr(pool) == f"<outlast.Pool {str(path)!r}>" and pool.path == str(path) and len(pool.id) == 16
    with outlast.open(str(path), "w") as pool:
        assert pool.map("ages") == {"Ada": 36}


def test_modes(path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        outlast.open(path, "w")
    assert caught.value.errno == errno.ENOENT and isinstance(caught.value, outlast.NoSuchPoolError)
    outlast.open(path, "x").close()
    with pytest.raises(OSError) as exists:
        outlast.open(path, "x")
    assert exists.value.errno == errno.EEXIST
    with pytest.raises(ValueError, match="none of"):
        outlast.open(path, "a")
    with outlast.open(path, "r") as pool:
        with pytest.raises(outlast.ReadOnlyError):
            pool.map("new", key=str, value=str)


def test_a_read_only_pool_refuses_changes(path: Path) -> None:
    with outlast.open(path) as pool:
        pool.map("ages", key=str, value=int)["Ada"] = 36
    with outlast.open(path, "r") as pool, outlast.open(path, "r") as again:
        assert pool.map("ages") == again.map("ages") == {"Ada": 36}
        ages = pool.map("ages")
        for change in (lambda: ages.update(Bob=1), ages.clear, lambda: ages.pop("Ada"), lambda: ages.add("Ada")):
            with pytest.raises(outlast.ReadOnlyError):
                change()


def test_a_journal_makes_changes_durable(path: Path, tmp_path: Path) -> None:
    journal = outlast.Journal(interval=0.005, directory=tmp_path / "journal", working_directory=tmp_path)
    with outlast.open(path, journal=journal) as pool:
        durability = pool.durability()
        assert durability.survives_process_death and durability.journal_interval == 0.005
        ages = pool.map("ages", key=str, value=int)
        ages["Ada"] = 36
        pool.wait_durable()
        ages["Bob"] = 40
        asyncio.run(pool.wait_durable_async())
        assert (tmp_path / "journal").is_dir()
    with outlast.open(path, journal=journal) as pool:
        assert len(pool.map("ages")) == 2
        with pytest.raises(ValueError):
            outlast.open(tmp_path / "other", journal=outlast.Journal(interval=-1))


def test_snapshots_and_backups_are_pools(path: Path, tmp_path: Path) -> None:
    with outlast.open(path, journal=True) as pool:
        ages = pool.map("ages", key=str, value=int)
        ages["Ada"] = 36
        pool.snapshot(tmp_path / "snapshot")
        pool.wait_durable()
        assert outlast.backup(path, tmp_path / "backup") > 0, "while it is open"
    for name in ("snapshot", "backup"):
        with outlast.open(tmp_path / name, "r") as copy:
            assert copy.map("ages") == {"Ada": 36}
    with outlast.open(tmp_path / "snapshot"):
        with pytest.raises(outlast.LockedError, match="no journal"):
            outlast.backup(tmp_path / "snapshot", tmp_path / "other")


def test_a_pool_tells_about_itself(pool: outlast.Pool) -> None:
    pool.map("ages", key=str, value=int)["Ada"] = 36
    found = pool.verify()
    assert found.is_sound and found.records == 1 and found.damage == [] and found.used_bytes > 0
    found.ensure_sound()
    stats = pool.stats()
    assert stats.size >= 2 << 20 and stats.references == 0
    assert 'outlast_pool_bytes{pool="p"}' in pool.prometheus("p")
    pool.drop_map("ages")
    assert pool.maps() == []
    with pytest.raises(outlast.NoSuchMapError):
        pool.drop_map("ages")


def test_a_dropped_map_is_gone(pool: outlast.Pool) -> None:
    ages = pool.map("ages", key=str, value=int)
    pool.drop_map("ages")
    with pytest.raises(outlast.NotOpenError, match="dropped"):
        ages["Ada"] = 1


def test_a_full_pool_refuses_inserts(path: Path) -> None:
    with outlast.open(path, max_size=4 << 20) as pool:
        blobs = pool.map("blobs", key=int, value=bytes)
        with pytest.raises(outlast.FullError, match="pool full"):
            for n in range(1000):
                blobs[n] = bytes(60_000)
        del blobs[0]
        blobs[0] = bytes(60_000)
    with pytest.raises(outlast.InvalidError):
        outlast.open(path.with_name("new"), page_bits=30)


def test_progress_is_told(path: Path) -> None:
    with outlast.open(path) as pool:
        pool.ordered_map("log", key=int, value=int).update((n, n) for n in range(20_000))
    told: list[tuple[int, int]] = []
    with outlast.open(path, progress=lambda done, all: told.append((done, all))) as pool:
        assert len(pool.ordered_map("log")) == 20_000
    assert told and all(done <= parts for done, parts in told)


def test_damage_is_an_error_with_an_offset(path: Path) -> None:
    with outlast.open(path) as pool:
        texts = pool.map("texts", key=str, value=str)
        texts["a"], texts["b"] = "a value that is easily found", "sound"
    content = path.read_bytes()
    path.write_bytes(content.replace(b"easily", b"EASILY"))
    # Writing the file did not make another one of it, but a copy would be refused, too.
    with outlast.open(path) as pool:
        found = pool.verify()
        assert not found.is_sound and len(found.damage) == 1
        with pytest.raises(outlast.DamagedError) as caught:
            found.ensure_sound()
        assert caught.value.offset == found.damage[0].offset
        damage: list[outlast.DamagedError] = []
        assert list(pool.map("texts").salvage(damage.append)) == [("b", "sound")]
        assert [error.offset for error in damage] == [found.damage[0].offset]
    path.write_bytes(b"This is not a pool." * 100)
    with pytest.raises(outlast.DamagedError):
        outlast.open(path)


# ---- Closing --------------------------------------------------------------------


def test_calls_after_close_fail(pool: outlast.Pool) -> None:
    ages = pool.ordered_map("ages", key=str, value=int)
    ages.update(Ada=36, Bob=40)
    batch, records = pool.batch(), iter(ages)
    batch.put(ages, "Eve", 1)
    assert not pool.closed
    pool.close()
    pool.close()
    assert pool.closed
    calls: list[Callable[[], Any]] = [
        pool.sync, pool.wait_durable, pool.verify, batch.commit, ages.clear, ages.first,
        lambda: ages["Ada"], lambda: ages.update(Ada=1), lambda: "Ada" in ages, lambda: len(ages), lambda: list(ages),
        lambda: next(records), lambda: pool.map("ages"), lambda: pool.snapshot("/tmp/x"), lambda: pool.drop_map("x"),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(outlast.NotOpenError) as caught:
            call()
        assert isinstance(caught.value, ValueError) and "closed" in str(caught.value)


def test_a_forgotten_pool_is_closed(path: Path) -> None:
    ages = outlast.open(path).map("ages", key=str, value=int)
    ages["Ada"] = 36
    with pytest.raises(outlast.LockedError):
        outlast.open(path)
    del ages
    gc.collect()
    with outlast.open(path) as pool:
        assert pool.map("ages") == {"Ada": 36}


def test_the_interpreter_exits_with_open_pools(path: Path) -> None:
    code = """if True:
        import outlast, sys
        pool = outlast.open(sys.argv[1], journal=len(sys.argv) > 2)
        ages = pool.map("ages", key=str, value=int)
        ages["Ada"] = 36
        records = iter(ages)
        batch = pool.batch()
        batch.put(ages, "Bob", 1)
        sys.modules["kept"] = (pool, ages, records, batch)
    """
    for file, *journal in ((path,), (path.with_name("journaled"), "journal")):
        ended = in_python(code, file, *journal)
        assert (ended.returncode, ended.stderr) == (0, "")
        with outlast.open(file, "r") as pool:  # It was closed: a journal would have to be completed otherwise.
            assert pool.map("ages") == {"Ada": 36}


def test_an_exit_in_the_middle_of_things_loses_nothing(path: Path) -> None:
    code = """if True:
        import outlast, sys, threading
        ages = outlast.open(sys.argv[1]).map("ages", key=int, value=int)
        ages[0] = 0
        def write():
            while True:
                ages.add(0)
        threading.Thread(target=write, daemon=True).start()
        while ages[0] < 100:
            pass
    """
    ended = in_python(code, path)
    assert ended.returncode == 0, ended.stderr
    with outlast.open(path) as pool:
        assert pool.map("ages")[0] >= 100 and pool.verify().is_sound


# ---- Processes ------------------------------------------------------------------


def test_a_second_process_is_kept_out(path: Path, pool: outlast.Pool) -> None:
    code = """if True:
        import outlast, sys
        try:
            outlast.open(sys.argv[1])
        except outlast.LockedError as error:
            print(error)
    """
    assert "another process has it open" in in_python(code, path).stdout
    with pytest.raises(outlast.LockedError):
        outlast.open(path)


def test_a_forked_child_leaves_the_pool_alone(path: Path, pool: outlast.Pool) -> None:
    ages = pool.map("ages", key=str, value=int)
    ages["Ada"] = 36

    def use() -> str:
        try:
            ages["Ada"] = 37
        except outlast.NotOpenError as error:
            return str(error)
        return "no error"

    def drop() -> str:
        nonlocal ages, pool
        del ages, pool
        gc.collect()
        return "dropped"

    assert "fork" in in_fork(use)
    assert in_fork(drop) == "dropped"
    context = multiprocessing.get_context("fork")
    process = context.Process(target=use)
    process.start()
    process.join(30)
    assert process.exitcode == 0
    ages["Ada"] += 1
    assert ages == {"Ada": 37}


def test_a_child_that_exits_as_usual_leaves_the_pool_alone(path: Path) -> None:
    code = """if True:
        import outlast, os, sys
        pool = outlast.open(sys.argv[1])
        ages = pool.map("ages", key=str, value=int)
        ages["Ada"] = 36
        if os.fork() == 0:
            sys.exit(0)  # With the functions of atexit.
        assert os.wait()[1] == 0
        ages["Ada"] += 1
        assert pool.verify().is_sound
    """
    ended = in_python(code, path)
    assert (ended.returncode, ended.stderr) == (0, "")
    with outlast.open(path) as pool:
        assert pool.map("ages") == {"Ada": 37}


# ---- Threads --------------------------------------------------------------------


def test_other_threads_run_while_one_waits(path: Path) -> None:
    with outlast.open(path, journal=True) as pool:
        ages = pool.map("ages", key=int, value=int)
        steps, is_over = 0, False

        def wait() -> None:
            nonlocal is_over
            for n in range(30):
                ages[n] = n
                pool.wait_durable()
            is_over = True

        interval = sys.getswitchinterval()
        sys.setswitchinterval(100)  # So a thread runs only when another one lets it.
        try:
            thread = threading.Thread(target=wait)
            thread.start()
            while not is_over:
                steps += 1
                time.sleep(0)
            thread.join()
        finally:
            sys.setswitchinterval(interval)
        assert steps > 5


def test_interrupts_stop_long_loops(path: Path) -> None:
    code = """if True:
        import outlast, sys, _thread, threading
        ages = outlast.anonymous().map("ages", key=int, value=int)
        def numbers():
            n = 0
            while True:
                yield n % 100, n
                n += 1
        threading.Timer(0.3, _thread.interrupt_main).start()
        try:
            ages.update(numbers())
        except KeyboardInterrupt:
            print("interrupted")
    """
    assert in_python(code).stdout == "interrupted\n"


def test_a_child_that_drops_a_pool_of_its_parent_keeps_its_own(path: Path) -> None:
    code = """if True:
        import outlast, os, sys
        closed = outlast.open(sys.argv[1], journal=True)
        closed.close()
        if os.fork() == 0:
            ages = outlast.open(sys.argv[1] + ".other", journal=True).map("ages", key=str, value=int)
            ages["Ada"] = 36
            del closed  # What it had mapped was not inherited, and its addresses are the child's now.
            ages["Ada"] += 1
            os._exit(ages["Ada"])
        print(os.waitstatus_to_exitcode(os.wait()[1]))
    """
    assert in_python(code, path).stdout == "37\n"
