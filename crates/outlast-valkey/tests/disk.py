"""A disk that loses its power: a file system (FUSE). Usage: disk.py MOUNT IMAGE SEED

What is written is only in memory until the file is synced; that a name was made, changed or removed, until its
directory is synced. `mkdir MOUNT/.cut` cuts the power: the directory IMAGE, from which the files came, gets what is on the
disk, with some of the pages, chosen at random, that were written since the last sync. Needs mfusepy and libfuse.
"""

import errno
import os
import random
import stat
import sys

import mfusepy

PAGE = 4096


class File:
    """A file as programs see it, and as it is on the disk. Pages that are missing are zeros."""

    def __init__(self):
        self.mode, self.size, self.disk_size = 0o644, 0, 0
        self.pages, self.disk_pages, self.dirty = {}, {}, set()

    def write(self, data, offset):
        at = 0
        while at < len(data):
            number, start = divmod(offset + at, PAGE)
            part = data[at:at + PAGE - start]
            page = bytearray(self.pages.get(number, bytes(PAGE)))
            page[start:start + len(part)] = part
            self.pages[number] = bytes(page)
            self.dirty.add(number)
            at += len(part)
        self.size = max(self.size, offset + len(data))

    def read(self, size, offset):
        end = min(offset + size, self.size)
        if end <= offset:
            return b""
        first, last = offset // PAGE, (end - 1) // PAGE
        whole = b"".join(self.pages.get(number, bytes(PAGE)) for number in range(first, last + 1))
        return whole[offset - first * PAGE:end - first * PAGE]

    def truncate(self, size):
        if size < self.size:
            gone = [number for number in self.pages if number * PAGE >= size]
            for number in gone:
                del self.pages[number]
            self.dirty.update(gone)
            if size % PAGE and size // PAGE in self.pages:
                number = size // PAGE
                self.pages[number] = self.pages[number][:size % PAGE].ljust(PAGE, b"\0")
                self.dirty.add(number)
        self.size = size

    def put_on_disk(self, numbers):
        for number in numbers:
            if number in self.pages:
                self.disk_pages[number] = self.pages[number]
            else:
                self.disk_pages.pop(number, None)

    def sync(self):
        self.put_on_disk(self.dirty)
        self.dirty.clear()
        self.disk_size = self.size


class Disk(mfusepy.Operations):
    """What the kernel asks for, as far as a pool needs it."""

    use_ns = True

    def __init__(self, image, seed):
        self.image, self.random = image, random.Random(seed)
        # A file for each name, None for a directory.
        self.names, self.handles, self.next = {"/": None}, {}, 0
        for directory, _, files in os.walk(image):
            inside = "/" + os.path.relpath(directory, image) if directory != image else "/"
            self.names[inside] = None
            for name in files:
                file = self.names[os.path.join(inside, name)] = File()
                with open(os.path.join(directory, name), "rb") as content:
                    file.write(content.read(), 0)
                file.sync()
        self.disk_names = dict(self.names)

    def find(self, path):
        if path not in self.names:
            raise mfusepy.FuseOSError(errno.ENOENT)
        return self.names[path]

    def open_file(self, file):
        self.next += 1
        self.handles[self.next] = file
        return self.next

    def cut(self):
        """Leaves on the disk what was synced, and some of the rest."""
        for directory in sorted(path for path, file in self.disk_names.items() if file is None):
            os.makedirs(self.image + directory, exist_ok=True)
        for directory, _, files in os.walk(self.image):
            for name in files:
                os.remove(os.path.join(directory, name))
        for path, file in self.disk_names.items():
            if file is None:
                continue
            file.put_on_disk([number for number in file.dirty if self.random.random() < 0.5])
            with open(self.image + path, "wb") as content:
                for number, page in file.disk_pages.items():
                    content.seek(number * PAGE)
                    content.write(page)
                content.truncate(file.disk_size)

    # What the kernel calls.

    def getattr(self, path, fh=None):
        file = self.handles[fh] if fh in self.handles else self.find(path)
        if file is None:
            return {"st_mode": stat.S_IFDIR | 0o755, "st_nlink": 2}
        blocks = len(file.pages) * PAGE // 512
        return {"st_mode": stat.S_IFREG | file.mode, "st_nlink": 1, "st_size": file.size, "st_blocks": blocks,
                "st_uid": os.getuid(), "st_gid": os.getgid()}

    def readdir(self, path, fh):
        inside = [name for name in self.names if name != "/" and os.path.dirname(name) == path]
        return [".", "..", *map(os.path.basename, inside)]

    def mkdir(self, path, mode):
        if path == "/.cut":
            self.cut()
        self.names[path] = None

    def create(self, path, mode, fi=None):
        file = self.names[path] = File()
        file.mode = stat.S_IMODE(mode)
        return self.open_file(file)

    def open(self, path, flags):
        return self.open_file(self.find(path))

    def release(self, path, fh):
        self.handles.pop(fh, None)
        return 0

    def read(self, path, size, offset, fh):
        return self.handles[fh].read(size, offset)

    def write(self, path, data, offset, fh):
        self.handles[fh].write(data, offset)
        return len(data)

    def truncate(self, path, length, fh=None):
        (self.handles[fh] if fh in self.handles else self.find(path)).truncate(length)

    def chmod(self, path, mode):
        self.find(path).mode = stat.S_IMODE(mode)

    def utimens(self, path, times=None):
        return 0

    def unlink(self, path):
        self.find(path)
        del self.names[path]

    rmdir = unlink

    def rename(self, old, new):
        self.names[new] = self.find(old)
        del self.names[old]

    def fsync(self, path, datasync, fh):
        self.handles[fh].sync()
        return 0

    def fsyncdir(self, path, datasync, fh):
        for names in (self.disk_names, self.names):
            for name in [name for name in names if name != "/" and os.path.dirname(name) == path]:
                if name in self.names:
                    self.disk_names[name] = self.names[name]
                else:
                    del self.disk_names[name]
        return 0

    def statfs(self, path):
        return {"f_bsize": PAGE, "f_frsize": PAGE, "f_blocks": 1 << 24, "f_bfree": 1 << 23, "f_bavail": 1 << 23}


if __name__ == "__main__":
    mount, image, seed = sys.argv[1:]
    mfusepy.FUSE(Disk(image, seed), mount, foreground=True, nothreads=True, attr_timeout=0, entry_timeout=0)
