"""Whose host the lines of a kernel are that name none: what was written above them.

People paste what several hosts printed one below the other, each under the host's name, a prompt,
or a sentence.
"""

from __future__ import annotations

import re

from whystuck.evidence.logs.lines import UNKNOWN_RANK
from whystuck.parse.logs.blocks.tables.heads import name_quota
from whystuck.parse.logs.lines.label_forms import NO_COUNT
from whystuck.parse.logs.lines.lines import LogLine, take_file
from whystuck.parse.logs.owners.names import is_file

# So far above a line its heading is looked for.
_MOST_BYTES = 1 << 14
# Of all that is looked at; nobody pastes more, and it takes 0.1 s.
_MOST_IN_ALL = 1 << 20
# A row of what `kubectl describe` tells of a pod; rows of all events name their pod.
_EVENT = re.compile(r"^\s{0,4}(?:Warning|Normal)\s{1,20}\w{1,40}\s{1,40}(?!pods?/)\S")

# A row of the description of one pod.
_POD_ROW = re.compile(
    r"^\s{0,12}(?:Reason|Message|Exit Code):\s{1,24}\S|^\s{2,12}\S{1,60}  .{0,40}\bOOMKilled\b"
)

# What tools print of the cards, ports and slots of the host that they run on.
_STATE = re.compile(
    r"^\s{0,24}(?:[Ss]tate:\s{1,8}(?:\d{1,2}: )?[A-Z]|LnkSta:|link [a-z]\w{1,30}/\d"
    r"|(?:Max|Current)\s{2,40}: |[a-z]\w{1,30} port \d{1,2} ==> |\d{1,3}, |State:\t[A-Z] \("
    # what ethtool, ip, mlxlink and hccn_tool tell of a link
    r"|link status: (?:UP|DOWN)"
    r"|\w{2,6}: (?:cannot access \W{0,3})?/proc/\d|(?:-?bash: |sh: )?kill: \(?\d"
    r"|Link detected: |(?:\d{1,4}: )?[a-z][\w.@-]{1,40}:?\s.{0,60}?<NO-CARRIER,"
    r"|(?:DOWN|ACTIVE|INIT|ARMED)\s*$"
    r"|Width {4,40}: "
    # counters of a cgroup
    r"|nr_(?:periods|throttled) \d"
    # rates of cards
    r"|(?:/\S{0,60}/)?(?:[a-z]\S{1,40}(?:\s?[:=]\s{0,8}|\s{1,8}))?\d{1,4} Gb/sec \("
    # counters of ports
    r"|(?:Symbol|Link|Port)\w{4,30}:\.{2,}\d|\w{4,40}_(?:phy|errors?|downed|recovery): \d"
    # a process in a list, with its state
    r"|(?:[a-z_][\w.+-]{0,31} {1,12})?\d{2,7} {1,12}(?:[\w.,:-]{1,12} {1,12}){0,9}"
    r"[RSDTt][<NLsl+]{0,5} "
    # a row of the list of nvidia-smi
    r"|\|\s{1,4}\d{1,3}\s{2,4}[A-Z])"
    # a row of the log that the controller of a host keeps
    r"|^\s{0,6}[0-9a-f]{1,6} \| +\d\d/\d\d/\d{2,4} \| "
)

_HOST = rf"{NO_COUNT}(?=[\w.]*[\d-])[A-Za-z][\w.-]{{1,62}}|(?:\d{{1,3}}\.){{3}}\d{{1,3}}"
# What is no host in such a place: the card whose counters are shown below.
_CARD = r"(?:mlx[45]_|hfi1_|bnxt_re|irdma|rdma|roce|ib|eth|en[ops])\w{1,12}"
# What shows the state of the host that it runs on.
_LOOK = re.compile(
    r"(?:sudo )?(?:dmesg|journalctl|ibstat|ibstatus|mlxlink|lspci|systemctl|nvidia-smi|rocm-smi"
    r"|ps |top\b|ibdev2netdev|ibv_devinfo|perfquery|for |rdma |ethtool |ip |hccn_tool |cat /sys/"
    r"|\w{1,10} .{0,200}(?:/var/log/|/sys/fs/cgroup/|/sys/class/infiniband/))"
)
_WORDS = r"(?:dmesg|journalctl|kernel|kern\.log|syslog|/var/log/messages)"
_OF = r"\b(?:on|from|of|host|node|machine):? [`'\"]?"
_FAR = r".{0,200}"
# Who says it in a chat, and when: `08:55 <tk> `, `[10:02] tk: `
_TALK = (
    r"(?:\[?\d{1,2}:\d\d(?::\d\d)?\]? {1,2}(?:<[@+ ]?[\w.-]{1,32}>|[\w.-]{1,32}:) {1,2}"
    r"|<[@+ ]?[\w.-]{1,32}> {1,2})?"
)
_HEAD = re.compile(
    # A shell that runs a command elsewhere.
    rf"^{_FAR}\b(?:(?:ssh|pdsh -w|clush -w) (?:-\S{{1,40}} )?"
    r"|srun (?:[^|;&\n]{0,120} )?(?:-w ?|--nodelist[ =])"
    r"|(?:kubectl|oc|k) (?:[^|;&\n]{0,80} )?(?:exec|debug) (?:-\S{1,40} ){0,4}(?:node/|pod/)?)"
    rf"(?:\w{{1,40}}@)?(?P<ssh>{_HOST})\b.*$"
    # dshbak and clush, with hosts that say the same in one list
    r"|^-{4,80}\n(?P<dsh>\S{1,200})(?: \(\d{1,6}\))?\n-{4,80}$"
    rf"|^[=#*<>-]{{2,12}} ?(?!{_CARD}\b)(?P<fence>{_HOST}):? ?[=#*<>-]{{0,12}}$"
    # The same behind what is shown: `--- kernel log gn-022`
    rf"|^[=#*<>-]{{2,12}} ?{_WORDS}(?: log| -T| -k| output)?:? "
    rf"(?P<behind>{_HOST}):? ?[=#*<>-]{{0,12}}$"
    rf"|^{_TALK}\[?(?:[\w.-]{{1,40}}@)?(?P<prompt>{_HOST})(?:[: ][^\n#$%]{{0,80}})?\]? ?[#$%] ?"
    r"(?P<command>.*)$"
    # A comment behind a command: `$ ps -eo pid,stat,wchan,cmd   # on n4`
    rf"|^{_TALK}(?:[\w@:~./-]{{0,60}}[$#%>] ?)?{_LOOK.pattern}[^\n#]{{0,200}}?\s#+ {{0,4}}"
    rf"(?:this is )?(?:on|at|of|host|node|machine):? (?:(?:node|host|machine) )?(?P<noted>{_HOST})"
    r"[)\s:.]{0,4}$"
    # A sentence about the log of a kernel.
    rf"|^{_FAR}{_OF}(?P<said>{_HOST})\b{_FAR}\b{_WORDS}\b.*$"
    rf"|^{_FAR}\b{_WORDS}\b{_FAR}{_OF}(?P<told>{_HOST})\b.*$"
    # `looked at dmesg on all nodes, only n4 has something`
    rf"|^{_FAR}\b{_WORDS}\b{_FAR}\b(?:only|just) [`'\"]?(?P<only>{_HOST})[`'\"]? "
    r"(?:has|had|shows?|showed|says|said|prints|logs|logged|reports?)\b.*$",
    re.MULTILINE,
)
_ANY_HOST = ("ssh", "fence", "behind", "noted", "said", "told", "only")
_DESCRIBED = re.compile(
    r"\bkubectl\b.{0,200}? describe (?:pods?[ /])(?P<pod>[a-z0-9][\w.-]{0,200})"
    r"|^Name: +(?P<name>\S{1,200})$",
    re.MULTILINE,
)


# A command that prints a file, or the name of the file that `tail` puts above what is in it.
_FILE = r"(?P<{}>[\w./~+=-]{{1,200}}\.(?:log|err|out|txt|stderr|stdout))"
_SHOWN = re.compile(
    # what a container printed before it was started again
    r"^.{0,80}[$#%>] ?(?P<before>(?:sudo )?(?:kubectl|oc|k) (?:[^|;&\n]{0,200} )?logs?\b"
    r"[^|;&\n]{0,200}? (?:--previous|-p)(?![\w-]).{0,200})$"
    # what a pod printed
    r"|^.{0,80}[$#%>] ?(?:sudo )?(?:kubectl|oc|k) (?:-n \S{1,60} |--namespace[= ]\S{1,60} )?logs "
    r"(?:-{1,2}[a-z]\S{0,60} (?:\d\S{0,8} )?){0,4}(?:pods?/)?(?P<pod>[a-z0-9][\w.-]{0,200})"
    r".{0,200}$"
    rf"|^==> {_FILE.format('tail')} <==$"
    rf"|^.{{0,80}}[$#%>] ?(?:sudo )?(?:head|tail|cat|less|more|sed|tac|zcat)\b[^|;&]{{0,120}}? "
    rf"{_FILE.format('asked')}(?: ?[|<>].{{0,100}})?$"
    # What ends it: another prompt, a fence, or a sentence about what comes next.
    r"|^(?P<end>\[?[\w.@:~/ -]{0,80}\]?[$%] .{0,400}|```.{0,20}|\n[A-Za-z].{0,200}:)$",
    re.MULTILINE,
)
# So long is a log that people paste; what is longer, programs wrote.
_MOST_PASTED = 1 << 18


class SectionFinder:
    """Remembers the last heading of one log; each part of it is looked at once."""

    def __init__(self) -> None:
        self._host = self._pod = self._file = self._writer = ""
        self._is_previous = False
        self._place = self._file_place = 0
        self._left = _MOST_IN_ALL

    def begin(self) -> None:
        """Begin the next block."""
        self._place = self._file_place = 0

    def name(self, line: LogLine, data: bytes, start: int) -> None:
        """Give a line that names no host, at a place of a block, that of the heading above it."""
        name_quota(line, data, start)
        if len(data) <= _MOST_PASTED:
            self._name_file(line, data, start)
        is_event = _EVENT.match(line.text) is not None
        is_state = not line.is_kernel and _STATE.match(line.text) is not None
        line.is_described = not line.is_kernel and _POD_ROW.match(line.text) is not None
        is_event |= line.is_described
        if line.node or not (line.is_kernel or is_state or is_event):
            return
        if self._left <= 0:
            return
        begin = max(self._place, start - _MOST_BYTES)
        self._left -= start - begin
        if begin > self._place:
            self._host = self._pod = ""
        above = data[begin:start].decode("utf-8", errors="replace")
        self._host = _find_host(above, self._host)
        self._pod = _find_pod(above, self._pod)
        self._place = start
        line.node = self._pod if is_event else self._host

    def _name_file(self, line: LogLine, data: bytes, start: int) -> None:
        """Give a line what the command above it tells; one of nobody, what its file is called."""
        begin = max(self._file_place, start - _MOST_BYTES)
        above = data[begin:start].decode("utf-8", errors="replace")
        for match in _SHOWN.finditer(above):
            self._file = match["tail"] or match["asked"] or ""
            self._writer = match["pod"] or ""
            self._is_previous = match["before"] is not None
        self._file_place = start
        line.is_previous = self._is_previous
        is_named = line.rank != UNKNOWN_RANK or line.task != UNKNOWN_RANK or line.node
        if is_named or line.local >= 0 or line.is_kernel or line.is_agent:
            return
        if self._file:
            take_file(line, self._file)
        line.node = line.node or self._writer


def _find_host(above: str, host: str) -> str:
    """Return the host that the last heading of some lines names, empty where it names none.

    A heading of several hosts, or of a command that prints a file, ends what one host told.
    """
    for match in _HEAD.finditer(above):
        told = match.groupdict()
        if told["prompt"]:
            host = told["prompt"] if _LOOK.match(told["command"]) else ""
        elif told["dsh"]:
            host = told["dsh"] if re.fullmatch(_HOST, told["dsh"]) else ""
        else:
            host = next(told[name] for name in _ANY_HOST if told[name])
            host = "" if is_file(host) else host
    return host


def _find_pod(above: str, pod: str) -> str:
    """Return the pod whose description stands last in some lines."""
    for match in _DESCRIBED.finditer(above):
        pod = match["pod"] or match["name"]
    return pod
