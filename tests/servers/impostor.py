"""What answers in a server's place, at its port: nothing at all, a page to log in at, or that it is too busy."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Literal, get_args

Manner = Literal["hangs", "page", "busy"]
MANNERS: tuple[Manner, ...] = get_args(Manner)

_PAGE = b"<!DOCTYPE html><html><head><title>Sign in</title></head><body>Please sign in to this network.</body></html>"
_ANSWERS = {
    "page": b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s"
    % (len(_PAGE), _PAGE),
    "busy": b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
}


class Impostor:
    """Accepts every connection. `heard`: how many there were."""

    def __init__(self, port: int, manner: Manner) -> None:
        self.heard = 0
        self._answer = _ANSWERS.get(manner)
        self._open: set[socket.socket] = set()
        self._listening = socket.create_server(("127.0.0.1", port), backlog=64)
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join(60)
        self._listening.close()
        for peer in list(self._open):
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)

    def _listen(self) -> None:
        with contextlib.suppress(OSError):  # it was closed
            while True:
                peer, _ = self._listening.accept()
                self.heard += 1
                self._open.add(peer)
                threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        with peer, contextlib.suppress(OSError):
            said = b""
            while b"\r\n\r\n" not in said and (got := peer.recv(1 << 16)):
                said = said[-3:] + got
                if said.startswith(b"SSH-"):
                    break
            if self._answer is not None:
                peer.sendall(self._answer)
                peer.shutdown(socket.SHUT_WR)
            while peer.recv(1 << 16):  # until the other side has enough: an answer must not be lost by a reset
                pass
        self._open.discard(peer)


@contextlib.contextmanager
def in_place_of(port: int, manner: Manner) -> Iterator[Impostor]:
    """At the port of a server that was stopped, until the block ends."""
    impostor = Impostor(port, manner)
    try:
        yield impostor
    finally:
        impostor.close()
