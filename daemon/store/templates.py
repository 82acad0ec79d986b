"""Which language a chat template is written in. Nothing is rendered here.

The engine renders Jinja. Go's templates, which the models of Ollama's registry bring along, are kept and shown only.
"""

import re

# An action of Go's text/template: a field, a variable, a comment, or a word that Jinja writes in other brackets.
_GO_ACTION = re.compile(
    r"\{\{-?\s*(?:\.|\$|/\*|\(|(?:if|else|end|range|with|define|template|block|break|continue|json|and|or|not|eq)\b)"
)
_JINJA_EXPRESSION = re.compile(r"\{\{[-+]?\s*[A-Za-z_'\"\[]")


def is_jinja(template: str) -> bool:
    """Jinja has statements in `{% %}`, or expressions in `{{ }}` that are no action of Go's.

    >>> is_jinja("{{ bos_token }}{{ messages[0].content }}"), is_jinja("{{ .System }} {{ .Prompt }}")
    (True, False)
    """
    if "{%" in template:
        return True
    return _GO_ACTION.search(template) is None and _JINJA_EXPRESSION.search(template) is not None
