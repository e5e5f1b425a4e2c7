"""A model hub and its file server on this machine, which answer what huggingface_hub asks of the real ones and write down who asked for what."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_secret"  # noqa: S105 - of the stand-in


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: `server` is hub or files."""

    server: str
    path: str
    authorization: str | None
    bytes_range: str | None


@dataclass(slots=True)
class Hub:
    """The hub, with one repository: a folder. Everything may be changed between requests. `sizes_bytes` are lies told in the listing.

    `drips` are paths that match: one byte of the answer every tenth of a second. `answers` are statuses with a code, by paths that match.
    """

    folder: Path
    endpoint: str = ""
    files: str = ""
    revisions: tuple[str, ...] = ("main", COMMIT)
    private: bool = False
    drips: str = "(?!)"
    answers: dict[str, tuple[int, str]] = field(default_factory=dict)
    bodies: dict[str, bytes] = field(default_factory=dict)
    sizes_bytes: dict[str, object] = field(default_factory=dict)
    ignores_ranges: bool = False
    asked: list[Asked] = field(default_factory=list)

    @property
    def paths(self) -> list[str]:
        """What was asked of both servers, in order."""
        return [one.path for one in self.asked]

    def listing(self) -> bytes:
        """What the API says of a revision."""
        if "listing" in self.bodies:
            return self.bodies["listing"]
        names = sorted(path.name for path in self.folder.iterdir())
        siblings = [{"rfilename": name, "size": self.sizes_bytes.get(name, (self.folder / name).stat().st_size)} for name in names]
        return json.dumps({"id": "org/model", "sha": COMMIT, "siblings": siblings}).encode()


class _Handler(BaseHTTPRequestHandler):
    """One connection to one of both servers."""

    hub: ClassVar[Hub]
    server_name: ClassVar[str]
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Any request; nothing else is asked."""
        path = unquote(urlsplit(self.path).path)
        authorization = self.headers.get("authorization")
        self.hub.asked.append(Asked(self.server_name, path, authorization, self.headers.get("range")))
        answer = next((answer for pattern, answer in self.hub.answers.items() if re.search(pattern, path)), None)
        if answer is None and self.hub.private and self.server_name == "hub" and authorization != f"Bearer {TOKEN}":
            answer = (401, "GatedRepo")
        if answer is not None:
            self._send(answer[0], b"{}", {"X-Error-Code": answer[1]}, path)
        elif api := re.fullmatch(r"/api/models/org/model/revision/(.*)", path):
            known = api[1] in self.hub.revisions
            self._send(200 if known else 404, self.hub.listing() if known else b"{}", {} if known else {"X-Error-Code": "RevisionNotFound"}, path)
        elif found := re.fullmatch(rf"/org/model/resolve/{COMMIT}/([\w.-]+)|/files/([\w.-]+)", path):
            self._send_file(found[1] or found[2], path)
        else:
            self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"}, path)

    def _send_file(self, name: str, path: str) -> None:
        """Large files lie on the other server, as at the real hub."""
        if self.server_name == "hub" and name.endswith(".safetensors"):
            self._send(302, b"", {"Location": f"{self.hub.files}/files/{name}?signature=x"}, path)
            return
        if name in self.hub.bodies:
            self._send(200, self.hub.bodies[name], {}, path)
            return
        size = (self.hub.folder / name).stat().st_size
        asked = re.fullmatch(r"bytes=0-(\d+)", self.headers.get("range") or "")
        if asked is None or self.hub.ignores_ranges:
            self._send(200, self._read(name, min(size, 1 << 20)), {}, path)
            return
        data = self._read(name, min(size, int(asked[1]) + 1))
        self._send(206, data, {"Content-Range": f"bytes 0-{len(data) - 1}/{size}"}, path)

    def _read(self, name: str, size: int) -> bytes:
        with (self.hub.folder / name).open("rb") as file:
            return file.read(size)

    def _send(self, status: int, data: bytes, headers: dict[str, str], path: str) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        drips = re.search(self.hub.drips, path) is not None
        try:
            for part in (data[at : at + 1] for at in range(len(data))) if drips else (data,):
                self.wfile.write(part)
                time.sleep(0.1 if drips else 0)
        except OSError:
            self.close_connection = True  # the guard has gone

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as the base class has it
        """Nothing is printed."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Nothing is printed of a guard that has gone."""


@contextmanager
def serving_hub(folder: Path) -> Iterator[Hub]:
    """Both servers, on ports of their own, until the end of the block."""
    hub = Hub(folder)
    servers = [_Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub, "server_name": name})) for name in ("hub", "files")]
    hub.endpoint, hub.files = (f"http://127.0.0.1:{server.server_port}" for server in servers)
    threads = [threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True) for server in servers]
    for thread in threads:
        thread.start()
    yield hub
    for server, thread in zip(servers, threads, strict=True):
        server.shutdown()
        server.server_close()
        thread.join()
