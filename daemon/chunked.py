"""Single chunks of HTTP's chunked transfer coding (RFC 9112, 7.1), without a parser.

A piece of a stream comes and goes as one small chunk, and between two of them an engine on the CPU drives everything
else out of the processor's caches: a parser, or a number that is formatted, costs ten times what it does otherwise.
"""

LINE_END = b"\r\n"

_SIZE_LINES = tuple(b"%x\r\n" % size for size in range(1024))

# The first line of a chunk that nearly everybody writes so, by the length of the whole chunk.
_FIRST_LINES = {len(line) + size + len(LINE_END): line for size, line in enumerate(_SIZE_LINES) if size}


def chunk(content: bytes) -> bytes:
    """One chunk. `content` is not empty: that would be the end of the body."""
    size = len(content)
    line = _SIZE_LINES[size] if size < len(_SIZE_LINES) else b"%x\r\n" % size
    return b"".join((line, content, LINE_END))


def content_of(data: bytes) -> bytes | None:
    """What is in `data`, if that is exactly one small chunk; else None. Only for what begins where a chunk does."""
    line = _FIRST_LINES.get(len(data))
    if line is None:
        return None
    content = data.removeprefix(line).removesuffix(LINE_END)
    return content if len(content) == len(data) - len(line) - len(LINE_END) else None
