"""The demo's Kafka round: old and new clients of both protocols live through KIP-31's phases."""
