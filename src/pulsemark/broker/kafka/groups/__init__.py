"""Consumer groups: members, generations, assignments, and committed offsets.

The rules are those of Kafka's GroupCoordinator (2.8).
"""
