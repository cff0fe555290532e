"""The differences that are meant to be: one row for each scenario and step, with its reason.

`*` in a scenario's name or in a step stands for the parts that come from a table (access modes,
strategies). docs/compatibility.md explains each reason.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Any

__all__ = ["KNOWN", "entry_of", "reason_of_answers", "reason_of_lines"]

VERSION = "the broker says what it is"
EPOCH = "an older epoch must never own the topic again; closed waiters own nothing"
SEEKS = "two seeks at once: refused with another text"
RECEIPT = "the acknowledgement's receipt waits for the disk"
PATTERN = "the text of Python's parser"
MARKER = "an entry with a marker is delivered"
PREFIX = "an entry that begins with a prefix is refused"
LEDGER = "the ledger goes on when a topic is unloaded"
FRAME = "the frame is wrong whatever the consumer"
COUNT = "Pulsar's count is wrong after this seek"
BASE = "a partitioned topic's own name has no log"
NOT_STORED = "one text for all that a topic in memory does not have"
JAVA = "a Java class or a stack trace in the text"
MISTAKE = "a client's mistake is no error of the server (500)"
CURSOR = "cursors are in one ledger of the broker"
ORDER = "any order is right"
SYSTEM = "policies are in the catalog, not in a topic"
OFFLOAD = "nothing is offloaded"
DEPRECATED = "deprecated, and it does not answer for topics with subscriptions"
UNLOADED = "partitions that nobody used are not opened by a question"
AUTH = "a typing error must not lift a restriction"
SETTINGS = "settings are read at the start"
METADATA = "metadata are in the data folder"
BUNDLE = "one broker owns all bundles"
CATALOG = "versions are in the catalog"
SERVLET = "there is no servlet"
PAGE = "the broker has a page there"
ONE_TEXT = "one text for each: what is absent, what is not permitted, what a value lacks"
ONE_FORM = "each error is JSON with a reason, where the peer's web server sends a page"
PLAIN_JSON = "a refusal shows both definitions of a schema as plain JSON"
UNSET = "it is not set"
ABSENT_PARTS = "policies of what the broker does not have are absent"
VIEW = "a compacted cursor begins at the first entry of the view"
KEYS = "a schema that cannot be read gets an answer"
PEER = "the peer's default retention, and what others have set in it"
LATER = "the peer stores a topic's policies later than it answers"
TENANT = "the namespace is looked for first"
QUOTA = "the backlog is checked a moment later"
NAME_SIZE = "a topic's name may have 255 bytes"
TWICE = "a name that is there twice has its last value"
TYPE = "a type that Pulsar cannot read gets an answer"
LIMIT = "a client's count is bounded"
BUSY = "the peer is still busy with the unload before"
OTHERS = "what others have done in the peer"
FORGIVING = "a subscription that is absent has no backlog"
SIZES = "the peer estimates sizes from averages"
TOMBSTONE = "an empty value deletes its key, with or without a size of what was compressed"
OVERTAKEN = "a command that its own close overtakes gets an answer"
GIVEN_UP = "what is given up is not held by consumers any more"
AHEAD = "Key_Shared reads ahead of the permits"
REPEATED = "a message that is there already is not counted"
NOTHING = "a consumer that got nothing has consumed nothing"
IN_ORDER = "receipts and errors go out in the order of the messages"
COMPACTING = "compaction has no cursor"
WEB = "requests that no HTTP client sends are answered as JSON"
HOST = "a page of another name must not use the broker"
UNREAD = "the body of a removal is not read"
DOMAIN = "the topic's kind is looked at before the body"
NAME_FIRST = "what the path names is looked for before the body is read"
RACE = "the peer takes the second command before or after it has done the first"
READING = "a read that waits, of a consumer that has left or may take nothing"

OF_TOPICS = "matrix_domain_tenant_namespace_topic"
OF_ONE = f"{OF_TOPICS}_subscription_subscription"

KNOWN: tuple[tuple[str, str, str], ...] = (
    ("handshake", "connect", VERSION),
    ("protocol_versions", "version *", VERSION),
    ("feature_flags", "flags *", VERSION),
    *(
        ("connect_fields", step, VERSION)
        for step in ("proxy", "original principal", "unknown method", "token", "none")
    ),
    ("connect_fields", "empty version", VERSION),
    ("rest_clusters_and_brokers", "GET /admin/v2/brokers/version", VERSION),
    ("several_waiting", "second waiting hears", EPOCH),
    ("several_waiting", "producer", EPOCH),
    ("promoted_*", "producer", EPOCH),
    ("promoted_*_stale", "*", EPOCH),
    ("seek_of_many", "two seeks", SEEKS),
    ("unacked_limit", "ack one", RECEIPT),
    ("violations", "flow zero", FRAME),
    ("topic_lists", "topics", PATTERN),
    *(("last_ids", step, TOMBSTONE) for step in ("compacted 11", "late", "flow late")),
    *(("last_ids", f"{step} 11", TOMBSTONE) for step in ("cleared", "terminated")),
    ("last_ids", "terminated 10", TOMBSTONE),
    ("pipelined_commands", "a consumer that is closed", OVERTAKEN),
    ("pipelined_commands", "a producer that is closed", OVERTAKEN),
    ("pipelined_commands", "two producers of one name", ORDER),
    ("pipelined_commands", "two producers of one id", RACE),
    ("topic_peek_partitioned", "peek non-persistent", NOT_STORED),
    ("topic_peek_partitioned", "examine in memory", NOT_STORED),
    ("lookups", "no creation system", SYSTEM),
    ("stats_of_access_modes", "close", ORDER),
    ("stats_of_waiting_messages", "*stats delayed", NOTHING),
    ("stats_of_blocked_consumers", "ack", RECEIPT),
    ("stats_of_keys", "ack *", RECEIPT),
    ("stats_of_positions", "*stats terminated", COMPACTING),
    ("stats_of_positions", "internal stats reader gone", CURSOR),
    ("stats_of_positions", "internal stats cleared", CURSOR),
    ("stats_of_policies", "send", IN_ORDER),
    ("stats_of_policies", "*stats deduplication", REPEATED),
    ("stats_of_partitions", "subscriptions", ORDER),
    ("stats_of_partitions", "partitioned, cleared", GIVEN_UP),
    ("stats_of_partitions", "partition*", AHEAD),
    ("raw_answers", "GET /admin/v2/tenants *", OTHERS),
    ("raw_answers", "* /metrics*", SETTINGS),
    ("raw_answers", "GET /admin", SERVLET),
    ("raw_answers", "GET /absent Accept: application/json", SERVLET),
    ("raw_answers", "GET */p/partitioned-*", ORDER),
    *(
        ("raw_answers", f"*/n2/t/{what}", ORDER)
        for what in ("lastMessageId", "offload", "terminate")
    ),
    ("raw_answers", "* Expect: zzz", WEB),
    *(("raw_requests", step, HOST) for step in ("empty host", "other host")),
    ("raw_requests", "dots and an encoded slash", JAVA),
    *(
        ("raw_requests", step, WEB)
        for step in (
            "1.*",
            "2.0",
            "9",
            "two hosts",
            "too long *",
            "* length",
            "bad name",
            "no colon",
            "* in the target",
            "no slash",
        )
    ),
    ("replicated_flags", "flow", MARKER),
    ("send_errors", "stamped", PREFIX),
    ("send_errors", "flow", MARKER),
    ("unloaded_producer", "send again", LEDGER),
    ("seeks_of_types", "stats", COUNT),
    ("topic_partition_names", "consumer persistent://public/default/T", BASE),
    ("topic_partition_names", "producer persistent://public/default/T", BASE),
    *(("rest_partitions", step, BASE) for step in ("producer", "send", "delete again")),
    ("topic_auto_partitioned", "producer", BASE),
    ("topic_auto_partitioned", "list", UNLOADED),
    ("sticky_ranges", "subscribe", JAVA),
    ("schemas", "incompatible", PLAIN_JSON),
    ("schema_strategies_key_value", "producer * key required", PLAIN_JSON),
    ("schema_strategies_key_value", "producer ALWAYS_INCOMPATIBLE value grows", PLAIN_JSON),
    ("schema_wire", "consumer avro int", PLAIN_JSON),
    ("schema_wire", "get or create new", PLAIN_JSON),
    ("schema_topic_policies", "producer required", PLAIN_JSON),
    ("schemas", "broken", JAVA),
    ("schema_wire", "consumer avro broken", JAVA),
    ("schema_wire", "producer avro broken", JAVA),
    ("non_persistent", "last id", JAVA),
    ("topic_non_persistent", "last id", JAVA),
    ("topic_non_persistent_consumers", "reader's last id", JAVA),
    (
        "rest_reads_of_the_cluster",
        "GET /broker-stats/broker-resource-availability/public/default",
        JAVA,
    ),
    ("schema_rest_bad", "key value bad", MISTAKE),
    ("rest_namespaces_and_bundles", "PUT /namespaces/<tenant>/n1/zzz/unload", MISTAKE),
    ("rest_namespace_policies", "subscriptionTypesEnabled = None", MISTAKE),
    ("rest_topic_policies", "subscriptionTypesEnabled = None", MISTAKE),
    ("rest_namespace_policies", "allowedClusters = None", MISTAKE),
    ("topic_partition_rest", "create nothing", MISTAKE),
    ("rest_topics_in_detail", "GET /persistent/<tenant>/n2/absent/internal-info", MISTAKE),
    ("rest_topics_in_detail", "GET //lookup/v2/topic/zzz/<tenant>/n2/t1", MISTAKE),
    ("rest_non_persistent_topics", "GET /non-persistent/<tenant>/n2/np/internal-info", MISTAKE),
    ("topic_non_persistent_rest", "GET /internal-info", MISTAKE),
    ("topic_non_persistent_rest", "POST /subscription/s/skip/1", MISTAKE),
    ("topic_non_persistent_rest", "POST /subscription/s/skip_all", MISTAKE),
    ("rest_topics_in_detail", "GET /persistent/<tenant>/n2/t1/subscriptions", ORDER),
    (
        "rest_topics_in_detail",
        "POST /persistent/<tenant>/n2/t1/all_subscription/expireMessages/1",
        ORDER,
    ),
    (
        "rest_topics_in_detail",
        "POST /persistent/<tenant>/n2/p/subscription/absent/resetcursor/0",
        ORDER,
    ),
    (
        "rest_topics_in_detail",
        "GET /persistent/<tenant>/n2/t1/internalStats?metadata=true",
        CURSOR,
    ),
    ("topic_partition_growth", "subs of 0", ORDER),
    ("topic_non_persistent_partitioned", "list non-persistent", ORDER),
    ("topic_non_persistent_partitioned", "NON_PERSISTENT", ORDER),
    ("topic_non_persistent_partitioned", "ALL", ORDER),
    ("topic_peek", "peek 2", ORDER),
    ("topic_peek", "examine ?initialPosition=earliest&messagePosition=2", ORDER),
    ("topic_peek", "by id 1", ORDER),
    ("rest_topics_in_detail", "GET /persistent/<tenant>/n2?includeSystemTopic=true", SYSTEM),
    ("rest_topics_in_detail", "PUT */t1/offload*", OFFLOAD),
    ("rest_options_of_topics", "OPTIONS non-persistent offload", OFFLOAD),
    ("rest_options_of_topics", "OPTIONS persistent offload", OFFLOAD),
    ("rest_topics_in_detail", "GET /persistent/<tenant>/n2/t1/backlog", DEPRECATED),
    ("topic_non_persistent_rest", "GET /backlog", DEPRECATED),
    (
        "rest_non_persistent_topics",
        "GET /non-persistent/<tenant>/n2/npp/partitioned-stats",
        UNLOADED,
    ),
    ("topic_non_persistent_partitioned", "partitioned stats", UNLOADED),
    ("rest_namespace_policies", "subscriptionAuthMode = '8'", AUTH),
    ("rest_namespace_policies", "subscriptionAuthMode = 'x'", AUTH),
    ("rest_namespace_policies", "subscriptionAuthMode = -1", AUTH),
    ("rest_namespace_policies", "subscriptionAuthMode = 7", AUTH),
    ("rest_clusters_and_brokers", "GET /admin/v2/brokers/configuration", SETTINGS),
    ("rest_clusters_and_brokers", "GET /admin/v2/brokers/internal-configuration", METADATA),
    ("rest_reads_of_the_cluster", "GET /brokers/internal-configuration", METADATA),
    ("rest_clusters_and_brokers", "GET /status.html", SETTINGS),
    ("rest_wrong_requests", "GET //status.html/", SETTINGS),
    ("rest_namespaces_and_bundles", "DELETE /namespaces/<tenant>/n1/0x80000000_0xc0000000", BUNDLE),
    (
        "rest_namespaces_and_bundles",
        "GET /namespaces/<tenant>/n1/0x80000000_0xc0000000/topicHashPositions",
        BUNDLE,
    ),
    ("rest_topics_in_detail", "GET */n2/0x00000000_0x20000000/topicHashPositions*", BUNDLE),
    (
        "rest_namespaces_and_bundles",
        "POST /namespaces/<tenant>/n1/0x80000000_0xc0000000/clearBacklog",
        BUNDLE,
    ),
    (
        "rest_namespaces_and_bundles",
        "POST /namespaces/<tenant>/n1/0x80000000_0xc0000000/clearBacklog/s",
        BUNDLE,
    ),
    (
        "rest_namespaces_and_bundles",
        "POST /namespaces/<tenant>/n1/0x80000000_0xc0000000/unsubscribe/s",
        BUNDLE,
    ),
    ("schema_rest", "GET metadata", CATALOG),
    ("schema_rest", "GET metadata after delete", CATALOG),
    ("rest_accept", "application/json: GET /absent", SERVLET),
    ("rest_accept", "application/json: GET /admin/v2/absent", SERVLET),
    ("rest_accept", "application/json: POST /admin/v2/clusters", SERVLET),
    ("rest_clusters_and_brokers", "GET /", PAGE),
    ("rest_tenants_and_bodies", "GET /tenants/%zz", SERVLET),
    ("rest_odd_paths", "GET /non-persistent/<tenant>/n2/0x00000000_0x20000000", BUNDLE),
    ("rest_odd_paths", "GET /persistent/<tenant>/n2", ORDER),
    ("rest_topic_policies", "subscriptionTypesEnabled after its removal", ORDER),
    ("rest_topic_policies", "subscriptionTypesEnabled unset", UNSET),
    ("rest_topic_policies", "subscriptionTypesEnabled applied", UNSET),
    ("rest_topic_policies", "retention after None", LATER),
    ("rest_topic_policies", "retention applied", PEER),
    ("rest_namespace_policies", "all policies", ABSENT_PARTS),
    (
        "rest_absent_topics_and_namespaces",
        "GET non-persistent absent/absent maxMessageSize",
        TENANT,
    ),
    ("rest_absent_topics_and_namespaces", "GET persistent absent/absent maxMessageSize", TENANT),
    ("compacted_reading", "last id", VIEW),
    ("a_full_backlog", "send more", QUOTA),
    ("a_full_backlog", "partitions", QUOTA),
    ("schema_strategies_key_value", "producer * broken", KEYS),
    ("schema_wire_types", "consumer KeyValue", KEYS),
    ("schema_wire_types", "producer KeyValue", KEYS),
    ("schema_wire_types", "consumer External", KEYS),
    ("schema_wire_types", "producer External", KEYS),
    ("schema_wire_types", "consumer ProtobufNative", KEYS),
    ("schema_wire_types", "producer ProtobufNative", JAVA),
    ("schema_wire_types", "get", KEYS),
    ("schema_wire", "producer avro empty", JAVA),
    ("schema_wire", "producer avro non-utf-8", JAVA),
    ("rest_namespaces", "permissions", ORDER),
    ("rest_compaction", "done", LATER),
    ("a_full_backlog", "what the producer gets", QUOTA),
    *(
        (f"sweep_{command}", "topic = 'yyyyyyyyy...", NAME_SIZE)
        for command in ("partitions", "lookup", "producer", "subscribe", "reader")
    ),
    ("sweep_get_schema", "topic = 'yyyyyyyyy...", NAME_SIZE),
    ("sweep_create_schema", "topic = 'yyyyyyyyy...", NAME_SIZE),
    *((f"sweep_{command}", "metadata twice*", TWICE) for command in ("producer", "subscribe")),
    ("sweep_create_schema", "schema.properties twice*", TWICE),
    *(
        (f"sweep_{command}", f"schema.type = {number}", reason)
        for command in ("producer", "create_schema")
        for number, reason in ((2, JAVA), (3, JAVA), (4, JAVA), (20, JAVA), (15, KEYS))
    ),
    *(
        (f"sweep_{command}", step, TYPE)
        for command in ("producer", "subscribe", "create_schema")
        for step in ("schema.type = 22", "schema.type = 22: more")
    ),
    *(
        ("sweep_create_schema", f"topic = {name}{then}", TYPE)
        for name in ("''", "'ä b/c'")
        for then in ("", ": more")
    ),
    ("sweep_send", "command num_messages = 2147483647*", LIMIT),
    ("sweep_send", "metadata no *: more", MARKER),
    ("sweep_send", "metadata marker_type = *: more", MARKER),
    ("matrix_nonpersistent_tenant_namespace_bundle", "GET partitioned nothing", BUNDLE),
    ("matrix_nonpersistent_tenant_namespace_bundle", "GET absent topic nothing", BUNDLE),
    ("matrix_nonpersistent_tenant_namespace_bundle", "GET in memory nothing", BUNDLE),
    ("matrix_nonpersistent_tenant_namespace_bundle", "GET there nothing", BUNDLE),
    ("matrix_namespaces_tenant_namespace_bundle_topicHashPositions", "GET * nothing", SYSTEM),
    ("matrix_namespaces_tenant_namespace_unload", "PUT *", BUSY),
    ("matrix_namespaces_tenant_namespace_clearBacklog", "POST absent tenant nothing", OTHERS),
    (
        "matrix_namespaces_tenant_namespace_clearBacklog_subscription",
        "POST absent tenant nothing",
        OTHERS,
    ),
    (
        "matrix_namespaces_tenant_namespace_clearBacklog_subscription",
        "POST absent topic nothing",
        FORGIVING,
    ),
    (
        "matrix_namespaces_tenant_namespace_unsubscribe_subscription",
        "POST absent tenant nothing",
        OTHERS,
    ),
    ("matrix_namespaces_tenant_namespace_subscriptionAuthMode", "POST there text", AUTH),
    ("matrix_namespaces_tenant_namespace_subscriptionAuthMode", "POST there number", AUTH),
    ("matrix_namespaces_tenant_namespace_subscriptionAuthMode", "POST there negative", AUTH),
    ("matrix_brokerstats_brokerresourceavailability_tenant_namespace", "GET * nothing", JAVA),
    (f"{OF_TOPICS}_compaction", "PUT there *", LATER),
    (f"{OF_TOPICS}_internalinfo", "GET there nothing", CURSOR),
    (f"{OF_TOPICS}_internalinfo", "GET partitioned nothing", CURSOR),
    (f"{OF_TOPICS}_maxMessageSize", "GET absent tenant nothing", TENANT),
    (f"{OF_TOPICS}_maxMessageSize", "DELETE absent tenant nothing", TENANT),
    (f"{OF_TOPICS}_offload", "PUT *", OFFLOAD),
    (f"{OF_TOPICS}_properties", "DELETE there *", MISTAKE),
    (f"{OF_ONE}_properties", "GET partitioned nothing", UNLOADED),
    (f"{OF_ONE}_properties", "PUT partitioned nothing", UNLOADED),
    (f"{OF_ONE}_replicatedSubscriptionStatus", "GET partitioned nothing", UNLOADED),
    (f"{OF_ONE}_resetcursor_time", "POST partitioned nothing", ORDER),
    ("rest_topic_policies", "subscriptionTypesEnabled after *", ORDER),
    ("rest_namespace_policies", "subscriptionTypesEnabled after *", ORDER),
    ("matrix_*", "DELETE there *", UNREAD),
    ("matrix_nonpersistent_tenant_namespace_topic_properties", "PUT there *", DOMAIN),
    ("matrix_nonpersistent_*_replicatedSubscriptionStatus", "POST *", DOMAIN),
    (f"{OF_ONE}_replicatedSubscriptionStatus", "POST in memory *", DOMAIN),
    (f"{OF_TOPICS}_partitions", "PUT absent * nothing", MISTAKE),
    ("matrix_namespaces_tenant_namespace_bundle", "DELETE * nothing", BUNDLE),
    (
        "matrix_namespaces_tenant_namespace_bundle_clearBacklog_subscription",
        "POST absent topic nothing",
        FORGIVING,
    ),
    *(
        (scenario, f"{step} {policy}", ABSENT_PARTS)
        for scenario, step in (
            ("rest_options_of_topics", "OPTIONS *"),
            ("rest_absent_topics_and_namespaces", "GET *"),
        )
        for policy in (
            "dispatcherPauseOnAckStatePersistent",
            "entryFilters",
            "offloadPolicies",
            "persistence",
            "replicatorDispatchRate",
        )
    ),
    *(
        ("raw_answers", f"GET /admin/{path}", ABSENT_PARTS)
        for path in (
            "v2/bookies/racks-info",
            "v2/resource-quotas",
            "v2/resourcegroups",
            "v2/worker/cluster",
            "v3/functions/public/default",
            "v2/namespaces/T/n2*",
        )
    ),
    ("raw_answers", "POST /admin/v2/tenants/xT *", JAVA),
    ("rest_absent_topics_and_namespaces", "GET non-persistent * lastMessageId", TENANT),
    ("rest_odd_paths", "GET //admin/*", ABSENT_PARTS),
    ("rest_odd_paths", "* /worker/*", ABSENT_PARTS),
    ("rest_clusters_and_brokers", "DELETE /admin/v2/clusters/absent", ABSENT_PARTS),
    ("a_full_backlog", "lookup", QUOTA),
)


#: Places in answers that may differ in every scenario, if the step differs nowhere else.
FIELDS: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(
            r"body(\.partitions\.[^:]*:[^:]*)?\.cursors\.[^.]*\."
            r"(cursorLedger|cursorLedgerLastEntry|individuallyDeletedMessages|state)"
        ),
        CURSOR,
    ),
    (re.compile(r"body(\.partitions\.[^:]*:[^:]*)?(\.subscriptions\.\w+)?\.backlogSize"), SIZES),
    (
        re.compile(
            r"body(\.partitions\.[^:]*:[^:]*)?\."
            r"(waitingCursorsCount|cursors\.[^.]*\.(waitingReadOp|subscriptionHavePendingRead))"
        ),
        READING,
    ),
    (
        re.compile(
            r"body\.(allowed_clusters|offload_threshold(_in_seconds)?|replicatorDispatchRate)"
        ),
        ABSENT_PARTS,
    ),
)


def reason_of_lines(lines: list[str]) -> str | None:
    """Why a step may differ in these places, as `differences` names them; None: it must not."""
    reasons = [_reason_of_line(line) for line in lines]
    found = [reason for reason in reasons if reason is not None]
    return "; ".join(sorted(set(found))) if len(found) == len(reasons) else None


def _reason_of_line(line: str) -> str | None:
    place = line.rpartition(": ")[0] if ": " in line else line
    for pattern, reason in FIELDS:
        if pattern.match(place):
            return reason
    return None


def entry_of(scenario: str, step: str) -> tuple[str, str, str] | None:
    """The row that says why a step of a scenario may differ; None: it must not."""
    for row in KNOWN:
        if fnmatchcase(scenario, row[0]) and fnmatchcase(step, row[1]):
            return row
    return None


def reason_of_answers(scenario: str, ours: Any, theirs: Any) -> str | None:
    """Why two answers to bodies of all kinds may differ; None: they must not.

    Where both refuse a body that cannot be read, or what a topic in memory does not have, each with
    its own text; where the peer has several texts for one thing; where its web server answers with
    a page; where it failed (500, or no answer), and this broker says that it is the client's
    mistake; where the peer reads a body before it looks for what the path names; and where no
    client has used a bundle in the peer.
    """
    if not isinstance(ours, dict) or not isinstance(theirs, dict):
        return None
    body = theirs.get("body")
    if ours.get("status") == theirs.get("status") == 400 and "[Source: REDACTED" in str(body):
        return JAVA
    is_name = ours.get("status") in (404, 409, 412) and theirs.get("status") in (400, 405, 412)
    if scenario.startswith("matrix_") and is_name:
        return NAME_FIRST
    refused = ours.get("body")
    says = str(refused.get("reason", "")) if isinstance(refused, dict) else ""
    if ours.get("status") == theirs.get("status") and "is not stored" in says:
        return NOT_STORED
    if theirs.get("status") in (302, ours.get("status")) and _is_page(body):
        return ONE_FORM
    reason = str(body.get("reason", "")) if isinstance(body, dict) else ""
    is_said = not reason or reason.startswith(PEERS_TEXTS)
    if says and ours.get("status") == theirs.get("status") and is_said:
        return ONE_TEXT
    if scenario.startswith("matrix_") and reason.startswith(
        "Failed to find ownership for ServiceUnit:"
    ):
        return BUNDLE
    failed = theirs.get("status") in (0, 500)
    return MISTAKE if failed and 400 <= ours.get("status", 0) < 500 else None


#: How texts of the peer begin that this broker says in one way.
PEERS_TEXTS = (
    "Topic ",
    "topic-level max",
    "Tenant does not exist",
    "ClusterIds should not be null",
    "Partitioned Topic not found",
    "Namespace not found",
    "Unauthorized to validate",
    "This operation requires super-user access",
    "Don't have permission to administrate",
    "Need to authenticate",
    "Invalid combination of Original principal",
    "Cannot invoke",
    "Invalid value for",
    "interval must be",
    "max",
    "Namespace policies does not exist",
    "No enum constant",
)


def _is_page(body: Any) -> bool:
    """Whether it is an error page of the peer's web server, in any of its formats, or empty."""
    if isinstance(body, dict):
        return body.keys() == {"message", "url", "status"}
    return body in (None, "") or "HTTP ERROR" in str(body)
