"""The suite of the backlog. Assertions of its helpers explain themselves."""

import pytest

pytest.register_assert_rewrite("tests.backlog.contract")
