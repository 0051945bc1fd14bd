"""Batches: all changes or none."""

from __future__ import annotations

import threading

import outlast
import pytest


def test_a_block_makes_all_changes(pool: outlast.Pool) -> None:
    names, numbers = pool.map("names", key=int, value=str), pool.ordered_map("numbers", key=str, value=int)
    with pool.batch() as batch:
        batch.put(names, 1, "Ada")
        batch.put(numbers, "Ada", 1)
        batch.require_absent(numbers, "Ada")
        assert len(batch) == 2 and not names
    assert names == {1: "Ada"} and numbers == {"Ada": 1} and len(batch) == 0


def test_an_exception_in_the_middle_makes_none(pool: outlast.Pool) -> None:
    names = pool.map("names", key=int, value=str)
    with pytest.raises(ZeroDivisionError):
        with pool.batch() as batch:
            batch.put(names, 1, "Ada")
            1 / 0
    assert not names
    batch.commit()
    assert not names, "the batch is empty"
    with pytest.raises(TypeError):
        with pool.batch() as batch:
            batch.put(names, 1, "Ada")
            batch.put(names, "two", "Bob")  # type: ignore[misc]
    assert not names


def test_requirements(pool: outlast.Pool) -> None:
    accounts = pool.map("accounts", key=str, value=int)
    accounts.update(ada=100, bob=0)
    with pytest.raises(outlast.RequirementError, match="requirement 1") as caught:
        with pool.batch() as batch:
            batch.require(accounts, "ada", 100)
            batch.require(accounts, "bob", 1)
            batch.remove(accounts, "ada")
    assert caught.value.index == 1 and accounts["ada"] == 100
    with pool.batch() as batch:
        batch.require(accounts, "ada", 100)
        batch.remove(accounts, "ada")
        batch.put(accounts, "bob", 100)
    assert accounts == {"bob": 100}


def test_maps_of_other_pools_are_refused(pool: outlast.Pool) -> None:
    other = outlast.anonymous().map("other", key=str, value=int)
    with pytest.raises(outlast.InvalidError, match="another pool"):
        pool.batch().put(other, "k", 1)


def test_transfers_of_threads_keep_the_sum(pool: outlast.Pool) -> None:
    accounts = pool.map("accounts", key=str, value=int)
    accounts.update(ada=1000, bob=1000)

    def transfer(source: str, target: str) -> None:
        for _ in range(50):
            while True:
                has, other = accounts[source], accounts[target]
                try:
                    with pool.batch() as batch:
                        batch.require(accounts, source, has)
                        batch.require(accounts, target, other)
                        batch.put(accounts, source, has - 1)
                        batch.put(accounts, target, other + 1)
                    break
                except outlast.RequirementError:
                    continue

    def transfer_again(source: str, target: str) -> None:
        def move(t: outlast.Transaction) -> None:
            t.put(accounts, source, t.get(accounts, source, 0) - 1)
            t.put(accounts, target, t.get(accounts, target, 0) + 1)

        for _ in range(50):
            pool.transaction(move)

    pairs = [("ada", "bob"), ("bob", "ada"), ("ada", "bob")]
    threads = [threading.Thread(target=transfer, args=pair) for pair in pairs]
    threads += [threading.Thread(target=transfer_again, args=pair) for pair in pairs[:2]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert accounts == {"ada": 950, "bob": 1050}


def test_a_transaction_runs_again_if_it_was_overtaken(pool: outlast.Pool) -> None:
    ages = pool.map("ages", key=str, value=int)
    ages["Ada"] = 36
    calls = 0

    def birthday(t: outlast.Transaction) -> int:
        nonlocal calls
        age = t.get(ages, "Ada", 0)
        calls += 1
        if calls == 1:
            ages["Ada"] = 40
        t.put(ages, "Ada", age + 1)
        t.remove(ages, "Bob")
        return t.get(ages, "Ada", 0)

    assert pool.transaction(birthday) == 41 and calls == 2 and ages == {"Ada": 41}


def test_an_exception_ends_a_transaction(pool: outlast.Pool) -> None:
    ages = pool.map("ages", key=str, value=int)
    kept = []

    def fail(t: outlast.Transaction) -> None:
        kept.append(t)
        t.put(ages, "Ada", 36)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        pool.transaction(fail)
    assert not ages
    with pytest.raises(outlast.InvalidError, match="over"):
        kept[0].get(ages, "Ada")
    with pytest.raises(TypeError):
        pool.transaction(lambda t: t.put(ages, 7, 1))  # type: ignore[misc]
