"""Tests the module in a real server. Usage: servers.py NAME SERVER MODULE

Starts SERVER (Valkey or Redis) with MODULE, calls commands, kills it with SIGKILL under load and looks whether what it
had acknowledged is there. Needs nothing but Python. The last line is a summary in JSON.
"""

import glob
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import beside
from harness import Client, Refused, Server, Steps, free_port, refused

def commands(server):
    """The commands reply as the server's own do."""
    client = Client(server.port)
    assert client("OL.SET", "a", 1) == b"OK"
    assert client("ol.get", "a") == b"1"
    assert client("OL.INCR", "a") == 2
    assert client("OL.HSET", "h", "f", "v", "g", "w") == 2
    assert sorted(client("OL.HGETALL", "h")) == [b"f", b"g", b"v", b"w"]
    assert client("OL.MGET", "a", "x", "h") == [b"2", None, None]
    assert client("OL.SET", "t", "x", "PX", 100_000) == b"OK"
    assert 99 <= client("OL.TTL", "t") <= 100
    assert client("OL.COPY", "h", "a") == 0 and client("OL.COPY", "h", "a", "REPLACE") == 1
    assert client("OL.HGET", "a", "f") == b"v" and client("OL.TYPE", "a") == b"hash"
    assert client("OL.RENAME", "a", "i") == b"OK" and client("OL.EXISTS", "a") == 0
    assert client("OL.SET", "a", 2) == b"OK"
    refused(client, "source and destination objects are the same", "OL.COPY", "a", "a")
    assert client("OL.WAITDURABLE") == b"OK"
    assert client("OL.VERIFY").endswith(b"sound")
    copy = os.path.join(server.directory, "copy.pool")
    if os.path.exists(copy):
        os.remove(copy)
    assert client("OL.BACKUP", copy) == b"OK" and os.path.getsize(copy) > 0
    beside.backups(server, copy)
    refused(client, "wrong number of arguments", "OL.BACKUP")
    refused(client, "WRONGTYPE", "OL.GET", "h")
    refused(client, "wrong number of arguments", "OL.GET")
    refused(client, "not an integer", "OL.INCRBY", "a", "x")
    assert client("OL.MSET", "x", 1, "y", 2) == b"OK"
    client("MULTI")
    client("OL.SET", "m", 1)
    client("OL.INCR", "m")
    client("OL.WAITDURABLE")
    assert client("EXEC") == [b"OK", 2, b"OK"]
    assert client("EVAL", "return redis.call('OL.GET', KEYS[1])", 1, "m") == b"2"
    info = client("INFO", "outlast")
    assert b"outlast_changes" in info, info


def evicts(server):
    """A full pool drops what was used the longest ago, and never refuses a change."""
    client = Client(server.port)
    value = random.randbytes(1_000)
    for n in range(60_000):
        client.send("OL.SET", f"key:{n}", value)
        client.send("OL.GET", "hot")
        assert client.read() == b"OK"
        hot = client.read()
        if n == 0:
            assert hot is None and client("OL.SET", "hot", 1) == b"OK"
        else:
            assert hot == b"1", f"a key in use was evicted after {n} others"
    section = client("INFO", "outlast").decode()
    evicted = next(int(line.split(":")[1]) for line in section.splitlines() if "evicted:" in line)
    left = client("OL.DBSIZE")
    assert evicted > 0 and left + evicted == 60_001, f"{left} keys, {evicted} evicted"
    assert os.path.getsize(os.path.join(server.directory, "pool")) <= 33 << 20
    # A value that never fits is refused.
    refused(client, "OOM", "OL.SET", "big", bytes(40 << 20))
    assert client("OL.VERIFY").endswith(b"sound")


def redirected(server):
    """The server's own commands use the pool, and its other types stay with it."""
    client = Client(server.port)
    client("FLUSHALL")
    assert client("SET", "a", 1) == b"OK" and client("OL.GET", "a") == b"1"
    assert client("INCR", "a") == 2
    assert client("RPUSH", "list", 1, 2) == 2
    assert client("EXISTS", "a", "list", "x") == 2
    assert client("TYPE", "list") == b"list" and client("TYPE", "a") == b"string"
    assert sorted(client("KEYS", "*")) == [b"a", b"list"]
    assert client("DBSIZE") == 2
    assert client("EXPIRE", "list", 100) == 1 and client("TTL", "list") == 100
    moves(client)
    assert client("DEL", "a", "list") == 2
    assert client("DBSIZE") == 0


def moves(client):
    """RENAME, RENAMENX and COPY between keys of ours (here: a) and of the server's (list)."""
    value = client("GET", "a")
    # Of what is not there, nothing takes the place of anything.
    refused(client, "no such key", "RENAME", "x", "list")
    assert client("COPY", "x", "list", "REPLACE") == 0
    refused(client, "wrong number of arguments", "COPY", "list")
    refused(client, "syntax", "COPY", "a", "list", "REPLACED")
    refused(client, "out of range", "COPY", "a", "list", "DB", 1, "REPLACE")
    assert client("LLEN", "list") == 2
    # From ours to the server's.
    assert client("COPY", "a", "list") == 0 and client("RENAMENX", "a", "list") == 0
    assert client("COPY", "list", "copy") == 1 and client("COPY", "a", "copy", "REPLACE") == 1
    assert client("TYPE", "copy") == b"string" and client("GET", "copy") == value
    # From the server's to ours.
    assert client("COPY", "list", "a") == 0 and client("RENAMENX", "list", "a") == 0
    assert client("COPY", "list", "copy", "REPLACE") == 1 and client("TYPE", "copy") == b"list"
    assert client("GET", "a") == value and client("LLEN", "list") == 2
    assert client("RENAME", "a", "copy") == b"OK" and client("GET", "copy") == value
    assert client("RENAME", "list", "a") == b"OK" and client("LRANGE", "a", 0, -1) == [b"1", b"2"]
    assert client("RENAME", "a", "list") == b"OK" and client("RENAME", "copy", "a") == b"OK"
    assert client("DBSIZE") == 2


def anonymous(server):
    """The memory of a server that is not a part of a file, in bytes."""
    with open(f"/proc/{server.process.pid}/smaps_rollup") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("Anonymous:"))


def fuzz(server, calls):
    """Calls every command with random arguments, also with keys of the server's own. Nothing may be left afterwards."""
    client, rng = Client(server.port), random.Random(1)
    words = ["a", "h", "list", "", 0, -1, 1, 2**63 - 1, -(2**63), "x", "EX", "PX", "NX", "XX", "GET", "KEEPTTL", "MATCH"]
    words += ["COUNT", "*", "[", b"\xff\0\r\n", "1e400", "nan", 0.5, "GT", "LT", "PERSIST", 2**64 - 1, "a" * 5000]
    words += ["REPLACE", "DB", "LIMIT", "WITHVALUES", "-", "+", "[a", "(b"]
    names = [reply[0] for reply in client("COMMAND") if reply[0].startswith(b"ol.")]
    names = [name for name in names if name not in (b"ol.backup", b"ol.verify", b"ol.waitdurable", b"ol.refused")]
    assert len(names) > 50, names
    if "redirect" in server.settings:
        names = [name.removeprefix(b"ol.") for name in names]
    fine, wrong, sizes = 0, 0, []
    for _ in range(2):
        for name in names:
            for _ in range(calls // 200):
                client.send("RPUSH", "list", 1)
                for _ in range(100):
                    client.send(name, *(rng.choice(words) for _ in range(rng.randrange(7))))
                client.read_or_error()
                for _ in range(100):
                    reply = client.read_or_error()
                    assert "fault of the module" not in str(reply), name
                    if isinstance(reply, Refused):
                        wrong += 1
                    else:
                        fine += 1
        client("FLUSHALL")
        client("OL.FLUSHALL")
        sizes.append(anonymous(server))
    assert fine > 1000 and wrong > 1000, (fine, wrong)
    assert sizes[1] < sizes[0] + (8 << 20), f"it takes more and more memory: {sizes}"
    assert client("OL.VERIFY").endswith(b"sound")


def kills(server, rounds):
    """Kills the server under load. Returns how many acknowledged changes were lost, and the restarts' times."""
    lost, times, known = 0, [], {}
    Client(server.port)("OL.FLUSHALL")
    for round_number in range(rounds):
        acknowledged, gone = [dict() for _ in range(4)], threading.Event()

        def work(number, into):
            rng = random.Random(1000 * round_number + number)
            try:
                client = Client(server.port)
                while not gone.is_set():
                    batch = [(f"{number}:{rng.randrange(2000)}", rng.randrange(10**9)) for _ in range(rng.choice([1, 20]))]
                    for key, value in batch:
                        into[key] = (into[key][0] if key in into else known.get(key), value, False)
                        if value % 5 == 0:
                            client.send("OL.DEL", key)
                        elif value % 3 == 0:
                            client.send("OL.HSET", "hash" + key, "f", value)
                        else:
                            client.send("OL.SET", key, value)
                    for key, value in batch:
                        client.read()
                        into[key] = (value, value, True)
            except (OSError, ConnectionError):
                pass

        threads = [threading.Thread(target=work, args=(n, acknowledged[n])) for n in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(random.Random(round_number).uniform(0.05, 0.4))
        server.kill()
        gone.set()
        for thread in threads:
            thread.join()
        times.append(server.start())
        client = Client(server.port)
        for into in acknowledged:
            for key, (before, after, _) in into.items():
                # A change that was under way may have been made, or not.
                allowed = [state(key, before), state(key, after)]
                found = observe(client, key)
                if not any(is_after(found, one) for one in allowed):
                    lost += 1
                    print(f"lost: {key}: found {found}, expected one of {allowed}")
                known[key] = before if is_after(found, allowed[0]) else after
    assert client("OL.VERIFY").endswith(b"sound")
    return lost, times


def everything(server):
    """All keys of a server, with their values and times."""
    client, found, cursor = Client(server.port), {}, b"0"
    while True:
        cursor, keys = client("OL.SCAN", cursor, "COUNT", 1000)
        for key in keys:
            client.send("OL.TYPE", key)
            client.send("OL.PEXPIRETIME", key)
        replies = [client.read() for _ in range(2 * len(keys))]
        kinds = replies[::2]
        for key, kind in zip(keys, kinds):
            client.send("OL.GET" if kind == b"string" else "OL.HGETALL", key)
        values = [client.read() for _ in keys]
        for key, time_of, value in zip(keys, replies[1::2], values):
            pairs = isinstance(value, list) and sorted(zip(value[::2], value[1::2]))
            found[key] = (pairs or value, time_of)
        if cursor == b"0":
            return found


def is_linked(server):
    try:
        return b"master_link_status:up" in Client(server.port)("INFO", "replication")
    except (OSError, Refused):
        return False


def await_link(server):
    end = time.monotonic() + 60
    while not is_linked(server):
        assert time.monotonic() < end, "the replica does not get its copy"
        time.sleep(0.01)


def equal(primary, replica):
    """Checks that a replica has what its primary has."""
    await_link(replica)
    client = Client(primary.port)
    client("OL.SET", "the last", random.random())
    assert client("WAIT", 1, 30_000) == 1
    ours, theirs = everything(primary), everything(replica)
    differences = [key for key in {*ours, *theirs} if ours.get(key) != theirs.get(key)]
    assert not differences, [(key, ours.get(key), theirs.get(key)) for key in differences[:5]]
    return ours


def write(server, seed, until):
    """Makes random changes, also of a key's type, until an event is set or the server is gone."""
    rng, number = random.Random(seed), 0
    try:
        client = Client(server.port)
        while not until.is_set():
            key, value = f"{seed}:{rng.randrange(3000)}", rng.randrange(10**9)
            change = rng.choice([
                ("OL.SET", key, value), ("OL.SET", key, value, "EX", 100 + value % 100), ("OL.APPEND", key, 1),
                ("OL.DEL", key), ("OL.HSET", key, f"f{value % 10}", value), ("OL.HINCRBY", "h" + key, f"f{value % 10}", 1),
                ("OL.HSET", "h" + key, f"f{value % 10}", value), ("OL.EXPIRE", key, 1000), ("OL.INCR", "i" + key)])
            try:
                client(*change)
            except Refused as error:
                assert "WRONGTYPE" in str(error), error
            number += 1
    except (OSError, ConnectionError):
        pass
    return number


def replicas(name, program, module, directory, diskless):
    """A replica has what its primary has, also after either was killed."""
    def server(number, *arguments):
        place = os.path.join(directory, f"node-{diskless}-{number}")
        os.mkdir(place)
        common = ["--repl-diskless-sync", diskless, "--repl-diskless-sync-delay", 0, "--repl-timeout", 60]
        return Server(program, module, place, arguments=[str(word) for word in [*common, *arguments]])

    primary = server(1)
    primary.start()
    replica = server(2, "--replicaof", "127.0.0.1", primary.port)
    try:
        client = Client(primary.port)
        for n in range(0, 20_000, 100):
            client("OL.MSET", *(word for m in range(n, n + 100) for word in (f"first:{m}", m)))
        client("OL.HSET", "large", *(word for m in range(2000) for word in (f"f{m}", m)))

        def during_changes(what):
            gone = threading.Event()
            threads = [threading.Thread(target=write, args=(primary, seed, gone)) for seed in (1, 2)]
            for thread in threads:
                thread.start()
            time.sleep(0.05)
            what()
            await_link(replica)
            gone.set()
            for thread in threads:
                thread.join()
            return equal(primary, replica)

        before = during_changes(replica.start)
        assert len(before) > 20_000, len(before)
        refused(Client(replica.port), "READONLY", "OL.SET", "a", 1)

        def again():
            replica.kill()
            replica.start()
        during_changes(again)
        # While it loads a copy.
        replica.kill()
        replica.start()
        time.sleep(0.02)
        before = during_changes(again)

        # The primary dies, the replica takes its place, and the old one follows it.
        client = Client(primary.port)
        client("OL.SET", "known", 1)
        assert client("WAIT", 1, 30_000) == 1
        primary.kill()
        Client(replica.port)("REPLICAOF", "NO", "ONE")
        assert Client(replica.port)("OL.GET", "known") == b"1"
        Client(replica.port)("OL.SET", "known", 2)
        primary.arguments += ["--replicaof", "127.0.0.1", str(replica.port)]
        primary.start()
        after = equal(replica, primary)
        assert after.pop(b"known")[0] == b"2"
        for found in (before, after):
            del found[b"the last"]
        assert after == before, "the new primary does not have what the old one had"
        # What a snapshot has of ours is not loaded at a start: it may be older than the pool.
        client = Client(replica.port)
        client("SAVE")
        client("OL.SET", "known", 3)
        replica.kill()
        del replica.arguments[-3:]
        replica.start()
        assert Client(replica.port)("OL.GET", "known") == b"3"
    finally:
        for one in (primary, replica):
            if one.process and one.process.poll() is None:
                one.kill()


def keeps_out_of_the_log(program, module, directory):
    """The server's own log has its own data and none of ours, whether it is there from the start or begun later.

    The snapshot that a log begins with is another matter; what it has of ours is passed over when it is loaded."""
    place = os.path.join(directory, "log")
    os.mkdir(place)
    server = Server(program, module, place, "redirect", "yes", "survive", "process-death")
    kept = {}

    def change(client, when):
        for key, *words in [("set", "SET", 1), ("incr", "INCR"), ("mset", "MSET", 1), ("append", "APPEND", 1)]:
            client(words[0], f"{key}-{when}", *words[1:])
            kept[f"{key}-{when}"] = b"1"
        client("LPUSH", f"list-{when}", 1)
        start = time.monotonic()
        while f"list-{when}".encode() not in (log := read()):
            assert time.monotonic() < start + 10, "the server writes its log"
            time.sleep(0.01)
        assert not [key for key in kept if key.encode() in log], log[-1000:]

    def read():
        files = glob.glob(os.path.join(place, "appendonlydir", "*.incr.aof"))
        return b"".join(open(file, "rb").read() for file in files)

    try:
        server.start()
        client = Client(server.port)
        client("SET", "before", 1)
        client("CONFIG", "SET", "appendonly", "yes")
        change(client, "later")
        # Before the log's first snapshot is complete, a kill loses all of the log.
        while b"aof_rewrite_in_progress:0" not in client("INFO", "persistence") or not os.path.exists(
                os.path.join(place, "appendonlydir", "appendonly.aof.manifest")):
            time.sleep(0.01)
        server.kill()
        server.arguments = ["--appendonly", "yes"]
        server.start()
        client = Client(server.port)
        change(client, "again")
        assert client("LRANGE", "list-later", 0, -1) == [b"1"]
        assert {key: client("GET", key) for key in kept} == kept
    finally:
        if server.process.poll() is None:
            server.kill()


def late_replica(program, module, directory):
    """What has expired before a replica hears of a change of it does not live on there; names change type."""
    place = os.path.join(directory, "late")
    os.mkdir(place)
    primary = Server(program, module, place, "redirect", "yes", "survive", "process-death")
    os.mkdir(place + "-replica")
    replica = Server(program, module, place + "-replica", "redirect", "yes", "survive", "process-death")
    try:
        primary.start()
        replica.start()
        Client(replica.port)("REPLICAOF", "127.0.0.1", primary.port)
        await_link(replica)
        client = Client(primary.port)
        for key in ("set", "append", "float", "bits"):
            client("SET", key, 1, "PX", 700)
        for key in ("hash", "hash-by", "hash-many"):
            client("HSET", key, "f", 1)
            client("PEXPIRE", key, 700)
        client("OL.OSET", "ordered", "f", 1)
        client("PEXPIRE", "ordered", 700)
        assert client("WAIT", 1, 5_000) == 1
        replica.process.send_signal(signal.SIGSTOP)
        assert client("INCR", "set") == 2 and client("APPEND", "append", "x") == 2
        client("INCRBYFLOAT", "float", 0.5)
        client("SETBIT", "bits", 7, 1)
        client("HSET", "hash", "g", 2)
        client("HINCRBY", "hash-by", "f", 2)
        client("HMSET", "hash-many", "f", 2, "g", 3)
        client("OL.OSET", "ordered", "g", 2)
        time.sleep(1)
        replica.process.send_signal(signal.SIGCONT)
        client("SET", "b", 1)
        client("RPUSH", "a", 1)
        client("RENAME", "a", "b")
        client("SET", "c", 1)
        refused(client, "syntax error", "COPY", "b", "c", "REPLACE", "NOTHING")
        assert client("GET", "c") == b"1"
        client("COPY", "b", "c", "REPLACE")
        assert client("WAIT", 1, 5_000) == 1
        for port in (primary.port, replica.port):
            found = Client(port)
            assert sorted(found("KEYS", "*")) == [b"b", b"c"], (port, found("KEYS", "*"))
            assert found("LRANGE", "b", 0, -1) == found("LRANGE", "c", 0, -1) == [b"1"]
    finally:
        for server in (primary, replica):
            if server.process and server.process.poll() is None:
                server.kill()


def scripts_in_a_cluster(program, module, directory):
    """Scripts read and write, also where commands get the stub of their slot."""
    place = os.path.join(directory, "scripts")
    os.mkdir(place)
    server = Server(program, module, place, "redirect", "yes", "survive", "process-death",
                    arguments=["--cluster-enabled", "yes"])
    # The servers of a cluster also use the port that is 10,000 higher.
    while server.port > 55_000:
        server.port = free_port()
    try:
        server.start()
        client = Client(server.port)
        client("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        end = time.monotonic() + 30
        while b"cluster_state:ok" not in client("CLUSTER", "INFO"):
            assert time.monotonic() < end, "the cluster is not ready"
            time.sleep(0.05)
        script = "redis.call('SET', KEYS[1], ARGV[1]) redis.call('OL.APPEND', KEYS[1], 'x') return redis.call('GET', KEYS[1])"
        for number in range(2_000):
            assert client("EVAL", script, 1, f"{{s}}{number % 100}", number) == b"%dx" % number
        assert client("DBSIZE") == 100 and client("OL.VERIFY").endswith(b"sound")
    finally:
        if server.process.poll() is None:
            server.kill()


def state(key, value):
    """What a change leaves: the command that has made it, and its value."""
    if value is None:
        return None
    if value % 5 == 0:
        return ("del", None)
    return ("hash" if value % 3 == 0 else "set", str(value).encode())


def observe(client, key):
    return client("OL.GET", key), client("OL.HGET", "hash" + key, "f")


def is_after(found, change):
    """Whether what was found can be what a change has left."""
    if change is None:
        return found[0] is None
    kind, value = change
    return found[1] == value if kind == "hash" else found[0] == value


def main():
    name, program, module = sys.argv[1:4]
    directory = tempfile.mkdtemp(prefix="outlast-servers-")
    step = Steps(name)
    result = {"lost": None, "restart_ms": None}
    rounds = int(os.environ.get("OUTLAST_KILLS", "20"))

    def killed(server):
        result["lost"], times = kills(server, rounds)
        result["restart_ms"] = round(1000 * sorted(times)[len(times) // 2], 1)
        assert result["lost"] == 0

    def random_calls(server):
        fuzz(server, int(os.environ.get("OUTLAST_CALLS", "10000")))

    def second(server):
        other = subprocess.run(
            [program, "--port", "0", "--loadmodule", module, "path", os.path.join(directory, "plain", "pool")],
            capture_output=True, text=True, timeout=60, cwd=directory)
        assert other.returncode != 0, "two servers on one pool"
        assert "in use" in other.stdout or "lock" in other.stdout.lower(), other.stdout[-500:]

    try:
        for kind, settings, steps in [
            ("plain", [], [("commands", commands), ("two servers on one pool", second),
                           ("random arguments", random_calls),
                           (f"{rounds} kills", killed)]),
            ("redirect", ["redirect", "yes", "survive", "process-death"],
             [("redirection", redirected), ("beside the server's own", beside.together),
              ("random arguments, redirected", random_calls)]),
            ("evict", ["evict", "yes", "max-size", str(32 << 20), "survive", "process-death"], [("eviction", evicts)]),
            ("large", ["evict", "yes", "max-size", str(16 << 20), "survive", "process-death"],
             [("large values among small ones", beside.large_values)]),
            ("durable", ["durable-replies", "yes"], [("commands, every reply durable", commands)]),
        ]:
            place = os.path.join(directory, kind)
            os.mkdir(place)
            server = Server(program, module, place, *settings)
            server.start()
            for what, run in steps:
                step(what, lambda: run(server))
            step(f"the server with {kind} settings stops", server.stop)
            step("and starts again", server.start)
            server.kill()
        step("a replica that is late", lambda: late_replica(program, module, directory))
        step("scripts in a cluster", lambda: scripts_in_a_cluster(program, module, directory))
        step("scripts in a slot that moves", lambda: beside.scripts_in_a_move(program, module, directory))
        step("slots that are added", lambda: beside.added_slots(program, module, directory))
        step("a full disk", lambda: beside.full_disk(program, module, directory))
        step("the server's own log", lambda: keeps_out_of_the_log(program, module, directory))
        for diskless in ("yes", "no"):
            step(f"replicas, diskless {diskless}", lambda: replicas(name, program, module, directory, diskless))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print(json.dumps({"event": "server", "server": name, "passed": step.passed, "failed": step.failed, "kills": rounds,
                      **result}))
    sys.exit(step.failed > 0)


if __name__ == "__main__":
    main()
