"""A child that keeps the contract of `workers.child` and does nothing else: for tests of hosting and of the node.

`FAKE_CHILD_LIFE_S` ends it by itself; `FAKE_CHILD_STUBBORN` makes it ignore end of input and SIGTERM.
"""

import http.server
import os
import signal
import sys
import threading

import msgspec

from workers.child import ChildConfig, ChildReady


class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_):
        pass


def main():
    config = msgspec.json.decode(sys.stdin.buffer.readline(), type=ChildConfig)
    stubborn = bool(os.environ.get("FAKE_CHILD_STUBBORN"))
    if stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    life = float(os.environ.get("FAKE_CHILD_LIFE_S", "0"))
    if life:
        threading.Timer(life, os._exit, [7]).start()
    server = http.server.ThreadingHTTPServer((config.host, 0), Health)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.buffer.write(msgspec.json.encode(ChildReady(server.server_port, config.incarnation)) + b"\n")
    sys.stdout.flush()
    sys.stdin.buffer.read()
    if stubborn:
        threading.Event().wait()


if __name__ == "__main__":
    main()
