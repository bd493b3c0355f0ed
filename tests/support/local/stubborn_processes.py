"""`python3 nasty.py TAG`: leaves behind processes that will not go by themselves, all with TAG (a number, so that it
can be added to a time to sleep) in their command line."""

import os
import signal
import subprocess
import sys
import time


def detach() -> bool:
    """A daemon, as they are made: True in it, False in the one that goes on."""
    if os.fork():
        os.wait()
        return False
    os.setsid()
    if os.fork():
        os._exit(0)
    for fd in range(3):
        os.dup2(os.open(os.devnull, os.O_RDWR), fd)
    return True


def deaf_daemon(tag: str) -> None:
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    os.execvp("sleep", ["sleep", "9000", "1", tag])


def respawner() -> None:
    """Every generation begins the next one and ends."""
    while True:
        if os.fork():
            os._exit(0)
        os.setsid()
        time.sleep(0.002)


def nameless(tag: str) -> None:
    """Without any trace of where it came from in its environment."""
    os.execvpe("sleep", ["sleep", "9000", "2", tag], {})


def nested(tag: str) -> None:
    """In namespaces of its own, where the system allows them."""
    os.execvp("unshare", ["unshare", "-Urpf", "sleep", "9000", "3", tag])


def stopped(tag: str) -> None:
    child = subprocess.Popen(["sleep", "9000", "4", tag])
    child.send_signal(signal.SIGSTOP)
    signal.pause()


def main(tag: str) -> None:
    for behave in (deaf_daemon, nameless, nested, stopped):
        if detach():
            behave(tag)
    if detach():
        respawner()
    time.sleep(0.5)


if __name__ == "__main__":
    main(sys.argv[1])
