"""A PostgreSQL server of its own for a test; Debian's package postgresql has what it takes."""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path


class PostgresMissingError(Exception):
    """There is no server here, with the reason."""


def find_programs():
    """Return the folder of initdb and pg_ctl."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    path = shutil.which("initdb") or (found and str(found[-1]))
    if not path:
        raise PostgresMissingError("initdb is missing: apt install postgresql")
    return Path(path).parent


@contextmanager
def running_server():
    """Start a server on a free port; yield its URL."""
    programs = find_programs()
    prefix = []
    if os.geteuid() == 0:  # the server refuses to run as root
        try:
            owner = pwd.getpwnam("postgres")
        except KeyError:
            raise PostgresMissingError("root cannot run it, and has no user postgres") from None
        prefix = ["setpriv", f"--reuid={owner.pw_uid}", f"--regid={owner.pw_gid}", "--clear-groups"]
    folder = Path(tempfile.mkdtemp(prefix="phnn-postgres-"))
    if prefix:
        os.chown(folder, owner.pw_uid, owner.pw_gid)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def call(program, *arguments):
        done = subprocess.run(
            [*prefix, str(programs / program), "-D", str(folder / "data"), *arguments],
            cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise PostgresMissingError(f"{program} failed: {done.stderr[-300:]}")

    try:
        call("initdb", "-A", "trust", "-U", "me", "--no-sync")
        options = f"-c listen_addresses=127.0.0.1 -p {port} -k {folder} -c fsync=off"
        call("pg_ctl", "-w", "-l", str(folder / "log"), "-o", options, "start")
        try:
            yield f"postgresql+psycopg://me:nobody@127.0.0.1:{port}/postgres"
        finally:
            call("pg_ctl", "-w", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
