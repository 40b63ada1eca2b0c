"""The cases: scripts that a job under ``whystuck run`` must do as it does without it."""

import tomllib
from pathlib import Path

import msgspec

FOLDER = Path(__file__).parent / "cases"


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One script, how its caller starts it, and what is compared.

    ``script`` is run by sh, ``python`` by this Python, ``torchrun`` by torchrun with two ranks,
    ``argv`` as it is; ``options`` are those of ``whystuck run``. ``signal`` is sent when the script
    has printed READY, to all of its group where ``group`` says so. ``limits`` are those of
    :mod:`resource`, without their prefix.
    """

    topic: str
    name: str
    script: str = ""
    python: str = ""
    torchrun: str = ""
    argv: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    stdin: str | None = None
    join: bool = False
    terminal: bool = False
    typed: str = ""
    signal: str | int = ""
    group: bool = False
    umask: int = -1
    env: dict[str, str] = {}
    unset: tuple[str, ...] = ()
    bare_environment: bool = False
    files: dict[str, str] = {}
    folders: tuple[str, ...] = ()
    delete_cwd: bool = False
    open: dict[str, str] = {}
    close: tuple[int, ...] = ()
    to_null: tuple[int, ...] = ()
    limits: dict[str, int] = {}
    ignore: tuple[str, ...] = ()
    block: tuple[str, ...] = ()
    disk: str = ""
    bare_skips: str = ""
    sort: bool = False
    only: tuple[str, ...] = ()
    settle_s: float = 0.0
    wall_slack_s: float = 1.0

    @property
    def id(self) -> str:
        """Topic and name."""
        return f"{self.topic}/{self.name}"


def load_cases() -> list[Case]:
    """Return all cases; raises msgspec.ValidationError for a key that no case has."""
    return [
        msgspec.convert({"topic": path.stem, "name": name, **keys}, Case)
        for path in sorted(FOLDER.glob("*.toml"))
        for name, keys in tomllib.loads(path.read_text()).items()
    ]
