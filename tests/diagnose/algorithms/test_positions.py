"""Where a main thread is, told from its frames and the text of the innermost line."""

from __future__ import annotations

import pytest
from tests.diagnose.scenes import C10D, TORCH

from whystuck.diagnose.algorithms.stacks.frames import is_user_frame
from whystuck.diagnose.algorithms.stacks.positions import (
    Doing,
    is_loading,
    is_saving,
    locate,
    name_call,
)
from whystuck.evidence.ops.collectives import Frame

FUNCTIONAL = f"{TORCH}/distributed/_functional_collectives.py"
USER = Frame("clip", "/job/train.py", 12)
MODULE = Frame("<module>", "/job/train.py", 90)
CALL = Frame("OpOverloadPacket.__call__", f"{TORCH}/_ops.py", 1279)


@pytest.mark.parametrize(
    "frames",
    [
        (CALL, Frame("wait_tensor", FUNCTIONAL, 142)),
        (
            CALL,
            Frame("wait_tensor", FUNCTIONAL, 142),
            Frame("AsyncCollectiveTensor.trigger_wait", FUNCTIONAL, 1115),
            Frame("tree_map", f"{TORCH}/utils/_pytree.py", 1578),
            Frame("DTensor.full_tensor", f"{TORCH}/distributed/tensor/_api.py", 5),
        ),
        (Frame("monitored_barrier", C10D, 5435),),
        (Frame("_sync_buffers", f"{TORCH}/nn/parallel/distributed.py", 10),),
        (
            Frame(
                "FSDPParamGroup.wait_for_unshard", f"{TORCH}/distributed/fsdp/_fully_shard/p.py", 1
            ),
        ),
        (Frame("synchronize", f"{TORCH}/cuda/__init__.py", 1000),),
    ],
)
def test_rank_below_a_wait_of_torch_waits_and_is_not_blocked_in_its_own_code(
    frames: tuple[Frame, ...],
) -> None:
    assert locate((*frames, USER, MODULE)).doing is Doing.COLLECTIVE


@pytest.mark.parametrize(
    "frames",
    [
        (CALL, Frame("dispatch", f"{TORCH}/distributed/tensor/_dispatch.py", 200)),
        (CALL, Frame("linear", f"{TORCH}/nn/functional.py", 2)),
        (),
    ],
)
def test_rank_that_computes_is_in_user_code(frames: tuple[Frame, ...]) -> None:
    assert locate((*frames, USER, MODULE)).doing is Doing.USER


@pytest.mark.parametrize(
    ("line", "doing"),
    [
        ("work.wait()", Doing.COLLECTIVE),
        ("for w in works: w.wait()", Doing.COLLECTIVE),
        ("buf = torch.ops._c10d_functional.wait_tensor.default(buf)", Doing.COLLECTIVE),
        ('value = self.store.get("ready")', Doing.COLLECTIVE),
        ("pid, status = os.wait()", Doing.USER),
        ("wait(seconds)", Doing.USER),
        ("", Doing.USER),
    ],
)
def test_line_tells_of_a_wait_without_a_frame(line: str, doing: Doing) -> None:
    assert locate((USER, MODULE), line).doing is doing


def test_call_has_the_name_that_its_user_knows() -> None:
    logger = Frame("_exception_logger.<locals>.wrapper", f"{TORCH}/distributed/c10d_logger.py", 83)
    gather = Frame("all_gather", C10D, 10)
    objects = Frame("all_gather_object", C10D, 20)
    assert name_call((gather, logger, objects, logger, USER)) == "all_gather_object"
    assert name_call(
        (Frame("_new_process_group_helper", C10D, 1), Frame("new_group", C10D, 2))
    ) == ("new_group")
    assert name_call((CALL, Frame("wait_tensor", FUNCTIONAL, 142), USER)) == "wait_tensor"
    backward = Frame("_engine_run_backward", f"{TORCH}/autograd/graph.py", 900)
    assert name_call((backward, USER)) == "backward"
    assert name_call((USER,)) == "wait"


@pytest.mark.parametrize(
    "file",
    [
        "/tmp/torchinductor_root/ab/cabc.py",
        f"/scratch/cache/{'c' + 'a2' * 25 + 'b'}.py",
    ],
)
def test_code_that_the_compiler_wrote_is_not_the_user_s(file: str) -> None:
    assert not is_user_frame(Frame("call", file, 10))


SERIALIZATION = f"{TORCH}/serialization.py"


@pytest.mark.parametrize(
    "frames",
    [
        (Frame("_load.<locals>.load_tensor", SERIALIZATION, 1), Frame("load", SERIALIZATION, 2)),
        (Frame("_open_zipfile_reader.__init__", SERIALIZATION, 1), Frame("load", SERIALIZATION, 2)),
        (Frame("_legacy_load", SERIALIZATION, 1),),
        (Frame("load_file", f"{TORCH}/../safetensors/torch.py", 1),),
        (Frame("read", "/job/files.py", 3), Frame("load_checkpoint", "/job/files.py", 9)),
        (Frame("load", SERIALIZATION, 2), Frame("save_checkpoint", "/job/files.py", 9)),
    ],
)
def test_load_of_a_file_is_no_save(frames: tuple[Frame, ...]) -> None:
    assert is_loading((*frames, MODULE))
    assert not is_saving((*frames, MODULE))


@pytest.mark.parametrize(
    "frames",
    [
        (Frame("_save", SERIALIZATION, 1), Frame("save", SERIALIZATION, 2)),
        (Frame("save", SERIALIZATION, 2), Frame("load_checkpoint", "/job/files.py", 9)),
        (Frame("write", "/job/files.py", 3), Frame("upload_checkpoint", "/job/files.py", 9)),
    ],
)
def test_save_of_a_file_is_no_load(frames: tuple[Frame, ...]) -> None:
    assert is_saving((*frames, MODULE))
    assert not is_loading((*frames, MODULE))


def test_load_of_other_things_is_neither() -> None:
    frames = (Frame("load_batch", "/job/data.py", 3), Frame("train", "/job/train.py", 9))
    assert not is_loading(frames)
    assert not is_saving(frames)
