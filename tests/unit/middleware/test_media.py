import base64

import pytest

from daemon.chat import Audio, Image
from daemon.middleware import media
from daemon.middleware.fields import BadField


def encoded(head: bytes) -> str:
    return base64.b64encode(head + b"0" * 60).decode()


PNG = encoded(b"\x89PNG\r\n\x1a\n")
WAV = encoded(b"RIFF\x00\x00\x00\x00WAVE")


@pytest.mark.parametrize(
    ("head", "mime"),
    [
        (b"\x89PNG\r\n\x1a\n", "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF87a", "image/gif"),
        (b"GIF89a", "image/gif"),
        (b"BM", "image/bmp"),
        (b"RIFF\x00\x00\x00\x00WEBP", "image/webp"),
    ],
)
def test_images_are_known_by_their_first_bytes(head: bytes, mime: str) -> None:
    assert media.media("f", encoded(head)) == Image(encoded(head), mime)
    assert media.image("f", encoded(head)).mime == mime


@pytest.mark.parametrize(
    ("head", "name"), [(b"RIFF\x00\x00\x00\x00WAVE", "wav"), (b"ID3", "mp3"), (b"\xff\xfb", "mp3")]
)
def test_sounds_too(head: bytes, name: str) -> None:
    assert media.media("f", encoded(head)) == Audio(encoded(head), name)
    assert media.audio("f", encoded(head)).format == name


def test_lines_of_base64_are_joined() -> None:
    broken = base64.encodebytes(base64.b64decode(PNG)).decode()
    assert "\n" in broken.strip()
    assert media.media("f", broken) == Image(PNG, "image/png")


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ("", "f is neither a PNG"),
        (encoded(b"hello"), "f is neither a PNG, JPEG, GIF, BMP or WebP image nor WAV or MP3 sound"),
        ("?" + PNG, "f is not base64"),
        (PNG[:-1], "f is not base64"),
        ("ö", "f is not base64"),
    ],
)
def test_what_is_neither(data: str, problem: str) -> None:
    with pytest.raises(BadField) as caught:
        media.media("f", data)
    assert caught.value.message.startswith(problem)


def test_one_is_not_the_other() -> None:
    with pytest.raises(BadField, match=r"^f is sound, not an image$"):
        media.image("f", WAV)
    with pytest.raises(BadField, match=r"^f is an image, not sound$"):
        media.audio("f", PNG)


@pytest.mark.parametrize(
    "url",
    [
        f"data:image/png;base64,{PNG}",
        f"data:;base64,{PNG}",
        f"DATA:image/jpeg;charset=x;BASE64,{PNG}",
        PNG,
    ],
)
def test_data_uris(url: str) -> None:
    assert media.image_url("f", url) == Image(PNG, "image/png")


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("http://169.254.169.254/", "f is a link, and mgr fetches none"),
        ("HTTPS://example.org/a,b.png", "f is a link, and mgr fetches none"),
        ("file:///etc/passwd", "f is a link, and mgr fetches none"),
        (f"data:image/png,{PNG}", "f is not a data: URI in base64"),
        ("data:image/png;base64", "f is not a data: URI in base64"),
        ("data:;base64,", "f is neither a PNG"),
        (f"data:;base64,{WAV}", "f is sound, not an image"),
        ("/etc/passwd", "f is not base64"),
    ],
)
def test_nothing_is_fetched(url: str, problem: str) -> None:
    with pytest.raises(BadField) as caught:
        media.image_url("f", url)
    assert caught.value.message.startswith(problem)
