"""What is known of a model, in words; for `mgr show` and for a conversation."""

from cli import humanize, output
from cli.client import Client, Json

PARTS = ("modelfile", "parameters", "template", "system", "license")
_EXCERPT_LINES = 2


def describe(client: Client, model: str, part: str | None) -> str:
    """One of PARTS as it is, or everything in short."""
    info = details(client, model)
    return summary(info) if part is None else str(info.get(part) or "").rstrip("\n")


def details(client: Client, model: str) -> Json:
    return client.call("POST", "/api/show", {"model": model})


def summary(info: Json) -> str:
    """The sections that have content."""
    sections: dict[str, list[tuple[str, ...]]] = {
        "Model": _model(info),
        "Capabilities": [(str(name),) for name in info.get("capabilities") or []],
        "Parameters": [_parameter(line) for line in str(info.get("parameters") or "").splitlines()],
        "System": _excerpt(info.get("system")),
        "License": _excerpt(info.get("license")),
    }
    return "\n\n".join(f"  {title}\n{_indented(rows)}" for title, rows in sections.items() if rows)


def _model(info: Json) -> list[tuple[str, ...]]:
    facts, details = info.get("model_info") or {}, info.get("details") or {}
    architecture = facts.get("general.architecture") or details.get("family")
    count = facts.get("general.parameter_count")
    rows: dict[str, object] = {
        "architecture": architecture,
        "parameters": humanize.parameters(count) if count else details.get("parameter_size"),
        "context length": facts.get(f"{architecture}.context_length"),
        "embedding length": facts.get(f"{architecture}.embedding_length"),
        "quantization": details.get("quantization_level"),
    }
    return [(name, str(value)) for name, value in rows.items() if value]


def _parameter(line: str) -> tuple[str, ...]:
    name, _, value = line.strip().partition(" ")
    return name, value.strip()


def _excerpt(text: object) -> list[tuple[str, ...]]:
    """The first lines that say something."""
    lines = [line.strip() for line in str(text or "").splitlines() if line.strip()]
    shown = lines[:_EXCERPT_LINES] + ["..."] * (len(lines) > _EXCERPT_LINES)
    return [(line,) for line in shown]


def _indented(rows: list[tuple[str, ...]]) -> str:
    return "\n".join(f"    {line}" for line in output.aligned(rows).splitlines())
