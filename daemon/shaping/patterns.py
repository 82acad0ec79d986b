"""Regular expressions of JSON schemas: written anew so that the engine enforces them, and matched in linear steps.

The engine converts only a part of the syntax, takes any string where it cannot, and copies characters as they stand,
so that a quote or a line end would break the JSON. Here a pattern becomes a tree, and the tree a pattern of character
classes, groups and repetitions alone, anchored at both ends. Matching walks the tree: the `re` module takes
exponential time for some patterns, and the pattern comes from a stranger.
Syntax: ECMA-262, as JSON Schema demands. Without look-around, back references and Unicode properties.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

# The engine stops to count beyond 2,000.
MAX_REPEAT: Final = 1000
_MAX_DEPTH = 40

_Range: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Chars:
    """One character out of `ranges`, which are inclusive, in order and apart."""

    ranges: tuple[_Range, ...]


@dataclass(frozen=True, slots=True)
class Sequence:
    items: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True)
class Either:
    options: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True)
class Repeat:
    """`high` None is without end."""

    item: "Node"
    low: int
    high: int | None


Node: TypeAlias = Chars | Sequence | Either | Repeat


class PatternNotSupported(ValueError):
    """The pattern is wrong, or uses what no grammar has. The message is what is the matter with it."""


# ---- sets of characters

_LAST = 0x10FFFF


def _union(ranges: Iterable[_Range]) -> tuple[_Range, ...]:
    merged: list[_Range] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def _complement(ranges: Iterable[_Range], last: int = _LAST) -> tuple[_Range, ...]:
    found, start = [], 0
    for low, high in _union(ranges):
        if start < low:
            found.append((start, min(low - 1, last)))
        start = high + 1
    if start <= last:
        found.append((start, last))
    return tuple((low, high) for low, high in found if low <= high)


def _without(ranges: tuple[_Range, ...], others: tuple[_Range, ...]) -> tuple[_Range, ...]:
    return _complement((*_complement(ranges), *others))


_DIGIT = ((0x30, 0x39),)
_WORD = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_SPACE = ((0x09, 0x0D), (0x20, 0x20))
_ASCII = 0x7F

# Negated ones keep to ASCII: whether an "é" is a word's character depends on who reads the pattern.
_CATEGORIES: dict[str, tuple[_Range, ...]] = {
    "d": _DIGIT,
    "w": _WORD,
    "s": _SPACE,
    "D": _complement(_DIGIT, _ASCII),
    "W": _complement(_WORD, _ASCII),
    "S": _complement(_SPACE, _ASCII),
}
_CONTROLS = {"n": 0x0A, "r": 0x0D, "t": 0x09, "f": 0x0C, "v": 0x0B, "0": 0x00}
_DOT = Chars(_complement([(0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029)]))
_ANYTHING = Repeat(Chars(((0, _LAST),)), 0, None)

# What cannot stand in a JSON string as it is, and surrogates, which are no characters.
_ESCAPED = ((0x00, 0x1F), (0x22, 0x22), (0x5C, 0x5C), (0x7F, 0x7F), (0xD800, 0xDFFF))
_JSON_ESCAPES = {0x22: '"', 0x5C: "\\", 0x08: "b", 0x0A: "n", 0x0D: "r", 0x09: "t", 0x0C: "f"}


# ---- reading


def parse(pattern: str) -> Node:
    """The tree of the whole string that `pattern` is found in. Raises PatternNotSupported."""
    parser = _Parser(pattern)
    node = parser.either(outermost=True)
    if not parser.ended:
        raise PatternNotSupported("has a ')' too many")
    return node


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    @property
    def ended(self) -> bool:
        return self._at >= len(self._text)

    def either(self, outermost: bool = False) -> Node:
        options = [self._outer_branch() if outermost else self._branch()]
        while self._take("|"):
            options.append(self._outer_branch() if outermost else self._branch())
        return options[0] if len(options) == 1 else Either(tuple(options))

    def _outer_branch(self) -> Node:
        start = () if self._take("^") else (_ANYTHING,)
        items = self._items()
        end = () if self._take("$") else (_ANYTHING,)
        return Sequence((*start, *items, *end))

    def _branch(self) -> Node:
        return Sequence(tuple(self._items()))

    def _items(self) -> list[Node]:
        items = []
        while not self.ended and self._peek() not in "|)$":
            items.append(self._quantified())
        return items

    def _quantified(self) -> Node:
        node = self._atom()
        while not self.ended and self._peek() in "*+?{":
            low, high = self._quantifier()
            self._take("?")  # lazy: the same strings match
            if high is None and _width(node)[0] == 0:
                raise PatternNotSupported("repeats without end what may be empty")
            node = Repeat(node, low, high)
        return node

    def _quantifier(self) -> tuple[int, int | None]:
        sign = self._next()
        if sign != "{":
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[sign]
        inner, brace, rest = self._text[self._at :].partition("}")
        low, comma, high = inner.partition(",")
        if not (
            brace
            and low.isdecimal()
            and low.isascii()
            and (not high or (high.isdecimal() and high.isascii()))
        ):
            raise PatternNotSupported("has a '{' that is not a repetition; write '\\{' for the character")
        if max(len(low), len(high)) > 4 or max(int(low), int(high or 0)) > MAX_REPEAT:
            raise PatternNotSupported(f"repeats more than {MAX_REPEAT} times")
        self._at = len(self._text) - len(rest)
        bounds = int(low), (int(high) if high else None) if comma else int(low)
        if bounds[1] is not None and bounds[0] > bounds[1]:
            raise PatternNotSupported("has a repetition whose bounds are the wrong way round")
        return bounds

    def _atom(self) -> Node:
        char = self._next()
        match char:
            case "(":
                return self._group()
            case "[":
                return self._class()
            case ".":
                return _DOT
            case "\\":
                ranges, _ = self._escape()
                return Chars(ranges)
            case "^":
                raise PatternNotSupported("has an anchor inside")
            case "*" | "+" | "?" | "{":
                raise PatternNotSupported(f"has a '{char}' with nothing to repeat")
        return Chars(((ord(char), ord(char)),))

    def _group(self) -> Node:
        if self._take("?") and not self._take(":"):
            raise PatternNotSupported(
                "has a group of a kind that no grammar has (only '(...)' and '(?:...)' work)"
            )
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise PatternNotSupported(f"nests deeper than {_MAX_DEPTH} groups")
        node = self.either()
        if not self._take(")"):
            raise PatternNotSupported(
                "has an anchor inside" if not self.ended else "has a '(' without its ')'"
            )
        self._depth -= 1
        return node

    def _class(self) -> Node:
        negated = self._take("^")
        ranges: list[_Range] = []
        last = _LAST
        while self._peek("has a '[' without its ']'") != "]":
            found, category = self._class_item()
            if category:
                last = _ASCII
            elif (
                self._text[self._at : self._at + 1] == "-" and self._text[self._at + 1 : self._at + 2] != "]"
            ):
                self._at += 1
                end, category = self._class_item()
                if category or end[0][0] < found[0][0]:
                    raise PatternNotSupported("has a range of characters that is the wrong way round")
                found = ((found[0][0], end[0][0]),)
            ranges.extend(found)
        self._at += 1
        return Chars(_complement(ranges, last) if negated else _union(ranges))

    def _class_item(self) -> tuple[tuple[_Range, ...], bool]:
        char = self._next()
        if char != "\\":
            return ((ord(char), ord(char)),), False
        if self._take("b"):
            return ((0x08, 0x08),), False
        return self._escape()

    def _escape(self) -> tuple[tuple[_Range, ...], bool]:
        """What stands after a backslash, and whether it is a category such as \\d."""
        char = self._next()
        if char in _CATEGORIES:
            return _CATEGORIES[char], True
        if char in _CONTROLS:
            code = _CONTROLS[char]
        elif char in "xu":
            digits = self._text[self._at : self._at + (2 if char == "x" else 4)]
            if len(digits) != (2 if char == "x" else 4) or not all(
                each in "0123456789abcdefABCDEF" for each in digits
            ):
                raise PatternNotSupported(f"has a '\\{char}' without its hexadecimal digits")
            self._at += len(digits)
            code = int(digits, 16)
        elif char.isalnum():
            raise PatternNotSupported(f"uses '\\{char}', which no grammar has")
        else:
            code = ord(char)
        return ((code, code),), False

    def _peek(self, problem: str = "ends too early") -> str:
        if self.ended:
            raise PatternNotSupported(problem)
        return self._text[self._at]

    def _next(self) -> str:
        char = self._peek()
        self._at += 1
        return char

    def _take(self, char: str) -> bool:
        if self._text.startswith(char, self._at):
            self._at += 1
            return True
        return False


# ---- lengths


def _width(node: Node) -> tuple[int, int | None]:
    """How many characters match, at least and at most."""
    match node:
        case Chars():
            return 1, 1
        case Repeat(item, low, high):
            least, most = _width(item)
            return least * low, None if high is None or most is None else most * high
        case Either(options):
            widths = [_width(option) for option in options]
            ends = [most for _, most in widths if most is not None]
            return min(least for least, _ in widths), max(ends) if len(ends) == len(widths) else None
        case Sequence(items):
            widths = [_width(item) for item in items]
            ends = [most for _, most in widths if most is not None]
            return sum(least for least, _ in widths), sum(ends) if len(ends) == len(widths) else None


def within(node: Node, low: int, high: int | None) -> Node:
    """What also has from `low` to `high` characters. Raises PatternNotSupported where repetitions cannot be bounded."""
    least, most = _width(node)
    if least >= low and (high is None or (most is not None and most <= high)):
        return node
    items = node.items if isinstance(node, Sequence) else (node,)
    varied = [i for i, item in enumerate(items) if _width(item)[0] != _width(item)[1]]
    if len(varied) == 1 and isinstance(repeat := items[varied[0]], Repeat) and _width(repeat.item) == (1, 1):
        fixed = least - repeat.low
        ends = [end for end in (repeat.high, None if high is None else high - fixed) if end is not None]
        begin, end = max(repeat.low, low - fixed), min(ends) if ends else None
        if begin <= MAX_REPEAT and (end is None or begin <= end):
            end = None if end is None else min(end, MAX_REPEAT)
            bounded = replace(repeat, low=begin, high=end)
            return Sequence((*items[: varied[0]], bounded, *items[varied[0] + 1 :]))
    raise PatternNotSupported("does not fit together with the length that is asked for")


# ---- writing


def written(node: Node) -> str:
    """The pattern as the engine enforces it. Raises PatternNotSupported for characters that JSON cannot hold."""
    return f"^{_written(node)}$"


def _written(node: Node) -> str:
    match node:
        case Chars(ranges):
            return _written_chars(ranges)
        case Sequence(items):
            return "".join(
                f"({_written(item)})" if isinstance(item, Either) else _written(item) for item in items
            )
        case Either(options):
            return "|".join(_written(option) for option in options)
        case Repeat(item, low, high):
            one = _written(item)
            one = one if one.startswith("[") and one.endswith("]") and one.count("[") == 1 else f"({one})"
            if high is None:
                return f"{one}*" if low == 0 else f"{one}+" if low == 1 else f"{one}{{{low}}}{one}*"
            return f"{one}?" if (low, high) == (0, 1) else f"{one}{{{low},{high}}}" if high else ""


def _written_chars(ranges: tuple[_Range, ...]) -> str:
    plain = _without(ranges, _ESCAPED)
    if plain:
        return "[" + "".join(_written_range(each) for each in plain) + "]"
    for code, escape in _JSON_ESCAPES.items():
        if any(low <= code <= high for low, high in ranges):
            return rf"([\x5C][{_written_char(ord(escape))}])"
    raise PatternNotSupported("asks for a character that cannot be written")


def _written_range(each: _Range) -> str:
    low, high = each
    return _written_char(low) if low == high else f"{_written_char(low)}-{_written_char(high)}"


def _written_char(code: int) -> str:
    if code < 0x80:
        char = chr(code)
        return char if char.isalnum() else f"\\x{code:02X}"
    return f"\\u{code:04X}" if code <= 0xFFFF else f"\\U{code:08X}"


# ---- matching


def matches(node: Node, text: str) -> bool:
    """Whether all of `text` is what the tree describes."""
    return len(text) in _ends(node, text, {0})


def _ends(node: Node, text: str, starts: set[int]) -> set[int]:
    """Where matches of `node` that begin at one of `starts` can end."""
    match node:
        case Chars(ranges):
            return {
                at + 1
                for at in starts
                if at < len(text) and any(low <= ord(text[at]) <= high for low, high in ranges)
            }
        case Sequence(items):
            for item in items:
                starts = _ends(item, text, starts)
            return starts
        case Either(options):
            return set().union(*(_ends(option, text, starts) for option in options))
        case Repeat(item, low, high):
            for _ in range(low):
                starts = _ends(item, text, starts)
            reached, count = set(starts), low
            while starts and (high is None or count < high):
                starts = _ends(item, text, starts) - reached
                reached |= starts
                count += 1
            return reached
