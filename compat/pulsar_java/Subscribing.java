// Subscriptions: which consumers may share one, and which of them gets a message.

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.ConsumerEventListener;
import org.apache.pulsar.client.api.KeySharedPolicy;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.Range;
import org.apache.pulsar.client.api.RegexSubscriptionMode;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionMode;
import org.apache.pulsar.client.api.SubscriptionType;

final class Subscribing {
    static void register(Map<String, Scenario.Story> stories) {
        stories.put("subscription-types", Subscribing::types);
        stories.put("shared", Subscribing::shared);
        stories.put("priority", Subscribing::priority);
        stories.put("failover", Subscribing::failover);
        stories.put("failover-partitions", Subscribing::failoverPartitions);
        stories.put("key-shared", Subscribing::keyShared);
        stories.put("key-shared-changes", Subscribing::keySharedChanges);
        stories.put("key-shared-sticky", Subscribing::sticky);
        stories.put("pattern", Subscribing::pattern);
        stories.put("pattern-domains", Subscribing::patternDomains);
        stories.put("many-topics", Subscribing::manyTopics);
        stories.put("unsubscribe", Subscribing::unsubscribe);
        stories.put("subscription-properties", Subscribing::properties);
        stories.put("non-durable", Subscribing::nonDurable);
        stories.put("consumer-limits", Subscribing::limits);
    }

    private static void types(Scenario s) throws Exception {
        for (SubscriptionType first : SubscriptionType.values()) {
            for (SubscriptionType second : SubscriptionType.values()) {
                String topic = s.topic(first + "-" + second);
                Consumer<String> holder = s.consumer(topic, first);
                s.open(first + " then " + second, () -> s.consuming(topic).subscriptionType(second).subscribe());
                holder.close();
                s.open(first + " closed, then " + second, () -> s.consuming(topic).subscriptionType(second).subscribe());
            }
        }
    }

    private static void shared(Scenario s) throws Exception {
        String topic = s.topic("t");
        List<Consumer<String>> consumers = new ArrayList<>();
        for (int number = 0; number < 3; number++) {
            consumers.add(s.keep(s.consuming(topic).consumerName("c" + number).subscriptionType(SubscriptionType.Shared).subscribe()));
        }
        s.send(s.producer(topic), "m", 60);
        Set<String> all = new TreeSet<>();
        int sum = 0;
        for (Consumer<String> consumer : consumers) {
            List<Message<String>> found = s.receiveAll(consumer);
            s.say(consumer.getConsumerName() + " has a share", !found.isEmpty());
            all.addAll(Scenario.texts(found));
            sum += found.size();
        }
        s.say("each once", all.size() + " of " + sum);
        consumers.get(0).close();
        consumers.get(1).close();
        List<Message<String>> rest = s.receiveAll(consumers.get(2));
        s.say("what was given back", rest.stream().allMatch(one -> one.getRedeliveryCount() == 0) + " " + !rest.isEmpty());
    }

    private static void priority(Scenario s) throws Exception {
        String topic = s.topic("t");
        ConsumerBuilder<String> builder = s.consuming(topic).subscriptionType(SubscriptionType.Shared).receiverQueueSize(10);
        Consumer<String> low = s.keep(builder.clone().priorityLevel(1).subscribe());
        Consumer<String> high = s.keep(builder.clone().priorityLevel(0).subscribe());
        Producer<String> producer = s.producer(topic);
        s.send(producer, "m", 8);
        s.say("high", Scenario.texts(s.receiveAll(high)));
        s.say("low", Scenario.texts(s.receiveAll(low)));
        high.pause();
        s.send(producer, "n", 20);
        s.say("with the high one paused, low", s.receiveAll(low).size() >= 8);
    }

    private static ConsumerEventListener heard(ConcurrentLinkedQueue<String> events) {
        return new ConsumerEventListener() {
            @Override
            public void becameActive(Consumer<?> consumer, int partition) {
                events.add(consumer.getConsumerName() + " active " + partition);
            }

            @Override
            public void becameInactive(Consumer<?> consumer, int partition) {
                events.add(consumer.getConsumerName() + " inactive " + partition);
            }
        };
    }

    private static void failover(Scenario s) throws Exception {
        String topic = s.topic("t");
        ConcurrentLinkedQueue<String> events = new ConcurrentLinkedQueue<>();
        Map<String, Consumer<String>> consumers = new TreeMap<>();
        Producer<String> producer = s.producer(topic);
        for (String name : List.of("b", "a", "c")) {
            consumers.put(name, s.keep(s.consuming(topic).consumerName(name).subscriptionType(SubscriptionType.Failover)
                .consumerEventListener(heard(events)).subscribe()));
            Thread.sleep(2500);
            s.say("after " + name, List.copyOf(events));
            events.clear();
            s.send(producer, "to-" + name, 2);
        }
        for (int number = 0; number < 2; number++) {
            for (String name : List.copyOf(consumers.keySet())) {
                List<Message<String>> found = s.receiveAll(consumers.get(name));
                s.say(name + " has", Scenario.counted(found));
                if (!found.isEmpty()) {
                    consumers.get(name).acknowledge(found.get(0));
                    consumers.remove(name).close();
                }
            }
            Thread.sleep(1500);
            s.say("events", events.stream().sorted().toList());
            events.clear();
        }
        Consumer<String> important = s.keep(s.consuming(topic).consumerName("z").subscriptionType(SubscriptionType.Failover)
            .priorityLevel(-1 + 1).consumerEventListener(heard(events)).subscribe());
        s.say("connected", important.isConnected());
    }

    private static void failoverPartitions(Scenario s) throws Exception {
        String topic = s.topic("t");
        s.admin.topics().createPartitionedTopic(topic, 4);
        Map<String, Consumer<String>> consumers = new TreeMap<>();
        for (String name : List.of("a", "b", "c")) {
            consumers.put(name, s.keep(s.consuming(topic).consumerName(name).subscriptionType(SubscriptionType.Failover).subscribe()));
        }
        Thread.sleep(2500);
        s.send(s.producer(topic), "m", 12);
        Set<String> all = new TreeSet<>();
        for (Consumer<String> consumer : consumers.values()) {
            List<Message<String>> found = s.receiveAll(consumer);
            all.addAll(Scenario.texts(found));
            s.say(consumer.getConsumerName(), found.stream().map(m -> m.getTopicName().replaceAll(".*-", "")).collect(
                java.util.stream.Collectors.toCollection(TreeSet::new)));
        }
        s.say("all", all.size());
    }

    private static Map<String, Integer> publishKeys(Producer<String> producer, int rounds, int keys, int from) throws Exception {
        Map<String, Integer> counts = new TreeMap<>();
        for (int number = 0; number < rounds * keys; number++) {
            String key = "key" + number % keys;
            producer.newMessage().key(key).value(String.valueOf(from + number)).send();
            counts.merge(key, 1, Integer::sum);
        }
        return counts;
    }

    /** The keys that a consumer got; "out of order" if a key's messages were. */
    private static String keysOf(List<Message<String>> messages) {
        Map<String, Integer> last = new TreeMap<>();
        boolean ordered = true;
        for (Message<String> message : messages) {
            int number = Integer.parseInt(message.getValue());
            Integer before = last.put(message.getKey(), number);
            ordered &= before == null || before < number;
        }
        return last.keySet() + (ordered ? "" : " out of order") + " " + messages.size();
    }

    private static void keyShared(Scenario s) throws Exception {
        for (boolean outOfOrder : new boolean[] {false, true}) {
            String topic = s.topic("out-of-order-" + outOfOrder);
            List<Consumer<String>> consumers = new ArrayList<>();
            for (String name : List.of("one", "two", "three")) {
                consumers.add(s.keep(s.consuming(topic).consumerName(name).subscriptionType(SubscriptionType.Key_Shared)
                    .keySharedPolicy(KeySharedPolicy.autoSplitHashRange().setAllowOutOfOrderDelivery(outOfOrder)).subscribe()));
            }
            Producer<String> producer = s.producer(topic);
            publishKeys(producer, 5, 16, 0);
            producer.newMessage().key("key0").orderingKey("another".getBytes()).value("1000").send();
            producer.newMessage().value("1001").send();
            for (Consumer<String> consumer : consumers) {
                List<Message<String>> found = s.receiveAll(consumer);
                found.removeIf(message -> message.getKey() == null);
                s.say(consumer.getConsumerName(), keysOf(found));
            }
            s.step("in stats", () -> {
                var found = s.admin.topics().getStats(topic).getSubscriptions().get("s");
                return found.getKeySharedMode() + " " + found.isAllowOutOfOrderDelivery() + " " + found.getType();
            });
        }
    }

    private static void keySharedChanges(Scenario s) throws Exception {
        String topic = s.topic("t");
        ConsumerBuilder<String> builder = s.consuming(topic).subscriptionType(SubscriptionType.Key_Shared);
        Consumer<String> one = s.keep(builder.clone().consumerName("one").subscribe());
        Producer<String> producer = s.producer(topic);
        publishKeys(producer, 2, 8, 0);
        List<Message<String>> held = s.receive(one, 16);
        Consumer<String> two = s.keep(builder.clone().consumerName("two").subscribe());
        publishKeys(producer, 2, 8, 100);
        s.say("the second one waits for the first", keysOf(s.receiveAll(two)));
        s.say("the first goes on with its own keys", keysOf(s.receiveAll(one)));
        for (Message<String> message : held) {
            one.acknowledge(message);
        }
        s.say("when it has acknowledged, the second", keysOf(s.receiveAll(two)));
        one.close();
        List<Message<String>> rest = s.receiveAll(two);
        s.say("when it has closed, the second", keysOf(rest));
    }

    private static void sticky(Scenario s) throws Exception {
        String topic = s.topic("t");
        ConsumerBuilder<String> builder = s.consuming(topic).subscriptionType(SubscriptionType.Key_Shared);
        Consumer<String> low = s.open("low half", () -> builder.clone().consumerName("low")
            .keySharedPolicy(KeySharedPolicy.stickyHashRange().ranges(Range.of(0, 32767))).subscribe());
        s.open("overlap", () -> builder.clone()
            .keySharedPolicy(KeySharedPolicy.stickyHashRange().ranges(Range.of(30000, 40000))).subscribe());
        s.open("auto split beside sticky", () -> builder.clone()
            .keySharedPolicy(KeySharedPolicy.autoSplitHashRange()).subscribe());
        s.open("out of order beside in order", () -> builder.clone().keySharedPolicy(
            KeySharedPolicy.stickyHashRange().ranges(Range.of(40000, 40001)).setAllowOutOfOrderDelivery(true)).subscribe());
        s.open("too large", () -> builder.clone()
            .keySharedPolicy(KeySharedPolicy.stickyHashRange().ranges(Range.of(40000, 70000))).subscribe());
        Producer<String> producer = s.producer(topic);
        publishKeys(producer, 2, 12, 0);
        s.say("low", keysOf(s.receiveAll(low)));
        Consumer<String> high = s.open("high half in two", () -> builder.clone().consumerName("high")
            .keySharedPolicy(KeySharedPolicy.stickyHashRange().ranges(Range.of(32768, 50000), Range.of(50001, 65535))).subscribe());
        s.say("high", keysOf(s.receiveAll(high)));
        s.step("ranges in stats", () -> s.admin.topics().getStats(topic).getSubscriptions().get("s").getConsumers().stream()
            .map(one -> one.getConsumerName() + " " + one.getKeyHashRanges()).sorted().toList());
    }

    private static void pattern(Scenario s) throws Exception {
        for (String name : List.of("orders-1", "orders-2", "other")) {
            s.admin.topics().createNonPartitionedTopic(s.topic(name));
        }
        s.admin.topics().createPartitionedTopic(s.topic("orders-parts"), 2);
        Consumer<String> consumer = s.keep(s.client.newConsumer(org.apache.pulsar.client.api.Schema.STRING)
            .topicsPattern(Pattern.compile("persistent://" + s.namespace + "/orders-.*"))
            .subscriptionName("s").patternAutoDiscoveryPeriod(60, TimeUnit.SECONDS)
            .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe());
        for (String name : List.of("orders-1", "orders-2", "other", "orders-parts")) {
            s.producer(s.topic(name)).send(name);
        }
        s.say("received", Scenario.texts(s.receiveAll(consumer)).stream().sorted().toList());
        // A watcher tells of new topics at once; a look every 60 s would be too late.
        s.producer(s.topic("orders-3")).send("a new topic");
        s.say("received of a new topic", s.take(consumer, 1));
        s.admin.topics().createPartitionedTopic(s.topic("orders-late"), 2);
        s.producer(s.topic("orders-late")).send("new partitions");
        s.say("received of new partitions", s.take(consumer, 1));
        s.run("delete a topic", () -> s.admin.topics().delete(s.topic("orders-1"), true));
        s.producer(s.topic("orders-2")).send("after a deletion");
        s.say("received after a deletion", s.take(consumer, 1));
    }

    private static void patternDomains(Scenario s) throws Exception {
        s.producer(s.topic("x-1")).send("stored before");
        s.keep(s.producing(s.fleeting("x-2")).create());
        for (RegexSubscriptionMode mode : RegexSubscriptionMode.values()) {
            Consumer<String> consumer = s.keep(s.client.newConsumer(org.apache.pulsar.client.api.Schema.STRING)
                .topicsPattern(Pattern.compile(s.namespace + "/x-.*")).subscriptionTopicsMode(mode)
                .subscriptionName(mode.name()).subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe());
            s.producer(s.fleeting("x-2")).send("fleeting for " + mode);
            s.say(mode.name(), Scenario.texts(s.receiveAll(consumer)).stream().sorted().toList());
        }
    }

    private static void manyTopics(Scenario s) throws Exception {
        List<String> topics = List.of(s.topic("a"), s.topic("b"), s.topic("c"));
        s.admin.topics().createPartitionedTopic(s.topic("c"), 2);
        Consumer<String> consumer = s.keep(s.client.newConsumer(org.apache.pulsar.client.api.Schema.STRING).topics(topics)
            .subscriptionName("s").subscriptionType(SubscriptionType.Shared)
            .acknowledgmentGroupTime(0, TimeUnit.MILLISECONDS).subscribe());
        for (String topic : topics) {
            s.send(s.producer(topic), topic.substring(topic.length() - 1), 4);
        }
        List<Message<String>> found = s.receiveAll(consumer);
        s.say("received", found.stream().map(one -> one.getValue() + " of " + one.getTopicName().replaceAll(".*/|-partition-.*", "")).sorted().toList());
        for (Message<String> message : found.subList(0, 6)) {
            consumer.acknowledge(message);
        }
        consumer.redeliverUnacknowledgedMessages();
        s.say("redelivered", s.receiveAll(consumer).size());
        s.run("seek to the earliest", () -> consumer.seek(org.apache.pulsar.client.api.MessageId.earliest));
        s.say("received again", s.receiveAll(consumer).size());
        s.run("unsubscribe", consumer::unsubscribe);
        s.step("subscriptions", () -> s.admin.topics().getSubscriptions(s.topic("a")));
        s.open("an absent namespace among them", () -> s.client.newConsumer().topics(List.of(s.topic("a"),
            "persistent://" + s.namespace + "-absent/t")).subscriptionName("s").subscribe());
    }

    private static void unsubscribe(Scenario s) throws Exception {
        for (SubscriptionType type : List.of(SubscriptionType.Exclusive, SubscriptionType.Shared, SubscriptionType.Failover)) {
            for (boolean force : new boolean[] {false, true}) {
                String label = type + " with force " + force;
                String topic = s.topic(type + "-" + force);
                Consumer<String> one = s.consumer(topic, type);
                Consumer<String> two = type == SubscriptionType.Exclusive ? null : s.consumer(topic, type);
                s.run(label, () -> one.unsubscribe(force));
                // The other consumer comes back, and makes the subscription again.
                s.step(label + ": subscriptions", () -> Scenario.until(() -> s.admin.topics().getSubscriptions(topic),
                    found -> two == null || !found.isEmpty()));
                s.run(label + " again", () -> one.unsubscribe(force));
                if (two != null && !force) {
                    two.close();
                    s.run(type + " alone", one::unsubscribe);
                    s.step(type + ": subscriptions then", () -> s.admin.topics().getSubscriptions(topic));
                }
            }
        }
    }

    private static void properties(Scenario s) throws Exception {
        String topic = s.topic("t");
        s.open("with properties", () -> s.consuming(topic).subscriptionProperties(Map.of("a", "1", "b", "2"))
            .property("mine", "x").replicateSubscriptionState(true).subscribe());
        s.step("in stats", () -> {
            var found = s.admin.topics().getStats(topic).getSubscriptions().get("s");
            return new TreeMap<>(found.getSubscriptionProperties()) + " " + found.getConsumers().get(0).getMetadata()
                + " replicated " + found.isReplicated() + " durable " + found.isDurable();
        });
        s.step("over REST", () -> new TreeMap<>(s.admin.topics().getSubscriptionProperties(topic, "s")));
        s.run("changed", () -> s.admin.topics().updateSubscriptionProperties(topic, "s", Map.of("c", "3")));
        s.step("then", () -> s.admin.topics().getSubscriptionProperties(topic, "s"));
    }

    private static void nonDurable(Scenario s) throws Exception {
        String topic = s.topic("t");
        Producer<String> producer = s.producer(topic);
        s.send(producer, "m", 3);
        ConsumerBuilder<String> builder = s.consuming(topic).subscriptionMode(SubscriptionMode.NonDurable);
        Consumer<String> consumer = builder.subscribe();
        s.say("received", s.take(consumer, 3));
        s.step("durable", () -> s.admin.topics().getStats(topic).getSubscriptions().get("s").isDurable());
        s.open("a durable one of its name", () -> s.consuming(topic).subscribe());
        consumer.close();
        s.step("gone", () -> Scenario.until(() -> s.admin.topics().getSubscriptions(topic), List::isEmpty));
        Consumer<String> again = s.open("again", () -> builder.clone().subscribe());
        s.say("from the beginning", s.take(again, 3));
    }

    private static void limits(Scenario s) throws Exception {
        String topic = s.topic("t");
        s.admin.topics().createNonPartitionedTopic(topic);
        s.admin.topicPolicies().setMaxConsumers(topic, 2);
        s.admin.topicPolicies().setMaxSubscriptionsPerTopic(topic, 2);
        Scenario.until(() -> s.admin.topicPolicies().getMaxSubscriptionsPerTopic(topic), found -> found != null);
        for (int number = 1; number <= 3; number++) {
            s.open("consumer " + number, () -> s.consuming(topic).subscriptionType(SubscriptionType.Shared).subscribe());
        }
        s.close();
        for (int number = 1; number <= 3; number++) {
            String name = "s" + number;
            Consumer<String> one = s.open("subscription " + number, () -> s.consuming(topic).subscriptionName(name).subscribe());
            if (one != null) {
                one.close();
            }
        }
        s.admin.topicPolicies().setSubscriptionTypesEnabled(topic, Set.of(SubscriptionType.Shared));
        Scenario.until(() -> s.admin.topicPolicies().getSubscriptionTypesEnabled(topic), found -> !found.isEmpty());
        for (SubscriptionType type : SubscriptionType.values()) {
            s.open(type + " where only Shared may be", () -> s.consuming(topic).subscriptionName("s1").subscriptionType(type).subscribe());
        }
    }
}
