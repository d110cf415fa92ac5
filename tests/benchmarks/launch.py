"""Runs one command and writes what it took: `python -I -S launch.py OUT TIMEOUT_S COMMAND...`.

Apart from the rest because a process begins with the peak memory of the one that started it: this one is small, and
what it reports below `FLOOR_MB` is its own. OUT gets `wall_s cpu_s peak_kib exit timed_out`: CPU of the command and all
that it waited for, the peak of the largest of them. After TIMEOUT_S its process group is ended.
"""

import os
import signal
import sys
import time

FLOOR_MB = 10.0
# A client that catches the signal to clean up behind itself gets this long.
GRACE_S = 5


def main() -> None:
    out, timeout_s, command = sys.argv[1], float(sys.argv[2]), sys.argv[3:]
    start = time.monotonic()
    child = os.fork()
    if child == 0:
        os.setsid()
        try:
            os.execvp(command[0], command)
        except OSError as error:
            os.write(2, f"{command[0]}: {error.strerror}\n".encode())
        os._exit(127)
    signals = [signal.SIGTERM, signal.SIGKILL]

    def too_late(*_: object) -> None:
        if signals:
            os.killpg(child, signals.pop(0))
            signal.alarm(GRACE_S)

    for number in (signal.SIGALRM, signal.SIGINT, signal.SIGTERM):  # the command has left our group: tell it
        signal.signal(number, too_late)
    signal.setitimer(signal.ITIMER_REAL, timeout_s)
    _, status, usage = os.wait4(child, 0)
    wall_s = time.monotonic() - start
    signal.setitimer(signal.ITIMER_REAL, 0)
    kib = usage.ru_maxrss // (1024 if sys.platform == "darwin" else 1)
    code = os.waitstatus_to_exitcode(status)
    with open(out, "w") as file:
        file.write(f"{wall_s} {usage.ru_utime + usage.ru_stime} {kib} {code} {int(len(signals) < 2)}")


if __name__ == "__main__":
    main()
