"""A model of half a megabyte with random weights, so that an engine can be tested on a machine without any model.

It has the llama architecture, two layers, and a token for each byte; what it says is noise, the same each time. The
keys are those of ggml's docs/gguf.md, the tensors those that llama.cpp's `llama` architecture loads.
"""

from pathlib import Path

import gguf
import numpy as np

LAYERS = 2
WIDTH = 64
INNER = 128
WINDOW = 256
_SPECIAL = ("<unk>", "<s>", "</s>")
_VOCABULARY = len(_SPECIAL) + 256


def write(path: Path) -> None:
    """Writes the model. Raises OSError."""
    writer = gguf.GGUFWriter(path, "llama")
    try:
        _describe(writer)
        for name, values in _tensors().items():
            writer.add_tensor(name, values)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()


def _describe(writer: "gguf.GGUFWriter") -> None:
    writer.add_name("Tiny")
    writer.add_context_length(WINDOW)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(1)  # a head of 64 has its own kernel on every GPU, smaller ones have none
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH)
    writer.add_vocab_size(_VOCABULARY)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([*_SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256))])
    writer.add_token_scores([0.0] * _VOCABULARY)
    kinds = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
    writer.add_token_types([*kinds, *[gguf.TokenType.BYTE] * 256])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_space_prefix(False)


def _tensors() -> dict[str, "np.ndarray[tuple[int, ...], np.dtype[np.float32]]"]:
    random = np.random.default_rng(0)

    def matrix(rows: int, columns: int) -> "np.ndarray[tuple[int, ...], np.dtype[np.float32]]":
        return random.normal(0.0, columns**-0.5, (rows, columns)).astype(np.float32)

    ones = np.ones(WIDTH, np.float32)
    head = matrix(_VOCABULARY, WIDTH)
    head[: len(_SPECIAL)] = 0.0  # never the likeliest token, so that no answer ends early
    tensors = {
        "token_embd.weight": matrix(_VOCABULARY, WIDTH),
        "output.weight": head,
        "output_norm.weight": ones,
    }
    for layer in range(LAYERS):
        block = {f"attn_{part}": matrix(WIDTH, WIDTH) for part in ("q", "k", "v", "output")}
        block |= {
            "ffn_gate": matrix(INNER, WIDTH),
            "ffn_up": matrix(INNER, WIDTH),
            "ffn_down": matrix(WIDTH, INNER),
        }
        block |= {"attn_norm": ones, "ffn_norm": ones}
        tensors |= {f"blk.{layer}.{name}.weight": values for name, values in block.items()}
    return tensors
