"""What reads an answer on its way to the client, and several of them in a row."""

import secrets
from collections.abc import Iterable, Sequence
from typing import Protocol

from daemon.chat import Done, Piece


class Reader(Protocol):
    """Turns the engine's pieces of one answer into the client's; `end` is called once, after the last of them."""

    def feed(self, piece: Piece) -> Sequence[Piece]: ...

    def end(self, done: Done) -> tuple[Sequence[Piece], Done]: ...


class Chain:
    """Each reader gets what the one before it made."""

    def __init__(self, readers: Sequence[Reader]) -> None:
        self._readers = readers

    def feed(self, piece: Piece) -> Sequence[Piece]:
        pieces: Sequence[Piece] = (piece,)
        for reader in self._readers:
            pieces = _fed(reader, pieces)
        return pieces

    def end(self, done: Done) -> tuple[Sequence[Piece], Done]:
        pieces: Sequence[Piece] = ()
        for reader in self._readers:
            fed = _fed(reader, pieces)
            last, done = reader.end(done)
            pieces = (*fed, *last)
        return pieces, done


def _fed(reader: Reader, pieces: Iterable[Piece]) -> Sequence[Piece]:
    return [out for piece in pieces for out in reader.feed(piece)]


def call_id() -> str:
    """An id for a tool call, like OpenAI's."""
    return "call_" + secrets.token_hex(12)
