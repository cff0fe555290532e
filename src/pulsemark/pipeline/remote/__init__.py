"""Reads over a broker's or finder's gRPC service, where the data folder is not shared."""

from __future__ import annotations
