"""moto behind a server that keeps connections open and has a thread for every long poll.

moto itself expects one request at a time: a deletion replaces the list of messages, and may lose what is sent meanwhile. So
requests take turns. A long poll is a series of short ones, in between which others have theirs; that it wakes for a lease
or a delay that ends, or for a group that is free again, is due to that."""

import io
import sys
import threading
import time

from cheroot.wsgi import Server
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from moto.sqs import models

turn = threading.RLock()
# Of a queue: notified when a message comes.
models.Condition = lambda: threading.Condition(turn)
# Asked for several times for each message in a queue, whatever the request; the original takes 20 times as long.
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
    # Outside the turn: it may take long to come.
    body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    environ["wsgi.input"] = io.BytesIO(body)
    with turn:
        return list(moto(environ, start_response))


server = Server(("127.0.0.1", int(sys.argv[1])), application, numthreads=300, request_queue_size=1024, timeout=600)
server.keep_alive_conn_limit = 10_000
server.start()
