import pytest


@pytest.fixture(autouse=True)
def _no_type_checks(unchecked_types: None) -> None:
    """Train without checks of types, which take as long as the steps themselves.

    All other tests check the same functions; here each is called thousands of times.
    """
