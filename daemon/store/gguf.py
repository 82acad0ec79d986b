"""A bounded reader of GGUF headers, written for files that strangers made.

Every count and length is compared with what is left of the file before anything is read, skipped or looped over,
so the work is bounded by the size of the header and the header by MAX_HEADER. Source of the format: ggml's
docs/gguf.md, versions 2 and 3, little-endian.
"""

import math
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from daemon.errors import BadModel
from daemon.store.files import open_regular, storage_failed
from daemon.store.ggml import TENSOR_TYPES
from daemon.store.summary import Summary, Tensor, Value

MAX_HEADER = 64 * 1024 * 1024
MAX_KEYS = 65_536
MAX_KEY = 256
MAX_STRING = 1024 * 1024
MAX_TEMPLATE = 256 * 1024
MAX_TENSORS = 65_536
MAX_DIMENSIONS = 4
MAX_ALIGNMENT = 64 * 1024
MAX_KEPT_ARRAY = 1024
MAX_SHOWN_ELEMENTS = 4 * 1024 * 1024
DEFAULT_ALIGNMENT = 32

ReadAt: TypeAlias = Callable[[int, int], bytes]

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_SCALARS = {code: struct.Struct(f"<{letter}") for code, letter in enumerate("BbHhIif?")} | {
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_FLOATS = {6, 12}
_STRING, _ARRAY = 8, 9

_FIRST_READ = 4096
_LARGEST_READ = 256 * 1024
_TEMPLATE_KEY = "tokenizer.chat_template"
_ALIGNMENT_KEY = "general.alignment"


def read_summary(path: Path) -> Summary:
    """The header of the model file at `path`. Raises BadModel with one clear sentence, StorageFailed."""
    try:
        fd = open_regular(path)
    except OSError as error:
        raise storage_failed(error, "read a model file") from error
    try:
        return parse(lambda count, offset: os.pread(fd, count, offset), os.fstat(fd).st_size)
    except OSError as error:
        raise storage_failed(error, "read a model file") from error
    finally:
        os.close(fd)


def read_arrays(path: Path) -> dict[str, list[Any]]:
    """The arrays in the header of the model file at `path`, which may be long; those beyond MAX_SHOWN_ELEMENTS in all
    are left out. Raises BadModel, StorageFailed."""
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            fd = file.fileno()
            reader = _Reader(lambda count, offset: os.pread(fd, count, offset), os.fstat(fd).st_size)
            return _arrays(reader)
    except OSError as error:
        raise storage_failed(error, "read a model file") from error


def parse(read_at: ReadAt, size: int) -> Summary:
    """The header of a file of `size` bytes; `read_at(count, offset)` gives bytes of it. Raises BadModel."""
    reader = _Reader(read_at, size)
    tensor_count, key_count = _preamble(reader)
    metadata: dict[str, Value] = {}
    array_counts: dict[str, int] = {}
    for _ in range(key_count):
        key = reader.string(MAX_KEY, "a metadata key")
        if not key or key in metadata or key in array_counts:
            raise BadModel(
                f"the GGUF header has the metadata key {key!r} twice" if key else "a GGUF key is empty"
            )
        value, count = _value(reader, key, reader.u32())
        if value is None:
            array_counts[key] = count
        else:
            metadata[key] = value
    if not isinstance(metadata.get("general.architecture"), str):
        raise BadModel("the GGUF header does not name its architecture (general.architecture)")
    tensors = _tensors(reader, tensor_count, _alignment(metadata))
    return Summary(metadata, array_counts, tensors)


# ---- the parts of a header


def _preamble(reader: "_Reader") -> tuple[int, int]:
    """The number of tensors and of metadata keys."""
    start = reader.peek(512)
    if not start.startswith(b"GGUF"):
        raise BadModel(_not_gguf(start))
    reader.skip(4)
    version = reader.u32()
    if version & 0xFFFF == 0 and version:
        raise BadModel("the file is a big-endian GGUF, which is not supported; convert it to little-endian")
    if version not in {2, 3}:
        raise BadModel(f"the file is GGUF version {version}; versions 2 and 3 are supported")
    tensor_count, key_count = reader.u64(), reader.u64()
    if tensor_count > MAX_TENSORS:
        raise BadModel(f"the GGUF header claims {tensor_count} tensors; at most {MAX_TENSORS} are accepted")
    if key_count > MAX_KEYS:
        raise BadModel(f"the GGUF header claims {key_count} metadata keys; at most {MAX_KEYS} are accepted")
    return tensor_count, key_count


def _not_gguf(start: bytes) -> str:
    text = start.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if not start:
        return "the file is empty, so it is not a GGUF model"
    if start.startswith(b"version https://git-lfs.github.com/spec/"):
        return "the file is a git-lfs pointer, not the model itself; fetch the real file with git lfs pull"
    if text.startswith((b"<!doctype", b"<html", b"<?xml", b"<head")):
        return "the file is a web page, not a GGUF model; the address gave a page instead of the file"
    if b"GGUF".startswith(start):
        return _Reader.TRUNCATED
    if all(byte >= 32 or byte in b"\t\r\n" for byte in start):
        return "the file is text, not a GGUF model"
    return "the file is not GGUF; only models in the GGUF format are supported"


def _arrays(reader: "_Reader") -> dict[str, list[Any]]:
    _, key_count = _preamble(reader)
    arrays: dict[str, list[Any]] = {}
    left = MAX_SHOWN_ELEMENTS
    for _ in range(key_count):
        key, kind = reader.string(MAX_KEY, "a metadata key"), reader.u32()
        if kind != _ARRAY or (count := reader.peek_array()[1]) > left:
            _value(reader, key, kind)
            continue
        left -= count
        arrays[key] = _elements(reader, key)
    return arrays


def _elements(reader: "_Reader", key: str) -> list[Any]:
    """All elements of an array."""
    element, count = reader.u32(), reader.u64()
    if element == _STRING:
        reader.check(count, 8, key)
        return [reader.string(MAX_STRING, f"a string of {key!r}") for _ in range(count)]
    if element not in _SCALARS:
        raise _unsupported(key, element)
    form = _SCALARS[element]
    reader.check(count, form.size, key)
    return [*struct.unpack(f"<{count}{form.format[1]}", reader.take(count * form.size))]


def _value(reader: "_Reader", key: str, kind: int) -> tuple[Value | None, int]:
    """A scalar or small array, or None and the number of elements of an array that is not kept."""
    if kind == _STRING:
        limit = MAX_TEMPLATE if key == _TEMPLATE_KEY else MAX_STRING
        return reader.string(limit, f"the value of {key!r}"), 0
    if kind in _SCALARS:
        return reader.scalar(_SCALARS[kind]), 0
    if kind != _ARRAY:
        raise BadModel(f"the metadata key {key!r} has the unknown type {kind}")
    element, count = reader.peek_array()
    if element in _SCALARS and element not in _FLOATS and count <= MAX_KEPT_ARRAY:
        return tuple(_elements(reader, key)), count
    reader.skip(12)
    if element == _STRING:
        reader.skip_strings(count, key)
    elif element in _SCALARS:
        reader.check(count, _SCALARS[element].size, key)
        reader.skip(count * _SCALARS[element].size)
    else:
        raise _unsupported(key, element)
    return None, count


def _unsupported(key: str, element: int) -> BadModel:
    return BadModel(f"the array {key!r} has elements of type {element}, which is not supported")


def _alignment(metadata: dict[str, Value]) -> int:
    value = metadata.get(_ALIGNMENT_KEY, DEFAULT_ALIGNMENT)
    if (
        not isinstance(value, int)
        or isinstance(value, bool)
        or not 1 <= value <= MAX_ALIGNMENT
        or value & (value - 1)
    ):
        raise BadModel(f"the GGUF alignment is not a power of two of at most {MAX_ALIGNMENT}")
    return value


def _tensors(reader: "_Reader", count: int, alignment: int) -> tuple[Tensor, ...]:
    if count == 0:
        raise BadModel("the GGUF file has no tensors, so it is not a model")
    tensors: dict[str, Tensor] = {}
    last, end = "", 0
    for _ in range(count):
        name = reader.string(MAX_KEY, "the name of a tensor")
        if name in tensors:
            raise BadModel(f"the GGUF header has the tensor {name!r} twice")
        tensor, size = _tensor(reader, name)
        tensors[name] = tensor
        offset = reader.u64()
        if offset % alignment:
            raise BadModel(f"the tensor {name!r} is not aligned to {alignment} bytes")
        if offset + size > end:
            last, end = name, offset + size
    data_start = -(-reader.offset // alignment) * alignment
    if data_start + end > reader.size:
        missing = data_start + end - reader.size
        raise BadModel(f"the GGUF file is truncated: the tensor {last!r} ends {missing} bytes after the file")
    return tuple(tensors.values())


def _tensor(reader: "_Reader", name: str) -> tuple[Tensor, int]:
    """One tensor and its size in bytes."""
    dimensions = reader.u32()
    if not 1 <= dimensions <= MAX_DIMENSIONS:
        raise BadModel(f"the tensor {name!r} has {dimensions} dimensions; 1 to {MAX_DIMENSIONS} are accepted")
    shape = tuple(reader.u64() for _ in range(dimensions))
    elements = math.prod(shape)
    if not 1 <= elements <= 8 * reader.size:
        raise BadModel(f"the tensor {name!r} claims {elements} elements, which the file cannot hold")
    kind = reader.u32()
    if kind not in TENSOR_TYPES:
        raise BadModel(f"the tensor {name!r} has type {kind}, which this version does not know")
    type_name, block, block_bytes = TENSOR_TYPES[kind]
    if shape[0] % block:
        raise BadModel(f"the rows of the tensor {name!r} are not whole blocks of {type_name}")
    return Tensor(name, type_name, shape), elements // block * block_bytes


# ---- bytes


class _Reader:
    """A window that moves forward over the header."""

    TRUNCATED = "the GGUF file is truncated: it ends inside its header"

    def __init__(self, read_at: ReadAt, size: int) -> None:
        self._read_at = read_at
        self.size = size
        self._start = 0
        self._buffer = b""
        self._at = 0
        self._next_read = _FIRST_READ

    @property
    def offset(self) -> int:
        return self._start + self._at

    def peek(self, count: int) -> bytes:
        """Up to `count` bytes from the position on; fewer at the end of the file."""
        self._fill(min(count, self.size - self.offset))
        return self._buffer[self._at : self._at + count]

    def peek_array(self) -> tuple[int, int]:
        """The type of the elements of an array, and how many they are."""
        start = self.peek(12)
        if len(start) < 12:
            raise BadModel(self.TRUNCATED)
        return _U32.unpack_from(start)[0], _U64.unpack_from(start, 4)[0]

    def take(self, count: int) -> bytes:
        self._fill(count)
        begin, self._at = self._at, self._at + count
        return self._buffer[begin : self._at]

    def skip(self, count: int) -> None:
        self._bound(count)
        self._at += count
        if self._at > len(self._buffer):
            self._start, self._buffer, self._at = self.offset, b"", 0

    def u32(self) -> int:
        value: int = _U32.unpack(self.take(4))[0]
        return value

    def u64(self) -> int:
        value: int = _U64.unpack(self.take(8))[0]
        return value

    def scalar(self, form: struct.Struct) -> int | float | bool:
        value: int | float | bool = form.unpack(self.take(form.size))[0]
        return value

    def string(self, limit: int, what: str) -> str:
        length = self.u64()
        if length > limit:
            raise BadModel(f"{what} claims {length} bytes; at most {limit} are accepted")
        return self.take(length).decode("utf-8", "replace")

    def check(self, count: int, each: int, key: str) -> None:
        """Refuses an array of `count` elements of at least `each` bytes that the header has no room for."""
        if count * each > min(self.size, MAX_HEADER) - self.offset:
            raise BadModel(f"the array {key!r} claims {count} elements, more than the file can hold")

    def skip_strings(self, count: int, key: str) -> None:
        self.check(count, 8, key)
        for _ in range(count):
            if len(self._buffer) - self._at < 8:
                self._fill(8)
            (length,) = _U64.unpack_from(self._buffer, self._at)
            if length > MAX_STRING:
                raise BadModel(
                    f"a string of {key!r} claims {length} bytes; at most {MAX_STRING} are accepted"
                )
            end = self._at + 8 + length
            if end <= len(self._buffer):
                self._at = end
            else:
                self.skip(8 + length)

    def _bound(self, count: int) -> None:
        if self.offset + count > self.size:
            raise BadModel(self.TRUNCATED)
        if self.offset + count > MAX_HEADER:
            raise BadModel(f"the GGUF header is longer than {MAX_HEADER} bytes")

    def _fill(self, count: int) -> None:
        """Makes `count` bytes available at the position."""
        self._bound(count)
        if len(self._buffer) - self._at >= count:
            return
        self._start, self._buffer, self._at = self.offset, self._buffer[self._at :], 0
        while len(self._buffer) < count:
            wanted = max(count - len(self._buffer), self._next_read)
            got = self._read_at(wanted, self._start + len(self._buffer))
            if not got:
                raise BadModel(self.TRUNCATED)
            self._buffer += got
            self._next_read = min(self._next_read * 2, _LARGEST_READ)
