"""Files behind URLs."""

from __future__ import annotations

import fsspec
import pytest

from whystuck.guarded.remote import fetched, read_bytes

URL = "memory://limits/trace.json"


@pytest.fixture(autouse=True)
def store() -> None:
    fsspec.filesystem("memory").pipe_file("/limits/trace.json", b"x" * 1000)


def test_file_of_the_limit_is_fetched() -> None:
    with fetched(URL, 1000) as path:
        assert path.read_bytes() == b"x" * 1000


def test_larger_file_is_refused() -> None:
    with pytest.raises(OSError, match="more than 999 bytes"), fetched(URL, 999):
        pytest.fail("it was fetched")
    with pytest.raises(OSError, match="more than 999 bytes"):
        read_bytes(URL, 999)
