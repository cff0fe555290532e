"""Clients of Kafka that others have made, run against this broker by tools/run_kafka_clients.py."""
