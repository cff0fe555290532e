"""Policies: their descriptions, and their values at the levels broker, namespace and topic.

`policy` says what a description has and looks values up, `topics.policy_store` stores them, and
`catalogue` lists all policies. The REST routes (`http/policies.py`) are made from the descriptions.
"""
