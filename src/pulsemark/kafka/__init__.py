"""Kafka clients on the same ledgers.

`records` has Kafka's record formats: what a producer sends, what is stored, what a consumer gets.
"""
