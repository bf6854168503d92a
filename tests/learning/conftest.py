import pytest


@pytest.fixture(autouse=True)
def _quick_training(unchecked_types: None, no_learning_curves: None) -> None:
    """Train without checks of types and pictures, which take as long as steps do.

    All other tests check the same functions; here each is called thousands of times.
    """
