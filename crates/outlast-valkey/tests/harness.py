"""Servers with the module, and clients of them, for tests."""

import os
import signal
import socket
import subprocess
import time


class Refused(Exception):
    """An error that the server replied."""


class Client:
    """A connection that speaks RESP2."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        self.file = self.socket.makefile("rb")

    def send(self, *words):
        words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        parts = [b"*%d\r\n" % len(words)]
        parts += [b"$%d\r\n%s\r\n" % (len(word), word) for word in words]
        self.socket.sendall(b"".join(parts))

    def read(self):
        line = self.file.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError("the server is gone")
        kind, rest = line[:1], line[1:-2]
        if kind == b"+":
            return rest
        if kind == b":":
            return int(rest)
        if kind == b"-":
            raise Refused(rest.decode(errors="replace"))
        if kind == b"$":
            if int(rest) < 0:
                return None
            data = self.file.read(int(rest) + 2)
            if len(data) != int(rest) + 2:
                raise ConnectionError("the server is gone")
            return data[:-2]
        if kind == b"*":
            return None if int(rest) < 0 else [self.read_or_error() for _ in range(int(rest))]
        raise AssertionError(f"no reply: {line!r}")

    def read_or_error(self):
        try:
            return self.read()
        except Refused as error:
            return error

    def __call__(self, *words):
        self.send(*words)
        return self.read()


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class Server:
    """A server, with the module if there is one, whose pool stays when it dies."""

    def __init__(self, program, module, directory, *settings, arguments=()):
        self.program, self.module, self.directory, self.settings = program, module, directory, settings
        self.arguments, self.pool = list(arguments), os.path.join(directory, "pool")
        self.port, self.process = free_port(), None

    def start(self):
        """Starts it. Returns how long it took until it replied, in seconds."""
        log = open(os.path.join(self.directory, "log"), "ab")
        command = [self.program, "--port", str(self.port), "--save", "", "--dir", self.directory, *self.arguments]
        if self.module:
            command += ["--loadmodule", self.module, "path", self.pool, *self.settings]
        start = time.monotonic()
        self.process = subprocess.Popen(command, stdout=log, stderr=log)
        while True:
            try:
                Client(self.port)("PING")
                return time.monotonic() - start
            except (OSError, Refused):
                if self.process.poll() is not None or time.monotonic() > start + 30:
                    with open(os.path.join(self.directory, "log"), errors="replace") as file:
                        print(file.read()[-3000:])
                    raise AssertionError("the server does not start") from None
                time.sleep(0.002)

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        self.process.terminate()
        assert self.process.wait(timeout=60) == 0


class Steps:
    """Runs the steps of a test of this server, and counts those that passed and those that failed."""

    def __init__(self, name):
        self.name, self.passed, self.failed = name, 0, 0

    def __call__(self, what, run):
        try:
            run()
            print(f"ok {self.name}: {what}")
            self.passed += 1
        except Exception as error:  # whatever it is, it is a failure of this step
            line = error.__traceback__.tb_next.tb_lineno if error.__traceback__.tb_next else 0
            print(f"FAILED {self.name}: {what}: {type(error).__name__}: {error} (line {line})")
            self.failed += 1


def refused(client, with_text, *words):
    try:
        reply = client(*words)
    except Refused as error:
        assert with_text in str(error), f"{words}: {error}"
        return
    raise AssertionError(f"{words}: {reply!r}")
