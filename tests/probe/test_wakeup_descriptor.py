"""The descriptor where Python writes the numbers of signals: the job has it as without us."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.probe.job import artifact, job_dir, read_until_trained, start_rank

OWN = """
import _signal, os, pickle, signal, socket
assert pickle.loads(pickle.dumps(signal.set_wakeup_fd)) is signal.set_wakeup_fd
one, other = socket.socketpair()
one.setblocking(False)
# Trio warns where there was one before.
assert signal.set_wakeup_fd(one.fileno(), warn_on_full_buffer=False) == -1
assert not callable(_signal.getsignal(signal.SIGTERM)), "nobody would tell us of it"
signal.signal(signal.SIGUSR1, lambda *_: None)
pid = os.fork()
if not pid:
    os._exit(signal.set_wakeup_fd(-1) != one.fileno())
assert os.waitpid(pid, 0)[1] == 0
os.kill(os.getpid(), signal.SIGUSR1)
assert other.recv(8) == bytes([signal.SIGUSR1])
for wrong in ("no number", 4711):
    try:
        signal.set_wakeup_fd(wrong)
    except (TypeError, ValueError, OSError):
        pass
    else:
        raise SystemExit(1)
assert signal.set_wakeup_fd(-1) == one.fileno()
assert signal.set_wakeup_fd(-1) == -1
"""


def test_job_has_a_descriptor_of_its_own_as_without_us(tmp_path: Path) -> None:
    script = OWN + "print('trained', flush=True); time.sleep(90)"
    with job_dir() as folder:
        process = start_rank(tmp_path, folder, script)
        read_until_trained(process)
        read_until_trained(process)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (-signal.SIGTERM, b"")
        assert artifact(folder, "fr", process).exists(), "ours is there again"
