"""Why a file cannot be opened: because of the file, or because nothing can be opened now."""

import errno
import os
from pathlib import Path

import pytest

from daemon.errors import StorageFailed
from daemon.store.files import open_regular


def refuse(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def no(path: Path, flags: int) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", no)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_without_descriptors_no_file_is_called_bad(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(number, monkeypatch)
    with pytest.raises(StorageFailed) as caught:
        open_regular(Path("/store/secret"))
    assert caught.value.message == f"the model store cannot open a file: {os.strerror(number)}"


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ELOOP, errno.EACCES])
def test_what_the_file_itself_refuses_is_left_to_the_caller(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(number, monkeypatch)
    with pytest.raises(OSError, match=os.strerror(number)):
        open_regular(Path("/store/a"))
