"""Cuts the power under a server, again and again. Usage: powercut.py NAME SERVER MODULE

The pool lies on a disk that loses what was not synced (disk.py), and the server dies with the disk. A client writes
and at times waits with OL.WAITDURABLE, or the server replies only once a change is durable. After each cut, what was waited
for must be there, and all that is there must be the first so many of the changes. OUTLAST_CUTS sets how many cuts there
are for each of the two. The last line is a summary in JSON. Needs libfuse and pip; ends with 4 if there is no FUSE here.
"""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time

from servers import Client, Refused, Server, Steps

KEYS = 64


class Disk:
    """A mounted disk, whose content is in a directory while it is not mounted."""

    def __init__(self, directory, environment):
        self.mount, self.image = os.path.join(directory, "mount"), os.path.join(directory, "image")
        self.environment, self.process = environment, None
        os.mkdir(self.mount)
        os.mkdir(self.image)

    def start(self, seed):
        program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "disk.py")
        self.process = subprocess.Popen([sys.executable, program, self.mount, self.image, str(seed)], env=self.environment)
        start = time.monotonic()
        while not os.path.ismount(self.mount):
            assert self.process.poll() is None and time.monotonic() < start + 20, "the disk cannot be mounted"
            time.sleep(0.01)

    def cut(self):
        os.mkdir(os.path.join(self.mount, ".cut"))
        self.stop()

    def stop(self):
        if self.process:
            subprocess.run(["umount", "-l", self.mount], check=self.process.poll() is None)
            self.process.wait(timeout=60)
            self.process = None


def memory_files(server):
    """The files in memory that the server has mapped, which a power loss takes, too."""
    with open(f"/proc/{server.process.pid}/maps") as file:
        return {line.split()[-1] for line in file if "/dev/shm/" in line and line.rstrip().endswith(".working")}


class Writer(threading.Thread):
    """Sets one key after another to the number of the change, until the server is gone. Knows what it has waited for."""

    def __init__(self, port, first, waits, seed):
        super().__init__()
        self.client, self.last, self.durable, self.waits = Client(port), first, first, waits
        self.random = random.Random(seed)

    def run(self):
        try:
            while True:
                number = self.last + 1
                assert self.client("SET", f"key:{number % KEYS}", number) == b"OK"
                self.last = number
                if not self.waits:
                    self.durable = number
                elif self.random.random() < 0.02:
                    assert self.client("OL.WAITDURABLE") == b"OK"
                    self.durable = number
        except (OSError, ConnectionError):
            pass


def cuts(disk, program, module, place, settings, waits, count):
    """Cuts the power this often. Returns how many changes were made, and how many of the last ones each cut has lost."""
    server = Server(program, module, place, *settings)
    server.pool = os.path.join(disk.mount, "pool")
    last, lost, writer = 0, [], None
    try:
        for seed in range(count):
            disk.start(seed)
            server.start()
            client = Client(server.port)
            if writer:
                found = [int(value or 0) for value in client("MGET", *(f"key:{number}" for number in range(KEYS)))]
                there = max(found)
                assert writer.durable <= there <= writer.last + 1, f"{there} of {writer.last}, {writer.durable} waited for"
                # The last change up to that of each key.
                first = [there - (there - number) % KEYS for number in range(KEYS)]
                assert found == [max(number, 0) for number in first], f"{found} are not the first {there} changes"
                assert client("OL.VERIFY").endswith(b"sound")
                lost.append(writer.last - there)
                last = there
            in_memory = memory_files(server)
            assert in_memory, "a journaled pool works in a file in memory"
            writer = Writer(server.port, last, waits, seed)
            writer.start()
            time.sleep(0.3 + random.Random(seed).random())
            server.kill()
            writer.join()
            disk.cut()
            for file in in_memory:
                os.remove(file)
    finally:
        if server.process and server.process.poll() is None:
            server.kill()
    return last, lost


def main():
    name, program, module = sys.argv[1:]
    count = int(os.environ.get("OUTLAST_CUTS", "10"))
    directory = tempfile.mkdtemp(prefix="outlast-power-")
    packages = os.path.join(directory, "packages")
    install = [sys.executable, "-m", "pip", "install", "-qqq", "--target", packages, "mfusepy>=3,<4"]
    environment = {**os.environ, "PYTHONPATH": packages}
    step, done = Steps(name), 0
    try:
        ready = os.path.exists("/dev/fuse") and subprocess.run(install, check=False).returncode == 0
        if not ready or subprocess.run([sys.executable, "-c", "import mfusepy"], env=environment, check=False).returncode:
            print("skipped: no FUSE here (/dev/fuse, libfuse, and mfusepy from pip)")
            sys.exit(4)
        for what, waits, settings in [("what was waited for", True, []),
                                      ("every reply durable", False, ["durable-replies", "yes"])]:
            place = os.path.join(directory, settings[0] if settings else "waits")
            os.mkdir(place)
            disk = Disk(place, environment)

            def run(waits=waits, settings=settings, place=place, disk=disk):
                nonlocal done
                changes, lost = cuts(disk, program, module, place, ["redirect", "yes", "survive", "power-loss", *settings],
                                     waits, count + 1)
                done += count
                print(f"{name}: {changes} changes, {count} cuts, of the last changes each has lost {lost}")

            step(f"{what}, {count} cuts", run)
            disk.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print(json.dumps({"event": "power", "server": name, "passed": step.passed, "failed": step.failed, "cuts": done}))
    sys.exit(step.failed > 0)


if __name__ == "__main__":
    main()
