"""Runs clients that many use, unchanged, against a server whose commands are redirected. Usage: clients.py NAME SERVER MODULE

redis-py is installed with pip, go-redis and go-ycsb (its workloads a to f) with Go, into a temporary directory. What cannot
be installed here is skipped. The last line is a summary in JSON.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time

from servers import Server, Steps

GO_MODULES = ["github.com/redis/go-redis/v9@v9.14.1"]
GO_MODULES += [f"github.com/pingcap/go-ycsb/{part}@v1.0.3" for part in ("db/redis", "pkg/client", "pkg/workload")]
RECORDS = os.environ.get("OUTLAST_RECORDS", "4000")
OPERATIONS = os.environ.get("OUTLAST_OPERATIONS", "16000")


def redis_py(port, protocol):
    """Yields the steps for redis-py: a name and a function."""
    import redis

    def client(**options):
        return redis.Redis(port=port, protocol=protocol, **options)

    r = client(decode_responses=True)

    def refused(call, *args):
        try:
            call(*args)
        except redis.exceptions.RedisError as error:
            return type(error), str(error)
        raise AssertionError(f"{call.__name__} {args} was not refused")

    def strings():
        r.flushall()
        assert r.set("a", 1) and r.set("a", 2, nx=True) is None and r.set("a", 2, xx=True, get=True) == "1"
        assert r.get("a") == "2" and client().get("a") == b"2" and r.get("x") is None
        assert r.set("t", "x", ex=100) and 90 < r.ttl("t") <= 100 and r.getex("t", persist=True) == "x" and r.ttl("t") == -1
        assert r.mset({"b": 3, "c": 4}) and r.mget("a", "x", "c") == ["2", None, "4"]
        assert r.incr("a", 5) == 7 and r.decr("a") == 6 and r.incrbyfloat("a", 0.5) == 6.5
        assert r.append("a", "xy") == 5 and r.getrange("a", 3, -1) == "xy" and r.setrange("a", 0, "7") == 5
        assert r.setbit("bits", 7, 1) == 0 and r.getbit("bits", 7) == 1 and r.strlen("bits") == 1
        assert r.getdel("a") == "7.5xy" and not r.exists("a")
        binary = bytes(range(256))
        assert client().set(binary, binary) and client().get(binary) == binary
        r.set("text", "ten")
        assert refused(r.incr, "text") == (redis.exceptions.ResponseError, "value is not an integer or out of range")

    def hashes():
        assert r.hset("h", mapping={"f": 1, "g": 2}) == 2 and r.hgetall("h") == {"f": "1", "g": "2"}
        assert r.hmget("h", "f", "x") == ["1", None] and r.hincrby("h", "f", 3) == 4 and r.hexists("h", "f")
        assert r.hkeys("h") == ["f", "g"] or r.hkeys("h") == ["g", "f"]
        assert r.hdel("h", "g", "x") == 1 and r.hlen("h") == 1 and r.hgetall("x") == {}
        assert r.hrandfield("h", 2, withvalues=True) in (["f", "4"], [["f", "4"]])
        r.hset("many", mapping={n: n for n in range(1000)})
        assert {int(field): int(value) for field, value in r.hscan_iter("many")} == {n: n for n in range(1000)}
        assert refused(r.get, "h")[1].startswith("WRONGTYPE")

    def keys():
        assert r.type("h") == "hash" and r.copy("h", "copy") and not r.copy("h", "copy") and r.copy("h", "copy", replace=True)
        assert r.rename("copy", "renamed") and r.hgetall("renamed") == r.hgetall("h")
        assert not r.renamenx("renamed", "h") and "no such key" in refused(r.rename, "copy", "x")[1]
        assert r.expire("renamed", 100) and 90_000 < r.pttl("renamed") <= 100_000 and r.persist("renamed")
        assert r.expire("renamed", 100, gt=True) is False and r.unlink("renamed", "x") == 1
        r.mset({f"key:{n}": n for n in range(1000)})
        assert sorted(r.scan_iter("key:*", count=50)) == sorted(f"key:{n}" for n in range(1000)) == sorted(r.keys("key:*"))
        assert r.dbsize() > 1000 and r.randomkey() is not None

    def together():
        with r.pipeline(transaction=False) as pipe:
            for n in range(1000):
                pipe.incr(f"count:{n % 10}")
            assert len(pipe.execute()) == 1000
        with r.pipeline() as pipe:
            pipe.watch("count:9")
            value = int(pipe.get("count:9"))
            pipe.multi()
            pipe.set("count:9", value + 1)
            assert pipe.execute() == [True]
        script = r.register_script("return redis.call('INCRBY', KEYS[1], ARGV[1])")
        assert script(keys=["count:9"], args=[5]) == 106

    def locks():
        counted, threads = [0], []

        def count():
            for _ in range(20):
                with client().lock("lock", timeout=10, sleep=0.002):
                    before = counted[0]
                    time.sleep(0.0005)
                    counted[0] = before + 1

        threads = [threading.Thread(target=count) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert counted == [80], counted

    def others():
        assert r.rpush("list", "a", "b") == 2 and r.lrange("list", 0, -1) == ["a", "b"] and r.type("list") == "list"
        assert r.sadd("set", "a") == 1 and r.zadd("sorted", {"a": 1}) == 1 and r.xadd("stream", {"a": 1})
        assert r.delete("list", "set", "sorted", "stream") == 4
        assert r.execute_command("OL.OSET", "o", "b", 2, "a", 1) == 2
        assert r.execute_command("OL.RANGE", "o", "-", "+") == ["a", "1", "b", "2"]
        assert r.info("outlast")["outlast_changes"] > 1000
        assert r.flushall() and r.dbsize() == 0

    for step in (strings, hashes, keys, together, locks, others):
        yield f"redis-py {redis.__version__}, RESP{protocol}: {step.__name__}", step


def main():
    name, program, module = sys.argv[1:]
    directory = tempfile.mkdtemp(prefix="outlast-clients-")
    run, skipped = Steps(name), 0
    server = Server(program, module, directory, "redirect", "yes", "survive", "process-death")

    def command(*words, **options):
        return subprocess.run(list(map(str, words)), capture_output=True, text=True, **options)

    def go():
        """Builds the program for Go's clients. Returns its path and that of go-ycsb's workloads, or why it cannot."""
        tool = shutil.which("go") or "/usr/local/go/bin/go"
        if not os.access(tool, os.X_OK):
            return None, "there is no Go here"
        place = os.path.join(directory, "go")
        shutil.copytree(os.path.join(os.path.dirname(os.path.abspath(__file__)), "clients"), place)
        options = {"cwd": place, "env": {**os.environ, "GOFLAGS": "-mod=mod"}, "timeout": 1200}
        for words in (["mod", "init", "clients"], ["get", *GO_MODULES], ["build", "-o", "clients", "."]):
            done = command(tool, *words, **options)
            if done.returncode != 0:
                return None, f"go {words[0]}: {done.stderr[-2000:]}"
        listed = command(tool, "list", "-m", "-f", "{{.Dir}}", "github.com/pingcap/go-ycsb", **options)
        return os.path.join(place, "clients"), os.path.join(listed.stdout.strip(), "workloads")

    try:
        server.start()
        python = os.path.join(directory, "python")
        done = command(sys.executable, "-m", "pip", "install", "--quiet", "--target", python, "redis")
        if done.returncode == 0:
            sys.path.insert(0, python)
            for protocol in (2, 3):
                for what, step in redis_py(server.port, protocol):
                    run(what, step)
        else:
            print(f"skipped {name}: redis-py cannot be installed: {done.stderr[-500:]}")
            skipped += 1
        clients, workloads = go()
        if clients is None:
            print(f"skipped {name}: go-redis and go-ycsb: {workloads}")
            skipped += 1
        else:
            address = f"127.0.0.1:{server.port}"
            for words in (["go-redis", address], ["go-ycsb", address, workloads, RECORDS, OPERATIONS]):
                done = command(clients, *words, timeout=1200)
                steps = [line for line in done.stdout.splitlines() if line.startswith(("ok ", "FAILED "))]
                print(done.stdout.strip())
                run.passed += sum(step.startswith("ok ") for step in steps)
                run.failed += sum(step.startswith("FAILED ") for step in steps)
                if done.returncode != 0 and not any(step.startswith("FAILED ") for step in steps):
                    print(f"FAILED {name}: {words[0]} ended with {done.returncode}: {done.stderr[-2000:]}")
                    run.failed += 1
        server.stop()
    finally:
        if server.process and server.process.poll() is None:
            server.kill()
        shutil.rmtree(directory, ignore_errors=True)
    print(json.dumps({"event": "clients", "server": name, "passed": run.passed, "failed": run.failed, "skipped": skipped}))
    sys.exit(run.failed > 0)


if __name__ == "__main__":
    main()
