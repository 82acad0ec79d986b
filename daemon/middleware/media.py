"""Images and sounds inside a request: base64 text, whose first bytes say what it is.

Source: data URIs are RFC 2397; the magic numbers are those of the formats' own specifications.
"""

import base64
import binascii

from daemon.chat import Audio, Image
from daemon.middleware.fields import BadField

_LINKS = ("http:", "https:", "file:", "ftp:")
_LONGEST_HEAD = 256


def media(field: str, data: str) -> Image | Audio:
    """What base64 text holds, an image or a sound; it may be broken into lines, as in a mail.

    `field` is the full name of where it stood. Raises BadField.
    """
    data = "".join(data.split())
    head = _decoded(field, data)[:16]
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return Image(data, "image/png")
    if head.startswith(b"\xff\xd8\xff"):
        return Image(data, "image/jpeg")
    if head.startswith((b"GIF87a", b"GIF89a")):
        return Image(data, "image/gif")
    if head.startswith(b"BM"):
        return Image(data, "image/bmp")
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return Image(data, "image/webp")
    if head[:4] == b"RIFF" and head[8:12] == b"WAVE":
        return Audio(data, "wav")
    if head.startswith(b"ID3") or (len(head) > 1 and head[0] == 0xFF and head[1] & 0xE0 == 0xE0):
        return Audio(data, "mp3")
    raise BadField(field, "is neither a PNG, JPEG, GIF, BMP or WebP image nor WAV or MP3 sound")


def image(field: str, data: str) -> Image:
    """Raises BadField, also for sound."""
    found = media(field, data)
    if not isinstance(found, Image):
        raise BadField(field, "is sound, not an image")
    return found


def audio(field: str, data: str) -> Audio:
    """Raises BadField, also for an image."""
    found = media(field, data)
    if not isinstance(found, Audio):
        raise BadField(field, "is an image, not sound")
    return found


def image_url(field: str, url: str) -> Image:
    """The image in a data URI, or in bare base64. Nothing is ever fetched."""
    head, comma, data = url.partition(",")
    head = head[:_LONGEST_HEAD].lower()
    if head.startswith(_LINKS):
        raise BadField(field, "is a link, and mgr fetches none; send the image as a data: URI in base64")
    if not head.startswith("data:"):
        return image(field, url)
    if not comma or not head.endswith(";base64"):
        raise BadField(field, "is not a data: URI in base64")
    return image(field, data)


def _decoded(field: str, data: str) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise BadField(field, "is not base64") from None
