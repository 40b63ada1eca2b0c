"""Writes docs/metrics.md, the reference of all metrics, from the code."""

from pathlib import Path

from whystuck.agent.metrics.catalogue import render_catalogue

PAGE = Path(__file__).with_name("metrics.md")
INTRO = """# Metrics

All metrics of `whystuck agent`; [the guide](guides/metrics.md) tells how to get them. Each has the
label `node`, too. A label without a value is left out, and so is a figure that is not known: it is
never 0 instead.

"""


def render() -> str:
    """Return the page."""
    return INTRO + render_catalogue()


if __name__ == "__main__":
    PAGE.write_text(render())
