"""Measures the module beside the server's own data. Usage: speed.py NAME SERVER MODULE

Runs redis-benchmark against four servers in turn: the server's own data without persistence, with a log that is written
each second, and the module's with a pool that survives the process's death, and a power loss. Prints the medians of some
rounds, as ratios to the first. Needs redis-benchmark; variables set the size: OUTLAST_REQUESTS, OUTLAST_ROUNDS. The
last line is a summary in JSON.
"""

import csv
import io
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

from servers import Client, Server

TESTS = ("set", "get", "incr", "hset", "mset")
SETTINGS = [(1, 1), (1, 16), (50, 1), (50, 16)]
SYSTEMS = {
    "memory": None,
    "everysec": ["--appendonly", "yes", "--appendfsync", "everysec"],
    "process-death": ["redirect", "yes", "survive", "process-death"],
    "power-loss": ["redirect", "yes", "survive", "power-loss"],
}


def benchmark(port, clients, pipeline, requests):
    """Returns requests per second of each test."""
    command = ["redis-benchmark", "-p", str(port), "-c", str(clients), "-P", str(pipeline), "-n", str(requests)]
    command += ["-r", "1000000", "-d", "100", "-t", ",".join(TESTS), "--csv"]
    output = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True).stdout
    rows = list(csv.reader(io.StringIO(output)))
    names = {row[0].split(" ")[0].lower(): float(row[1]) for row in rows if row and row[0] != "test"}
    return {test: names[test] for test in TESTS}


def main():
    name, program, module = sys.argv[1:]
    requests = int(os.environ.get("OUTLAST_REQUESTS", "100000"))
    rounds = int(os.environ.get("OUTLAST_ROUNDS", "3"))
    directory = tempfile.mkdtemp(dir=os.environ.get("OUTLAST_DIR"))
    found = {}
    try:
        for round_number in range(rounds):
            for system, settings in SYSTEMS.items():
                place = os.path.join(directory, f"{system}-{round_number}")
                os.mkdir(place)
                stock = settings is None or settings[0].startswith("--")
                if stock:
                    server = Server(program, None, place, arguments=settings or [])
                else:
                    server = Server(program, module, place, *settings)
                server.start()
                try:
                    Client(server.port)("PING")
                    for clients, pipeline in SETTINGS:
                        # A client alone waits for each reply, so it needs fewer requests for the same time.
                        some = requests if clients * pipeline > 1 else requests // 5
                        for test, rate in benchmark(server.port, clients, pipeline, some).items():
                            found.setdefault((clients, pipeline, test, system), []).append(rate)
                finally:
                    server.kill()
                    shutil.rmtree(place, ignore_errors=True)
                print(f"{name}: round {round_number + 1} of {rounds}: {system}", file=sys.stderr)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    middle = {key: statistics.median(rates) for key, rates in found.items()}
    print(f"{name}: {requests} requests, medians of {rounds} rounds; ratios to its own data without persistence")
    print(f"{'clients':>7} {'pipeline':>8} {'command':>7} {'memory/s':>10} " + " ".join(f"{s:>13}" for s in list(SYSTEMS)[1:]))
    for clients, pipeline in SETTINGS:
        for test in TESTS:
            base = middle[clients, pipeline, test, "memory"]
            ratios = [middle[clients, pipeline, test, system] / base for system in list(SYSTEMS)[1:]]
            print(f"{clients:>7} {pipeline:>8} {test:>7} {base:>10.0f} " + " ".join(f"{ratio:>13.2f}" for ratio in ratios))

    def ratio(test, system="power-loss"):
        return round(middle[50, 16, test, system] / middle[50, 16, test, "memory"], 3)

    print(json.dumps({"event": "speed", "server": name, "ratio_set": ratio("set"), "ratio_get": ratio("get"),
                      "ratio_set_process_death": ratio("set", "process-death"),
                      "ratio_get_process_death": ratio("get", "process-death")}))


if __name__ == "__main__":
    main()
