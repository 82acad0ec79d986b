"""Tiny GGUF files for tests, valid and hostile. Source of the format: ggml's docs/gguf.md."""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

U8, U32, I32, F32, BOOL, STRING, ARRAY, U64 = 0, 4, 5, 6, 7, 8, 9, 10
TYPE_F32, TYPE_Q4_1 = 0, 3


@dataclass(frozen=True)
class Raw:
    """A metadata value given as its type and its bytes."""

    type: int
    data: bytes


@dataclass(frozen=True)
class TensorInfo:
    """`offset` None is the next aligned place."""

    name: str = "output.weight"
    shape: tuple[int, ...] = (32, 2)
    type: int = TYPE_F32
    offset: int | None = None


Meta: TypeAlias = str | bool | int | float | Sequence[str] | Sequence[int] | Raw

METADATA: Mapping[str, Meta] = {
    "general.architecture": "llama",
    "general.name": "Tiny",
    "general.file_type": 0,
    "llama.context_length": 128,
    "llama.embedding_length": 32,
    "llama.block_count": 1,
    "llama.attention.head_count": 2,
    "tokenizer.ggml.tokens": ["a", "bc", ""],
}


def string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def value(meta: Meta) -> bytes:
    """Type and bytes of a metadata value."""
    match meta:
        case Raw():
            return struct.pack("<I", meta.type) + meta.data
        case str():
            return struct.pack("<I", STRING) + string(meta)
        case bool():
            return struct.pack("<I?", BOOL, meta)
        case int():
            wide = meta >= 2**32
            return struct.pack("<IQ" if wide else "<II", U64 if wide else U32, meta)
        case float():
            return struct.pack("<If", F32, meta)
        case _ if all(isinstance(item, str) for item in meta):
            return struct.pack("<IIQ", ARRAY, STRING, len(meta)) + b"".join(
                string(str(item)) for item in meta
            )
        case _:
            return struct.pack("<IIQ", ARRAY, I32, len(meta)) + b"".join(
                struct.pack("<i", item) for item in meta
            )


def head(tensors: int, keys: int, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys)


def gguf(
    metadata: Mapping[str, Meta] | None = None,
    tensors: Sequence[TensorInfo] = (TensorInfo(),),
    *,
    version: int = 3,
    alignment: int = 32,
    data: bytes | None = None,
) -> bytes:
    """A whole file. `metadata` is put over METADATA; `data` replaces the bytes of the tensors."""
    entries = {**METADATA, **(metadata or {})}
    parts = [head(len(tensors), len(entries), version)]
    parts += [string(key) + value(meta) for key, meta in entries.items()]
    end = 0
    for tensor in tensors:
        offset = -(-end // alignment) * alignment if tensor.offset is None else tensor.offset
        parts.append(string(tensor.name) + struct.pack("<I", len(tensor.shape)))
        parts += [struct.pack("<Q", size) for size in tensor.shape]
        parts.append(struct.pack("<IQ", tensor.type, offset))
        elements = 1
        for size in tensor.shape:
            elements *= size
        end = offset + (elements // 32 * 20 if tensor.type == TYPE_Q4_1 else elements * 4)
    header = b"".join(parts)
    padding = bytes(-len(header) % alignment)
    return header + padding + (bytes(end) if data is None else data)


def claims_huge_array() -> bytes:
    """49 bytes: one key whose value is an array of 2^60 bytes."""
    return head(0, 1) + string("a") + struct.pack("<IIQ", ARRAY, U8, 2**60)


GIT_LFS_POINTER = (
    b"version https://git-lfs.github.com/spec/v1\n"
    b"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 98362432\n"
)
WEB_PAGE = b"<!DOCTYPE html>\n<html><head><title>Sign in</title></head></html>\n"

# What a file that is no model looks like -> words of the one sentence that refuses it.
NOT_MODELS: Mapping[str, tuple[bytes, str]] = {
    "empty": (b"", "the file is empty"),
    "web page": (WEB_PAGE, "a web page"),
    "git-lfs pointer": (GIT_LFS_POINTER, "git-lfs pointer"),
    "text": (b"hello\n", "is text"),
    "binary": (b"\x80\x02}q\x00", "is not GGUF"),
    "truncated header": (gguf()[:100], "ends inside its header"),
    "truncated tensors": (gguf()[:-1], "ends 1 bytes after the file"),
}
