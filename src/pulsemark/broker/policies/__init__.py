"""Policies: their descriptions, and their values at the levels broker, namespace and topic.

`policy` says what a description has, `levels` looks up and changes values, `catalogue` lists all
policies. The REST routes (`http/policies.py`) are made from the descriptions.
"""
