"""moto behind a server that keeps connections open and has a thread for every long poll.

moto is not safe for concurrent requests: a deletion replaces the list of messages, and may lose a message that is sent at
the same time. So one lock serializes requests. A long poll is a series of short polls, which release the lock in between.
So it also notices a lease or a delay that ends, and a group that is unlocked."""

import io
import sys
import threading
import time

from cheroot.wsgi import Server
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from moto.sqs import models

lock = threading.RLock()
# The condition of a queue, which moto notifies when a message arrives. It uses the lock of all requests.
models.Condition = lambda: threading.Condition(lock)
# Every request calls this function several times for each message of the queue. moto's version takes 20 times as long.
models.unix_time_millis = lambda: time.time() * 1000
receive = models.SQSBackend.receive_message


def poll(backend, queue_name, count, wait_seconds_timeout, *arguments, **named):
    end = time.monotonic() + wait_seconds_timeout
    while True:
        messages = receive(backend, queue_name, count, 0, *arguments, **named)
        left = end - time.monotonic()
        if messages or left <= 0:
            return messages
        backend.get_queue(queue_name)._messages_lock.wait(min(left, 0.05))


models.SQSBackend.receive_message = poll
moto = DomainDispatcherApplication(create_backend_app)


def application(environ, start_response):
    # Read the body without the lock, since it may arrive slowly.
    body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    environ["wsgi.input"] = io.BytesIO(body)
    with lock:
        return list(moto(environ, start_response))


server = Server(("127.0.0.1", int(sys.argv[1])), application, numthreads=300, request_queue_size=1024, timeout=600)
server.keep_alive_conn_limit = 10_000
server.start()
