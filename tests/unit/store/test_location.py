"""Tests of store.location: which paths and URLs can hold a store."""

from pathlib import Path

import pytest

from store.errors import StoreLocationError
from store.location import NETWORK_FILE_SYSTEMS, check_local, parse_location
from store.repository import Store


def write_mounts(tmp_path: Path, *lines: str) -> Path:
    """A list of mounts over an ext4 root."""
    mounts = tmp_path / "mounts"
    mounts.write_text("\n".join(["/dev/vda / ext4 rw,relatime 0 0", *lines]) + "\n")
    return mounts


def test_path_and_urls_name_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path, an absolute one and both kinds of URL lead to one file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    wanted = tmp_path / "store.db"
    given = ["store.db", "~/store.db", str(wanted), "sqlite:///store.db", f"sqlite:///{wanted}"]
    assert {parse_location(item) for item in given} == {wanted}
    assert parse_location(wanted) == wanted


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("", "needs a file"),
        (":memory:", "needs a file"),
        ("sqlite://", "needs a file"),
        ("sqlite:///:memory:", "needs a file"),
        ("sqlite:///a.db?mode=ro", "neither host nor options"),
        ("sqlite://host/a.db", "neither host nor options"),
        ("postgresql://host/tuner", "a postgresql store is not supported"),
        ("mysql+pymysql://host/tuner", "a mysql store is not supported"),
        ("nonsense://", "a nonsense store is not supported"),
        ("://", "cannot be read"),
    ],
)
def test_refused_locations(location: str, message: str) -> None:
    """What is no SQLite file is refused with what to give instead."""
    with pytest.raises(StoreLocationError, match=message):
        parse_location(location)


def test_folder_is_refused(tmp_path: Path) -> None:
    """A folder is not a file."""
    with pytest.raises(StoreLocationError, match="is a folder"):
        parse_location(tmp_path)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://tuner:p%40:/@x@db.example/tuner",
        "postgresql://tuner:p%40:/@x@db.example:port/tuner",
        "sqlite://tuner:p%40:/@x@db.example/tuner",
        "1://tuner:p%40:/@x@db.example/tuner",
    ],
)
def test_password_is_never_repeated(url: str) -> None:
    """An error about a URL shows neither its password nor anything around it."""
    with pytest.raises(StoreLocationError) as caught:
        Store.open(url)
    assert "p%40" not in str(caught.value)
    assert "p@" not in str(caught.value)
    assert "tuner" not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize("kind", sorted(NETWORK_FILE_SYSTEMS))
def test_network_file_systems_are_refused(tmp_path: Path, kind: str) -> None:
    """A store on a network file system is refused before a file is made (F2)."""
    share = tmp_path / "share"
    mounts = write_mounts(tmp_path, f"server:/export {share} {kind} rw 0 0")
    with pytest.raises(StoreLocationError, match=rf"network file system \({kind}\).*PostgreSQL"):
        Store.open(share / "deep" / "store.db", mounts=mounts)
    assert not share.exists()


def test_network_file_system_is_refused_for_readers_too(tmp_path: Path) -> None:
    """A reader on another host would see a torn file."""
    mounts = write_mounts(tmp_path, f"server:/export {tmp_path} nfs4 rw 0 0")
    with pytest.raises(StoreLocationError, match="nfs4"):
        Store.open(tmp_path / "store.db", read_only=True, mounts=mounts)


def test_only_the_innermost_mount_counts(tmp_path: Path) -> None:
    """A local disk inside a share is local; a share inside a local disk is not."""
    mounts = write_mounts(
        tmp_path,
        "server:/a /srv nfs rw 0 0",
        "/dev/vdb /srv/local xfs rw 0 0",
        "server:/b /srv/local/share cifs rw 0 0",
    )
    check_local(Path("/srv/local/store.db"), mounts)
    check_local(Path("/srv-other/store.db"), mounts)
    for path in ("/srv/store.db", "/srv/local/share/store.db"):
        with pytest.raises(StoreLocationError):
            check_local(Path(path), mounts)


def test_later_mount_hides_an_earlier_one(tmp_path: Path) -> None:
    """Of two mounts on one point, the last is what is there."""
    first, second = "server:/a /srv nfs rw 0 0", "/dev/vdb /srv ext4 rw 0 0"
    check_local(Path("/srv/store.db"), write_mounts(tmp_path, first, second))
    with pytest.raises(StoreLocationError):
        check_local(Path("/srv/store.db"), write_mounts(tmp_path, second, first))


def test_mount_point_with_a_space(tmp_path: Path) -> None:
    """The kernel escapes spaces in the names of mount points."""
    mounts = write_mounts(tmp_path, r"//server/share /mnt/my\040share cifs rw 0 0")
    with pytest.raises(StoreLocationError):
        check_local(Path("/mnt/my share/store.db"), mounts)


def test_symbolic_link_is_followed(tmp_path: Path) -> None:
    """A link on the local disk does not hide the share behind it."""
    share = tmp_path / "share"
    share.mkdir()
    link = tmp_path / "link"
    link.symlink_to(share)
    mounts = write_mounts(tmp_path, f"server:/export {share} nfs rw 0 0")
    with pytest.raises(StoreLocationError):
        check_local(link / "store.db", mounts)


def test_sandbox_root_counts_as_local(tmp_path: Path) -> None:
    """Some sandboxes show their own root as 9p; that is no network."""
    mounts = tmp_path / "mounts"
    mounts.write_text("none / 9p rw 0 0\n")
    check_local(tmp_path / "store.db", mounts)


def test_without_a_mount_list_nothing_is_refused(tmp_path: Path) -> None:
    """Systems without /proc are taken as they are; odd lines are passed over."""
    check_local(tmp_path / "store.db", tmp_path / "absent")
    check_local(tmp_path / "store.db", write_mounts(tmp_path, "", "odd"))


def test_a_device_is_no_store() -> None:
    """Only a regular file can hold a store; SQLite would leave a journal beside a device."""
    with pytest.raises(StoreLocationError, match="/dev/null is not a regular file"):
        parse_location("/dev/null")
