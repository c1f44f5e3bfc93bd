"""Shared servers, processes, ledgers and clocks of the tests."""
