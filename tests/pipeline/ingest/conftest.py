"""Conversions in this process, unless a test is about the processes."""

from __future__ import annotations

from tests.pipeline.ingest.here import conversions_start_no_process, processes

__all__ = ["conversions_start_no_process", "processes"]
