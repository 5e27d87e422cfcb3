"""Where a store may live: from a path or URL to a file on a local disk."""

from __future__ import annotations

import os
from pathlib import Path

from store.errors import StoreLocationError

MOUNTS = Path("/proc/self/mounts")
"""The kernel's list of mounted file systems; absent on systems other than Linux."""

NETWORK_FILE_SYSTEMS = frozenset(
    {
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "fuse.ceph",
        "fuse.glusterfs",
        "fuse.rclone",
        "fuse.s3fs",
        "fuse.sshfs",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "smb3",
        "smbfs",
    }
)
"""File systems on which write-ahead logging loses data: they share no memory between hosts."""


def parse_location(url_or_path: str | Path) -> Path:
    """The absolute path of the database file that a path or `sqlite:///` URL names.

    Raises:
        StoreLocationError: Another kind of database, a URL that cannot be read, a URL with
            options, or one that names no file.
    """
    if isinstance(url_or_path, str) and "://" in url_or_path:
        name = _file_of_url(url_or_path)
    else:
        name = str(url_or_path)
    if name in ("", ":memory:"):
        raise StoreLocationError("the store needs a file: give a path or sqlite:///PATH")
    path = Path(name).expanduser().absolute()
    if os.path.isdir(path):  # Path.is_dir raises where it may not look.
        raise StoreLocationError(f"{path} is a folder: name a file in it")
    if os.path.exists(path) and not os.path.isfile(path):
        raise StoreLocationError(f"{path} is not a regular file: name one")
    return path


def check_local(path: Path, mounts: Path = MOUNTS) -> None:
    """Refuse a path on a network file system.

    Args:
        path: The database file; it need not exist yet.
        mounts: File in the format of /proc/mounts. Nothing is checked where it is absent.

    Raises:
        StoreLocationError: The path lies on a network file system.
    """
    kind = _file_system(path.resolve(), mounts)
    if kind in NETWORK_FILE_SYSTEMS:
        raise StoreLocationError(
            f"{path} lies on a network file system ({kind}), where SQLite loses data: put the "
            "store on a local disk (sharing one store between hosts would take PostgreSQL, "
            "which this version cannot use)"
        )


def _file_of_url(url: str) -> str:
    # Imported only where a URL is given: a path costs no database driver.
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    # Never quote the URL in a message: it may hold a password.
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise StoreLocationError(
            "the store's URL cannot be read: give a path or sqlite:///PATH"
        ) from None
    if parsed.get_backend_name() != "sqlite":
        raise StoreLocationError(
            f"a {parsed.get_backend_name()} store is not supported: give a path or sqlite:///PATH"
        )
    if parsed.host or parsed.username or parsed.query:
        raise StoreLocationError(
            "the store's URL takes neither host nor options: write sqlite:///PATH"
        )
    return parsed.database or ""


def _file_system(path: Path, mounts: Path) -> str | None:
    """Type of the file system that holds a resolved path, or None if unknown."""
    try:
        lines = mounts.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return None
    kind, depth = None, -1
    for line in lines:
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = Path(_unescape(fields[1]))
        # A later mount hides an earlier one on the same point, hence `>=`.
        if len(point.parts) >= depth and path.is_relative_to(point):
            kind, depth = fields[2], len(point.parts)
            if kind == "9p" and point == Path("/"):
                # Sandboxes such as gVisor show their local root this way.
                kind = "local root"
    return kind


def _unescape(field: str) -> str:
    """Undo the octal escapes of /proc/mounts; the backslash itself comes last."""
    for code, character in (("040", " "), ("011", "\t"), ("012", "\n"), ("134", "\\")):
        field = field.replace(f"\\{code}", character)
    return field
