"""The scenarios of tools/compare_kafka.py, and what makes two brokers' answers comparable."""
