"""Numbers in names and texts that others have written."""

# Of more than 4,300 digits `int` makes no number, and 18 fit into 64 bits.
_MAX_DIGITS = 18


def is_number(text: str) -> bool:
    """Return whether a text is a number that `int` takes: 1 to 18 digits of ASCII."""
    return text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS
