"""Commands of pulsar-admin about policies of namespaces and topics, as pulsar-shell takes them.

Each policy is shown, set, shown again, removed and shown once more. All policies are set before the
first is shown, since Pulsar's topic policies take effect a little after the answer.
"""

from __future__ import annotations

__all__ = ["NAMESPACE_POLICIES", "TOPIC_POLICIES"]

#: Name, and the options that set it. Some have no "remove", which fails for both brokers.
_OF_NAMESPACE = """
message-ttl --messageTTL 60
retention --time 10m --size 5M
backlog-quota --limit 10M --policy producer_exception
backlog-quota --limitTime 600 --policy consumer_backlog_eviction --type message_age
max-subscriptions-per-topic -m 4
subscription-expiration-time -t 5
deduplication --enable
auto-topic-creation --enable --type partitioned --num-partitions 3
auto-subscription-creation --enable
subscription-types-enabled -t Shared,Failover
dispatch-rate -md 10 -bd 1000 -dt 2
subscribe-rate -sr 3 -st 20
subscription-dispatch-rate -md 11 -bd 1001 -dt 3 -rp
publish-rate -m 12 -b 1002
encryption-required --enable
subscription-auth-mode -m Prefix
delayed-delivery --enable --time 2s --maxDelay 5s
inactive-topic-policies -e -t 1h -m delete_when_no_subscriptions
max-producers-per-topic -p 5
max-consumers-per-topic -c 6
max-consumers-per-subscription -c 7
max-unacked-messages-per-subscription -c 8
max-unacked-messages-per-consumer -c 9
compaction-threshold -t 100M
schema-autoupdate-strategy -c Backward
schema-compatibility-strategy -c FORWARD
is-allow-auto-update-schema --disable
schema-validation-enforce --enable
deduplication-snapshot-interval -i 100
max-topics-per-namespace -t 20
""".strip().splitlines()

_OF_TOPIC = """
message-ttl -t 60
max-unacked-messages-per-consumer -m 9
max-unacked-messages-per-subscription -m 8
max-consumers-per-subscription -c 7
subscription-types-enabled -t Shared,Failover
retention -s 6M -t 11m
backlog-quota -l 5M -p producer_exception
backlog-quota -lt 600 -p consumer_backlog_eviction -t message_age
max-producers -p 5
max-message-size -m 1000
deduplication -e
deduplication-snapshot-interval -i 100
subscription-dispatch-rate -md 11 -bd 1001 -dt 3
publish-rate -m 12 -b 1002
compaction-threshold -t 100M
subscribe-rate -sr 3 -st 20
max-consumers -c 6
delayed-delivery -e -t 2s -md 5s
dispatch-rate -md 10 -bd 1000 -dt 2 -rp
inactive-topic-policies -e -t 1h -m delete_when_no_subscriptions
max-subscriptions-per-topic -s 4
schema-compatibility-strategy -s FORWARD
auto-subscription-creation -e
replication-clusters -c standalone
""".strip().splitlines()

#: Values that are refused, or read in another way than they look.
_BAD_OF_NAMESPACE = """
set-message-ttl {ns} --messageTTL -1
set-retention {ns} --time 0 --size 5M
set-retention {ns} --time 1m --size 1M
set-backlog-quota {ns} --limit 10M --policy no_such_policy
set-backlog-quota {ns} --limit 10M --policy producer_exception --type no_such_type
set-max-producers-per-topic {ns} -p -1
set-compaction-threshold {ns} -t -1
set-auto-topic-creation {ns} --enable --type partitioned --num-partitions 0
set-auto-topic-creation {ns} --enable --type no_such_type
set-schema-compatibility-strategy {ns} -c NO_SUCH
set-inactive-topic-policies {ns} -e -t 1h -m no_such_mode
set-subscription-types-enabled {ns} -t NoSuch
set-max-topics-per-namespace {ns} -t -1
set-delayed-delivery {ns} --enable --time -1
""".strip().splitlines()

_BAD_OF_TOPIC = """
set-message-ttl {topic} -t -1
set-max-producers {topic} -p -1
set-max-message-size {topic} -m 99999999
set-max-subscriptions-per-topic {topic} -s -1
set-backlog-quota {topic} -l 10M -p no_such_policy
set-subscription-types-enabled {topic} -t NoSuch
set-replication-clusters {topic} -c nowhere
set-message-ttl {topic}-absent -t 1
get-message-ttl {topic}-absent
get-retention {topic}-partition-0
set-dispatch-rate {ns}/t/x -md 1
""".strip().splitlines()


def _names(policies: list[str]) -> list[str]:
    return list(dict.fromkeys(line.split(maxsplit=1)[0] for line in policies))


def _shown(name: str) -> str:
    return "backlog-quotas" if name == "backlog-quota" else name


def _namespace_policies() -> list[str]:
    names = _names(_OF_NAMESPACE)
    get = [f"get-{_shown(name)} {{ns}}" for name in names]
    sets = [f"set-{line.replace(' ', ' {ns} ', 1)}" for line in _OF_NAMESPACE]
    sets = [line if "{ns}" in line else f"{line} {{ns}}" for line in sets]
    removes = [f"remove-{name} {{ns}}" for name in names]
    removes += ["remove-backlog-quota {ns} --type message_age"]
    removes += ["set-encryption-required {ns} --disable"]
    removes += ["set-subscription-auth-mode {ns} -m None"]
    lines = [*get, *sets, "policies {ns}", *get, *_BAD_OF_NAMESPACE, *removes, *get]
    return [f"admin namespaces {line}" for line in [*lines, "policies {ns}"]]


def _topic_policies() -> list[str]:
    names = _names(_OF_TOPIC)
    get = [f"get-{name} {{topic}}" for name in names]
    applied = [f"{line} --applied" for line in get]
    sets = [f"set-{line.replace(' ', ' {topic} ', 1)}" for line in _OF_TOPIC]
    sets = [line if "{topic}" in line else f"{line} {{topic}}" for line in sets]
    removes = [f"remove-{name} {{topic}}" for name in names]
    removes += ["remove-backlog-quota {topic} -t message_age"]
    on_a_subscription = [
        "set-subscription-dispatch-rate {topic} -s s -md 21",
        "get-subscription-dispatch-rate {topic} -s s",
        "get-subscription-dispatch-rate {topic} -s s --applied",
        "get-subscription-dispatch-rate {topic}",
        "remove-subscription-dispatch-rate {topic} -s s",
        "get-subscription-dispatch-rate {topic} -s s",
    ]
    of_global = [
        "set-message-ttl {topic} -t 70 --global",
        "get-message-ttl {topic} --global",
        "get-message-ttl {topic} --applied",
        "remove-message-ttl {topic} --global",
        "get-message-ttl {topic} --global",
    ]
    lines = [*get, *applied, *sets, *get, *applied, *_BAD_OF_TOPIC, *removes, *get, *applied]
    lines += [*on_a_subscription, *of_global]
    lines += ["set-message-ttl {topic} -t 5", "delete {topic}", "get-message-ttl {topic}"]
    return [f"admin topicPolicies {line}" for line in lines]


NAMESPACE_POLICIES = _namespace_policies()
TOPIC_POLICIES = _topic_policies()
