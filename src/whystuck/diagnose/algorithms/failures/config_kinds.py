"""What programs print about a wrong environment or command line: a table."""

from __future__ import annotations

import re
from dataclasses import dataclass

_SHM = "/dev/shm"  # noqa: S108 - text of advice, nothing is opened


@dataclass(frozen=True)
class ConfigKind:
    """One thing that can be wrong.

    Attributes:
        name: Goes into ``details["kind"]``.
        pattern: What is searched for in a message or line; named groups go into the sentence.
        says: The sentence, with ``{group}`` in it; ``{what}`` is the match.
        remedies: Advice, with the same groups.
        is_plain: Whether such a line tells of a failure wherever it stands. Where not, only a
            traceback or a line that begins with the error does: programs log what they survive.
        is_of_host: Whether the host is at fault, rather than the rank that says so.
    """

    name: str
    pattern: re.Pattern[str]
    says: str
    remedies: tuple[str, ...] = ()
    is_plain: bool = False
    is_of_host: bool = False


def make_kind(
    name: str,
    pattern: str,
    says: str,
    *remedies: str,
    is_plain: bool = False,
    is_of_host: bool = False,
) -> ConfigKind:
    """Make a row of the table."""
    return ConfigKind(name, re.compile(pattern), says, remedies, is_plain, is_of_host)


KINDS: tuple[ConfigKind, ...] = (
    make_kind(
        "module",
        r"ModuleNotFoundError: No module named '?(?P<module>[\w.]+)",
        "the environment of the job has no module {module}",
        "pip install {package}   # in the environment of the job; the name on PyPI may differ",
        'python -c "import {package}"   # on every node, with the interpreter of the job',
    ),
    make_kind(
        "library-version",
        r"ImportError: cannot import name '?(?P<name>\w+)'? from (?:partially initialized module )?"
        r"'(?P<module>[\w.]+)'",
        "{module} has no {name}: its version does not fit the code",
        "pip show {package}   # compare the version with what the code needs",
    ),
    make_kind(
        "library",
        r"(?:error while loading shared libraries: (?P<lib>[^\s:]+)"
        r"|ImportError: (?P<lib2>lib\S+?\.so[\w.]*): cannot open shared object file)",
        "a shared library is missing: {what}",
        "ldconfig -p | grep -i NAME; then install its package or add its folder to LD_LIBRARY_PATH",
        is_plain=True,
    ),
    make_kind(
        "library-version",
        r"undefined symbol: (?P<symbol>\w+)|version `GLIBC\w*_[\d.]+' not found",
        "a compiled library does not fit what it is loaded with: {what}",
        (
            "rebuild or reinstall the extension for this torch: `pip install --no-cache-dir "
            "--force-reinstall --no-binary :all: PACKAGE`"
        ),
        "ldd -r FILE.so | grep undefined",
    ),
    make_kind(
        "argument",
        r"error: (?:unrecognized arguments: (?P<argument>.{0,200})"
        r"|the following arguments are required: (?P<missing>.{0,200})"
        r"|argument \S+: (?:invalid|expected).{0,200})|error: (?:No such option|Missing option).*",
        "the command line is wrong: {what}",
        "run the script with --help on one process and correct the command line",
        is_plain=True,
    ),
    make_kind(
        "script",
        r"can't open file '(?P<file>[^']*)'",
        "the script {file} is not there",
        "ls -l {file}   # on every node, and inside the container",
        is_plain=True,
    ),
    make_kind(
        "command",
        r"(?P<command>torchrun|accelerate|deepspeed|python3?|srun|mpirun|mpiexec|composer):"
        r" command not found",
        "the command {command} is not in the PATH",
        "activate the environment before, or write the full path; `command -v {command}` tells it",
        is_plain=True,
    ),
    make_kind(
        "command",
        r"execve\(\): (?P<file>[^:]{1,200}): No such file or directory",
        "the program {file} is not there",
        "ls -l {file}   # on every node",
        is_plain=True,
    ),
    *(
        make_kind(
            "port",
            pattern,
            "port {port} of the store is in use: another process listens there",
            "ss -ltnp | grep {port}   # who listens there",
            "torchrun --standalone (one node), or --master-port with a free one",
            is_plain=True,
        )
        for pattern in (
            r"port: (?P<port>\d+), .{0,60}EADDRINUSE",
            r"failed to bind to \S{1,80}:(?P<port>\d+) \(errno: 98",
        )
    ),
    *(
        make_kind(
            "port",
            pattern,
            "port {port} of HCCL is in use: another job listens there, on this host or its devices",
            "ss -ltnp | grep {port}   # who listens there",
            "export HCCL_IF_BASE_PORT=PORT   # a range of its own for each job of a host",
            is_plain=True,
        )
        for pattern in (
            r"listen on ip ?\[[^\]]{1,60}\] and (?:specific )?port ?\[(?P<port>\d{1,5})\] fail",
            r"IP address ?\[[^\]]{1,60}\] and port ?\[(?P<port>\d{1,5})\] have been bound already",
        )
    ),
    make_kind(
        "port",
        r"Failed to bind the IP port|IP address and port have been bound already",
        "a port of HCCL is in use: another job listens there, on this host or its devices",
        "export HCCL_IF_BASE_PORT=PORT   # a range of its own for each job of a host",
        is_plain=True,
    ),
    make_kind(
        "port",
        r"failed to listen on any local network address",
        "the port of the store is in use: another job, or a process left over, listens there",
        "ss -ltnp   # who listens where",
        is_plain=True,
    ),
    make_kind(
        "port",
        r"\[Errno 98\]|EADDRINUSE|[Aa]ddress already in use",
        "a port is in use: another process listens on it",
        "ss -ltnp   # who listens where",
    ),
    make_kind(
        "environment",
        r"environment variable (?P<name>[A-Z_]+) expected, but not set",
        "the variable {name} is not set: the script was started without a launcher",
        "start it with `torchrun --nproc-per-node N script.py`, or export {name}",
        is_plain=True,
    ),
    make_kind(
        "shared-memory",
        r"failed to extend /dev/shm/\S+ to (?P<size>\d+) bytes",
        f"{_SHM} is too small: {{megabytes}} MiB more did not fit",
        f"df -h {_SHM}",
        "docker run --shm-size=16g ..., or in Kubernetes an emptyDir with medium: Memory",
        is_plain=True,
        is_of_host=True,
    ),
    make_kind(
        "shared-memory",
        r"creating shared memory segment|posix_fallocate failed|out of shared memory"
        r"|unable to (?:allocate shared memory|write to file </torch_|open shared memory object)"
        r"|shm(?:(?!shm)\S)*?(?:truncate|fallocate).{0,300}No space left"
        r"|bus error.{0,300}shared memory",
        f"{_SHM} is too small or full",
        f"df -h {_SHM}",
        "docker run --shm-size=16g ..., or in Kubernetes an emptyDir with medium: Memory",
        "torch.multiprocessing.set_sharing_strategy('file_system') helps where neither is allowed",
        is_plain=True,
        is_of_host=True,
    ),
    make_kind(
        "gid",
        r"local GID index (?P<index>\d{1,4}), local GID ::,",
        "the network card has no address under GID index {index}, which NCCL uses",
        "show_gids   # on this host and on another one: which index has a RoCE v2 row with an IPv4",
        "unset NCCL_IB_GID_INDEX   # NCCL finds the index; and give the interface an address",
        is_plain=True,
        is_of_host=True,
    ),
    make_kind(
        "limits",
        r"Too many open files|received 0 items of ancdata|VFS: file-max limit \d+ reached",
        "a process ran out of file descriptors",
        "ulimit -n 1048576   # before the launcher starts; `ulimit -n` tells the limit now",
        "torch.multiprocessing.set_sharing_strategy('file_system')   # when workers send tensors",
        is_of_host=True,
    ),
    make_kind(
        "limits",
        r"can't start new thread|pthread_create failed|libgomp: Thread creation failed"
        r"|Resource temporarily unavailable.{0,300}(?:fork|pthread)",
        "no more threads or processes may be started",
        "ulimit -u; cat /sys/fs/cgroup/pids.max   # raise whichever is low",
        "export OMP_NUM_THREADS=1   # threads are multiplied by ranks and by workers",
        is_of_host=True,
    ),
    make_kind(
        "limits",
        r"Call to ibv_(?P<call>\w{1,30}) failed",
        "the network card may not lock or register the memory that it needs (ibv_{call} failed)",
        "ulimit -l   # inside the job: it has to be unlimited, or as large as device memory",
        "docker run --ulimit memlock=-1 ..., or LimitMEMLOCK=infinity for the service of slurmd",
        is_plain=True,
        is_of_host=True,
    ),
    make_kind(
        "limits",
        r"\bibv_(?P<call>\w{1,30})\(.{0,200}\) failed: Cannot allocate memory",
        "the network card may not lock or register the memory that it needs (ibv_{call} failed)",
        "ulimit -l   # inside the job: it has to be unlimited, or as large as device memory",
        is_plain=True,
        is_of_host=True,
    ),
    make_kind(
        "driver",
        r"NVRM: API mismatch: the client has the version (?P<client>\d[\d.]*)",
        "the NVIDIA driver's library ({client}) does not fit its kernel module",
        "cat /proc/driver/nvidia/version; nvidia-smi   # then reboot, or unload the module",
        is_plain=True,
        is_of_host=True,
    ),
    make_kind(
        "driver",
        r"CUDA driver version is insufficient|NVIDIA driver on your system is too old"
        r"|forward compatibility was attempted on non supported HW"
        r"|Driver/library version mismatch|unsupported display driver / cuda driver combination",
        "the NVIDIA driver does not fit: {what}",
        "nvidia-smi   # compare its CUDA version with `python -c 'import torch; "
        "print(torch.version.cuda)'`",
        is_plain=True,
        is_of_host=True,
    ),
    make_kind(
        "device",
        r"No CUDA GPUs are available|only supported with GPUs, no GPUs found"
        r"|Found no NVIDIA driver on your system"
        r"|no CUDA-capable device is detected",
        "a process sees no device: {what}",
        "nvidia-smi -L; echo $CUDA_VISIBLE_DEVICES   # inside the container that failed",
        is_of_host=True,
    ),
    make_kind(
        "device",
        r"invalid device ordinal",
        "a rank chose a device that is not there",
        "torch.cuda.set_device(int(os.environ['LOCAL_RANK']))   # not the global rank",
        "nvidia-smi -L | wc -l   # start no more processes than that on a node",
    ),
    make_kind(
        "build",
        r"no kernel image is available for execution on the device"
        r"|Torch not compiled with CUDA enabled|Distributed package doesn't have \w+ built in",
        "this build of torch does not fit the machine: {what}",
        'python -c "import torch; print(torch.__version__, torch.version.cuda, '
        'torch.cuda.get_arch_list())"',
    ),
    *(
        make_kind(
            "versions",
            pattern,
            says,
            'python -c "import torch; print(torch.cuda.nccl.version())"   # on every node',
            "use one image on all nodes, and no LD_PRELOAD of another libnccl",
            is_plain=True,
        )
        for pattern, says in (
            (
                (
                    r"Mismatched NCCL version detected : rank (?P<a>\d+) version (?P<va>\d+)"
                    r" rank (?P<b>\d+) version (?P<vb>\d+)"
                ),
                "rank {a} uses NCCL {va}, and rank {b} uses {vb}",
            ),
            (r"Mismatched NCCL version detected", "ranks use different versions of NCCL"),
        )
    ),
    make_kind(
        "interface",
        r"no socket interface found|no interface found|No (?:usable listening|IP) interface found"
        r"|no device found matching",
        "NCCL has no network interface to use: NCCL_SOCKET_IFNAME names none that is up",
        "ip -br addr   # on every node; then `export NCCL_SOCKET_IFNAME=eth0`, or unset it",
        is_plain=True,
    ),
    make_kind(
        "interface",
        r"\bUnable to find address for: (?P<nic>[\w.-]{1,40})",
        "the network interface {nic}, which gloo is told to use, has no address on this host",
        "ip -br addr   # on every node; then bring it up, or set GLOO_SOCKET_IFNAME to another",
        is_plain=True,
    ),
    make_kind(
        "fork",
        r"Cannot re-initialize CUDA in forked subprocess",
        "CUDA was used before a process was forked",
        "torch.multiprocessing.set_start_method('spawn')   # or touch CUDA only in the children",
        "DataLoader(..., multiprocessing_context='spawn')   # when a data set uses CUDA",
    ),
    make_kind(
        "fork",
        r"An attempt has been made to start a new process before the",
        "the script starts processes when it is imported",
        "put the start of the program below `if __name__ == '__main__':`",
        is_plain=True,
    ),
    make_kind(
        "resources",
        r"step creation (?:temporarily|still) disabled, retrying \((?P<why>[^)]{1,80})\)",
        "srun waits inside its own job for a step that holds its resources ({why})",
        "squeue --steps --job JOB   # which step holds them; end it with `scancel JOB.STEP`",
        "srun --overlap ..., where both steps are to share the resources",
        is_plain=True,
    ),
    make_kind(
        "resources",
        r"can fulfill resource request (?P<ask>\{[^}]{1,200}\})"
        r"|resource request cannot be scheduled right now",
        "Ray waits for resources that no node has: {what}",
        "ray status   # what the nodes have, and who uses it",
        is_plain=True,
    ),
    make_kind(
        "quota",
        r"exceeded quota: (?P<quota>[\w.-]{1,80}(?:, requested: [^,]{1,80})?(?:, used: [^,]{1,80})?"
        r"(?:, limited: [\w./=-]{1,80})?)"
        r"|\((?P<why>(?:QOS|Assoc|MaxGRES|ReqNode|Partition)[^)]{1,80})\)",
        "a quota or a limit of the cluster keeps a part of the job from starting, and the others "
        "wait for it: {what}",
        "kubectl describe quota -n NAMESPACE; squeue --start -j JOB   # who uses it",
        "raise the quota, free what uses it, or start with as few nodes as it allows",
        is_plain=True,
    ),
    make_kind(
        "quota",
        r"is forbidden: .{0,160}usage per \w+|violates PodSecurity|denied the request"
        r"|insufficient (?:unused )?quota",
        "a rule of the cluster keeps a part of the job from starting: {what}",
        "kubectl get events --sort-by=.lastTimestamp   # what was refused, and why",
        is_plain=True,
    ),
    make_kind(
        "device-taken",
        r"device(?:\(s\))? is/are busy or unavailable",
        "a device is taken by another process, or in a mode that lets nobody in: {what}",
        "nvidia-smi --query-gpu=index,compute_mode --format=csv; nvidia-smi   # who is on it",
        "nvidia-smi -c DEFAULT   # as root, where the mode is Exclusive_Process and several ranks "
        "share a device",
    ),
    make_kind(
        "placement",
        r"NodeNotReady|FailedMount|ImagePullBackOff|ErrImagePull|FailedScheduling",
        "Kubernetes could not start a pod: {what}",
        "kubectl describe pod POD; kubectl get events --sort-by=.lastTimestamp",
        is_plain=True,
        is_of_host=True,
    ),
)
