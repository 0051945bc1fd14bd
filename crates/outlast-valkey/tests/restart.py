"""Kills servers under load, and starts them again. Usage: restart.py NAME SERVER MODULE

For the server's own data without persistence, with snapshots, and with a log that is written each second or at each
command, and for the module's with a pool that survives the process's death or a power loss: loads a number of keys,
goes on writing numbers from one client and kills the server, and starts it again. Prints sets a second (50 clients that
send 16 at a time, and one client that waits for each reply), the memory of the server and of the children that save,
how long the first reply after the restart took, and how many of the acknowledged writes are lost. Before that, prints
how long SETs take that are sent at a steady rate while the server saves (for a log: rewrites it) again and again.
OUTLAST_KEYS sets the number of keys, OUTLAST_ROUNDS how often each is killed, OUTLAST_SECONDS for how long SETs are
timed, OUTLAST_SYSTEMS which of the six are run. The last line is a summary in JSON.
"""

import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import threading
import time

from servers import Client, Refused, Server

KEYS = int(os.environ.get("OUTLAST_KEYS", "1000000"))
ROUNDS = int(os.environ.get("OUTLAST_ROUNDS", "3"))
SECONDS = float(os.environ.get("OUTLAST_SECONDS", "20"))
RATE = 2_000
VALUE = b"v" * 100
SAVES = {"snapshot": "BGSAVE", "everysec": "BGREWRITEAOF", "always": "BGREWRITEAOF"}
SYSTEMS = {
    "memory": [],
    "snapshot": ["--save", "10", "1"],
    "everysec": ["--appendonly", "yes", "--appendfsync", "everysec"],
    "always": ["--appendonly", "yes", "--appendfsync", "always"],
    "process-death": ["redirect", "yes", "survive", "process-death"],
    "power-loss": ["redirect", "yes", "survive", "power-loss"],
}


class Stock(Server):
    """The server without the module, which takes longer to load its data than to reply."""

    def start(self):
        start = time.monotonic()
        super().start()
        client = Client(self.port)
        while True:
            try:
                client("GET", "number")
                return time.monotonic() - start
            except Refused:
                time.sleep(0.002)


def resident(process):
    """The bytes of a process and of its children that no other process shares, or that it shares with these."""
    total = 0
    with open(f"/proc/{process}/task/{process}/children") as file:
        processes = [process, *map(int, file.read().split())]
    for number in processes:
        try:
            with open(f"/proc/{number}/smaps_rollup") as file:
                total += sum(int(line.split()[1]) for line in file if line.startswith("Pss:"))
        except (FileNotFoundError, ProcessLookupError):
            pass
    return total << 10


class Watch(threading.Thread):
    """Notes the greatest memory of a server and its children."""

    def __init__(self, server):
        super().__init__()
        self.server, self.most, self.ends = server, 0, threading.Event()
        self.start()

    def run(self):
        while not self.ends.wait(0.1):
            self.most = max(self.most, resident(self.server.process.pid))

    def end(self):
        self.ends.set()
        self.join()
        return self.most


def load(server):
    """Sets all keys. Returns sets a second."""
    start = time.monotonic()

    def part(first):
        client = Client(server.port)
        for at in range(first, KEYS, 50 * 16):
            numbers = range(at, min(at + 16, KEYS))
            for number in numbers:
                client.send("SET", f"key:{number:012}", VALUE)
            for _ in numbers:
                assert client.read() == b"OK"

    threads = [threading.Thread(target=part, args=(16 * number,)) for number in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return KEYS / (time.monotonic() - start)


def save(server, system):
    """Lets the server write what it writes now and then."""
    client = Client(server.port)
    if system not in SAVES:
        return
    try:
        client(SAVES[system])
    except Refused as error:
        # It has begun by itself.
        assert "in progress" in str(error), error
    while b"rdb_bgsave_in_progress:1" in (info := client("INFO", "persistence")) or b"aof_rewrite_in_progress:1" in info:
        time.sleep(0.1)


def latencies(server, system):
    """Returns the median, the 99.9th percentile and the maximum of the times of SETs, in ms, while the server saves, and
    how often it does. A SET that cannot be sent in time, because the one before is late, is late, too."""
    ends, saves = threading.Event(), []

    def go_on_saving():
        while system in SAVES and not ends.is_set():
            save(server, system)
            saves.append(system)

    saving = threading.Thread(target=go_on_saving)
    saving.start()
    client, rng, times = Client(server.port), random.Random(1), []
    due = start = time.monotonic()
    while due < start + SECONDS:
        if (early := due - time.monotonic()) > 0:
            time.sleep(early)
        sent = time.monotonic() if early > 0 else due
        assert client("SET", f"key:{rng.randrange(KEYS):012}", VALUE) == b"OK"
        times.append(time.monotonic() - sent)
        due += 1 / RATE
    ends.set()
    saving.join()
    times.sort()
    return *(round(1e3 * times[int(share * (len(times) - 1))], 2) for share in (0.5, 0.999, 1)), len(saves)


def kill(server):
    """Kills the server while a client counts. Returns writes a second, how long the restart took, and what is lost."""
    client, written = Client(server.port), 0
    start = time.monotonic()
    threading.Timer(2.5, server.kill).start()
    try:
        while True:
            assert client("SET", "number", written + 1) == b"OK"
            written += 1
    except (OSError, ConnectionError):
        rate = written / (time.monotonic() - start)
    server.process.wait()
    seconds = server.start()
    found = int(Client(server.port)("GET", "number") or 0)
    return rate, seconds, max(written - found, 0)


def main():
    name, program, module = sys.argv[1:]
    rows = {}
    for system in os.environ.get("OUTLAST_SYSTEMS", ",".join(SYSTEMS)).split(","):
        settings = SYSTEMS[system]
        place = tempfile.mkdtemp(dir=os.environ.get("OUTLAST_DIR"))
        if settings and not settings[0].startswith("--"):
            server = Server(program, module, place, *settings)
        else:
            server = Stock(program, None, place, arguments=settings)
        try:
            server.start()
            rate, memory = load(server), resident(server.process.pid)
            watch = Watch(server)
            save(server, system)
            peak = watch.end() or memory
            median, most, maximum, saves = latencies(server, system)
            killed = [kill(server) for _ in range(ROUNDS)]
            keys = Client(server.port)("DBSIZE")
        finally:
            server.kill()
            shutil.rmtree(place, ignore_errors=True)
        rows[system] = {
            "sets": round(rate), "sets_alone": round(statistics.median(one for one, _, _ in killed)),
            "set_ms": median, "set_999_ms": most, "set_max_ms": maximum, "saves": saves,
            "memory_mib": memory >> 20, "peak_mib": max(peak, memory) >> 20,
            "restart_ms": round(1e3 * statistics.median(seconds for _, seconds, _ in killed), 1),
            "lost_writes": max(lost for _, _, lost in killed), "lost_keys": max(KEYS + 1 - keys, 0),
        }
        print(f"{system:>14} " + " ".join(f"{key} {value:>9}" for key, value in rows[system].items()), flush=True)
    print(json.dumps({"event": "restart", "server": name, "keys": KEYS, "rows": rows}))


if __name__ == "__main__":
    main()
