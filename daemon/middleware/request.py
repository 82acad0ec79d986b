"""The pieces of a request that every dialect has: model, keep_alive, sampling, stop sequences, messages and roles."""

from collections.abc import Mapping

from daemon.chat import Role, Sampling
from daemon.durations import parse_keep_alive
from daemon.middleware.fields import BadField, FieldNotSupported, Fields, shown

MAX_MESSAGES = 10_000
MAX_STOPS = 16

_ROLES: Mapping[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}

MAX_INT = 2**31 - 1  # the engine counts in 32 bits
MAX_WINDOW = 2**24
MAX_REPEAT = 2**20
_SEEDS = 2**32 - 1  # the engine takes this very number for "random"


def model(fields: Fields) -> str:
    name = fields.string("model")
    if not name:
        raise BadField("model", "is required")
    return name


def keep_alive(fields: Fields) -> float | None:
    """Seconds, infinity for ever. On the routes of OpenAI and Anthropic it is an extra field."""
    value = fields.data.get("keep_alive")
    try:
        return parse_keep_alive(value)
    except ValueError:
        raise BadField(
            "keep_alive", f'must be a number of seconds or a duration like "5m", not {shown(value)}'
        ) from None


def sampling(
    fields: Fields, *, max_tokens: int | None, stop: str = "stop", max_temperature: float = 2
) -> Sampling:
    """All options of chat.Sampling by their own names, on every route, also where its API has no such option.

    `stop` is the name of the field with stop sequences. logprobs and logit_bias are the dialect's to read.
    """
    # The engine allocates `repeat_last_n` entries per request, and divides logits by `repeat_penalty`.
    return Sampling(
        max_tokens=max_tokens,
        stop=_stops(fields, stop),
        seed=_seed(fields),
        temperature=fields.number("temperature", 0, max_temperature),
        top_k=fields.integer("top_k", -1, MAX_INT),
        top_p=fields.number("top_p", 0, 1),
        min_p=fields.number("min_p", 0, 1),
        typical_p=fields.number("typical_p", 0, 1),
        repeat_last_n=fields.integer("repeat_last_n", -1, MAX_REPEAT),
        repeat_penalty=fields.number("repeat_penalty", 0.1, 10),
        presence_penalty=fields.number("presence_penalty", -2, 2),
        frequency_penalty=fields.number("frequency_penalty", -2, 2),
        num_keep=fields.integer("num_keep", -1, MAX_WINDOW),
    )


def _stops(fields: Fields, key: str) -> tuple[str, ...] | None:
    """An empty array is a choice: it overrides what the model brings."""
    sequences = fields.strings(key)
    if sequences is None:
        return None
    if len(sequences) > MAX_STOPS:
        raise BadField(fields.name(key), f"has {len(sequences)} sequences; at most {MAX_STOPS} are allowed")
    if "" in sequences:
        raise BadField(
            fields.name(key), "holds an empty string; a stop sequence needs at least one character"
        )
    return sequences


def _seed(fields: Fields) -> int | None:
    """Any 64-bit seed, folded into the engine's 32 bits; -1 is "random"."""
    seed = fields.integer("seed", -(2**63), 2**63 - 1)
    return seed if seed is None or seed == -1 else seed % _SEEDS


def later_seed(seed: int | None, place: int) -> int:
    """The seed of answer number `place`, 1 or more, to one request; without one it is random, not the model's own."""
    return -1 if seed is None or seed == -1 else (seed + place) % _SEEDS


# Efforts that are documented somewhere, and what they are here: whether to think at all, or how much.
_EFFORTS: Mapping[str, bool | str] = {
    "none": False,
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "high",
    "max": "high",
    "ultra": "high",
}


def thinking(fields: Fields, key: str) -> bool | str | None:
    """The switch at `key`: true, false or an effort, as chat.ChatRequest.thinking has it."""
    value = fields.data.get(key)
    if value is None or isinstance(value, bool):
        return value
    effort = _EFFORTS.get(value) if isinstance(value, str) else None
    if effort is None:
        names = ", ".join(_EFFORTS)
        raise BadField(fields.name(key), f"must be true, false or one of {names}, not {shown(value)}")
    return effort


def messages(fields: Fields) -> list[Fields]:
    items = fields.objects("messages")
    if len(items) > MAX_MESSAGES:
        raise BadField("messages", f"has {len(items)} entries; at most {MAX_MESSAGES} are allowed")
    return items


def role(message: Fields) -> Role:
    text = message.required("role")
    known = _ROLES.get(text.lower())
    if known is None:
        raise BadField(message.name("role"), f"must be one of {', '.join(_ROLES)}, not {shown(text)}")
    return known


def unbuilt_kind(block: Fields) -> FieldNotSupported:
    """For a content block whose type nothing here reads, such as "image"."""
    return FieldNotSupported(block.name("type"), f"{shown(block.required('type'))} is not supported")
