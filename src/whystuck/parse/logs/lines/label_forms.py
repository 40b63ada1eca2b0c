"""Forms of words before lines: hosts, containers, pods, replicas, and numbers of writers."""

from __future__ import annotations

import re

HOST = r"[A-Za-z0-9][\w.-]{0,62}"
# What is counted in jobs, and so no host: `[step-12] loss`, `epoch-3 done`.
NO_COUNT = (
    r"(?!(?:step|epoch|iter|iteration|batch|round|phase|stage|layer|seed|fold|shard|attempt|trial|"
    r"rank|local|global|cuda|default|version)[._-]?\d)"
)
# A machine that is counted, in two words.
_COUNTED = r"(?:node|host|machine|server|pod)[ #]{1,2}\d{1,5}"
# What has a digit or a dash, before a colon, is a host; programs and exceptions have none. stern
# writes the pod and its container, and kubetail does so in brackets. Collectors put the pod alone
# before a line, and people who start nodes by hand its name in brackets. A number before a bar is
# the cell of a table.
LABEL = re.compile(
    r"(?P<host>(?=[\w.]*[\d-])[a-z][\w.-]{0,62}): ?"
    rf"|(?P<container>(?=\d{{0,8}}[A-Za-z_.-]){HOST}) +\| ?"
    r"|(?P<bracket>\[)?(?P<pod>(?=[a-z.-]*\d|[a-z]+-[a-z]+-)[a-z][a-z0-9.]*(?:-[a-z0-9.]+){1,12})"
    r" (?P<unit>[a-z][a-z0-9-]{0,62})(?(bracket)\]) (?:\| ?)?"
    # TorchX: the role and its replica
    r"|(?P<replica>[a-z][\w-]{0,40}/\d{1,5}) "
    # and collectors of Python in round ones
    rf"|\({NO_COUNT}(?P<round>(?=[\w.]*[\d-])[a-z][\w.-]{{0,62}}|{_COUNTED})\) "
    rf"|\[{NO_COUNT}(?P<boxed>(?=[\w.]*[\d-])[a-z][\w.-]{{0,62}}|{_COUNTED}"
    # before a rank, any name
    r"|[A-Za-z][\w.-]{0,62}(?=\] \[rank\d))\](?: |$|(?=\[[Rr]ank ?\d))"
    rf"|{NO_COUNT}(?P<bare>[a-z][a-z0-9.]*(?:-[a-z0-9.]+){{0,11}}-\d{{1,5}}) (?=\S|  )"
)
_NAMES = ("host", "container", "pod", "replica", "round", "boxed", "bare")
# `[3] text`, as the launchers of MPICH and Intel put it; `[3]: text`, as people tell torchrun to;
# and `w03 text` or `rank03 text`, as programs name their workers; `rank=3 text`, `rank: 3 text`.
NUMBERED = re.compile(
    r"\[(?P<number>\d{1,6})\]:? |(?:w|wk|wkr|worker|proc|rk|rank)(?P<worker>\d{1,5}):? "
    r"|rank[=:] ?(?P<rank>\d{1,6}),? (?=\S)"
    # which may be a row of a table as well
    r"|(?P<barred>\d{1,4}) \| (?=[a-z])"
)


def read_number(match: re.Match[str]) -> int:
    """Return the number of a writer."""
    return int(match[str(match.lastgroup)])


def name_label(match: re.Match[str]) -> str:
    """Return the words that make a label one of its kind: a host, a container, or a pod."""
    unit = match["unit"]
    return f"{match['pod']} {unit}" if unit else find_name(match)


def find_name(match: re.Match[str]) -> str:
    """Return the word that names a host, a container, a pod or a replica."""
    return next(match[name] for name in _NAMES if match[name])


# `logs/rank_3.err:812:text`, as grep prints lines of files, and `logs/rank_3.err-813-` those around
# them; of one file, the number alone. Files of code are named by what they hold themselves.
FOUND = (
    r"(?P<found_file>[\w./~@+=-]{1,200}\.(?:log|err|out|txt|stderr|stdout))(?::(?:\d{1,9}:)?|-\d{1,9}-)"
    r"|\d{1,9}:(?=\[[A-Za-z])"
)
FILE_RANK = re.compile(r"rank[_.-]?(\d{1,7})(?![\w])(?!.*/)")
