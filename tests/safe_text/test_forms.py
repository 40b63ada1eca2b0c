"""Secrets in all the forms of the lists are hidden; ordinary lines stay as they are."""

from __future__ import annotations

import pytest
from tests.safe_text.forms import Form, read_forms, read_lines

from whystuck.safe_text.secrets import hide_secrets

FORMS = read_forms("secret_forms.txt")
OTHER_FORMS = read_forms("other_forms.txt")
ORDINARY = read_lines("ordinary_lines.txt")


def with_line_breaks(form: Form) -> str:
    return form.text.replace("\\n", "\n").replace("\\r", "\r")


@pytest.mark.parametrize("form", [*FORMS, *OTHER_FORMS], ids=lambda form: form.text[:60])
def test_secret_is_hidden(form: Form) -> None:
    for text in (form.text, with_line_breaks(form), f"[rank3]: {form.text}", f"({form.text})"):
        assert form.shown_in(hide_secrets(text)) == "", hide_secrets(text)


@pytest.mark.parametrize("line", ORDINARY)
def test_ordinary_line_stays(line: str) -> None:
    assert hide_secrets(line) is line or hide_secrets(line) == line
