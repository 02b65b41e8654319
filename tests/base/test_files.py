"""Writing files: what is no regular file is written in place, and links stay."""

import os
import stat
import threading

import pytest

from loadmaster.base.errors import InputError
from loadmaster.base.files import check_target, write_bytes


def test_a_link_stays_and_its_target_is_replaced(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"old")
    link.symlink_to(target)
    check_target(link)
    write_bytes(link, b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    assert sorted(os.listdir(tmp_path)) == ["link", "target"]


def test_a_link_to_nothing_yet_makes_its_target(tmp_path):
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "target")
    write_bytes(link, b"new")
    assert link.is_symlink()
    assert (tmp_path / "target").read_bytes() == b"new"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_written_to(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    seen = []
    reader = threading.Thread(target=lambda: seen.append(pipe.read_bytes()), daemon=True)
    reader.start()
    check_target(pipe)
    write_bytes(pipe, b"whole")
    reader.join(10)
    assert seen == [b"whole"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_regular_file_is_replaced_not_overwritten(tmp_path):
    target, other = tmp_path / "target", tmp_path / "other"
    target.write_bytes(b"old")
    os.link(target, other)
    write_bytes(target, b"new")
    assert (target.read_bytes(), other.read_bytes()) == (b"new", b"old")


@pytest.mark.parametrize("act", [check_target, lambda path: write_bytes(path, b"new")])
def test_a_name_that_is_too_long_is_refused(act, tmp_path):
    with pytest.raises(InputError, match="File name too long"):
        act(tmp_path / ("n" * 300))


def test_the_longest_name_is_written(tmp_path):
    write_bytes(tmp_path / ("n" * 255), b"new")
    assert os.listdir(tmp_path) == ["n" * 255]


def test_permissions_of_a_file_that_is_replaced_stay(tmp_path):
    path = tmp_path / "plan.json"
    write_bytes(path, b"old")
    path.chmod(0o600)
    write_bytes(path, b"new")
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_is_written_is_on_the_disk_before_it_is_seen(tmp_path, monkeypatch):
    path, synced = tmp_path / "plan.json", []
    monkeypatch.setattr("os.fsync", lambda file: synced.append(path.exists()))
    write_bytes(path, b"new")
    assert synced == [False]
