"""Tests of what the module and the server do beside each other: keys of one name, watched keys, slots, backups, full
pools and disks. Called by servers.py."""

import contextlib
import os
import shutil
import subprocess
import time

from harness import Client, Server, free_port, refused


def together(server):
    """Names that are not text, clients that watch, and commands of the server's own with several keys."""
    client, other = Client(server.port), Client(server.port)
    client("FLUSHALL")
    client("RPUSH", b"\xff\0list", 1)
    assert client("KEYS", "*") == [b"\xff\0list"] and client("RANDOMKEY") == b"\xff\0list"
    client("FLUSHALL")

    for change in [("SET", "a", 2), ("DEL", "a"), ("INCR", "a"), ("MSET", "x", 1, "a", 2), ("PEXPIRE", "a", 100_000),
                   ("COPY", "b", "a", "REPLACE"), ("RENAME", "b", "a"), ("EVAL", "return redis.call('SET', 'a', 2)", 0)]:
        client("MSET", "a", 1, "b", 3)
        client("WATCH", "a")
        other(*change)
        client("MULTI")
        client("SET", "a", "mine")
        assert client("EXEC") is None, f"{change} was not noticed"
    client("WATCH", "a")
    other("GET", "a")
    other("SET", "b", 1)
    client("MULTI")
    client("SET", "a", "mine")
    assert client("EXEC") == [b"OK"]
    client("FLUSHALL")

    # `ours` is a string of ours, the others are the server's own.
    client("SET", "ours", 1)
    client("RPUSH", "list", 3, 1, 2)
    client("SADD", "set", 1, 2)
    client("ZADD", "sorted", 1, "a")
    client("GEOADD", "places", 1, 1, "p")
    client("PFADD", "guess", 1)
    client("XADD", "stream", "1-1", "f", "v")
    dump = client("DUMP", "list")
    for call in ["SUNIONSTORE ours set", "SINTERSTORE ours set", "SDIFFSTORE ours set", "SMOVE set ours 1", "SUNION set ours",
                 "LMOVE list ours LEFT LEFT", "RPOPLPUSH list ours", "BLMOVE list ours LEFT LEFT 1", "BRPOPLPUSH list ours 1",
                 "SORT list STORE ours", "BITOP NOT ours none", "PFMERGE ours guess", "PFCOUNT guess ours",
                 "ZUNIONSTORE ours 1 sorted", "ZUNIONSTORE out 2 sorted ours", "ZINTERSTORE ours 1 sorted",
                 "ZDIFFSTORE ours 1 sorted", "ZRANGESTORE ours sorted 0 -1", "GEORADIUS places 1 1 9 km STORE ours",
                 "GEORADIUSBYMEMBER places p 9 km STORE ours", "GEOSEARCHSTORE ours places FROMMEMBER p BYRADIUS 9 km",
                 "XGROUP CREATE ours g $ MKSTREAM", "XREAD STREAMS stream ours 0 0", "BLPOP none ours 1",
                 "LMPOP 2 none ours LEFT", "ZMPOP 1 ours MIN", "XADD ours * f v", "RESTORE ours"]:
        words = [*call.split(), 0, dump, "REPLACE"] if call.startswith("RESTORE") else call.split()
        refused(client, "WRONGTYPE", *words)
        refused(client, "WRONGTYPE", "EVAL", "return redis.call(unpack(ARGV))", 0, *words)
    assert client("GET", "ours") == b"1" and client("DBSIZE") == 7
    assert client("LRANGE", "list", 0, -1) == [b"3", b"1", b"2"]
    # What was not there a moment ago may be ours now, and the other way round.
    for name in ("new", "other"):
        client("LRANGE", name, 0, -1)
        client("COPY", "ours", name)
        refused(client, "WRONGTYPE", "LMOVE", "list", name, "LEFT", "LEFT")
        client("DEL", name)
        client("LMOVE", "list", name, "LEFT", "LEFT")
        client("LMOVE", name, "list", "LEFT", "LEFT")
    # With keys of its own, they are the server's.
    assert client("SUNIONSTORE", "out", "set") == 2 and client("SORT", "list", "STORE", "out") == 3
    assert client("LMOVE", "list", "out", "LEFT", "LEFT") == b"3" and client("LLEN", "out") == 4
    client("FLUSHALL")


def backups(server, copy):
    """A backup replaces nothing, or another pool if that is wanted."""
    client = Client(server.port)
    refused(client, "there is a file", "OL.BACKUP", copy)
    refused(client, "syntax", "OL.BACKUP", copy, "REPLACED")
    assert client("OL.BACKUP", copy, "REPLACE") == b"OK"
    text = copy + ".text"
    with open(text, "w") as file:
        file.write("no pool" * 1000)
    refused(client, "there is a file", "OL.BACKUP", text)
    refused(client, "not a pool", "OL.BACKUP", text, "REPLACE")
    with open(text) as file:
        assert file.read() == "no pool" * 1000
    os.remove(text)
    refused(client, "", "OL.BACKUP", server.pool, "REPLACE")
    journal = server.pool + ".journal"
    refused(client, "", "OL.BACKUP", journal, "REPLACE")
    if os.path.isdir(journal):
        refused(client, "journal", "OL.BACKUP", os.path.join(journal, "copy"))
        refused(client, "journal", "OL.BACKUP", os.path.join(journal, os.listdir(journal)[0]), "REPLACE")
    assert client("OL.VERIFY").endswith(b"sound")


def large_values(server):
    """A large value gets in, or is refused and nothing is evicted. Large ones take the place of large ones."""
    client = Client(server.port)

    def evicted():
        lines = client("INFO", "outlast").decode().splitlines()
        return next(int(line.split(":")[1]) for line in lines if "evicted:" in line)

    for number in range(150_000):
        client.send("OL.SET", f"k{number}", bytes(100))
        assert client.read() == b"OK"
    done, refusals = 0, 0
    for number in range(10):
        before, keys = evicted(), client("OL.DBSIZE")
        client.send("OL.SET", f"big{number}", bytes(1_000_000))
        if client.read_or_error() == b"OK":
            done += 1
            assert client("OL.STRLEN", f"big{number}") == 1_000_000
        else:
            refusals += 1
            assert evicted() - before <= 1 and client("OL.DBSIZE") >= keys - 1, "keys were evicted in vain"
        assert evicted() - before <= 16
    assert done > 0 and done + refusals == 10
    assert client("OL.DBSIZE") > 50_000, "small keys went for large ones"
    refused(client, "OOM", "OL.SETRANGE", "k149999", 5_000_000, "x")
    assert client("OL.DBSIZE") > 50_000
    # A pool of large values alone.
    client("OL.FLUSHALL")
    for number in range(100):
        assert client("OL.SET", f"big{number}", bytes(400_000 + number * 1000)) == b"OK", number
    assert client("OL.GET", "big99") == bytes(499_000) and client("OL.DBSIZE") > 20, client("OL.DBSIZE")
    assert client("OL.VERIFY").endswith(b"sound")


@contextlib.contextmanager
def cluster_of(program, module, directory, name, count):
    """Servers of a cluster, the first of which has all slots. They are killed at the end."""
    servers = []
    try:
        for number in range(count):
            place = os.path.join(directory, f"{name}-{number}")
            os.mkdir(place)
            server = Server(program, module, place, "redirect", "yes", "survive", "process-death",
                            arguments=["--cluster-enabled", "yes"])
            # The servers of a cluster also use the port that is 10,000 higher.
            while server.port > 55_000:
                server.port = free_port()
            servers.append(server)
            server.start()
        for server in servers[1:]:
            Client(server.port)("CLUSTER", "MEET", "127.0.0.1", servers[0].port)
        Client(servers[0].port)("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        until(lambda: is_ok(servers), "the cluster is not ready")
        yield servers
    finally:
        kill_all(servers)


def until(holds, what):
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end, what() if callable(what) else what
        time.sleep(0.05)


def is_ok(servers):
    return all(b"cluster_state:ok" in Client(server.port)("CLUSTER", "INFO") for server in servers)


def kill_all(servers):
    for server in servers:
        if server.process and server.process.poll() is None:
            server.kill()


def scripts_in_a_move(program, module, directory):
    """Scripts wait while the records of their slot are on their way, and change them once they are there."""
    with cluster_of(program, module, directory, "move", 2) as servers:
        first, second = (Client(server.port) for server in servers)
        first("SET", "a", 1)
        slot = first("CLUSTER", "KEYSLOT", "a")
        [stub] = first("CLUSTER", "GETKEYSINSLOT", slot, 10)
        ids = [client("CLUSTER", "MYID") for client in (first, second)]
        second("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[0])
        first("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[1])
        for script in ["return redis.call('GET', KEYS[1])", "return redis.call('INCR', KEYS[1])"]:
            refused(first, "ASK", "EVAL", script, 1, "a")
            second("ASKING")
            refused(second, "TRYAGAIN", "EVAL", script, 1, "a")
        assert first("GET", "a") == b"1"
        assert first("MIGRATE", "127.0.0.1", servers[1].port, stub, 0, 10_000) == b"OK"
        second("ASKING")
        assert second("EVAL", "return redis.call('INCR', KEYS[1])", 1, "a") == 2
        for client in (second, first):
            client("CLUSTER", "SETSLOT", slot, "NODE", ids[1])
        assert second("EVAL", "return redis.call('GET', KEYS[1])", 1, "a") == b"2"
        assert first("OL.DBSIZE") == 0


def added_slots(program, module, directory):
    """Slots that are added to a server that has records of them get their stubs, and so can move."""
    with cluster_of(program, module, directory, "added", 2) as servers:
        first, second = (Client(server.port) for server in servers)
        slot = first("CLUSTER", "KEYSLOT", "a")
        # The second server comes back with a pool that has a record of a slot of the first one.
        servers[1].kill()
        alone = Server(program, module, servers[1].directory, "redirect", "yes", "survive", "process-death")
        alone.start()
        Client(alone.port)("SET", "a", "old")
        alone.kill()
        servers[1].start()
        second = Client(servers[1].port)
        until(lambda: is_ok(servers[1:]), "the second server does not come back")
        time.sleep(0.3)
        assert second("CLUSTER", "COUNTKEYSINSLOT", slot) == 0
        for client in (first, second):
            client("CLUSTER", "DELSLOTS", slot)
        second("CLUSTER", "ADDSLOTS", slot)
        until(lambda: second("CLUSTER", "COUNTKEYSINSLOT", slot) == 1, "the slot has no stub")
        until(lambda: is_ok(servers), "the cluster is not ready")
        assert second("GET", "a") == b"old"


def full_disk(program, module, directory):
    """A journal that cannot be written is said to fail, until it can be written again."""
    place, image = os.path.join(directory, "disk"), os.path.join(directory, "image")
    os.mkdir(place)
    with open(image, "wb") as file:
        file.truncate(192 << 20)
    made = subprocess.run(["mkfs.ext4", "-q", "-F", image], capture_output=True, check=False)
    if made.returncode or subprocess.run(["mount", "-o", "loop", image, place], capture_output=True, check=False).returncode:
        print("skipped: no file system can be mounted here")
        return
    server = Server(program, module, place)
    try:
        filler = os.path.join(place, "filler")
        with open(filler, "wb") as file:
            file.write(bytes(128 << 20))
        server.start()
        client, made = Client(server.port), 0

        def fails():
            return b"outlast_journal_fails:1" in client("INFO", "outlast")

        def waits():
            client.send("OL.WAITDURABLE")
            return client.read_or_error() == b"OK"

        assert not fails() and waits()
        for number in range(20_000):
            client.send("OL.SET", f"k{number}", bytes(10_000))
            if client.read_or_error() != b"OK":
                break
            made += 1
        assert made > 100, made
        # Changes of what is there need little room in the pool, but in the journal. If the pool has to grow for one, it
        # is refused.
        rounds = 0
        while waits():
            for number in range(made):
                client.send("OL.SET", f"k{number}", bytes(10_000))
                reply = client.read_or_error()
                assert reply == b"OK" or "disk full" in str(reply), reply
            rounds += 1
            assert rounds < 100, "the disk does not become full"
        assert fails()
        # Then there is room for pool and journal, and more.
        os.remove(filler)
        until(waits, lambda: f"the journal does not go on: {client('INFO', 'outlast')}; {shutil.disk_usage(place)}")
        assert not fails()
        server.kill()
        server.start()
        client = Client(server.port)
        assert client("OL.DBSIZE") == made and client("OL.VERIFY").endswith(b"sound")
    finally:
        kill_all([server])
        subprocess.run(["umount", place], check=False)
