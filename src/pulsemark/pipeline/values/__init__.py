"""Values of messages decoded by their topic's Avro or JSON schema (option ``valueSchema``)."""

from __future__ import annotations
