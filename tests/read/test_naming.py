from __future__ import annotations

from pathlib import Path

import pytest

from whystuck.read.naming import find_old_attempts, find_ranks


@pytest.mark.parametrize(
    ("names", "ranks"),
    [
        (["nccl_trace_rank_3", "nccl_trace_rank_12"], [3, 12]),
        (["x_container-node01_0", "x_container-node01_1", "x_container-node02_2"], [0, 1, 2]),
        (["node7-job123-5", "node7-job123-6"], [5, 6]),
        (["node1-job-5", "node2-job-6"], [5, 6]),
        (["0_node01", "1_node01", "2_node02"], [0, 1, 2]),
        (["3_20250101_120003.pkl", "4_20250101_120009.pkl"], [3, 4]),
        (["dump_0_pid4711", "dump_1_pid4690"], [0, 1]),
        (["_dump_1500", "_dump_7"], [1500, 7]),
        (["0.pkl.gz", "1.pkl.gz"], [0, 1]),
        (["job42_rank2.zst"], [2]),
        (["attempt_1/3/trace.pkl", "attempt_1/4/trace.pkl"], [3, 4]),
        (["rank_3/dump_1699999999.pkl"], [3]),
        (["7/trace.pkl"], [7]),
        (["no number"], [None]),
    ],
)
def test_rank_is_the_number_in_which_names_differ(
    names: list[str], ranks: list[int | None]
) -> None:
    paths = [Path("/evidence") / name for name in names]

    assert [find_ranks(paths)[path] for path in paths] == ranks


def test_only_the_last_attempt_counts() -> None:
    paths = [Path(f"/run/{name}/fr_0") for name in ("attempt_0/0", "attempt_2/0", "other")]

    assert find_old_attempts(paths) == {paths[0]: Path("/run/attempt_0")}
