"""From medication records to treatment sequences."""

from __future__ import annotations
