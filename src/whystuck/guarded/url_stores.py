"""Stores behind URLs, as fsspec opens them, whose servers may be slow, wrong, or somebody's trap.

A server of HTTP tells what it has by pages of links, as long, as many and as deep as it likes.
"""

from __future__ import annotations

import errno
import re
import time
from collections.abc import Mapping
from functools import cache
from typing import Any, Final
from urllib.parse import urlsplit

MAX_FILES: Final = 200_000
_WEB: Final = frozenset({"http", "https"})
_S3: Final = frozenset({"s3", "s3a"})
_MAX_FOLDERS: Final = 20_000
_MAX_DEPTH: Final = 16
_MAX_LIST_S: Final = 60.0
# A page of links; and what fsspec reads at once, which is a block of a file or a small one whole.
_MAX_PAGE_BYTES: Final = 8 << 20
_MAX_ANSWER_BYTES: Final = 64 << 20
_PIECE_BYTES: Final = 1 << 16
_LINK = re.compile(r"""href\s{0,8}=\s{0,8}["']([^"'<>\s]{1,2048})["']""", re.IGNORECASE)


def open_url_store(url: str) -> tuple[Any, str]:
    """Return the file system behind a URL, and the path there; raises whatever a store raises."""
    import fsspec

    options: dict[str, Any] = {}
    if urlsplit(url).scheme.lower() in _WEB:
        options["client_kwargs"] = {"response_class": _bounded_answer()}
    files, root = fsspec.core.url_to_fs(url, **options)
    return files, str(root)


def find_files(files: Any, root: str) -> Mapping[str, Mapping[str, Any]]:  # noqa: ANN401 - of fsspec
    """Return what is known of the files at and below a path, by path.

    Raises:
        OSError: There is no end of them; and whatever a store raises.
    """
    named = {files.protocol} if isinstance(files.protocol, str) else set(files.protocol)
    if named.isdisjoint(_WEB):
        return _find_in_store(files, root, is_s3=not named.isdisjoint(_S3))
    found: dict[str, Mapping[str, Any]] = {}
    until_s = time.monotonic() + _MAX_LIST_S
    for number, (_, _, inside) in enumerate(files.walk(root, maxdepth=_MAX_DEPTH, detail=True)):
        found |= {info["name"]: info for info in inside.values()}
        if number >= _MAX_FOLDERS or len(found) > MAX_FILES or time.monotonic() > until_s:
            raise OSError(errno.EFBIG, "its server lists folders and files without an end")
    if not found and files.isfile(root):
        found[root] = {}
    return found


def _find_in_store(files: Any, root: str, *, is_s3: bool) -> dict[str, Mapping[str, Any]]:  # noqa: ANN401
    """Return the files of a store that lists all of them by itself, for a while."""
    limits: dict[str, Any] = {"timeout": _MAX_LIST_S} if getattr(files, "async_impl", False) else {}
    if is_s3:  # one more shows that there are more
        limits["max_items"] = MAX_FILES + 1
    try:
        return dict(files.find(root, detail=True, **limits))
    except TimeoutError as error:
        reason = f"its server lists files for more than {_MAX_LIST_S:g} s"
        raise OSError(errno.ETIMEDOUT, reason) from error


@cache
def _bounded_answer() -> Any:  # noqa: ANN401 - a class of an optional module
    """Return what aiohttp is to take answers by: of a size, with links that are found at once."""
    import aiohttp

    class BoundedAnswer(aiohttp.ClientResponse):
        """An answer that is refused when it is too long to be held in memory."""

        async def read(self) -> bytes:
            if self._body is None:
                self._body = await self._read_up_to(_MAX_ANSWER_BYTES)
            return await super().read()

        async def text(self, encoding: str | None = None, errors: str = "strict") -> str:
            """Return a page as no more than its links: patterns for HTML may take for ever."""
            del encoding, errors
            page = (await self._read_up_to(_MAX_PAGE_BYTES)).decode("utf-8", "replace")
            return "\n".join(f'<a href="{link}">' for link in _LINK.findall(page))

        async def _read_up_to(self, limit: int) -> bytes:
            pieces, left = [], limit
            async for piece in self.content.iter_chunked(_PIECE_BYTES):
                pieces.append(piece)
                left -= len(piece)
                if left < 0:
                    self.close()
                    raise OSError(errno.EFBIG, f"its server answers with more than {limit} bytes")
            return b"".join(pieces)

    return BoundedAnswer


__all__ = ["MAX_FILES", "find_files", "open_url_store"]
