"""The tables of known lines, and a user's table over them."""

import re
from collections.abc import Iterable

import pytest
from tests.each import each

from whystuck.parse.errors import ParseError
from whystuck.parse.logs.signatures import Signature, load_signatures, load_xids, parse_signatures
from whystuck.parse.signatures import SIGNATURES, read_table

OURS = load_signatures()
HEALTHY = """\
[default0]:[rank0] iteration 1200/ 5000 | lm loss: 2.3E+00 | grad norm: 0.431 | nan iterations: 0 |
node1:22:33 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>
node1:22:33 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC/read
node1:22:33 [0] NCCL INFO comm 0x5581 rank 0 nranks 8 cudaDev 0 busId 1000 - Init COMPLETE
node1:22:33 [0] NCCL INFO NCCL_IB_TC set by environment to 106
node1:22:33 [0] NCCL INFO Connected all rings
checkpoint.py:429: UserWarning: torch.utils.checkpoint: please pass in use_reentrant=True
FutureWarning: `torch.cuda.amp.autocast(args...)` is deprecated.
W1121 01:53:01.359000 21910 torch/distributed/run.py:766] Setting OMP_NUM_THREADS environment
[Gloo] Rank 0 is connected to 3 peer ranks. Expected number of connected peer ranks is : 3
Epoch 3:  47%|####6     | 470/1000 [01:02<01:10,  7.53it/s, loss=0.31, errors=0]
{"step": 12, "loss": 2.31, "grad_norm": 0.4, "error": null}
INFO:root:saved checkpoint to /ckpt/step-1000 in 12.3 s, 0 errors
eval: inference took 3.1 s, loss: information gain 0.3
nvidia 0000:18:00.0: enabling device (0140 -> 0142)
usb 1-1: new high-speed USB device number 2 using xhci_hcd
mlx5_core 0000:5c:00.0: Port module event: module 0, Cable plugged
systemd[1]: Started Session 12 of user root.
slurmstepd: info: task 3 finished, exit code 0
Normal  Pulled  2m  kubelet  Container image already present on machine
""".splitlines()


def matching(line: str, signatures: Iterable[Signature] = OURS) -> list[str]:
    return [
        signature.id
        for signature in signatures
        if re.search(signature.regex.encode(), line.encode())
    ]


def test_our_table_is_as_sound_as_a_users_must_be() -> None:
    assert parse_signatures(read_table(SIGNATURES)) == OURS


@each("signature", OURS, lambda signature: signature.id)
def test_example_is_named_by_its_own_signature(signature: Signature) -> None:
    assert matching(signature.example)[:1] == [signature.id]


@each("signature", OURS, lambda signature: signature.id)
def test_lookalike_does_not_match(signature: Signature) -> None:
    assert signature.lookalike
    assert signature.id not in matching(signature.lookalike)


@each("signature", OURS, lambda signature: signature.id)
def test_signature_says_what_it_means_and_what_to_do(signature: Signature) -> None:
    assert signature.meaning.endswith(".")
    assert signature.action
    assert signature.origin


@each("signature", OURS, lambda signature: signature.id)
def test_cascade_is_not_led_by_a_cause(signature: Signature) -> None:
    # GIVEN the line of a signature that is no cause
    roles = {known.id: known.role for known in OURS}

    # THEN what names the line is no cause either: nobody is blamed for what only follows
    assert (signature.role == "cause") == (roles[matching(signature.example)[0]] == "cause")


@each("signature", OURS, lambda signature: signature.id)
def test_pattern_looks_no_further_than_it_must(signature: Signature) -> None:
    # An unlimited `.*` before other text costs the square of a line that repeats what is before it.
    assert re.search(r"(?<!\\)\.[*+](?!\)|$|\|)", signature.regex) is None


@pytest.mark.parametrize("line", HEALTHY)
def test_healthy_line_matches_nothing(line: str) -> None:
    # What makes progress is healthy, and is known.
    assert [name for name in matching(line) if not name.startswith("progress.")] == []


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("{'loss': nan, 'grad_norm': 3.1}", "py.nan"),
        ("Epoch 3:  47%|##  | 470/1000 [01:02<01:10, loss=nan]", "py.nan"),
        ('{"step": 12, "loss": NaN}', "py.nan"),
        ("train loss = inf", "py.nan"),
        ("2026-11-21T10:00:00.123456Z err [rank3]: torch.cuda.AcceleratorError: boom", "py.exc"),
        ("[default3]:[rank3]: KeyboardInterrupt", "py.exc"),
        ("RuntimeError: NCCL Error 2: unhandled system error", "nccl.result"),
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 32 EiB.",
            "cuda.oom_absurd",
        ),
        ("NVRM: Xid (PCI:0000:9b:00): 13, pid=1, Graphics Exception", "xid.13_31_app"),
        ("NVRM: Xid (PCI:0000:9b:00): 38, pid=1", "xid.any"),
    ],
)
def test_line_is_named(line: str, name: str) -> None:
    assert matching(line)[:1] == [name]


def test_every_xid_of_a_signature_is_in_the_catalogue() -> None:
    xids = load_xids()

    assert xids[79].description == "GPU has fallen off the bus"
    for number in range(1, 173):
        [name, *_] = matching(f"NVRM: Xid (PCI:0000:9b:00): {number}, pid=1, text")
        assert name.startswith("xid.")
        assert number in xids


# ------------------------------------------------------------------------------ a user's table


def test_user_row_replaces_the_columns_it_fills() -> None:
    table = b"id,severity,role\nxid.63_remap,fatal,cause\n"

    merged = parse_signatures(table, base=OURS)

    old, new = (
        next(item for item in table if item.id == "xid.63_remap") for table in (OURS, merged)
    )
    assert (new.severity, new.role, new.regex, new.origin) == (
        "fatal",
        "cause",
        old.regex,
        old.origin,
    )
    assert [item.id for item in merged] == [item.id for item in OURS]


def test_new_rows_come_first() -> None:
    table = b"""
    [[signature]]
    id = "site.quota"
    regex = 'project quota of (?P<who>\\w+) is used up'
    class = "storage"
    """

    first, *rest = parse_signatures(table, base=OURS, toml=True)

    assert (first.id, first.kind, first.role) == ("site.quota", "storage", "cause")
    assert tuple(rest) == OURS


def test_new_regex_leaves_the_old_example_behind() -> None:
    merged = parse_signatures(b"id,regex\nport.in_use,my own words\n", base=OURS)

    assert next(item.example for item in merged if item.id == "port.in_use") == ""


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        (b"id,regex\nsite.a,foo(?=bar)\n", "signature site.a: look-ahead"),
        (b"id,regex\nsite.a,\\d+\n", "signature site.a: every match must hold"),
        (b"id,regex\nsite.a,\n", "signature site.a: .*regex"),
        (b"id,regex\n,some text\n", "signature in row 1: .*id"),
        (b"id,regex\na b,some text\n", "signature a b: .*id"),
        (b"id,regex,role\nsite.a,some text,guilty\n", "signature site.a: .*guilty"),
        (b"id,regex,colour\nsite.a,some text,red\n", "signature site.a: .*colour"),
        (b"id,regex\nsite.a,some text,red\n", "more columns"),
        (b"id,regex\nsite.a,some text\nsite.a,other text\n", "site.a: the id is there twice"),
        (b"id,regex,example\nsite.a,some text,other\n", "does not match the example"),
        (b"id,regex,lookalike\nsite.a,some text,some text!\n", "matches the lookalike"),
        (b"\xff\xfe", "not a CSV table"),
        (b'id,regex\n"site.a', "not a CSV table"),
        (b"x" * ((1 << 20) + 1), "at most 1 MiB"),
        (b"id,regex\n" + b"a,b\n" * 2001, "signature a"),
    ],
)
def test_bad_table_is_refused_with_the_row(table: bytes, reason: str) -> None:
    with pytest.raises(ParseError, match=reason):
        parse_signatures(table)


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        (b"signature = 3", r"\[signature"),
        (b"other = 3", r"\[signature"),
        (b"[[signature]]\nid = 3\nregex = 'some text'", "signature 3"),
        (b"[[", "not a TOML file"),
    ],
)
def test_bad_toml_is_refused(table: bytes, reason: str) -> None:
    with pytest.raises(ParseError, match=reason):
        parse_signatures(table, toml=True)


def test_our_table_is_plain() -> None:
    data = read_table(SIGNATURES)

    assert data.isascii()
    assert b"\r" not in data
    assert len({signature.id for signature in OURS}) == len(OURS)
