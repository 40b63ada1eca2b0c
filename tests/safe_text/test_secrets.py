"""What looks like a password, a token or a key is hidden; what only resembles one stays."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.each import each

from whystuck.evidence.finding import (
    Citation,
    Confidence,
    Finding,
    Gap,
    Report,
    Severity,
    Verdict,
)
from whystuck.report.html import render_html
from whystuck.report.json import render_json
from whystuck.report.markdown import render_markdown
from whystuck.report.text import render_text
from whystuck.safe_text.secrets import SECRET, hide_secrets
from whystuck.safe_text.values import hide_values

RANDOM = "aB3dE5fG7hJ9kL1mN3pQ5rS7tU9vW1xY3z"

# Put together here, so that no scanner takes this file for a leak.
HIDDEN = [
    (f"using hf_{RANDOM} for the hub", f"using {SECRET} for the hub"),
    (f"remote: ghp_{RANDOM}00", f"remote: {SECRET}"),
    (f"github_pat_11ABCDEFG_{RANDOM}", SECRET),
    ("key AKIA" + "IOSFODNN7EXAMPLE is not valid", f"key {SECRET} is not valid"),
    (f"Authorization: Bearer {RANDOM}", f"Authorization: Bearer {SECRET}"),
    (f"{{'Authorization': 'Bearer {RANDOM}'}}", f"{{'Authorization': 'Bearer {SECRET}'}}"),
    ("Authorization: Basic dXNlcjpwYXNz", f"Authorization: Basic {SECRET}"),
    ("cookie: session=abc; path=/", f"cookie: {SECRET}"),
    ("api_key=0123456789abcdef", f"api_key={SECRET}"),
    ('{"api_key": "abc def", "n": 1}', f'{{"api_key": "{SECRET}", "n": 1}}'),
    (r"{\"apiKey\": \"abcdef\"}", rf"{{\"apiKey\": \"{SECRET}\"}}"),
    ("password=hunter2 host=db", f"password={SECRET} host=db"),
    ("password = 'correct horse' # x", f"password = '{SECRET}' # x"),
    ("mount -o user=me,password=hunter2,vers=3", f"mount -o user=me,password={SECRET},vers=3"),
    ("Server=db;UID=sa;PWD=Abc123;", f"Server=db;UID=sa;PWD={SECRET};"),
    ("password=bob", f"password={SECRET}"),
    ("DB_PASSWORD: s3cr3t", f"DB_PASSWORD: {SECRET}"),
    ("python train.py --token abcdefgh1234 -n 2", f"python train.py --token {SECRET} -n 2"),
    ("python train.py --hf-token abcdefgh1234 -n 2", f"python train.py --hf-token {SECRET} -n 2"),
    ("run --password hunter2 --lr 1", f"run --password {SECRET} --lr 1"),
    ("run --api-key=hunter2 --lr 1", f"run --api-key={SECRET} --lr 1"),
    ("WANDB_API_KEY=" + "0a" * 20, f"WANDB_API_KEY={SECRET}"),
    ("wandb login --relogin " + "0a" * 20, f"wandb login --relogin {SECRET}"),
    ("machine h login user password abc", f"machine h login user password {SECRET}"),
    ("redis://:pa55@cache:6379/0", f"redis://:{SECRET}@cache:6379/0"),
    ("git clone https://me:pa55@git.example/x", f"git clone https://me:{SECRET}@git.example/x"),
    ("https://hooks.slack.com/services/T0/B0/xyz failed", None),
    ("https://open.feishu.cn/open-apis/bot/v2/hook/12-34", None),
    (
        "GET https://a.blob/x?sv=2022&sig=Ab%2Fcd%3D&se=1",
        f"GET https://a.blob/x?sv=2022&sig={SECRET}&se=1",
    ),
    ("https://oapi.dingtalk.com/robot/send?access_token=0a1b", None),
    ("aws_secret_access_key = wJalrXUtnFEMI/K7MDENG", f"aws_secret_access_key = {SECRET}"),
    ("AccountKey=abc+/=;EndpointSuffix=x", f"AccountKey={SECRET};EndpointSuffix=x"),
    ("HF_TOKEN=abcdefgh", f"HF_TOKEN={SECRET}"),
    (f"token: {RANDOM}", f"token: {SECRET}"),
    ("Incorrect API key provided: sk-" + "a1" * 12, f"Incorrect API key provided: {SECRET}"),
    ("Incorrect API key provided: abcd1234", f"Incorrect API key provided: {SECRET}"),
    ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abc-_1", SECRET),
    ("curl -u me:pa55 https://x", f"curl -u me:{SECRET} https://x"),
    ("sshpass -p pa55 ssh n1", f"sshpass -p {SECRET} ssh n1"),
    (
        "-----BEGIN RSA " + "PRIVATE KEY-----\nProc-Type: 4\n\nMII\nabc=\n"
        "-----END RSA " + "PRIVATE KEY----- and more",
        f"{SECRET} and more",
    ),
    ("x -----BEGIN " + "PRIVATE KEY-----\nMIIabc", f"x {SECRET}"),
]

KEPT = [
    "HEAD is now at 9f1c2b7e4d5a60718293a4b5c6d7e8f901234567",
    "n1:41:77 [0] NCCL INFO comm 0x55d0c8a3 rank 0 nranks 8 commId 0x8ad0cb3a7d5e4f21",
    "n1:41:77 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>",
    "step 10 | tokens: 524288 | tokens/s: 81234.5 | max_tokens=2048 num_tokens: 12",
    "pad_token=<pad> eos_token='</s>' bos_token: '<|begin_of_text|>' pad_token_id=151643",
    "special tokens: token=151643, next_token: hello",
    "Unexpected token: '<', tokenizer: LlamaTokenizerFast",
    "token: Optional[str] = None, password: None, secret=null",
    "the store key:rank/0 was not set; TCPStore key=init/0",
    "KeyError: 'model.layers.0.weight'",
    "password = os.environ['DB_PASSWORD'] # line 3",
    "secret = load_secret('db')",
    "PWD=/home/me/train OLDPWD=/home/me",
    "password=$DB_PASSWORD token=${HF_TOKEN} secret=***",
    "[E ProcessGroupNCCL.cpp:629] Work(SeqNum=13, OpType=ALLREDUCE, Timeout(ms)=600000)",
    "docker run -u 1000:1000 image",
    "tcp://10.0.0.1:29500 and http://[::1]:80/x",
    "huggingface_hub.errors.LocalTokenNotFoundError: Token is required",
    "keyword arguments: key=value, keys: a b c",
    "ssh://git@host/repo s3://bucket/key",
    "author=me authority: x",
]  # fmt: skip


@each("case", HIDDEN)
def test_secret_is_hidden(case: tuple[str, str | None]) -> None:
    text, shown = case
    result = hide_secrets(text)

    if shown is None:
        assert SECRET in result
        assert text.rpartition("/")[2].split(" ")[0] not in result
    else:
        assert result == shown


@each("text", KEPT)
def test_what_only_resembles_a_secret_stays(text: str) -> None:
    assert hide_secrets(text) is text or hide_secrets(text) == text


@each("text", [text for text, _ in HIDDEN])
def test_hiding_twice_changes_nothing(text: str) -> None:
    once = hide_secrets(text)

    assert hide_secrets(once) == once


@given(st.text(alphabet="password=token:-_.sk hf://@\"'\\?&<>(", max_size=200))
def test_any_text_is_taken(text: str) -> None:
    once = hide_secrets(text)

    assert hide_secrets(once).count(SECRET) >= once.count(SECRET)


def make_report(text: str = "postgres://me:pa55word@db/x") -> Report:
    finding = Finding(
        code="C204",
        name="python-exception",
        severity=Severity.ERROR,
        confidence=Confidence.LIKELY,
        summary=f"rank 3 raised OperationalError: {text}",
        because=[Citation("conn = connect(password='pa55word')", "rank3.log", 12)],
        details={"lines": {"rank3.log:12": "api_key=pa55word"}, "pair": [1, 2]},
        remedies=["call login(token='pa55word1234567890ab')"],
    )
    return Report(
        verdict=Verdict.CRASHED,
        findings=[finding],
        gaps=[Gap(3, "log", "https://me:pa55word@store/x cannot be read")],
        context={"seen": ["password: pa55word"], text: text, "kind": "files"},
    )


def test_no_format_of_a_report_shows_a_secret() -> None:
    report = hide_values(make_report())

    for page in (
        render_text(report, color=False, width=95),
        render_json(report).decode(),
        render_markdown(report),
        render_html(report),
    ):
        assert "pa55word" not in page
        assert "secret" in page


def test_the_rest_of_a_report_stays() -> None:
    report = hide_values(make_report())

    assert report.findings[0].details["pair"] == [1, 2]
    assert report.findings[0].because[0].row == 12
    assert report.findings[0].severity is Severity.ERROR
    assert report.context["kind"] == "files"
