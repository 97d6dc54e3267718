"""The ports at which a process and its children listen."""

import contextlib

import psutil

LOOPBACK = ("127.0.0.1", "::1", "::ffff:127.0.0.1")


def listening(driver: psutil.Process) -> dict[tuple[str, int], str]:
    """Return the addresses at which the driver's processes listen, with the names of the processes."""
    found = {}
    for process in [driver, *driver.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            for one in process.net_connections("tcp"):
                if one.status == psutil.CONN_LISTEN:
                    found[one.laddr] = process.name()
    return found
