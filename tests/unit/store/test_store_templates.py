"""Which language a template is in."""

import pytest

from daemon.store.templates import is_jinja


@pytest.mark.parametrize(
    "text",
    [
        "{% for m in messages %}{{ m.content }}{% endfor %}",
        "{%- if x -%}y{%- endif -%}",
        "{{ bos_token }}{{ messages[0]['content'] }}",
        "{{- bos_token -}}",
        "{{ '<s>' }}{{ messages }}",
        "{{messages}}",
    ],
)
def test_jinja(text: str) -> None:
    assert is_jinja(text)


@pytest.mark.parametrize(
    "text",
    [
        "{{ .Prompt }}",
        "{{.System}}{{.Prompt}}",
        "{{- if .System }}<|system|>{{ .System }}{{ end }}",
        "{{- range $i, $_ := .Messages }}{{ $last := eq $i 1 }}{{ end }}",
        "{{ if (eq .Role `user`) }}x{{ else }}y{{ end }}",
        "{{/* a comment */}}x",
        "{{ json .Tools }}",
        "{{ with .Messages }}{{ . }}{{ end }}",
        "no actions at all",
        "",
        "a { b } {c}",
    ],
)
def test_not_jinja(text: str) -> None:
    assert not is_jinja(text)
