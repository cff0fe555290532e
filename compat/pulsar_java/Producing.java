// Producers: who may produce, names, epochs, deduplication.

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerAccessMode;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.impl.ProducerBuilderImpl;
import org.apache.pulsar.common.policies.data.BacklogQuota;

final class Producing {
    static void register(Map<String, Scenario.Story> stories) {
        for (ProducerAccessMode first : ProducerAccessMode.values()) {
            stories.put("access-modes-" + first.name().toLowerCase(), s -> accessModes(s, first));
        }
        stories.put("producer-names", Producing::names);
        stories.put("deduplication", Producing::deduplication);
        stories.put("deduplicated-batches", Producing::deduplicatedBatches);
        stories.put("producer-limits", Producing::limits);
        stories.put("terminated-topic", Producing::terminated);
        stories.put("backlog-quota", Producing::backlogQuota);
        stories.put("initial-subscription", Producing::initialSubscription);
        stories.put("absent-places", Producing::absentPlaces);
        stories.put("transactions-off", Producing::transactionsOff);
    }

    private static void accessModes(Scenario s, ProducerAccessMode first) throws Exception {
        for (ProducerAccessMode second : ProducerAccessMode.values()) {
            String topic = s.topic(second.name());
            String label = second.name();
            Producer<String> holder = s.open(label + " after it: first", () -> s.producing(topic).accessMode(first).create());
            CompletableFuture<Producer<String>> coming = s.producing(topic).accessMode(second).createAsync();
            s.say(label + " comes", s.state(coming, 1500));
            s.run(label + ", the first one sends", () -> holder.send("one"));
            s.run(label + ", the first one closes", holder::close);
            s.say(label + " then", s.state(coming, 3000));
            if (coming.isDone() && !coming.isCompletedExceptionally()) {
                Producer<String> other = s.keep(coming.get());
                s.step(label + " sends", () -> Scenario.place(other.send("two")));
            }
        }
    }

    private static void names(Scenario s) throws Exception {
        String topic = s.topic("t");
        Producer<String> one = s.producing(topic).producerName("p").create();
        s.say("last sequence", one.getLastSequenceId());
        s.open("the same name", () -> s.producing(topic).producerName("p").create());
        s.send(one, "m", 3);
        s.say("last sequence after three", one.getLastSequenceId());
        s.run("closed", one::close);
        s.step("send when closed", () -> one.send("x"));
        Producer<String> again = s.open("the name again", () -> s.producing(topic).producerName("p").create());
        s.say("last sequence without deduplication", again.getLastSequenceId());
        Producer<String> from = s.open("from a sequence", () -> s.producing(topic).producerName("q").initialSequenceId(41).create());
        from.send("y");
        s.say("sequence after one more", from.getLastSequenceId());
        Producer<String> unnamed = s.producer(topic);
        s.say("generated name", unnamed.getProducerName().replaceAll("\\d+", "N"));
        s.step("the topic's producers", () -> s.admin.topics().getStats(topic).getPublishers().stream()
            .map(p -> p.getProducerName().replaceAll("\\d+", "N") + " " + p.getAccessMode() + " "
                + p.getClientVersion().replaceAll("-v.*", "") + " " + p.isSupportsPartialProducer())
            .sorted().toList());
    }

    private static void deduplication(Scenario s) throws Exception {
        s.admin.namespaces().setDeduplicationStatus(s.namespace, true);
        String topic = s.topic("t");
        try (Producer<String> producer = s.producing(topic).producerName("p").sendTimeout(0, TimeUnit.SECONDS).create()) {
            for (long sequence : new long[] {0, 1, 1, 0, 5, 4, 6}) {
                s.step("sequence " + sequence, () ->
                    Scenario.place(producer.newMessage().sequenceId(sequence).value("m" + sequence).send()));
            }
        }
        Producer<String> again = s.keep(s.producing(topic).producerName("p").sendTimeout(0, TimeUnit.SECONDS).create());
        s.say("last sequence of a new producer", again.getLastSequenceId());
        s.step("its next message", () -> Scenario.place(again.send("next")));
        s.run("unload", () -> s.admin.topics().unload(topic));
        s.step("an old sequence after unload", () ->
            Scenario.place(again.newMessage().sequenceId(3).value("old").send()));
        s.say("stored", Scenario.texts(s.receiveAll(s.consumer(topic, SubscriptionType.Exclusive))));
        s.step("deduplication in stats", () -> s.admin.topics().getStats(topic).getDeduplicationStatus());
        s.step("internal cursors", () -> s.admin.topics().getInternalStats(topic).cursors.keySet().stream().sorted().toList());
    }

    private static void deduplicatedBatches(Scenario s) throws Exception {
        s.admin.namespaces().setDeduplicationStatus(s.namespace, true);
        String topic = s.topic("t");
        Producer<String> producer = s.keep(s.client.newProducer(Schema.STRING).topic(topic).producerName("p")
            .sendTimeout(0, TimeUnit.SECONDS).batchingMaxPublishDelay(1, TimeUnit.HOURS).create());
        for (long[] sequences : new long[][] {{0, 1, 2}, {3, 4}, {2, 3}, {4, 5}}) {
            List<CompletableFuture<MessageId>> sent = new ArrayList<>();
            for (long sequence : sequences) {
                sent.add(producer.newMessage().sequenceId(sequence).value("m" + sequence).sendAsync());
            }
            producer.flushAsync();
            for (CompletableFuture<MessageId> one : sent) {
                s.say("batch from " + sequences[0], s.state(one.thenApply(Scenario::place), 3000));
            }
        }
        s.say("stored", Scenario.texts(s.receiveAll(s.consumer(topic, SubscriptionType.Exclusive))));
    }

    private static void limits(Scenario s) throws Exception {
        String topic = s.topic("t");
        s.admin.topics().createNonPartitionedTopic(topic);
        s.admin.topicPolicies().setMaxProducers(topic, 2);
        Scenario.until(() -> s.admin.topicPolicies().getMaxProducers(topic, true), n -> Integer.valueOf(2).equals(n));
        for (int number = 1; number <= 3; number++) {
            s.open("producer " + number, () -> s.producing(topic).create());
        }
        byte[] large = new byte[6 << 20];
        s.step("a message of 6 MiB", () -> s.keep(s.client.newProducer().topic(s.topic("large"))
            .enableBatching(false).create()).send(large));
        s.admin.topics().createNonPartitionedTopic(s.topic("small"));
        s.admin.topicPolicies().setMaxMessageSize(s.topic("small"), 1000);
        Scenario.until(() -> s.admin.topicPolicies().getMaxMessageSize(s.topic("small")), n -> n != null);
        Producer<byte[]> small = s.keep(s.client.newProducer().topic(s.topic("small"))
            .enableBatching(false).sendTimeout(3, TimeUnit.SECONDS).create());
        s.step("900 bytes where 1000 are allowed", () -> Scenario.place(small.send(new byte[900])));
        s.step("2000 bytes where 1000 are allowed", () -> Scenario.place(small.send(new byte[2000])));
    }

    private static void terminated(Scenario s) throws Exception {
        String topic = s.topic("t");
        Producer<String> producer = s.producer(topic);
        s.send(producer, "m", 2);
        s.step("terminate", () -> Scenario.place(s.admin.topics().terminateTopic(topic)));
        s.step("send", () -> producer.send("late"));
        s.open("another producer", () -> s.producing(topic).create());
        var consumer = s.consumer(topic, SubscriptionType.Exclusive);
        s.say("received", s.take(consumer, 2));
        s.step("the end is seen", () -> Scenario.until(consumer::hasReachedEndOfTopic, end -> end));
        s.step("terminate again", () -> Scenario.place(s.admin.topics().terminateTopic(topic)));
        s.step("terminate an absent one", () -> s.admin.topics().terminateTopic(s.topic("absent")));
    }

    private static void backlogQuota(Scenario s) throws Exception {
        for (BacklogQuota.RetentionPolicy policy : BacklogQuota.RetentionPolicy.values()) {
            String topic = s.topic(policy.name());
            s.consumer(topic, SubscriptionType.Exclusive).close();
            try (Producer<byte[]> producer = s.client.newProducer().topic(topic).create()) {
                producer.send(new byte[20_000]);
                producer.send(new byte[20_000]);
            }
            s.run(policy + " set", () -> s.admin.topicPolicies().setBacklogQuota(topic,
                BacklogQuota.builder().limitSize(10_000).retentionPolicy(policy).build()));
            Scenario.until(() -> s.admin.topicPolicies().getBacklogQuotaMap(topic), map -> !map.isEmpty());
            s.step(policy + " is the quota", () -> s.admin.topicPolicies().getBacklogQuotaMap(topic));
            ProducerBuilder<byte[]> late = s.client.newProducer().topic(topic).sendTimeout(2, TimeUnit.SECONDS);
            if (policy == BacklogQuota.RetentionPolicy.consumer_backlog_eviction) {
                s.open(policy + ": a producer", late::create);
            } else {
                s.say(policy + ": a producer", s.state(late.createAsync(), 4000));
            }
        }
    }

    private static void initialSubscription(Scenario s) throws Exception {
        String topic = s.topic("t");
        ProducerBuilder<String> builder = s.producing(topic);
        ((ProducerBuilderImpl<String>) builder).initialSubscriptionName("first");
        Producer<String> producer = s.open("producer", builder::create);
        s.send(producer, "m", 2);
        s.step("subscriptions", () -> s.admin.topics().getSubscriptions(topic));
        s.say("received", s.take(s.keep(s.consuming(topic).subscriptionName("first").subscribe()), 2));
    }

    private static void absentPlaces(Scenario s) throws Exception {
        String tenant = s.namespace.substring(0, s.namespace.indexOf('/'));
        for (String topic : List.of("persistent://" + tenant + "/absent/t", "persistent://" + tenant + "-absent/n/t",
            "persistent://" + s.namespace + "/x-partition-0")) {
            s.open("producer of " + topic, () -> s.producing(topic).create());
            s.open("consumer of " + topic, () -> s.consuming(topic).subscribe());
            s.step("partitions of " + topic, () -> s.client.getPartitionsForTopic(topic).get());
            s.open("reader of " + topic, () -> s.client.newReader().topic(topic).startMessageId(MessageId.earliest).create());
        }
        s.admin.topics().createPartitionedTopic(s.topic("p"), 2);
        s.open("a partition beyond the count", () -> s.producing(s.topic("p-partition-7")).create());
        s.open("a partition", () -> s.producing(s.topic("p-partition-1")).create());
        s.admin.namespaces().setAutoTopicCreation(s.namespace,
            org.apache.pulsar.common.policies.data.AutoTopicCreationOverride.builder().allowAutoTopicCreation(false).build());
        s.open("a producer where topics are not made", () -> s.producing(s.topic("no")).create());
        s.open("a consumer where topics are not made", () -> s.consuming(s.topic("no")).subscribe());
        s.step("partitions where topics are not made", () -> s.client.getPartitionsForTopic(s.topic("no")).get());
        s.admin.namespaces().setAutoSubscriptionCreation(s.namespace,
            org.apache.pulsar.common.policies.data.AutoSubscriptionCreationOverride.builder()
                .allowAutoSubscriptionCreation(false).build());
        s.admin.topics().createNonPartitionedTopic(s.topic("yes"));
        s.open("a consumer where subscriptions are not made", () -> s.consuming(s.topic("yes")).subscribe());
        s.open("a reader there", () -> s.client.newReader().topic(s.topic("yes")).startMessageId(MessageId.earliest).create());
    }

    private static void transactionsOff(Scenario s) throws Exception {
        s.step("a client with transactions", () -> {
            try (var client = org.apache.pulsar.client.api.PulsarClient.builder().serviceUrl(s.serviceUrl)
                .operationTimeout(4, TimeUnit.SECONDS).enableTransaction(true).build()) {
                return client.newTransaction().build().get(4, TimeUnit.SECONDS);
            }
        });
        s.step("a client without transactions", () -> s.client.newTransaction().build().get());
    }
}
