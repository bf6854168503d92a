"""The source distribution has all sources and no file of a build."""

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILT = {
    f"src/transduce/{name}"
    for name in ("libtransduce.so", "transduce.ffi", "transduce.h")
}
PROGRAM = "import sys; from scikit_build_core.build import build_sdist as build; "


def test_the_sdist_has_all_sources_and_no_built_library(tmp_path: Path) -> None:
    pytest.importorskip("scikit_build_core")
    subprocess.run(
        [sys.executable, "-c", PROGRAM + "build(sys.argv[1])", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    [path] = tmp_path.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    sources = {
        str(file.relative_to(ROOT))
        for folder, pattern in (("csrc", "*.[ch]"), ("src", "*.py"))
        for file in (ROOT / folder).rglob(pattern)
    }
    assert names >= sources - BUILT
    assert {"csrc/CMakeLists.txt", "scripts/wheel", "pyproject.toml"} <= names
    assert not names & BUILT
    assert not any(name.endswith(".so") for name in names)
