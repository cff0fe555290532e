"""Clients of Kafka that others have made, run by compat/run_kafka_clients.py."""
