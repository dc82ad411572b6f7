"""Federated one-shot ensemble clustering (FONT)."""

from __future__ import annotations
