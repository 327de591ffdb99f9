"""What all tests of the workflow service share."""

import pytest

pytest.register_assert_rewrite("workflow_service.tests.store_suite")
