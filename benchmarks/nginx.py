"""nginx as the reference for a relay: one worker, no buffering, HTTP/1.1 over a Unix socket to the engine."""

import grp
import os
import pwd
import shutil
import time
from pathlib import Path
from typing import Self

from benchmarks.processes import Process, Unavailable, free_port

_CONF = """\
daemon off;
user {user} {group};
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/nginx-error.log;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    upstream engine {{ server unix:{socket}; keepalive 16; }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://engine;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
            proxy_read_timeout 1h;
        }}
    }}
}}
"""


class Nginx:
    """nginx in front of the engine at `socket`, with its files in `folder`. `pid` is its worker's.

    Raises Unavailable where it is not installed.
    """

    def __init__(self, folder: Path, socket: Path) -> None:
        program = shutil.which("nginx", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"]))
        if program is None:
            raise Unavailable(
                "the relay is measured against nginx, which is not here; sudo apt-get install nginx-light"
            )
        self.port = free_port()
        user, group = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(os.getegid()).gr_name
        conf = folder / "nginx.conf"
        conf.write_text(_CONF.format(user=user, group=group, folder=folder, socket=socket, port=self.port))
        self._process = Process(
            [program, "-c", str(conf), "-p", str(folder)], os.environ, folder / "nginx.log"
        )
        self.pid = 0
        while not self.pid:
            self._process.check()
            time.sleep(0.02)
            self.pid = _worker(self._process.pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stop()


def _worker(pid: int) -> int:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[0]) if children else 0
