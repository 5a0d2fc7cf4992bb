"""A browser, which is the same as that of the tests of reports."""

from tests.report.browser import browser

__all__ = ["browser"]
