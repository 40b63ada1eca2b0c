"""Secrets in all the forms of the lists are hidden; ordinary lines stay as they are."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.each import each
from tests.safe_text.forms import Form, read_forms, read_lines

from whystuck.safe_text.secrets import drop_logins, hide_arguments, hide_environment, hide_secrets

FORMS = read_forms("secret_forms.txt")
OTHER_FORMS = read_forms("other_forms.txt")
SERVICE_FORMS = read_forms("service_forms.txt")
ALL_FORMS = [*FORMS, *OTHER_FORMS, *SERVICE_FORMS]
ORDINARY = read_lines("ordinary_lines.txt")


def with_line_breaks(form: Form) -> str:
    return form.text.replace("\\n", "\n").replace("\\r", "\r")


@each("form", ALL_FORMS)
def test_secret_is_hidden(form: Form) -> None:
    for text in (form.text, with_line_breaks(form), f"[rank3]: {form.text}", f"({form.text})"):
        assert form.shown_in(hide_secrets(text)) == "", hide_secrets(text)


@each("line", ORDINARY)
def test_ordinary_line_stays(line: str) -> None:
    assert hide_secrets(line) is line or hide_secrets(line) == line


@each("form", ALL_FORMS)
def test_hiding_twice_changes_nothing(form: Form) -> None:
    once = hide_secrets(form.text)

    assert hide_secrets(once) == once


ARGUMENTS = [
    (["train.py", "--hub_token", "X"], ["train.py", "--hub_token", "<secret>"]),
    (["train.py", "--api-key=x y", "--lr", "1"], ["train.py", "--api-key=<secret>", "--lr", "1"]),
    (["train.py", "--password", "it's 'so'"], ["train.py", "--password", "<secret>"]),
    (["mysql", "-u", "me", "-ppa55"], ["mysql", "-u", "me", "-p<secret>"]),
    (["sshpass", "-p", "two words", "ssh"], ["sshpass", "-p", "<secret>", "ssh"]),
    (["curl", "-u", "me:pa55", "x"], ["curl", "-u", "me:<secret>", "x"]),
    (["docker", "run", "-e", "HF_TOKEN=abc"], ["docker", "run", "-e", "HF_TOKEN=<secret>"]),
    (["env", "PGPASSWORD=a b", "psql"], ["env", "PGPASSWORD=<secret>", "psql"]),
    (["x", "s3://u:p@ss@b/c"], ["x", "s3://u:<secret>@b/c"]),
    (["x", "--password"], ["x", "--password"]),
    (["x", "--password", "--verbose"], ["x", "--password", "--verbose"]),
    (["x", "--max_tokens", "512", "--key", "ids"], ["x", "--max_tokens", "512", "--key", "ids"]),
    ([], []),
    ([""], [""]),
]


@pytest.mark.parametrize(("given", "shown"), ARGUMENTS, ids=str)
def test_arguments_of_a_command(given: list[str], shown: list[str]) -> None:
    assert hide_arguments(given) == shown


@given(st.lists(st.text(alphabet="-pw password'\",= x\n", max_size=12), max_size=6))
def test_any_arguments_keep_their_number(arguments: list[str]) -> None:
    assert len(hide_arguments(arguments)) == len(arguments)


def test_environment_hides_by_name_and_by_form() -> None:
    given_names = {
        "HF_TOKEN": "x", "RANK": "3", "PWD": "/job", "TOKENIZERS_PARALLELISM": "false",
        "STORE": "s3://u:p@ss@b", "WANDB_API_KEY": "x", "EMPTY_TOKEN": "", "MASTER_PORT": "29500",
    }  # fmt: skip

    assert hide_environment(given_names) == {
        **given_names, "HF_TOKEN": "<secret>", "STORE": "s3://u:<secret>@b",
        "WANDB_API_KEY": "<secret>",
    }  # fmt: skip


LOGINS = [
    ("s3://u:p@ss@b/c", "s3://b/c"),
    ("https://u:pa/ss@host/x", "https://host/x"),
    ("https://me@host/x and ftp://b", "https://host/x and ftp://b"),
    ("https://host:8080/a@b", "https://host:8080/a@b"),
    ("git+https://u:p@host/x.git@main", "git+https://host/x.git@main"),
    ("memory://", "memory://"),
]


@pytest.mark.parametrize(("url", "shown"), LOGINS)
def test_a_url_loses_its_user_and_password(url: str, shown: str) -> None:
    assert drop_logins(url) == shown


# Beginnings of what a pattern looks for, again and again.
ADVERSE = [
    "token=", "password=", "://", "://a:", "://u:p@", "-----BEGIN PRIVATE KEY-----",
    "-----END PRIVATE KEY", "?token=", "mysql ", "wandb key ", "eyJ", "eyJaaaaaaaaaaa.", "sk-aaaaa",
    'token="', "token='", 'token=\\"', "Authorization: ", "cookie: a=", "echo ",
    "login a password ", "docker login ", "Private-Lines: 1 ", "password,", "password;,;,",
    "'--password', ", " ", "\\",
    "%3a%2f%2fa%3a", "echo a | ", "| password | ", "&quot;", "password: |\n", "://a/t/", "?code=",
    "$6$", "htpasswd -b a b ", "mongo -p ", "auth=('a',", "LS0tLS1CRUdJTi", ";pwd={",
    "secret%22%3a%22", "login a account b ", "---- BEGIN SSH2 PRIVATE KEY ----",
    '"username": "a", ', "pass is ", "basic auth ", "secret value ", "a@b://", "curl -u a",
    "A_", "0a",
]  # fmt: skip


@pytest.mark.parametrize("unit", ADVERSE)
def test_the_time_grows_with_the_text(unit: str) -> None:
    def time_for(letters: int) -> float:
        text = unit * (letters // len(unit))
        spent = []
        for _ in range(3):
            start = time.process_time()
            hide_secrets(text)
            spent.append(time.process_time() - start)
        return min(spent)

    # Four times the text takes four times as long; sixteen times where a pattern is quadratic.
    assert time_for(40_000) < 10 * time_for(10_000) + 0.02
