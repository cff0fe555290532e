"""The scenarios of compat/compare_kafka.py, and what makes two brokers' answers comparable."""
