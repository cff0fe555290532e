// PulsarAdmin: tenants, namespaces, topics, subscriptions, and how it fails.

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.admin.Namespaces;
import org.apache.pulsar.client.admin.TopicPolicies;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.common.policies.data.AuthAction;
import org.apache.pulsar.common.policies.data.BacklogQuota;
import org.apache.pulsar.common.policies.data.DispatchRate;
import org.apache.pulsar.common.policies.data.PublishRate;
import org.apache.pulsar.common.policies.data.RetentionPolicies;
import org.apache.pulsar.common.policies.data.SubscribeRate;
import org.apache.pulsar.common.policies.data.TenantInfo;

final class Administering {
    static void register(Map<String, Scenario.Story> stories) {
        stories.put("admin-tenants", Administering::tenants);
        stories.put("admin-namespaces", Administering::namespaces);
        stories.put("admin-policies", Administering::policies);
        stories.put("admin-topic-policies", Administering::topicPolicies);
        stories.put("admin-topics", Administering::topics);
        stories.put("admin-subscriptions", Administering::subscriptions);
        stories.put("admin-messages", Administering::messages);
        stories.put("admin-stats", Administering::stats);
        stories.put("admin-brokers", Administering::brokers);
    }

    private static void tenants(Scenario s) throws Exception {
        String tenant = s.namespace.substring(0, s.namespace.indexOf('/'));
        TenantInfo info = TenantInfo.builder().adminRoles(Set.of("me")).allowedClusters(Set.of("standalone")).build();
        s.run("create one that exists", () -> s.admin.tenants().createTenant(tenant, info));
        s.run("create with an unknown cluster", () -> s.admin.tenants().createTenant(tenant + "-x",
            TenantInfo.builder().allowedClusters(Set.of("mars")).build()));
        s.run("create without clusters", () -> s.admin.tenants().createTenant(tenant + "-x", TenantInfo.builder().build()));
        s.run("create with a bad name", () -> s.admin.tenants().createTenant("a b", info));
        s.run("create", () -> s.admin.tenants().createTenant(tenant + "-t", info));
        s.step("get", () -> s.admin.tenants().getTenantInfo(tenant + "-t"));
        s.run("update", () -> s.admin.tenants().updateTenant(tenant + "-t", TenantInfo.builder()
            .adminRoles(Set.of("you")).allowedClusters(Set.of("standalone")).build()));
        s.step("get then", () -> s.admin.tenants().getTenantInfo(tenant + "-t"));
        s.step("listed", () -> s.admin.tenants().getTenants().contains(tenant + "-t"));
        s.run("delete", () -> s.admin.tenants().deleteTenant(tenant + "-t"));
        s.step("get an absent one", () -> s.admin.tenants().getTenantInfo(tenant + "-t"));
        s.run("delete an absent one", () -> s.admin.tenants().deleteTenant(tenant + "-t"));
        s.run("delete one in use", () -> s.admin.tenants().deleteTenant(tenant));
    }

    private static void namespaces(Scenario s) throws Exception {
        String one = s.namespace + "-one";
        s.run("create", () -> s.admin.namespaces().createNamespace(one, 4));
        s.run("create again", () -> s.admin.namespaces().createNamespace(one));
        s.run("create in an absent tenant", () -> s.admin.namespaces().createNamespace("absent-tenant/n"));
        s.step("bundles", () -> s.admin.namespaces().getBundles(one).getBoundaries());
        s.step("policies", () -> s.admin.namespaces().getPolicies(one).toString());
        s.step("topics", () -> s.admin.namespaces().getTopics(one));
        s.run("grant", () -> s.admin.namespaces().grantPermissionOnNamespace(one, "role", Set.of(AuthAction.produce)));
        s.step("permissions", () -> s.admin.namespaces().getPermissions(one));
        s.run("revoke", () -> s.admin.namespaces().revokePermissionsOnNamespace(one, "role"));
        s.run("properties", () -> s.admin.namespaces().setProperties(one, Map.of("a", "1")));
        s.step("property", () -> s.admin.namespaces().getProperty(one, "a"));
        s.run("a topic", () -> s.admin.topics().createNonPartitionedTopic("persistent://" + one + "/t"));
        s.run("delete with a topic", () -> s.admin.namespaces().deleteNamespace(one));
        s.run("delete with force", () -> s.admin.namespaces().deleteNamespace(one, true));
        s.run("the topic", () -> s.admin.topics().delete("persistent://" + one + "/t"));
        s.run("delete", () -> s.admin.namespaces().deleteNamespace(one));
        s.step("policies of an absent one", () -> s.admin.namespaces().getPolicies(one));
        s.step("topics of an absent one", () -> s.admin.namespaces().getTopics(one));
        s.run("delete an absent one", () -> s.admin.namespaces().deleteNamespace(one));
        s.step("listed", () -> s.admin.namespaces().getNamespaces(one.substring(0, one.indexOf('/'))).contains(one));
    }

    /** A policy: shown, set, shown, removed, shown. */
    private static void policy(Scenario s, String name, java.util.concurrent.Callable<?> get, Scenario.Action set, Scenario.Action remove) {
        s.step(name + " before", get);
        s.run(name + " set", set);
        s.step(name + " is", () -> Scenario.until(get::call, found -> found != null));
        s.run(name + " removed", remove);
        s.step(name + " after", get);
    }

    private static void policies(Scenario s) throws Exception {
        Namespaces all = s.admin.namespaces();
        String at = s.namespace;
        policy(s, "retention", () -> all.getRetention(at), () -> all.setRetention(at, new RetentionPolicies(10, 20)), () -> all.removeRetention(at));
        policy(s, "ttl", () -> all.getNamespaceMessageTTL(at), () -> all.setNamespaceMessageTTL(at, 60), () -> all.removeNamespaceMessageTTL(at));
        policy(s, "backlog quota", () -> all.getBacklogQuotaMap(at), () -> all.setBacklogQuota(at, BacklogQuota.builder().limitSize(1000)
            .retentionPolicy(BacklogQuota.RetentionPolicy.producer_exception).build()), () -> all.removeBacklogQuota(at));
        policy(s, "deduplication", () -> all.getDeduplicationStatus(at), () -> all.setDeduplicationStatus(at, true), () -> all.removeDeduplicationStatus(at));
        policy(s, "dispatch rate", () -> all.getDispatchRate(at), () -> all.setDispatchRate(at, DispatchRate.builder()
            .dispatchThrottlingRateInMsg(5).dispatchThrottlingRateInByte(50).ratePeriodInSecond(2).build()), () -> all.removeDispatchRate(at));
        policy(s, "publish rate", () -> all.getPublishRate(at), () -> all.setPublishRate(at, new PublishRate(10, 20)), () -> all.removePublishRate(at));
        policy(s, "subscribe rate", () -> all.getSubscribeRate(at), () -> all.setSubscribeRate(at, new SubscribeRate(3, 10)), () -> all.removeSubscribeRate(at));
        policy(s, "max producers", () -> all.getMaxProducersPerTopic(at), () -> all.setMaxProducersPerTopic(at, 3), () -> all.removeMaxProducersPerTopic(at));
        policy(s, "max consumers", () -> all.getMaxConsumersPerTopic(at), () -> all.setMaxConsumersPerTopic(at, 3), () -> all.removeMaxConsumersPerTopic(at));
        policy(s, "max unacknowledged", () -> all.getMaxUnackedMessagesPerConsumer(at), () -> all.setMaxUnackedMessagesPerConsumer(at, 3), () -> all.removeMaxUnackedMessagesPerConsumer(at));
        policy(s, "compaction threshold", () -> all.getCompactionThreshold(at), () -> all.setCompactionThreshold(at, 100), () -> all.removeCompactionThreshold(at));
        policy(s, "subscription expiration", () -> all.getSubscriptionExpirationTime(at), () -> all.setSubscriptionExpirationTime(at, 5), () -> all.removeSubscriptionExpirationTime(at));
        policy(s, "max topics", () -> all.getMaxTopicsPerNamespace(at), () -> all.setMaxTopicsPerNamespace(at, 9), () -> all.removeMaxTopicsPerNamespace(at));
        s.run("negative ttl", () -> all.setNamespaceMessageTTL(at, -5));
        s.run("negative producers", () -> all.setMaxProducersPerTopic(at, -5));
        s.run("bad retention", () -> all.setRetention(at, new RetentionPolicies(0, 20)));
    }

    private static void topicPolicies(Scenario s) throws Exception {
        String at = s.topic("t");
        TopicPolicies all = s.admin.topicPolicies();
        s.run("of an absent topic", () -> all.setRetention(at, new RetentionPolicies(10, 20)));
        s.admin.topics().createNonPartitionedTopic(at);
        policy(s, "retention", () -> all.getRetention(at), () -> all.setRetention(at, new RetentionPolicies(10, 20)), () -> all.removeRetention(at));
        policy(s, "ttl", () -> all.getMessageTTL(at), () -> all.setMessageTTL(at, 60), () -> all.removeMessageTTL(at));
        policy(s, "publish rate", () -> all.getPublishRate(at), () -> all.setPublishRate(at, new PublishRate(10, 20)), () -> all.removePublishRate(at));
        policy(s, "dispatch rate", () -> all.getDispatchRate(at), () -> all.setDispatchRate(at, DispatchRate.builder()
            .dispatchThrottlingRateInMsg(5).dispatchThrottlingRateInByte(50).ratePeriodInSecond(2).build()), () -> all.removeDispatchRate(at));
        policy(s, "deduplication", () -> all.getDeduplicationStatus(at), () -> all.setDeduplicationStatus(at, true), () -> all.removeDeduplicationStatus(at));
        policy(s, "max message size", () -> all.getMaxMessageSize(at), () -> all.setMaxMessageSize(at, 1000), () -> all.removeMaxMessageSize(at));
        policy(s, "max consumers", () -> all.getMaxConsumers(at), () -> all.setMaxConsumers(at, 3), () -> all.removeMaxConsumers(at));
        policy(s, "compaction threshold", () -> all.getCompactionThreshold(at), () -> all.setCompactionThreshold(at, 100), () -> all.removeCompactionThreshold(at));
        s.step("applied deduplication", () -> all.getDeduplicationStatus(at, true));
    }

    private static void topics(Scenario s) throws Exception {
        String topic = s.topic("t");
        s.run("create", () -> s.admin.topics().createNonPartitionedTopic(topic, Map.of("a", "1")));
        s.run("create again", () -> s.admin.topics().createNonPartitionedTopic(topic));
        s.run("create with partitions", () -> s.admin.topics().createPartitionedTopic(s.topic("p"), 3));
        s.run("create with 0 partitions", () -> s.admin.topics().createPartitionedTopic(s.topic("q"), 0));
        s.run("create a partition's name", () -> s.admin.topics().createPartitionedTopic(s.topic("x-partition-1"), 2));
        s.step("list", () -> new TreeSet<>(s.admin.topics().getList(s.namespace)));
        s.step("partitioned list", () -> s.admin.topics().getPartitionedTopicList(s.namespace));
        s.step("metadata", () -> s.admin.topics().getPartitionedTopicMetadata(s.topic("p")).partitions);
        s.step("metadata of an absent one", () -> s.admin.topics().getPartitionedTopicMetadata(s.topic("absent")).partitions);
        s.step("properties", () -> new TreeMap<>(s.admin.topics().getProperties(topic)));
        s.run("update properties", () -> s.admin.topics().updateProperties(topic, Map.of("b", "2")));
        s.step("properties then", () -> new TreeMap<>(s.admin.topics().getProperties(topic)));
        s.run("remove a property", () -> s.admin.topics().removeProperties(topic, "a"));
        s.step("stats of an absent one", () -> s.admin.topics().getStats(s.topic("absent")));
        s.step("internal stats of an absent one", () -> s.admin.topics().getInternalStats(s.topic("absent")));
        s.step("subscriptions of an absent one", () -> s.admin.topics().getSubscriptions(s.topic("absent")));
        s.run("unload an absent one", () -> s.admin.topics().unload(s.topic("absent")));
        s.run("grant", () -> s.admin.topics().grantPermission(topic, "role", Set.of(AuthAction.consume)));
        s.step("permissions", () -> s.admin.topics().getPermissions(topic));
        s.run("revoke", () -> s.admin.topics().revokePermissions(topic, "role"));
        s.run("revoke again", () -> s.admin.topics().revokePermissions(topic, "role"));
        s.step("lookup", () -> s.admin.lookups().lookupTopic(topic).startsWith("pulsar://"));
        s.step("bundle", () -> s.admin.lookups().getBundleRange(topic).startsWith("0x"));
        s.step("lookup of partitions", () -> s.admin.lookups().lookupPartitionedTopic(s.topic("p")).keySet().stream().sorted().toList());
        s.run("delete a partitioned one as plain", () -> s.admin.topics().delete(s.topic("p")));
        s.run("delete a plain one as partitioned", () -> s.admin.topics().deletePartitionedTopic(topic));
        s.run("terminate a partitioned one", () -> s.admin.topics().terminateTopic(s.topic("p")));
        s.step("terminate all partitions", () -> s.admin.topics().terminatePartitionedTopic(s.topic("p")).size());
        s.run("delete with partitions", () -> s.admin.topics().deletePartitionedTopic(s.topic("p")));
        s.run("trim", () -> s.admin.topics().trimTopic(topic));
        s.step("offload status", () -> s.admin.topics().offloadStatus(topic).getStatus());
        s.step("a bad name", () -> s.admin.topics().getStats("persistent://a/b"));
    }

    private static void subscriptions(Scenario s) throws Exception {
        String topic = s.topic("t");
        Producer<String> producer = s.producer(topic);
        List<MessageId> ids = s.send(producer, "m", 10);
        s.run("create at earliest", () -> s.admin.topics().createSubscription(topic, "e", MessageId.earliest));
        s.run("create again", () -> s.admin.topics().createSubscription(topic, "e", MessageId.earliest));
        s.run("create at latest", () -> s.admin.topics().createSubscription(topic, "l", MessageId.latest));
        s.run("create at an id", () -> s.admin.topics().createSubscription(topic, "i", ids.get(3)));
        s.step("backlogs", () -> backlogs(s, topic));
        s.run("skip 2", () -> s.admin.topics().skipMessages(topic, "e", 2));
        s.step("backlogs after skip", () -> backlogs(s, topic));
        s.run("reset to an id", () -> s.admin.topics().resetCursor(topic, "e", ids.get(5)));
        s.step("backlogs after reset", () -> backlogs(s, topic));
        s.run("reset to an excluded id", () -> s.admin.topics().resetCursor(topic, "e", ids.get(5), true));
        s.step("backlogs after that", () -> backlogs(s, topic));
        s.run("reset to a time", () -> s.admin.topics().resetCursor(topic, "e", 0));
        s.step("backlogs after a time", () -> backlogs(s, topic));
        s.run("skip all", () -> s.admin.topics().skipAllMessages(topic, "e"));
        s.step("backlogs after all", () -> backlogs(s, topic));
        s.run("expire to an id", () -> s.admin.topics().expireMessages(topic, "i", ids.get(6), false));
        s.step("backlogs after expiry", () -> Scenario.until(() -> backlogs(s, topic), all -> all.get("i") == 3));
        s.run("skip of an absent one", () -> s.admin.topics().skipMessages(topic, "absent", 1));
        s.run("reset of an absent one", () -> s.admin.topics().resetCursor(topic, "absent", 0));
        s.run("delete an absent one", () -> s.admin.topics().deleteSubscription(topic, "absent"));
        Consumer<String> consumer = s.keep(s.consuming(topic).subscriptionName("e").subscriptionType(SubscriptionType.Shared).subscribe());
        s.run("delete a connected one", () -> s.admin.topics().deleteSubscription(topic, "e"));
        s.run("delete a connected one with force", () -> s.admin.topics().deleteSubscription(topic, "e", true));
        s.say("its consumer", consumer.getSubscription());
        consumer.close();
        s.run("delete", () -> s.admin.topics().deleteSubscription(topic, "l"));
        s.run("on an absent topic", () -> s.admin.topics().createSubscription(s.topic("made"), "x", MessageId.latest));
        s.run("analyze", () -> s.admin.topics().analyzeSubscriptionBacklog(topic, "i", java.util.Optional.empty()));
    }

    private static Map<String, Long> backlogs(Scenario s, String topic) throws Exception {
        Map<String, Long> found = new TreeMap<>();
        s.admin.topics().getStats(topic, true).getSubscriptions().forEach((name, one) -> found.put(name, one.getMsgBacklog()));
        return found;
    }

    private static void messages(Scenario s) throws Exception {
        String topic = s.topic("t");
        Producer<String> producer = s.keep(s.producing(topic).producerName("p").create());
        producer.newMessage().key("k").property("a", "1").eventTime(5).value("one").send();
        producer.newMessage().value(null).send();
        s.sendBatch(topic, "b", 3);
        s.admin.topics().createSubscription(topic, "s", MessageId.earliest);
        s.step("peek", () -> s.admin.topics().peekMessages(topic, "s", 9).stream().map(Scenario::text).toList());
        s.step("peek one", () -> s.admin.topics().peekMessages(topic, "s", 1).stream().map(Scenario::show).toList());
        for (String from : List.of("earliest", "latest")) {
            for (long position : new long[] {1, 2, 3, 99}) {
                s.step("examine " + position + " from " + from, () -> Scenario.text(s.admin.topics().examineMessage(topic, from, position)));
            }
        }
        MessageId last = s.admin.topics().getLastMessageId(topic);
        s.say("last id", Scenario.place(last));
        long ledger = ((org.apache.pulsar.client.api.MessageIdAdv) last).getLedgerId();
        s.step("by id", () -> s.admin.topics().getMessagesById(topic, ledger, 2).stream().map(Scenario::show).toList());
        s.step("by an id too far", () -> s.admin.topics().getMessagesById(topic, ledger, 99));
        s.step("by an unknown ledger", () -> s.admin.topics().getMessagesById(topic, 987654321, 0));
        s.step("id by time 0", () -> Scenario.place(s.admin.topics().getMessageIdByTimestamp(topic, 0)));
        s.step("id by a late time", () -> Scenario.place(s.admin.topics().getMessageIdByTimestamp(topic, System.currentTimeMillis() + 1000)));
        s.step("peek without subscription", () -> s.admin.topics().peekMessages(s.topic("absent"), "x", 1));
    }

    private static void stats(Scenario s) throws Exception {
        String topic = s.topic("t");
        Consumer<String> consumer = s.keep(s.consuming(topic).consumerName("c").subscriptionType(SubscriptionType.Shared).subscribe());
        s.send(s.producer(topic), "m", 5);
        s.sendBatch(topic, "b", 5);
        s.take(consumer, 3);
        s.receive(consumer, 2);
        s.step("topic", () -> {
            var one = s.admin.topics().getStats(topic, true, true, true);
            return List.of(one.getMsgInCounter(), one.getBytesInCounter() > 0, one.getPublishers().size(), one.getBacklogSize() > 0,
                one.getDeduplicationStatus(), one.getNonContiguousDeletedMessagesRanges(), one.getOwnerBroker() != null,
                one.getReplication().size(), one.getCompaction().getLastCompactionSucceedTimestamp());
        });
        s.step("subscription", () -> {
            var one = s.admin.topics().getStats(topic, true, true, true).getSubscriptions().get("s");
            return List.of(one.getMsgBacklog(), one.getMsgBacklogNoDelayed(), one.isBlockedSubscriptionOnUnackedMsgs(), one.getMsgDelayed(),
                one.getUnackedMessages(), one.getType(), one.getMsgOutCounter(), one.isDurable(), one.isReplicated(),
                one.isAllowOutOfOrderDelivery(), one.getConsumersAfterMarkDeletePosition().size(),
                one.getNonContiguousDeletedMessagesRanges(), one.getLastConsumedTimestamp() > 0, one.getLastAckedTimestamp() > 0);
        });
        s.step("consumer", () -> {
            var one = s.admin.topics().getStats(topic).getSubscriptions().get("s").getConsumers().get(0);
            return List.of(one.getConsumerName(), one.getAvailablePermits(), one.getUnackedMessages(), one.getMsgOutCounter(),
                one.isBlockedConsumerOnUnackedMsgs(), one.getAvgMessagesPerEntry(), one.getClientVersion().replaceAll("-v.*", ""));
        });
        s.step("internal", () -> {
            var one = s.admin.topics().getInternalStats(topic);
            return List.of(one.entriesAddedCounter, one.numberOfEntries, one.totalSize > 0, one.state, one.ledgers.size(),
                one.cursors.get("s").state, one.cursors.get("s").messagesConsumedCounter, one.waitingCursorsCount, one.pendingAddEntriesCount);
        });
        s.step("namespace", () -> new TreeSet<>(s.admin.namespaces().getTopics(s.namespace)));
    }

    private static void brokers(Scenario s) throws Exception {
        s.step("clusters", () -> s.admin.clusters().getClusters());
        s.step("cluster", () -> s.admin.clusters().getCluster("standalone").getBrokerServiceUrl() != null);
        s.step("an absent cluster", () -> s.admin.clusters().getCluster("mars"));
        s.step("brokers", () -> s.admin.brokers().getActiveBrokers().size());
        s.step("of an absent cluster", () -> s.admin.brokers().getActiveBrokers("mars"));
        s.run("health", () -> s.admin.brokers().healthcheck());
        s.step("leader", () -> s.admin.brokers().getLeaderBroker().getServiceUrl().startsWith("http"));
        s.run("backlog check", () -> s.admin.brokers().backlogQuotaCheck());
        s.step("own namespaces", () -> s.admin.brokers().getActiveBrokers().stream().map(one -> {
            try {
                return s.admin.brokers().getOwnedNamespaces("standalone", one).isEmpty();
            } catch (Exception error) {
                return Scenario.failure(error);
            }
        }).toList());
        s.run("an unknown setting", () -> s.admin.brokers().updateDynamicConfiguration("nonsense", "1"));
        s.step("metrics", () -> s.admin.brokerStats().getMetrics().isEmpty());
        s.step("mbeans", () -> s.admin.brokerStats().getMBeans() != null);
        s.step("topics", () -> s.admin.brokerStats().getTopics() != null);
        s.step("load report", () -> s.admin.brokerStats().getLoadReport() != null);
        s.step("failure domains", () -> s.admin.clusters().getFailureDomains("standalone"));
        s.step("isolation policies", () -> s.admin.clusters().getNamespaceIsolationPolicies("standalone"));
        s.step("resource quotas", () -> s.admin.resourceQuotas().getDefaultResourceQuota().getMsgRateIn());
        s.step("resource groups", () -> s.admin.resourcegroups().getResourceGroups());
        s.step("functions", () -> s.admin.functions().getFunctions("public", "default"));
        s.step("sources", () -> s.admin.sources().listSources("public", "default"));
        s.step("transactions", () -> s.admin.transactions().getCoordinatorStats());
        s.step("packages", () -> s.admin.packages().listPackages("function", "public/default"));
        s.step("worker", () -> s.admin.worker().getCluster());
        s.step("bookies", () -> s.admin.bookies().getBookies().getBookies().size() <= 1);
        s.step("proxy", () -> s.admin.proxyStats() != null);
    }
}
