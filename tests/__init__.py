"""Tests. A Python that a test starts with one of these modules is watched as the tests are."""

import os

if "TESTS_WATCHED_CACHES" in os.environ:
    from tests.isolation import watch

    watch()
