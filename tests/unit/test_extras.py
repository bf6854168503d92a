"""A missing package is reported with the extra that installs it."""

import pytest

from transduce.errors import RequestError, missing_in, missing_package, packages_for


def test_a_missing_package_is_reported_with_its_extra() -> None:
    with (
        pytest.raises(RequestError, match=r"Flight needs the package `wings`.*\.\[air"),
        packages_for("Flight", "air"),
    ):
        raise ModuleNotFoundError("No module named 'wings.left'", name="wings.left")


@pytest.mark.parametrize(
    "error",
    [
        ModuleNotFoundError("No such part", name="transduce.wings"),
        ImportError("cannot import name 'left' from 'wings'", name="wings"),
        ValueError("no"),
    ],
)
def test_other_errors_are_passed_on(error: Exception) -> None:
    with pytest.raises(type(error)) as raised, packages_for("Flight"):
        raise error
    assert raised.value is error


def test_the_cause_of_an_error_names_the_missing_package() -> None:
    outer = ImportError("Cannot import module")
    outer.__cause__ = ModuleNotFoundError("No module named 'wings'", name="wings")
    assert missing_in(outer) == "wings"
    assert missing_in(None) is None


def test_a_missing_package_names_its_extra() -> None:
    assert missing_package("Export to onnx", "onnx", "export") == (
        "Export to onnx needs the package `onnx`, which is not installed; install it "
        "by pip install '.[export]' in the folder of transduce's source."
    )
