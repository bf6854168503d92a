"""Files and folders are written whole or not at all, whatever fails."""

import errno
import json
import math
import os
import re
import shutil
import stat
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path

import pytest
from safetensors import SafetensorError

import transduce
from transduce.data.corpus_mixture import CorpusConfig
from transduce.errors import AccessError, CheckpointError, ConfigError, OverwriteError
from transduce.files import (
    FileBusyError,
    access_errors,
    atomic_directory,
    atomic_file,
    clear_leftovers,
    parse_json,
    path_of,
    read_bounded,
    read_json,
    remove_folder,
    require_file,
    require_new_folder,
    require_place,
    without_infinity,
)

CONFIG, WEIGHTS = "config.json", "model.safetensors"


@pytest.fixture
def folder(tmp_path) -> Path:
    """Folder that has been written."""

    with atomic_directory(tmp_path / "model") as new:
        (new / CONFIG).write_text("{}", encoding="utf-8")
        (new / WEIGHTS).write_bytes(b"weights")
    return tmp_path / "model"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def write_half(folder: Path, error: BaseException) -> None:
    """Write part of a folder, then fail."""
    with atomic_directory(folder) as new:
        (new / CONFIG).write_text("half", encoding="utf-8")
        raise error


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "No space left on device.*free some space and try"),
        (errno.EDQUOT, "quota exceeded.*free some space and try"),
        (errno.EIO, "error.*correct that and try"),
    ],
)
def test_a_folder_that_cannot_be_written_leaves_the_old_one(folder, number, remedy):
    before = contents(folder)
    error = OSError(number, os.strerror(number))
    with pytest.raises(CheckpointError, match=f"^{folder}: cannot be saved .*{remedy}"):
        write_half(folder, error)
    assert contents(folder) == before
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_a_new_folder_that_cannot_be_written_leaves_nothing(tmp_path):
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(CheckpointError, match="free some space"):
        write_half(tmp_path / "model", error)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("slip")], ids=repr)
def test_other_errors_are_passed_on_and_leave_the_old_folder(folder, error):
    before = contents(folder)
    with pytest.raises(type(error)):
        write_half(folder, error)
    assert contents(folder) == before
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_a_folder_that_cannot_be_moved_into_place_leaves_the_old_one(
    folder, monkeypatch
):
    before = contents(folder)
    rename = Path.rename

    def refuse_the_new(path: Path, target: Path) -> Path:
        if path.name.endswith("-new"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refuse_the_new)
    monkeypatch.setattr(sys, "platform", "darwin")
    with (
        pytest.raises(CheckpointError, match="cannot be saved"),
        atomic_directory(folder) as new,
    ):
        (new / CONFIG).touch()
    assert contents(folder) == before


@pytest.mark.skipif(os.name == "nt", reason="Windows cannot lock a folder")
def test_a_folder_is_written_by_one_process_at_a_time(folder):
    with atomic_directory(folder) as new:
        (new / CONFIG).touch()
        message = f"{folder}: another process is writing this folder"
        with (
            pytest.raises(CheckpointError, match=message),
            atomic_directory(folder),
        ):
            pass
        (new / WEIGHTS).touch()
    assert set(contents(folder)) == {CONFIG, WEIGHTS}


@pytest.mark.skipif(os.name == "nt", reason="Windows cannot lock a folder")
def test_a_disk_without_file_locks_is_written_to(folder, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", refuse)
    with atomic_directory(folder) as new:
        (new / CONFIG).touch()
    assert set(contents(folder)) == {CONFIG}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux exchanges folders")
def test_a_folder_is_present_at_every_moment_of_its_replacement(folder, monkeypatch):
    present: list[bool] = []
    rename, fsync = Path.rename, os.fsync

    def note(*_: object) -> None:
        present.append((folder / CONFIG).exists())

    def noted_rename(self: Path, target: Path) -> Path:
        moved = rename(self, target)
        note()
        return moved

    def noted_fsync(descriptor: int) -> None:
        fsync(descriptor)
        note()

    monkeypatch.setattr(Path, "rename", noted_rename)
    monkeypatch.setattr(os, "fsync", noted_fsync)
    with atomic_directory(folder) as new:
        (new / CONFIG).write_text("new", encoding="utf-8")
    assert present
    assert all(present)
    assert set(contents(folder)) == {CONFIG}
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_a_folder_is_replaced_where_folders_cannot_be_exchanged(folder, monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with atomic_directory(folder) as new:
        (new / CONFIG).write_text("new", encoding="utf-8")
    assert contents(folder) == {CONFIG: b"new"}
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_leftovers_of_a_crash_are_removed(folder, tmp_path):
    (outside := tmp_path / "outside").mkdir()
    (outside / "kept").touch()
    for name in (".model.transduce-new", ".model.transduce-old"):
        (folder.parent / name / "sub").mkdir(parents=True)
        (folder.parent / name / "sub" / "junk").touch()
        (folder.parent / name / "link").symlink_to(outside)
    with atomic_directory(folder) as new:
        (new / CONFIG).touch()
    assert set(contents(folder)) == {CONFIG}
    assert {path.name for path in tmp_path.iterdir()} == {"model", "outside"}
    assert (outside / "kept").exists()


def test_a_replacement_cut_short_by_a_crash_is_undone_or_completed(tmp_path):
    for name in ("there", ".mine", ".there.transduce-old", ".away.transduce-old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / CONFIG).write_text(name)
    for name in (".there.transduce-new", ".another.transduce-gone"):
        (tmp_path / name).mkdir()
        (tmp_path / name / CONFIG).touch()
    clear_leftovers(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"there", "away", ".mine"}
    assert (tmp_path / "there" / CONFIG).read_text() == "there"
    assert (tmp_path / "away" / CONFIG).read_text() == ".away.transduce-old"


def test_an_interrupted_removal_is_completed(folder, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        remove_folder(folder)
    clear_leftovers(folder.parent)
    assert list(folder.parent.iterdir()) == []


def test_the_folder_behind_a_link_is_removed(folder, tmp_path):
    link = tmp_path / "elsewhere" / "link"
    link.parent.mkdir()
    link.symlink_to(folder)
    remove_folder(link)
    assert not folder.exists()
    assert list(link.parent.iterdir()) == [link]  # as it was before the folder


def test_a_file_in_place_of_a_folder_is_kept(tmp_path):
    (tmp_path / "best").write_text("precious", encoding="utf-8")
    for _ in range(2):
        with (
            pytest.raises(CheckpointError, match="best: cannot be saved .a file has"),
            atomic_directory(tmp_path / "best"),
        ):
            pass
    assert contents(tmp_path) == {"best": b"precious"}
    assert [path.name for path in tmp_path.iterdir()] == ["best"]


def test_a_parent_that_is_a_file_is_reported(tmp_path):
    (tmp_path / "run").touch()
    with (
        pytest.raises(CheckpointError, match="cannot be saved .*directory"),
        atomic_directory(tmp_path / "run" / "model"),
    ):
        pass


def test_subfolders_are_kept(tmp_path):
    with atomic_directory(tmp_path / "model") as new:
        (new / "inner").mkdir()
        (new / "inner" / "file").write_text("text", encoding="utf-8")
    assert (tmp_path / "model" / "inner" / "file").read_text(encoding="utf-8") == "text"


@pytest.mark.skipif(
    not Path("/proc/self/fd").exists(), reason="the system does not tell open files"
)
def test_files_and_folder_are_synced_before_the_replacement(tmp_path, monkeypatch):
    events: list[str] = []
    fsync, rename = os.fsync, Path.rename

    def note_fsync(descriptor: int) -> None:
        events.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    def note_rename(path: Path, target: Path) -> Path:
        events.append(f"{path.name} -> {target.name}")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(Path, "rename", note_rename)
    with atomic_directory(tmp_path / "model") as new:
        (new / CONFIG).touch()
    assert events == [
        CONFIG,
        ".model.transduce-new",
        ".model.transduce-new -> model",
        tmp_path.name,
    ]


@pytest.fixture
def umask():
    """Set the umask, and restore it after the test."""
    before = os.umask(0)
    os.umask(before)
    yield os.umask
    os.umask(before)


@pytest.mark.parametrize(
    ("mask", "of_files", "of_folders"),
    [(0o022, 0o644, 0o755), (0o002, 0o664, 0o775), (0o077, 0o600, 0o700)],
)
def test_a_folders_files_follow_the_umask_whoever_wrote_them(
    tmp_path, umask, mask, of_files, of_folders
):
    umask(mask)
    with atomic_directory(tmp_path / "parent" / "model") as new:
        inner = Path(tempfile.mkdtemp(dir=new))
        for place in (new, inner):
            descriptor, _ = tempfile.mkstemp(dir=place)
            os.close(descriptor)
        (new / "public").touch(0o666)

    paths = [tmp_path / "parent", *(tmp_path / "parent").rglob("*")]
    modes = [(path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in paths]
    assert len(modes) == 6
    assert set(modes) == {(True, of_folders), (False, of_files)}


def test_a_file_shared_with_another_folder_keeps_its_permissions(tmp_path):
    shared = tmp_path / "shared"
    shared.touch()
    shared.chmod(0o640)
    with atomic_directory(tmp_path / "model") as new:
        os.link(shared, new / "linked")
    assert stat.S_IMODE(shared.stat().st_mode) == 0o640


def test_a_system_error_within_another_error_is_reported(folder):
    """Libraries in Rust put the system's error into their own message."""
    error = ValueError('Io(Os { code: 28 }): "No space left on device (os error 28)"')
    with pytest.raises(CheckpointError, match="No space left on device.*free some"):
        write_half(folder, error)
    with pytest.raises(ValueError, match="a slip"):
        write_half(folder, ValueError("a slip"))
    assert (folder / WEIGHTS).read_bytes() == b"weights"


def test_a_file_is_replaced_with_its_permissions_and_its_link_stays(tmp_path):
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("old", encoding="utf-8")
    file.chmod(0o640)
    link.symlink_to(file)
    with atomic_file(link) as new:
        new.write_text("new", encoding="utf-8")
        assert file.read_text(encoding="utf-8") == "old"
    assert link.is_symlink()
    assert file.read_text(encoding="utf-8") == "new"
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert {path.name for path in tmp_path.iterdir()} == {"file", "link"}


@pytest.mark.parametrize("maker", ["export --to onnx", None])
def test_a_folder_that_another_command_wrote_meanwhile_is_kept(tmp_path, maker):
    out = tmp_path / "out"

    def write_twice() -> None:
        with atomic_directory(out, "average") as new:
            (new / WEIGHTS).touch()
            # Another command of another kind, or a run, is faster.
            (out / "corpus").mkdir(parents=True)
            if maker is not None:
                (out / "corpus").rmdir()
                (out / ".made-by").write_text(maker, encoding="utf-8")

    with pytest.raises(ConfigError, match=f"{out}: another command has written"):
        write_twice()
    assert WEIGHTS not in {each.name for each in out.iterdir()}


@pytest.mark.parametrize("is_first", [True, False])
def test_a_folder_that_the_same_command_wrote_meanwhile_is_replaced_by_force_only(
    tmp_path, is_first
):
    out = tmp_path / "out"

    def write(text: str) -> None:
        with atomic_directory(out, "average", overwrite=True) as new:
            (new / WEIGHTS).write_text(text, encoding="utf-8")

    def write_after_another(*, overwrite: bool) -> None:
        if is_first:
            write("theirs")
        with atomic_directory(out, "average", overwrite=overwrite) as new:
            (new / WEIGHTS).write_text("ours", encoding="utf-8")
            if not is_first:  # as if the lock did not work, as on some network disks
                shutil.copytree(new, out)
                (out / WEIGHTS).write_text("theirs", encoding="utf-8")
                (out / ".made-by").write_text("average", encoding="utf-8")

    with pytest.raises(ConfigError, match=f"{out}: .* written it meanwhile; choose"):
        write_after_another(overwrite=False)
    assert contents(out) == {WEIGHTS: b"theirs", ".made-by": contents(out)[".made-by"]}
    assert list(tmp_path.iterdir()) == [out]
    shutil.rmtree(out)
    write_after_another(overwrite=True)
    assert (out / WEIGHTS).read_text(encoding="utf-8") == "ours"


def test_a_file_that_takes_the_folders_name_meanwhile_is_kept(tmp_path):
    def write() -> None:
        with atomic_directory(tmp_path / "out", "average", overwrite=True):
            (tmp_path / "out").write_text("precious", encoding="utf-8")

    with pytest.raises(ConfigError, match="another command has written"):
        write()
    assert contents(tmp_path) == {"out": b"precious"}


@pytest.mark.skipif(os.name == "nt", reason="Windows locks no file this way")
def test_a_folder_that_another_process_just_completed_is_not_written(
    tmp_path, monkeypatch
):
    def complete(_descriptor: int, _refusal: Exception) -> None:
        (tmp_path / ".model.transduce-new").rename(tmp_path / "model")
        (tmp_path / ".model.transduce-new").mkdir()  # by a third process
        (tmp_path / ".model.transduce-new" / WEIGHTS).touch()

    monkeypatch.setattr("transduce.files.lock_file", complete)
    with (
        pytest.raises(CheckpointError, match="another process is writing"),
        atomic_directory(tmp_path / "model"),
    ):
        pass
    assert (tmp_path / ".model.transduce-new" / WEIGHTS).is_file()


@pytest.mark.parametrize("is_first", [True, False])
def test_a_file_that_another_command_wrote_meanwhile_is_replaced_by_force_only(
    tmp_path, is_first
):
    file = tmp_path / "file"

    def write_after_another(*, overwrite: bool) -> None:
        if is_first:
            file.write_text("theirs", encoding="utf-8")
        with atomic_file(file, overwrite=overwrite) as new:
            new.write_text("ours", encoding="utf-8")
            file.write_text("theirs", encoding="utf-8")

    with pytest.raises(ConfigError, match=f"{file}: .* written it meanwhile; choose"):
        write_after_another(overwrite=False)
    assert contents(tmp_path) == {"file": b"theirs"}
    write_after_another(overwrite=True)
    assert contents(tmp_path) == {"file": b"ours"}


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.EACCES, "Permission denied); allow this user to read it"),
        (errno.EMFILE, "Too many open files); raise the limit of open files"),
        (errno.ENOMEM, "Cannot allocate memory); free some memory"),
    ],
)
@pytest.mark.parametrize("read", [require_file, read_bounded, read_json])
def test_a_file_that_cannot_be_opened_is_not_called_missing_or_damaged(
    tmp_path, monkeypatch, read, number, said
):
    (tmp_path / "file").write_text("{}", encoding="utf-8")

    def refuse(path: Path, _mode: str) -> None:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(Path, "open", refuse)
    message = f"{tmp_path / 'file'}: cannot be read ({said}"
    with pytest.raises(AccessError, match=f"^{re.escape(message)}.* and try again.$"):
        read(tmp_path / "file")


def test_a_missing_file_is_reported_without_the_number_of_the_error(tmp_path):
    missing = tmp_path / "config.json"
    with pytest.raises(CheckpointError) as raised:
        read_json(missing)
    assert str(raised.value) == (
        f"{missing}: the file is missing or damaged (No such file or directory); "
        "restore it, or use another folder."
    )


def test_an_error_that_a_library_hides_in_its_text_is_told_from_damage(tmp_path):
    hidden = SafetensorError("I/O error: Too many open files (os error 24)")
    message = f"^{tmp_path}: .*Too many open files"
    with pytest.raises(AccessError, match=message), access_errors(tmp_path):
        raise hidden
    with pytest.raises(SafetensorError, match="header"), access_errors(tmp_path):
        raise SafetensorError("invalid header")


@pytest.mark.parametrize("is_old", [False, True])
def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path, is_old):
    file = tmp_path / "file"
    if is_old:
        file.write_text("old", encoding="utf-8")
    before = contents(tmp_path)

    def write() -> None:
        with atomic_file(file) as new:
            new.write_text("half", encoding="utf-8")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match="No space left"):
        write()
    assert contents(tmp_path) == before


@pytest.mark.skipif(os.name == "nt", reason="Windows locks no file this way")
def test_a_file_is_written_by_one_process_at_a_time(tmp_path):
    file = tmp_path / "file"
    with atomic_file(file) as new:
        new.write_text("first", encoding="utf-8")
        with (
            pytest.raises(ConfigError, match=f"{file}: another process is writing"),
            atomic_file(file),
        ):
            pass
        assert new.read_text(encoding="utf-8") == "first"
    assert contents(tmp_path) == {"file": b"first"}


@pytest.mark.skipif(os.name == "nt", reason="Windows locks no file this way")
def test_a_file_that_another_process_just_completed_is_not_written(
    tmp_path, monkeypatch
):
    def complete(_descriptor: int, _refusal: Exception) -> None:
        (tmp_path / ".file.transduce-new").rename(tmp_path / "file")

    monkeypatch.setattr("transduce.files.lock_file", complete)
    with (
        pytest.raises(ConfigError, match="another process is writing"),
        atomic_file(tmp_path / "file"),
    ):
        pass
    assert contents(tmp_path) == {"file": b""}


@pytest.mark.skipif(os.name == "nt", reason="Windows locks no file this way")
def test_a_file_that_another_process_completed_before_the_lock_is_not_written(
    tmp_path, monkeypatch
):
    (tmp_path / "file").write_text("theirs", encoding="utf-8")
    # As if the other process had renamed it just after.
    monkeypatch.setattr(Path, "touch", lambda *_: None)
    with (
        pytest.raises(ConfigError, match="another process is writing this file"),
        atomic_file(tmp_path / "file"),
    ):
        pass
    assert contents(tmp_path) == {"file": b"theirs"}


def forbidden(path: Path, *_: object) -> None:
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such locks")
def test_the_rest_of_another_users_command_is_named(tmp_path, monkeypatch):
    left_file = tmp_path / ".file.transduce-new"
    left_folder = tmp_path / ".folder.transduce-new"
    left_file.touch()
    left_folder.mkdir()

    monkeypatch.setattr(Path, "touch", forbidden)
    with (
        pytest.raises(ConfigError, match=f"left {left_file}, which .* remove it and"),
        atomic_file(tmp_path / "file"),
    ):
        pass
    monkeypatch.setattr("transduce.files._clear", forbidden)
    monkeypatch.setattr("transduce.files._remove", lambda _folder: None)
    with (
        pytest.raises(CheckpointError, match=f"left {left_folder}, which this user"),
        atomic_directory(tmp_path / "folder"),
    ):
        pass


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such locks")
def test_a_running_command_of_another_user_is_not_called_killed(tmp_path, monkeypatch):
    def write_folder() -> None:
        # Another user's private folder cannot be opened, a public one not emptied.
        with atomic_directory(tmp_path / "folder"):
            pytest.fail("the folder was written")

    with atomic_file(tmp_path / "file") as new, monkeypatch.context() as patch:
        patch.setattr(Path, "touch", forbidden)
        with (
            pytest.raises(FileBusyError, match="another process is writing this file"),
            atomic_file(tmp_path / "file"),
        ):
            pass
        assert new.is_file()
    with atomic_directory(tmp_path / "folder") as new:
        with pytest.raises(CheckpointError, match="another process is writing this f"):
            write_folder()
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", forbidden)
            message = f"user's command is writing {new}, or was killed and left it; wai"
            with pytest.raises(CheckpointError, match=message):
                write_folder()
        (new / CONFIG).touch()
    assert {path.name for path in tmp_path.iterdir()} == {"file", "folder"}


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such locks")
def test_a_temporary_file_is_not_called_left_where_its_lock_tells_nothing(
    tmp_path, monkeypatch
):
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    left = tmp_path / ".file.transduce-new"
    left.touch()
    monkeypatch.setattr(Path, "touch", forbidden)
    for patched in ("fcntl.flock", "os.open"):
        with monkeypatch.context() as patch:
            patch.setattr(patched, refuse if patched == "fcntl.flock" else forbidden)
            with (
                pytest.raises(ConfigError, match=f"is writing {left}, or was killed"),
                atomic_file(tmp_path / "file"),
            ):
                pass


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
@pytest.mark.parametrize(("mode", "meanwhile"), [(0o600, 0o600), (0o440, 0o640)])
@pytest.mark.parametrize("is_left", [True, False])
def test_a_private_file_is_private_while_it_is_written(
    tmp_path, mode, meanwhile, is_left
):
    file = tmp_path / "file"
    file.touch()
    file.chmod(mode)
    if is_left:  # by a command that was killed
        (tmp_path / ".file.transduce-new").touch(0o666)
    with atomic_file(file) as new:
        assert stat.S_IMODE(new.stat().st_mode) == meanwhile
        new.write_text("new", encoding="utf-8")
        assert stat.S_IMODE(new.stat().st_mode) == meanwhile
    assert stat.S_IMODE(file.stat().st_mode) == mode


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
def test_a_private_file_is_private_from_its_first_moment(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    (tmp_path / "file").chmod(0o600)
    monkeypatch.setattr("transduce.files.take_permissions", lambda *_, **__: None)
    with atomic_file(tmp_path / "file") as new:
        assert stat.S_IMODE(new.stat().st_mode) == 0o600


@pytest.mark.parametrize("inner", ["", "corpus"])
def test_a_protected_folder_is_not_replaced(folder, inner, monkeypatch):
    (folder / "corpus").mkdir()
    (folder / "corpus" / "file").touch()
    (folder / "empty").mkdir()  # can be removed whatever its permissions are
    (folder / ".made-by").write_text("split\n", encoding="utf-8")
    protected = {str(folder / inner), str(folder / "empty")}
    monkeypatch.setattr("os.access", lambda path, _: str(path) not in protected)
    message = f"{folder}: .* but {folder / inner} is protected; choose another, or ch"

    def replace() -> None:
        with atomic_directory(folder) as new:
            (new / WEIGHTS).touch()

    with pytest.raises(ConfigError, match=message):
        replace()
    assert (folder / WEIGHTS).read_bytes() == b"weights"
    assert list(folder.parent.iterdir()) == [folder]
    shutil.rmtree(folder / "corpus")
    if not inner:  # before any work
        (folder / "empty").rmdir()
        with pytest.raises(ConfigError, match=message):
            require_new_folder(folder, overwrite=True, made_by="split")
        return
    replace()
    assert contents(folder) == {WEIGHTS: b""}


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
def test_a_replaced_folder_keeps_its_permissions(tmp_path):
    out = tmp_path / "out"
    out.mkdir(mode=0o750)
    out.chmod(0o700)
    with atomic_directory(out) as new:
        assert stat.S_IMODE(new.stat().st_mode) == 0o700  # before anything is in it
        (new / CONFIG).touch()
    assert stat.S_IMODE(out.stat().st_mode) == 0o700
    (out / CONFIG).unlink()
    out.chmod(0o500)  # what writes it must be able to
    with atomic_directory(out) as new:
        (new / CONFIG).touch()
    assert stat.S_IMODE(out.stat().st_mode) == 0o700


def test_an_error_of_writing_names_the_file_not_the_new_one(tmp_path):
    file = tmp_path / "missing" / "file"
    with pytest.raises(FileNotFoundError) as caught, atomic_file(file):
        pass
    assert caught.value.filename == str(file)


def test_a_small_file_is_read_with_little_memory(tmp_path):
    (tmp_path / "file").write_text("text", encoding="utf-8")
    tracemalloc.start()
    try:
        assert read_bounded(tmp_path / "file", 2**26) == "text"
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 2**20


@pytest.mark.parametrize("told", [0, 2])
def test_a_file_that_is_larger_than_its_told_size_is_read_whole(
    tmp_path, monkeypatch, told
):
    """A file that grows has this, and any on a file system that tells no sizes."""
    (tmp_path / "file").write_text("a longer text", encoding="utf-8")
    size = os.stat_result((0, 0, 0, 0, 0, 0, told, 0, 0, 0))
    monkeypatch.setattr("transduce.files.os.fstat", lambda _: size)
    assert read_bounded(tmp_path / "file", 13) == "a longer text"
    with pytest.raises(ValueError, match="more than 12 bytes"):
        read_bounded(tmp_path / "file", 12)


def test_a_file_above_the_limit_is_not_read(tmp_path):
    (tmp_path / "file").write_text("text", encoding="utf-8")
    assert read_bounded(tmp_path / "file", 4) == "text"
    with pytest.raises(ValueError, match="more than 3 bytes"):
        read_bounded(tmp_path / "file", 3)


def test_an_output_folder_where_nothing_can_be_written_is_refused(
    tmp_path, monkeypatch
):
    out = tmp_path / "new" / "out"
    require_new_folder(out, overwrite=False, made_by="split")
    monkeypatch.setattr("os.access", lambda path, _: path != tmp_path)
    with pytest.raises(ConfigError, match=f"{out}: .* but {tmp_path} cannot be; cho"):
        require_new_folder(out, overwrite=False, made_by="split")


def test_a_mount_point_is_refused_as_an_output_folder(tmp_path, monkeypatch):
    (tmp_path / "disk").mkdir()
    monkeypatch.setattr(Path, "is_mount", lambda path: path.name == "disk")
    new = tmp_path / "disk" / "new"
    message = f"this is a mount point; name a new folder in it, such as {new}"
    with pytest.raises(ConfigError, match=message):
        require_new_folder(tmp_path / "disk", overwrite=True, made_by="split")
    require_new_folder(tmp_path / "disk" / "out", overwrite=False, made_by="split")


def test_a_file_that_is_mounted_is_refused_as_an_output(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr(Path, "is_mount", lambda path: path.name == "file")
    with pytest.raises(ConfigError, match="is a mount point; name another file"):
        require_place(tmp_path / "file")


def test_an_output_under_a_file_is_refused(tmp_path):
    (tmp_path / "file").touch()
    out = tmp_path / "file" / "new" / "out"
    with pytest.raises(ConfigError, match=f"{out}: .* {tmp_path / 'file'} is a file"):
        require_new_folder(out, overwrite=False, made_by="split")


def test_a_name_that_leads_through_a_missing_folder_is_refused(tmp_path):
    # The system cannot find it, although its real path may be written.
    with pytest.raises(ConfigError, match=f"in a folder that is there, but {tmp_path}"):
        require_place(tmp_path / "missing" / ".." / "out")
    (tmp_path / "there").mkdir()
    require_place(tmp_path / "there" / ".." / "out")


def test_the_current_folder_is_refused_as_an_output_folder(tmp_path, monkeypatch):
    (tmp_path / "outer" / "inner").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "outer" / "inner")
    for where in (".", ".."):
        with pytest.raises(ConfigError, match="another folder than the current one"):
            require_place(Path(where))
    with pytest.raises(ConfigError, match="another folder than the current one"):
        require_new_folder(Path(), overwrite=False, made_by="split")
    require_new_folder(Path("new"), overwrite=False, made_by="split")


def test_the_leftover_of_a_file_is_cleared(tmp_path):
    (tmp_path / ".file.transduce-new").write_text("half", encoding="utf-8")
    clear_leftovers(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("import\n", "was written by `transduce import`"),
        ("export --to onnx", "was written by `transduce export --to onnx`"),
        ("\x1b[31msplit\nquantize", "has a damaged file .made-by"),
        (None, "has no file .made-by (or an older version wrote it: remove it"),
    ],
)
def test_force_names_the_command_of_another_folder_on_one_line(
    tmp_path: Path, content: str | None, said: str
) -> None:
    (tmp_path / "file").touch()
    if content is not None:
        (tmp_path / ".made-by").write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        require_new_folder(tmp_path, overwrite=True, made_by="quantize")
    assert f"the same command wrote can be overwritten, but this one {said}" in str(
        caught.value
    )
    assert str(caught.value).isprintable()


def test_json_has_null_for_infinity_and_nan() -> None:
    values = {"a": [1, math.inf, "x"], "b": {"c": (math.nan, 0.5, None)}}
    text = json.dumps(without_infinity(values), allow_nan=False)
    assert json.loads(text) == {"a": [1, None, "x"], "b": {"c": [None, 0.5, None]}}


def test_a_repeated_key_among_many_is_found_soon():
    names = [*(f'"{number}": 0' for number in range(100_000)), '"99999": 1']
    started = time.process_time()
    with pytest.raises(ValueError, match="the key '99999' is there twice"):
        parse_json(f"{{{', '.join(names)}}}")
    assert time.process_time() - started < 5


NUL = "a\0b"


@pytest.mark.parametrize(
    "call",
    [
        lambda: transduce.load(NUL),
        lambda: transduce.quantize("model", NUL),
        lambda: transduce.train(NUL, "b", "out", preset="tiny"),
        lambda: transduce.train("a", "b", NUL, preset="tiny"),
        lambda: transduce.train("a", "b", "out", start=NUL),
        lambda: transduce.train("a", "b", "out", dev_sets={"c": ("d", NUL)}),
        lambda: transduce.resume(NUL),
        lambda: transduce.back_translate("model", "a", NUL),
        lambda: transduce.distill("model", "a", NUL),
        lambda: transduce.distill("model", "a", "out", tests=[("b", NUL)]),
        lambda: transduce.clean("a", "b", NUL),
        lambda: CorpusConfig(name="a", source=NUL, target="b"),
    ],
)
def test_a_name_with_a_nul_character_is_refused(call, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b", "d"):
        (tmp_path / name).write_text("one\n")
    with pytest.raises(ConfigError, match=r"'a\\x00b' holds a NUL character"):
        call()


@pytest.mark.parametrize(
    ("key", "call"),
    [
        ("source", lambda: transduce.train(NUL, "b", "out", preset="tiny")),
        ("target", lambda: transduce.clean("a", NUL, "out")),
        ("dev_source", lambda: transduce.clean("a", "b", "out", dev_source=[NUL])),
        ("teachers", lambda: transduce.distill(["m", NUL], "a", "out")),
        ("inputs", lambda: transduce.back_translate("m", NUL, "out")),
        ("ensemble", lambda: transduce.back_translate("m", "a", "out", ensemble=[NUL])),
    ],
)
def test_an_impossible_path_is_named_by_its_argument(key, call) -> None:
    with pytest.raises(ConfigError, match=f"^`{key}` must be "):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda: transduce.load(""),
        lambda: transduce.train("a", "b", "", preset="tiny"),
        lambda: transduce.clean("a", "", "out"),
    ],
)
def test_an_empty_path_is_not_the_current_folder(call) -> None:
    with pytest.raises(ConfigError, match='must be a path, but is empty; "." is this'):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda: transduce.load("a\ud800"),
        lambda: transduce.resume("a\ud800"),
        lambda: transduce.train(["a\ud800"], "b", "out", preset="tiny"),
        lambda: CorpusConfig(name="a", source="b", target="a\ud800"),
    ],
)
def test_half_of_a_surrogate_pair_is_in_no_name(call) -> None:
    message = r"'a\\ud800' holds the character '\\ud800', which no name can have"
    with pytest.raises(ConfigError, match=message):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda: transduce.load("~/model"),
        lambda: transduce.train("a", "b", "~/model", preset="tiny"),
        lambda: CorpusConfig(name="a", source="b", target=["c", "~/model"]),
    ],
)
def test_a_tilde_that_a_shell_would_replace_is_refused(
    call, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    for name in ("a", "b"):
        (tmp_path / name).write_text("one\n")
    with pytest.raises(ConfigError, match=r"but is '~/model'; write /home/me/model\.$"):
        call()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a", "b"]


def test_a_file_whose_own_name_begins_with_a_tilde_is_a_path(
    tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert path_of("path", "~no-such-user/model") == Path("~no-such-user/model")
    (tmp_path / "~").mkdir()
    assert path_of("path", "~/model") == Path("~/model")


def test_a_name_that_is_not_utf8_is_a_path() -> None:
    name = os.fsdecode(b"caf\xe9")
    assert path_of("path", name) == Path(name)


class Named:
    """Object that stands for a path, with any name."""

    def __init__(self, name: str | bytes) -> None:
        self.name = name

    def __fspath__(self) -> str | bytes:
        return self.name


def test_an_object_with_an_empty_name_is_not_the_current_folder() -> None:
    with pytest.raises(ConfigError, match='must be a path, but is empty; "." is this'):
        path_of("path", Named(""))
    assert path_of("path", Named("model")) == Path("model")


@pytest.mark.parametrize("value", [None, 3, b"model", ["model"], Named(b"model")])
def test_a_value_that_is_no_path_is_refused(value) -> None:
    with pytest.raises(ConfigError, match="`path` must be a path, but is "):
        path_of("path", value)


@pytest.fixture
def nfs(monkeypatch):
    """Keep files named `.nfs*`, which other processes have open, as NFS does.

    NFS does not exchange folders either.
    """
    remove = shutil.rmtree

    def rmtree(folder: Path, ignore_errors: bool = False) -> None:
        if not list(Path(folder).glob(".nfs*")):
            remove(folder, ignore_errors)

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    monkeypatch.setattr("transduce.files._exchange", lambda *_: False)


def test_a_folder_with_open_files_on_nfs_is_replaced_again_and_again(folder, nfs):
    for number in range(4):
        (folder / f".nfs{number}").touch()  # as a server has mapped its weights
        with atomic_directory(folder) as new:
            (new / CONFIG).write_text(f"{number}", encoding="utf-8")
        assert contents(folder) == {CONFIG: b"%d" % number}


def test_a_folder_with_open_files_on_nfs_is_removed_again_and_again(folder, nfs):
    for _ in range(3):
        (folder / ".nfs1").touch()
        remove_folder(folder)
        assert not folder.exists()
        folder.mkdir()


def test_the_rests_of_folders_on_nfs_are_cleared_once_their_files_are_closed(
    folder, nfs
):
    for _ in range(2):
        (folder / ".nfs1").touch()
        remove_folder(folder)
        folder.mkdir()
    clear_leftovers(folder.parent)  # still open
    for rest in folder.parent.glob(".model.*/.nfs1"):
        rest.unlink()
    clear_leftovers(folder.parent)
    assert list(folder.parent.iterdir()) == [folder]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such locks")
def test_a_file_is_locked_on_nfs_where_it_must_be_open_for_writing(
    tmp_path, monkeypatch
):
    fcntl = pytest.importorskip("fcntl")
    flock = fcntl.flock

    def of_nfs(descriptor: int, operation: int) -> None:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        flock(descriptor, operation)

    monkeypatch.setattr("fcntl.flock", of_nfs)
    with (
        atomic_file(tmp_path / "file"),
        pytest.raises(ConfigError, match="another process is writing this file"),
        atomic_file(tmp_path / "file"),
    ):
        pass


def test_a_disk_that_cannot_force_folders_to_the_disk_is_written_to(
    tmp_path, monkeypatch
):
    fsync = os.fsync

    def of_afs(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", of_afs)
    with atomic_directory(tmp_path / "model") as new:
        (new / CONFIG).touch()
    assert set(contents(tmp_path / "model")) == {CONFIG}


def test_a_disk_without_permissions_is_written_to(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "chmod", forbidden)
    with atomic_directory(tmp_path / "model") as new:
        (new / CONFIG).touch()
    assert set(contents(tmp_path / "model")) == {CONFIG}


def write_report(out: Path, **files: str) -> None:
    """Write a folder as a command does that replaces its own reports."""
    with atomic_directory(out, "split", overwrite=True) as new:
        for name, text in files.items():
            (new / name).write_text(text, encoding="utf-8")


@pytest.mark.parametrize("kind", ["exchange", "renames", "no hard links"])
def test_a_replaced_folder_keeps_the_files_of_others(tmp_path, monkeypatch, kind):
    if kind == "renames":
        monkeypatch.setattr("transduce.files.sys.platform", "darwin")
    if kind == "no hard links":
        monkeypatch.setattr("transduce.files.os.link", unsupported)
    out = tmp_path / "out"
    write_report(out, first="1", second="1")
    (out / "notes").write_bytes(b"mine")
    (out / "link").symlink_to("nowhere")
    (out / "more" / "empty").mkdir(parents=True)
    (out / "more" / "notes").write_bytes(b"mine, too")
    write_report(out, first="2")
    write_report(out, first="3", third="3")
    assert {path.name for path in out.iterdir()} == {
        *("first", "third", ".made-by", "notes", "link", "more")
    }
    assert (out / "first").read_bytes() == b"3"
    assert (out / "notes").read_bytes() == b"mine"
    assert (out / "link").readlink() == Path("nowhere")
    assert (out / "more" / "empty").is_dir()
    assert (out / "more" / "notes").read_bytes() == b"mine, too"
    assert list(tmp_path.iterdir()) == [out]


def unsupported(*_arguments: object, **_options: object) -> None:
    raise OSError(errno.EPERM, "no hard links here")


def test_a_file_of_another_is_kept_if_the_command_must_write_its_name(tmp_path):
    out = tmp_path / "out"
    write_report(out, first="1")
    (out / "second").write_bytes(b"mine")
    with pytest.raises(ConfigError, match=f"^{out / 'second'}: the command must write"):
        write_report(out, first="2", second="2")
    assert (out / "first").read_bytes() == b"1"
    assert (out / "second").read_bytes() == b"mine"
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_a_file_that_comes_at_the_last_moment_is_kept(tmp_path, monkeypatch, platform):
    out = tmp_path / "out"
    write_report(out, first="1", second="1")
    (out / "early").touch()
    monkeypatch.setattr("transduce.files.sys.platform", platform)
    written = []

    def write_late(_descriptor: int) -> None:
        if (tmp_path / ".out.transduce-new" / "early").exists() and not written:
            written.append((out / "notes").write_bytes(b"mine"))

    monkeypatch.setattr("transduce.files.os.fsync", write_late)
    write_report(out, first="2")
    there = {path.name for path in out.iterdir()}
    assert there == {"first", ".made-by", "early", "notes"}
    assert (out / "notes").read_bytes() == b"mine"


def test_a_folder_without_a_list_of_its_files_keeps_other_names(tmp_path):
    out = tmp_path / "out"
    write_report(out, first="1")
    (out / ".made-by").write_text("split\n", encoding="utf-8")
    (out / "notes").write_bytes(b"mine")
    write_report(out, first="2")
    assert (out / "first").read_bytes() == b"2"
    assert (out / "notes").read_bytes() == b"mine"


def test_a_folder_with_a_list_in_lines_of_windows_is_read(tmp_path):
    out = tmp_path / "out"
    write_report(out, first="1", second="1")
    made_by = out / ".made-by"
    made_by.write_bytes(made_by.read_bytes().replace(b"\n", b"\r\n"))
    write_report(out, first="2")
    assert {path.name for path in out.iterdir()} == {"first", ".made-by"}


def test_odd_names_of_a_commands_files_are_its_own(tmp_path):
    out, names = tmp_path / "out", ("a\nb", "\udcff", "\x85", '"', " ")
    write_report(out, **dict.fromkeys(names, "1"))
    write_report(out, first="2")
    assert {path.name for path in out.iterdir()} == {"first", ".made-by"}


def test_kept_files_need_not_be_read_or_forced_to_the_disk(tmp_path, monkeypatch):
    out, forced = tmp_path / "out", []
    write_report(out, first="1")
    (out / "more").mkdir()
    kept = [out / "notes", out / "more" / "notes"]
    for path in kept:
        path.touch(0o200)
    fsync = os.fsync

    def record(descriptor: int) -> None:
        forced.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr("transduce.files.os.fsync", record)
    write_report(out, first="2")
    assert (out / "first").stat().st_ino in forced
    assert not {path.stat().st_ino for path in kept} & set(forced)
    assert [stat.S_IMODE(path.stat().st_mode) for path in kept] == [0o200, 0o200]


def test_a_disk_that_is_mounted_in_a_folder_is_not_emptied(tmp_path, monkeypatch):
    out = tmp_path / "out"
    write_report(out, first="1")
    (out / "disk").mkdir()
    (out / "disk" / "precious").touch()
    monkeypatch.setattr(
        "transduce.files.os.path.ismount", lambda path: Path(path) == out / "disk"
    )
    with pytest.raises(ConfigError, match=f"but {out / 'disk'} is a mount point"):
        write_report(out, first="2")
    assert (out / "disk" / "precious").exists()
    assert (out / "first").read_bytes() == b"1"


def test_a_crash_between_two_renames_leaves_whose_files_are_whose(tmp_path):
    out = tmp_path / "out"
    write_report(out, first="1", second="1")
    (out / "notes").write_bytes(b"mine")
    out.rename(tmp_path / ".out.transduce-old")
    with pytest.raises(OverwriteError), atomic_directory(out, "split"):
        pass
    assert (out / "second").read_bytes() == b"1"
    out.rename(tmp_path / ".out.transduce-old")
    write_report(out, first="2")
    assert {path.name for path in out.iterdir()} == {"first", ".made-by", "notes"}


@pytest.mark.parametrize(("place", "text"), [("_exchange", b"1"), ("_move_late", b"2")])
def test_a_crash_leaves_the_files_of_others(tmp_path, monkeypatch, place, text):
    out = tmp_path / "out"
    write_report(out, first="1")
    (out / "notes").write_bytes(b"mine")

    def crash(*_paths: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(f"transduce.files.{place}", crash)
        with pytest.raises(KeyboardInterrupt):
            write_report(out, first="2")
    assert (out / "first").read_bytes() == text
    assert (out / "notes").read_bytes() == b"mine"


def test_a_removed_folder_leaves_the_files_of_others_beside_it(folder, tmp_path):
    for text in ("first", "second"):
        folder.mkdir(exist_ok=True)
        (folder / WEIGHTS).touch()
        (folder / "notes").write_text(text, encoding="utf-8")
        remove_folder(folder, {WEIGHTS})
    kept = folder.with_name(f"{folder.name}-kept")
    assert not folder.exists()
    assert contents(kept)["notes"] == b"first"
    assert contents(kept)["notes-2"] == b"second"


def test_a_file_of_another_user_that_cannot_be_kept_is_named(tmp_path, monkeypatch):
    def refuse(*_arguments: object, **_options: object) -> None:
        raise PermissionError(errno.EACCES, "refused")

    out = tmp_path / "out"
    write_report(out, first="1")
    (out / "notes").write_bytes(b"theirs")
    monkeypatch.setattr("transduce.files.os.link", refuse)
    monkeypatch.setattr("transduce.files.shutil.copy2", refuse)
    with pytest.raises(AccessError, match=f"^{out / 'notes'}: cannot be read"):
        write_report(out, first="2")
    assert (out / "first").read_bytes() == b"1"
    assert (out / "notes").read_bytes() == b"theirs"
    assert list(tmp_path.iterdir()) == [out]
