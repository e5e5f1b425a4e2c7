"""Word to the service manager: sd_notify's protocol, a datagram to the socket that NOTIFY_SOCKET names."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final

_MOST_SECONDS: Final = 1.0  # a manager that does not read must not hold up the start


def notify(address: str, *assignments: str) -> None:
    """Sends assignments such as `STATUS=waiting`; a socket of another family than Unix, a closed or a full one is nobody's reason to fail.

    A leading @ is the abstract namespace (sd_notify(3)).
    """
    if not address.startswith(("/", "@")):
        return
    import socket  # noqa: PLC0415 - 5 ms that only a wait under a service manager needs

    path = os.fsencode(address)
    name = b"\0" + path[1:] if address.startswith("@") else path
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.settimeout(_MOST_SECONDS)
        sender.sendto("\n".join(assignments).encode(errors="backslashreplace"), name)
