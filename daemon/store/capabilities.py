"""What a model can do, judged by its metadata, its chat template and its projectors.

The words and most rules are Ollama's (`capabilities` in its API). "insert" differs: there it comes from a template of
its own kind, here from the tokens that the engine needs to fill in the middle.
"""

from collections.abc import Iterable

from daemon.store.summary import Summary

_INSERT_TOKENS = (
    ("tokenizer.ggml.fim_pre_token_id", "tokenizer.ggml.fim_suf_token_id"),
    ("tokenizer.ggml.prefix_token_id", "tokenizer.ggml.suffix_token_id"),
)


def capabilities(
    summary: Summary,
    projectors: Iterable[Summary] = (),
    claimed: Iterable[str] = (),
    template: str | None = None,
) -> tuple[str, ...]:
    """Distinct words, in a fixed order. `claimed` are those that the model's config names; `template` is the Jinja
    that goes before the one in the header."""
    found = [*claimed]
    has = summary.metadata.__contains__
    found.append("embedding" if has(summary.key("pooling_type")) else "completion")
    if has(summary.key("vision.block_count")):
        found.append("vision")
    if has(summary.key("audio.block_count")):
        found.append("audio")
    template = summary.chat_template or "" if template is None else template
    if "tools" in template or "tool_call" in template:
        found.append("tools")
    if any(all(map(has, keys)) for keys in _INSERT_TOKENS):
        found.append("insert")
    if _thinks(template):
        found.append("thinking")
    for projector in projectors:
        found.append("vision")
        if any(key.endswith(".has_audio_encoder") and value for key, value in projector.metadata.items()):
            found.append("audio")
    return tuple(dict.fromkeys(found))


def _thinks(template: str) -> bool:
    if "<think>" in template and "</think>" in template:
        return True
    splits = "split('</think>')" in template or 'split("</think>")' in template
    return splits and "reasoning_content" not in template
