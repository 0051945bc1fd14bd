"""Kills servers under load, and starts them again. Usage: restart.py NAME SERVER MODULE

For the server's own data without persistence, with snapshots, and with a log that is written each second or at each
command, and for the module's with a pool that survives the process's death or a power loss: loads a number of keys,
goes on writing numbers from one client and kills the server, and starts it again. Prints sets a second (50 clients that
send 16 at a time, and one client that waits for each reply), the memory of the server and of the children that save,
how long the first reply after the restart took, and how many of the acknowledged writes are lost. OUTLAST_KEYS sets
the number of keys, OUTLAST_ROUNDS how often each is killed. The last line is a summary in JSON.
"""

import json
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time

from servers import Client, Refused, Server

KEYS = int(os.environ.get("OUTLAST_KEYS", "1000000"))
ROUNDS = int(os.environ.get("OUTLAST_ROUNDS", "3"))
VALUE = b"v" * 100
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
    saves = {"snapshot": "BGSAVE", "everysec": "BGREWRITEAOF", "always": "BGREWRITEAOF"}
    if system not in saves:
        return
    try:
        client(saves[system])
    except Refused as error:
        # It has begun by itself.
        assert "in progress" in str(error), error
    while b"rdb_bgsave_in_progress:1" in (info := client("INFO", "persistence")) or b"aof_rewrite_in_progress:1" in info:
        time.sleep(0.1)


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
    for system, settings in SYSTEMS.items():
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
            killed = [kill(server) for _ in range(ROUNDS)]
            keys = Client(server.port)("DBSIZE")
        finally:
            server.kill()
            shutil.rmtree(place, ignore_errors=True)
        rows[system] = {
            "sets": round(rate), "sets_alone": round(statistics.median(one for one, _, _ in killed)),
            "memory_mib": memory >> 20, "peak_mib": max(peak, memory) >> 20,
            "restart_ms": round(1e3 * statistics.median(seconds for _, seconds, _ in killed), 1),
            "lost_writes": max(lost for _, _, lost in killed), "lost_keys": max(KEYS + 1 - keys, 0),
        }
        print(f"{system:>14} " + " ".join(f"{key} {value:>9}" for key, value in rows[system].items()), flush=True)
    print(json.dumps({"event": "restart", "server": name, "keys": KEYS, "rows": rows}))


if __name__ == "__main__":
    main()
