"""Tests the module in a cluster of six servers. Usage: cluster.py NAME SERVER MODULE

Three primaries and their replicas on this machine, with redirection. Loads keys, moves a third of the slots under load
with `redis-cli --cluster reshard`, and some back with `CLUSTER MIGRATESLOTS` where the server has it, and kills primaries
with SIGKILL. What was acknowledged must be there, but for what asynchronous replication may lose: changes of the
second before a kill. Needs Python and redis-cli. The last line is a summary in JSON.
"""

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

from servers import Client, Refused, Server

KEYS = int(os.environ.get("OUTLAST_KEYS", "100000"))
ROUNDS = int(os.environ.get("OUTLAST_ROUNDS", "3"))
SLOTS = int(os.environ.get("OUTLAST_SLOTS", "2731"))
# Keys of the server's own.
LISTS = 200


def slot_of(key):
    """The slot of a key without braces: CRC-16 (XMODEM)."""
    crc = 0
    for byte in key:
        crc ^= byte << 8
        for _ in range(8):
            crc = (crc << 1 ^ 0x1021 if crc & 0x8000 else crc << 1) & 0xFFFF
    return crc % 16384


class Cluster:
    """A client of a cluster, for one thread."""

    def __init__(self, ports):
        self.ports, self.clients, self.owner = list(ports), {}, {}

    def client(self, port):
        if port not in self.clients:
            self.clients[port] = Client(port)
        return self.clients[port]

    def __call__(self, name, key, *words):
        key = key.encode()
        slot, end, asking, port = slot_of(key), time.monotonic() + 60, False, None
        why = None
        while True:
            port = port or self.owner.get(slot) or random.choice(self.ports)
            try:
                client = self.client(port)
                if asking:
                    client("ASKING")
                reply = client(name, key, *words)
                if not asking:
                    self.owner[slot] = port
                return reply
            except Refused as error:
                why = f"{port}: {error}"
                kind, *rest = str(error).split()
                if kind in ("MOVED", "ASK"):
                    port, asking = int(rest[1].split(":")[1]), kind == "ASK"
                    continue
                if kind not in ("TRYAGAIN", "CLUSTERDOWN", "LOADING", "MASTERDOWN"):
                    raise
            except (OSError, ConnectionError) as error:
                why = f"{port}: {error}"
                self.clients.pop(port, None)
                self.owner.pop(slot, None)
            assert time.monotonic() < end, f"{name} {key} is not served: {why}"
            port, asking = None, False
            time.sleep(0.02)


class Load(threading.Thread):
    """Changes keys of its own, and remembers what was acknowledged, and when."""

    def __init__(self, ports, number):
        super().__init__()
        self.cluster, self.number, self.gone = Cluster(ports), number, threading.Event()
        self.made, self.failed = {}, None

    def run(self):
        rng, value = random.Random(self.number), 0
        try:
            while not self.gone.is_set():
                key, value = f"load:{self.number}:{rng.randrange(20_000)}", value + 1
                made = self.made.setdefault(key, [])
                made.append([("h", value) if value % 4 == 0 else value, None])
                if value % 4 == 0:
                    self.cluster("HSET", "h" + key, "f", value)
                else:
                    self.cluster("SET", key, value)
                made[-1][1] = time.monotonic()
        except Exception as error:  # shown by the test
            self.failed = error


def check(load, ports, kills):
    """Returns how many keys are wrong, and how many changes asynchronous replication has lost."""
    wrong = missing = 0
    cluster = Cluster(ports)
    for key, made in load.made.items():
        for is_hash in (False, True):
            own = [(value[1] if is_hash else value, at) for value, at in made if isinstance(value, tuple) == is_hash]
            if not own:
                continue
            found = cluster("HGET", "h" + key, "f") if is_hash else cluster("GET", key)
            values = [value for value, _ in own]
            place = values.index(int(found)) if found is not None and int(found) in values else -1
            if found is not None and place < 0:
                wrong += 1
                print(f"wrong: {key}: {found}, expected one of {values[-3:]}")
                continue
            # What came after it was acknowledged, and is not there.
            lost = [at for _, at in own[place + 1:] if at is not None]
            excused = [at for at in lost if any(-1.0 < at - kill < 0.5 for kill in kills)]
            missing += len(excused)
            if len(excused) < len(lost):
                wrong += 1
                print(f"lost: {key}: {found}, of {values[-3:]}")
    return wrong, missing


def cli(*words, text=None):
    done = subprocess.run(["redis-cli", *map(str, words)], capture_output=True, text=True, timeout=1800, input=text)
    assert done.returncode == 0 and "[ERR]" not in done.stdout, done.stdout[-2000:] + done.stderr[-500:]
    return done.stdout


def nodes(port):
    """Each node's port, id, flags and slots, as one node sees them."""
    lines = Client(port)("CLUSTER", "NODES").decode().splitlines()
    rows = [line.split() for line in lines]
    return {int(row[1].split("@")[0].split(":")[1]): (row[0], row[2], row[3], row[8:]) for row in rows}


def settled(ports):
    """Waits until all nodes agree, and all slots are served."""
    end = time.monotonic() + 90
    while True:
        try:
            infos = [Client(port)("CLUSTER", "INFO") for port in ports]
            fine = all(b"cluster_state:ok" in info and b"cluster_slots_ok:16384" in info for info in infos)
            links = [Client(port)("INFO", "replication") for port in ports]
            fine = fine and all(b"role:master" in link or b"master_link_status:up" in link for link in links)
            seen = [nodes(port) for port in ports]
            owners = [sorted((row[0], *row[3]) for row in rows.values() if row[3]) for rows in seen]
            fine = fine and all(owner == owners[0] for owner in owners)
            if fine and not any("fail" in row[1] for row in seen[0].values()):
                return
        except (OSError, Refused):
            pass
        assert time.monotonic() < end, "the cluster does not settle"
        time.sleep(0.1)


def primaries(port):
    return [of for of, (_, flags, _, slots) in nodes(port).items() if "master" in flags and slots]


def migrate(source, target, first, last, cancel=False):
    """Moves slots at once, or begins to. Returns whether they have moved."""
    client, name = Client(source), nodes(source)[target][0]
    client("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", first, last, "NODE", name)
    end, cancelled = time.monotonic() + 120, False
    while True:
        # The newest one comes first.
        job = client("CLUSTER", "GETSLOTMIGRATIONS")[0]
        job = dict(zip(job[::2], job[1::2]))
        state = job[b"state"]
        if state in (b"success", b"failed", b"cancelled"):
            assert state == (b"cancelled" if cancelled else b"success"), job
            return state == b"success"
        if cancel and not cancelled and state in (b"snapshotting", b"replicating"):
            client("CLUSTER", "CANCELSLOTMIGRATIONS")
            cancelled = True
        assert time.monotonic() < end, f"the slots do not move: {job}"
        time.sleep(0.001)


def has_migration(port):
    """Whether a server can move slots at once."""
    try:
        return Client(port)("CLUSTER", "GETSLOTMIGRATIONS") == []
    except Refused:
        return False


def make_servers(program, module, directory, count, timeout):
    """Servers for a cluster, by their ports."""
    servers = {}
    while len(servers) < count:
        place = os.path.join(directory, str(len(servers)))
        os.makedirs(place, exist_ok=True)
        arguments = ["--cluster-enabled", "yes", "--cluster-node-timeout", timeout, "--repl-diskless-sync-delay", "0"]
        server = Server(program, module, place, "redirect", "yes", "survive", "process-death", arguments=arguments)
        if server.port < 55_000:
            servers[server.port] = server
    return servers


def interrupted(program, module, directory, keys=30_000):
    """Kills the server to which slots move at once, changes what it has got, and moves them again. Returns how many
    keys are wrong then."""
    servers = make_servers(program, module, directory, 3, "15000")
    ports = list(servers)
    try:
        for server in servers.values():
            server.start()
        cli("--cluster", "create", *(f"127.0.0.1:{port}" for port in ports), "--cluster-yes")
        settled(ports)
        if not has_migration(ports[0]):
            return 0
        cluster = Cluster(ports)
        for number in range(keys):
            cluster("SET", f"k:{number}", number)
        first, second, _ = primaries(ports[0])
        low, high = map(int, nodes(first)[first][3][0].split("-"))
        # It keeps a slot, or it would become a replica.
        client, high = Client(first), high - 1
        before = Client(second)("OL.DBSIZE")
        client("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", low, high, "NODE", nodes(first)[second][0])
        end = time.monotonic() + 60
        while Client(second)("OL.DBSIZE") < before + 500:
            assert time.monotonic() < end, "the slots do not come"
        servers[second].kill()
        gone = {number for number in range(0, keys, 2) if low <= slot_of(f"k:{number}".encode()) <= high}
        for number in gone:
            assert client("DEL", f"k:{number}") == 1, "the slots have moved already"
        servers[second].start()
        settled(ports)
        migrate(first, second, low, high)
        settled(ports)
        cluster = Cluster(ports)
        expected = [None if number in gone else str(number).encode() for number in range(keys)]
        wrong = sum(cluster("GET", f"k:{number}") != value for number, value in enumerate(expected))
        total = sum(Client(port)("DBSIZE") for port in ports)
        assert total == keys - len(gone), f"{total} keys, expected {keys - len(gone)}"
        print(f"ok: a move was interrupted by a kill and made again: {wrong} wrong")
        return wrong
    finally:
        for server in servers.values():
            if server.process and server.process.poll() is None:
                server.kill()


def run(program, module, directory):
    servers = make_servers(program, module, directory, 6, "2000")
    ports = list(servers)
    loads = []
    try:
        for server in servers.values():
            server.start()
        cli("--cluster", "create", *(f"127.0.0.1:{port}" for port in ports), "--cluster-replicas", 1, "--cluster-yes")
        settled(ports)
        cluster = Cluster(ports)
        for number in range(KEYS):
            cluster("SET", f"first:{number}", number)
        cluster("HSET", "{a}large", *(word for n in range(2000) for word in (f"f{n}", n)))
        assert cluster("COPY", "{a}large", "{a}copy") == 1
        for number in range(LISTS):
            cluster("RPUSH", f"list:{number}", number)
        try:
            raise AssertionError(cluster("COPY", "a", "b"))
        except Refused as error:
            assert "CROSSSLOT" in str(error), error
        print(f"ok: {KEYS} keys")

        def stop_loads():
            for load in loads:
                load.gone.set()
            for load in loads:
                load.join()
                assert load.failed is None, load.failed

        # Under load, a third of all slots goes from two primaries to the third one.
        loads = [Load(ports, number) for number in range(2)]
        for load in loads:
            load.start()
        first, second, third = primaries(ports[0])
        for source in (second, third):
            ids = nodes(ports[0])
            cli("--cluster", "reshard", f"127.0.0.1:{first}", "--cluster-from", ids[source][0], "--cluster-to",
                ids[first][0], "--cluster-slots", SLOTS, "--cluster-yes")
            settled(ports)
        moved = 2 * SLOTS
        if has_migration(first):
            # Part of what it had from the beginning, of which the first keys are a part.
            low, high = map(int, nodes(first)[first][3][0].split("-"))
            high = min(high, low + SLOTS)
            if migrate(first, second, low, high, cancel=True):
                print("the move ended before it was cancelled")
            else:
                settled(ports)
                keys = Client(second)("OL.KEYS", "*")
                left = [key for key in keys if key[:1] != b"{" and low <= slot_of(key) <= high]
                assert not left, f"a move that was cancelled has left {len(left)} keys"
                migrate(first, second, low, high)
            settled(ports)
            moved += high - low + 1
        stop_loads()
        settled(ports)
        wrong, missing = 0, 0
        for load in loads:
            more = check(load, ports, [])
            wrong, missing = wrong + more[0], missing + more[1]
        for number in range(KEYS):
            wrong += cluster("GET", f"first:{number}") != str(number).encode()
        assert cluster("HLEN", "{a}large") == cluster("HLEN", "{a}copy") == 2000
        for number in range(LISTS):
            wrong += cluster("LRANGE", f"list:{number}", 0, -1) != [str(number).encode()]
        changes = sum(len(made) for load in loads for made in load.made.values())
        total = sum(Client(port)("DBSIZE") for port in primaries(ports[0]))
        expected = KEYS + LISTS + 2 + sum(len({isinstance(v, tuple) for v, _ in made}) for load in loads for made in load.made.values())
        assert total == expected, f"{total} keys, expected {expected}: a slot has left records behind"
        print(f"ok: {moved} slots moved under {changes} changes: {wrong} wrong, {missing} missing")

        for number in range(ROUNDS):
            loads = [Load(ports, 100 * (number + 1) + thread) for thread in range(2)]
            for load in loads:
                load.start()
            time.sleep(1)
            victim = random.Random(number).choice(primaries(ports[0]))
            servers[victim].kill()
            killed = time.monotonic()
            alive = [port for port in ports if port != victim]
            end = time.monotonic() + 60
            while len(primaries(alive[0])) < 3 or victim in primaries(alive[0]):
                assert time.monotonic() < end, "no failover"
                time.sleep(0.1)
            time.sleep(0.5)
            servers[victim].start()
            time.sleep(0.5)
            stop_loads()
            settled(ports)
            for load in loads:
                more = check(load, ports, [killed])
                wrong, missing = wrong + more[0], missing + more[1]
            changes = sum(len(made) for load in loads for made in load.made.values())
            print(f"ok: kill {number + 1} under {changes} changes: {wrong} wrong, {missing} missing so far")
        for number in range(0, KEYS, 7):
            wrong += cluster("GET", f"first:{number}") != str(number).encode()
        # Each replica has what its primary has.
        for port, (_, flags, _, _) in nodes(ports[0]).items():
            if "master" in flags:
                assert Client(port)("OL.VERIFY").endswith(b"sound")
        return wrong, missing
    finally:
        for load in loads:
            load.gone.set()
        for server in servers.values():
            if server.process and server.process.poll() is None:
                server.process.send_signal(signal.SIGKILL)
                server.process.wait()


def main():
    name, program, module = sys.argv[1:4]
    result = {"event": "cluster", "server": name, "cluster_rounds": ROUNDS, "wrong": None, "missing": None}
    if shutil.which("redis-cli") is None:
        print("skipped: there is no redis-cli here")
        print(json.dumps({**result, "cluster_rounds": 0}))
        return
    directory = tempfile.mkdtemp(prefix="outlast-cluster-")
    try:
        wrong = interrupted(program, module, os.path.join(directory, "interrupted"))
        result["wrong"], result["missing"] = run(program, module, directory)
        result["wrong"] += wrong
    finally:
        if result["wrong"] is None and os.environ.get("OUTLAST_KEEP"):
            print(f"kept: {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)
    print(json.dumps(result))
    sys.exit(result["wrong"] != 0)


if __name__ == "__main__":
    main()
