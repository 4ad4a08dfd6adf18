"""python.py FOLDER SYSTEM FILE LEVEL runs cycles of a Python queue, one at a time, for the suite `sqlite`.

It installs the queues into the virtual environment FOLDER if they are missing, and continues in it. Both queues keep the
rows of finished messages, which makes them slower, so these rows are deleted between the measurements.
"""

import os
import subprocess
import sys
import time
import venv

VERSIONS = ["litequeue==0.9", "persist-queue==1.1.0"]
BODY = "x" * 64


def prepare(folder):
    python = os.path.join(folder, "bin", "python")
    mark = os.path.join(folder, "installed")
    if not os.path.exists(mark):
        venv.create(folder, clear=True, with_pip=True)
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *VERSIONS]
        subprocess.run(pip, check=True, stdout=sys.stderr)
        open(mark, "w").close()
    return python


class LiteQueue:
    def __init__(self, file, level):
        import litequeue

        self.queue = litequeue.LiteQueue(file)
        # litequeue sets NORMAL.
        self.queue.conn.execute(f"PRAGMA synchronous = {level}")

    def cycle(self):
        self.queue.put(BODY)
        self.queue.done(self.queue.pop().message_id)

    def tidy(self):
        self.queue.prune()


class PersistQueue:
    def __init__(self, file, level):
        import persistqueue

        self.queue = persistqueue.SQLiteAckQueue(file, auto_commit=True)
        # SQLite's default is FULL. Reads and writes use one connection.
        self.queue._putter.execute(f"PRAGMA synchronous = {level}")

    def cycle(self):
        self.queue.put(BODY)
        self.queue.ack(id=self.queue.get(block=False, raw=True)["pqid"])

    def tidy(self):
        self.queue.clear_acked_data(keep_latest=0)


def main():
    folder, system, file, level = sys.argv[1:]
    if os.path.realpath(sys.prefix) != os.path.realpath(folder):
        python = prepare(folder)
        os.execv(python, [python, *sys.argv])
    queue = {"litequeue": LiteQueue, "persist-queue": PersistQueue}[system](file, level)
    print("ready", flush=True)
    for line in sys.stdin:
        start = time.perf_counter_ns()
        for _ in range(int(line)):
            queue.cycle()
        took = time.perf_counter_ns() - start
        queue.tidy()
        print(took, flush=True)


main()
