"""Feeds the readers of flight-recorder dumps with what a coverage-guided fuzzer makes up.

Only `ParseError` may come out, and what the fast reader gives must be what the ordinary one gives.
Needs `pip install --group fuzz`. Options are those of libFuzzer, such as ``-max_total_time=600``;
inputs that find new ways through the code are kept in the folder given, if any.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.fuzzing import fuzz, instrumented

with instrumented("whystuck.parse"):
    from whystuck.parse.dumps.fast.entry_scan import scan_pickle
    from whystuck.parse.dumps.fast.vocabulary import Vocabulary
    from whystuck.parse.dumps.flight_recorder import (
        RankDump,
        RawDump,
        parse_flight_recorder,
        parse_flight_recorders,
    )
    from whystuck.parse.dumps.merge import merge_dumps
    from whystuck.parse.errors import ParseError

from bench.fr_dumps import Layout, make_dump
from tests.parse.dumps.builders import as_json, as_pickle
from tests.parse.dumps.fast.test_entry_scan import CONFIG, assert_same, make_entries
from tests.parse.dumps.test_safety import BOMBS
from tests.parse.dumps.torch_pickle import as_torch_pickle, puts_twice

DEFAULTS = ("-max_len=24000", "-rss_limit_mb=8000", "-malloc_limit_mb=1000", "-timeout=20")
MAX_SEED_BYTES = 24_000


def read(data: bytes, *, side_by_side: bool) -> RankDump | None:
    """Read one dump and merge it with itself."""
    try:
        dump = parse_flight_recorder(
            data, rank=0, artifact="0", members={"0": [0, 1]}, side_by_side=side_by_side
        )
        merge_dumps([dump, replace(dump, rank=1)])
    except ParseError:
        return None
    return dump


def read_among_others(data: bytes) -> RankDump | None:
    """Read one dump together with sound ones, which it must not change."""
    pickles = (*SOUND, data, *SOUND)
    raw = [RawDump(one, 0, "0", {"0": [0, 1]}) for one in pickles]
    results = parse_flight_recorders(raw, Vocabulary())
    found = results.pop(len(SOUND))
    for result, whole in zip(results, SOUND_DUMPS * 2, strict=True):
        assert isinstance(result, RankDump)
        assert_same(result, whole)
    return found if isinstance(found, RankDump) else None


def test_one_input(data: bytes) -> None:
    """Read an input in all ways."""
    fast = read(data, side_by_side=True)
    among = read_among_others(data)
    if fast is not None:
        assert among is not None
        assert_same(fast, among)
    if scan_pickle(data) is None:
        return
    slow = read(data, side_by_side=False)
    if fast is not None and slow is not None and not puts_twice(data) and not holds_itself(slow):
        assert_same(fast, slow)


def holds_itself(dump: RankDump) -> bool:
    """Tell a dump in which a text is the dump, which is shorter where entries are left out."""
    return "'entries'" in str((dump.sites, dump.forms, dump.groups))


SOUND = [
    as_pickle(make_dump(Layout(32, steps=3), 1)),
    as_torch_pickle(make_dump(Layout(32, steps=3), 1)),
]
SOUND_DUMPS = [
    parse_flight_recorder(one, rank=0, artifact="0", members={"0": [0, 1]}) for one in SOUND
]


def write_seeds(folder: Path) -> None:
    """Write dumps of all kinds to start from."""
    dumps = [make_dump(Layout(32, steps=2), rank) for rank in (0, 5, 16)]
    for count in (0, 3, 70, 120):
        entries = make_entries(count)
        dumps.append({"version": "2.9", "pg_config": CONFIG, "pg_status": {}, "entries": entries})
    seeds = [write(dump) for dump in dumps for write in (as_pickle, as_torch_pickle, as_json)]
    for number, data in enumerate((*seeds, *BOMBS.values())):
        if len(data) <= MAX_SEED_BYTES:
            (folder / f"seed-{number}").write_bytes(data)


if __name__ == "__main__":
    fuzz(test_one_input, write_seeds, DEFAULTS)
