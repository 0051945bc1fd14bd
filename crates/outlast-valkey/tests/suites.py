"""Runs Redis's own tests against a server with the module. Usage: suites.py NAME SERVER MODULE

Takes the tests from Debian's source package of Redis 7.0 (apt-get source; or OUTLAST_SUITE, a directory where it is
unpacked), and runs those for strings, hashes, expiry, scans and keys against SERVER, whose commands are redirected. A
test may fail for a reason that is listed here; another failure is one of this script. The last line is a summary in JSON.
"""

import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

from servers import Server

UNITS = ["unit/type/string", "unit/type/incr", "unit/type/hash", "unit/expire", "unit/scan", "unit/keyspace"]
REASONS = [
    (r"^LCS", "the command is not there for keys of ours"),
    (r"shared objects|modify objects in-place|ziplist|^COPY basic usage for .* hash",
     "OBJECT, DUMP and DEBUG know nothing of keys of ours"),
    (r"[Pp]ropagate|Lazy-expire should not be wrapped", "the replication stream has our names of the commands"),
    (r"should lazy expire", "DBSIZE never counts expired keys"),
]
OPTIONS = ["--singledb", "--ignore-encoding", "--ignore-digest", "--durable", "--no-latency", "--clients", "1"]


def unpacked(directory):
    """Returns the directory of the unpacked source."""
    if "OUTLAST_SUITE" in os.environ:
        return os.environ["OUTLAST_SUITE"]
    sources = "/etc/apt/sources.list.d/outlast-suites.sources"
    with open("/etc/apt/sources.list.d/debian.sources") as file:
        text = file.read()
    with open(sources, "w") as file:
        file.write(text.replace("Types: deb\n", "Types: deb-src\n"))
    try:
        for command in ["update", "install -y --no-install-recommends tcl", "source --download-only redis"]:
            subprocess.run(["apt-get", *command.split()], cwd=directory, check=True, capture_output=True)
    finally:
        os.remove(sources)
    archive = glob.glob(os.path.join(directory, "redis_*.orig.tar.gz"))[0]
    subprocess.run(["tar", "xzf", archive], cwd=directory, check=True)
    return glob.glob(os.path.join(directory, "redis-*", ""))[0]


def run(source, port, unit):
    """Returns the names of the tests that passed, failed and were left out."""
    command = ["./runtest", "--host", "127.0.0.1", "--port", str(port), *OPTIONS, "--single", unit]
    output = subprocess.run(command, cwd=source, capture_output=True, timeout=900).stdout
    text = re.sub(r"\x1b\[[0-9;]*m", "", output.decode(errors="replace"))
    found = {kind: re.findall(rf"^\[{kind}\]: (.*)$", text, re.MULTILINE) for kind in ["ok", "err", "ignore", "skip"]}
    if f"done]: {unit}" not in text:
        found["err"].append(f"{unit} does not end: {text[-1000:]}")
    failed = [re.sub(r" in tests/.*", "", name) for name in found["err"]]
    return found["ok"], failed, found["ignore"] + found["skip"]


def main():
    name, program, module = sys.argv[1:]
    directory = tempfile.mkdtemp(dir=os.environ.get("OUTLAST_DIR"))
    passed = failed = skipped = 0
    try:
        source = unpacked(directory)
        for tool in ("redis-server", "redis-cli", "redis-benchmark"):
            link = os.path.join(source, "src", tool)
            if not os.path.lexists(link):
                os.symlink(shutil.which(tool), link)
        # Outside of a test, this asks for the memory of a key.
        hashes = os.path.join(source, "tests/unit/type/hash.tcl")
        with open(hashes) as file:
            lines = [line for line in file if "memory_usage myhash" not in line]
        with open(hashes, "w") as file:
            file.writelines(lines)
        arguments = ["--enable-debug-command", "yes"]
        server = Server(program, module, directory, "redirect", "yes", "survive", "process-death", arguments=arguments)
        server.start()
        for unit in UNITS:
            good, bad, left_out = run(source, server.port, unit)
            known = []
            for test in bad:
                reason = next((reason for pattern, reason in REASONS if re.search(pattern, test)), None)
                if reason is None:
                    print(f"FAILED {name}: {unit}: {test}")
                    failed += 1
                else:
                    print(f"skipped {name}: {unit}: {test}: {reason}")
                    known.append(test)
            passed += len(good)
            skipped += len(known) + len(left_out)
            print(f"{name}: {unit}: {len(good)} passed, {len(known)} fail for a known reason, {len(left_out)} need another server")
        server.kill()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print(json.dumps({"event": "suites", "server": name, "passed": passed, "failed": failed, "skipped": skipped}))
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
