"""What a daemon that outlives a command does not take over from it: limits of the process and signals.

`ulimit -t 60`, `nohup` or a shell's `trap '' TERM` are about the command. The daemon serves all later programs of the
user, too. Standard library only.
"""

from __future__ import annotations

import resource
import signal

UNLIMITED = resource.RLIM_INFINITY
LIMITS = {
    resource.RLIMIT_CPU: UNLIMITED,
    resource.RLIMIT_AS: UNLIMITED,
    resource.RLIMIT_DATA: UNLIMITED,
    resource.RLIMIT_FSIZE: UNLIMITED,
    resource.RLIMIT_STACK: 8 << 20,  # bytes, as the kernel has it; threads get as much
}
# What the administrator bounds for a user: the soft limit goes up to the hard one.
BOUNDED = (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC, resource.RLIMIT_MEMLOCK)


def start_afresh() -> None:
    """Resets what this process may reset, for the program that it executes next.

    Hard limits stay where they are without CAP_SYS_RESOURCE.
    """
    for number in signal.valid_signals():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for kind, wanted in LIMITS.items():
        if not _limited(kind, wanted, UNLIMITED):
            hard = resource.getrlimit(kind)[1]
            _limited(kind, hard if wanted == UNLIMITED else min(wanted, hard), hard)
    for kind in BOUNDED:
        hard = resource.getrlimit(kind)[1]
        _limited(kind, hard, hard)


def _limited(kind: int, soft: int, hard: int) -> bool:
    try:
        resource.setrlimit(kind, (soft, hard))
    except (OSError, ValueError):
        return False
    return True
