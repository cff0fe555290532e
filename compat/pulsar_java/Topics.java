// Topics while clients use them: growth, unloading, deletion, compaction, non-persistent ones.

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.admin.LongRunningProcessStatus;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionType;

final class Topics {
    static void register(Map<String, Scenario.Story> stories) {
        stories.put("partition-growth", Topics::growth);
        stories.put("unload", Topics::unload);
        stories.put("deletion", Topics::deletion);
        stories.put("compaction", Topics::compaction);
        stories.put("non-persistent", Topics::nonPersistent);
        stories.put("no-broker", Topics::noBroker);
    }

    private static void growth(Scenario s) throws Exception {
        String topic = s.topic("t");
        s.admin.topics().createPartitionedTopic(topic, 2);
        Producer<String> producer = s.keep(s.producing(topic).autoUpdatePartitionsInterval(1, TimeUnit.SECONDS).create());
        Consumer<String> consumer = s.keep(s.consuming(topic).autoUpdatePartitionsInterval(1, TimeUnit.SECONDS).subscribe());
        s.send(producer, "m", 4);
        s.say("received", s.take(consumer, 4).size());
        s.step("partitions", () -> s.client.getPartitionsForTopic(topic).get());
        s.run("grow to 4", () -> s.admin.topics().updatePartitionedTopic(topic, 4));
        s.run("shrink to 3", () -> s.admin.topics().updatePartitionedTopic(topic, 3));
        s.run("create again", () -> s.admin.topics().createPartitionedTopic(topic, 5));
        s.step("partitions then", () -> s.client.getPartitionsForTopic(topic).get());
        TreeSet<Integer> used = new TreeSet<>();
        int sent = 0;
        for (int round = 0; round < 50 && used.size() < 4; round++) {
            for (MessageId id : s.send(producer, "n", 4)) {
                used.add(((org.apache.pulsar.client.api.MessageIdAdv) id).getPartitionIndex());
                sent++;
            }
            Thread.sleep(100);
        }
        s.say("the producer uses", used);
        s.say("the consumer gets all", s.take(consumer, sent).size() == sent);
        s.step("stats", () -> {
            var found = s.admin.topics().getPartitionedStats(topic, true);
            return found.getMetadata().partitions + " " + new TreeSet<>(found.getPartitions().keySet()) + " "
                + found.getSubscriptions().get("s").getMsgBacklog();
        });
    }

    private static void unload(Scenario s) throws Exception {
        String topic = s.topic("t");
        Producer<String> producer = s.producer(topic);
        for (SubscriptionType type : SubscriptionType.values()) {
            s.keep(s.consuming(topic).subscriptionName(type.name()).subscriptionType(type).subscribe());
        }
        Consumer<String> consumer = s.consumer(topic, SubscriptionType.Shared);
        List<CompletableFuture<MessageId>> sent = new ArrayList<>();
        for (int number = 0; number < 300; number++) {
            sent.add(producer.sendAsync("m" + number));
            if (number % 100 == 50) {
                s.run("unload", () -> s.admin.topics().unload(topic));
            }
        }
        for (CompletableFuture<MessageId> one : sent) {
            one.get(20, TimeUnit.SECONDS);
        }
        TreeSet<String> seen = new TreeSet<>();
        for (String text : Scenario.texts(Scenario.until(() -> s.receiveAll(consumer), found -> !found.isEmpty()))) {
            seen.add(text);
        }
        s.receiveAll(consumer).forEach(one -> seen.add(one.getValue()));
        s.say("received", seen.size());
        s.run("unload the namespace", () -> s.admin.namespaces().unload(s.namespace));
        s.step("send then", () -> producer.send("last") != null);
        s.step("connected", () -> Scenario.until(consumer::isConnected, yes -> yes));
    }

    private static void deletion(Scenario s) throws Exception {
        String topic = s.topic("t");
        Producer<String> producer = s.producer(topic);
        Consumer<String> consumer = s.consumer(topic, SubscriptionType.Exclusive);
        s.send(producer, "m", 2);
        s.run("delete in use", () -> s.admin.topics().delete(topic));
        s.run("delete with force", () -> s.admin.topics().delete(topic, true));
        s.step("the producer makes it again", () -> Scenario.place(producer.send("n")));
        s.step("the consumer gets what is new", () -> Scenario.until(() -> s.receiveAll(consumer).stream()
            .map(one -> one.getValue()).filter("n"::equals).toList(), found -> !found.isEmpty()));
        producer.close();
        consumer.close();
        s.run("delete with a subscription", () -> s.admin.topics().delete(topic));
        s.run("delete an absent one", () -> s.admin.topics().delete(s.topic("absent")));
        s.run("delete an absent one with force", () -> s.admin.topics().delete(s.topic("absent"), true));
    }

    private static void compaction(Scenario s) throws Exception {
        String topic = s.topic("t");
        s.consumer(topic, SubscriptionType.Exclusive).close();
        Producer<String> producer = s.producer(topic);
        for (int number = 0; number < 9; number++) {
            producer.newMessage().key("k" + number % 3).value("m" + number).send();
        }
        producer.newMessage().key("k1").value(null).send();
        producer.newMessage().value("no key").send();
        try (Producer<String> batching = s.client.newProducer(Schema.STRING).topic(topic)
            .batchingMaxPublishDelay(1, TimeUnit.HOURS).create()) {
            for (int number = 0; number < 4; number++) {
                batching.newMessage().key("b" + number % 2).value("b" + number).sendAsync();
            }
            batching.flush();
        }
        s.step("status before", () -> s.admin.topics().compactionStatus(topic).status);
        s.run("compact", () -> s.admin.topics().triggerCompaction(topic));
        s.step("status", () -> Scenario.until(() -> s.admin.topics().compactionStatus(topic).status,
            found -> found != LongRunningProcessStatus.Status.RUNNING));
        producer.newMessage().key("k2").value("after").send();
        Consumer<String> compacted = s.open("compacted", () -> s.consuming(topic).subscriptionName("c").readCompacted(true).subscribe());
        for (var message : s.receiveAll(compacted)) {
            s.say("received", message.getKey() + " " + message.getValue() + " at " + Scenario.place(message.getMessageId()));
        }
        s.say("not compacted", s.receiveAll(s.consumer(topic, SubscriptionType.Exclusive)).size());
        s.open("compacted on Shared", () -> s.consuming(topic).subscriptionName("x").readCompacted(true)
            .subscriptionType(SubscriptionType.Shared).subscribe());
        s.open("compacted on non-persistent", () -> s.consuming(s.fleeting("n")).readCompacted(true).subscribe());
        s.step("reader", () -> s.readAll(s.keep(s.client.newReader(Schema.STRING).topic(topic).readCompacted(true)
            .startMessageId(MessageId.earliest).create())));
    }

    private static void nonPersistent(Scenario s) throws Exception {
        String topic = s.fleeting("t");
        Producer<String> producer = s.open("producer", () -> s.producing(topic).create());
        s.step("without consumers", () -> Scenario.place(producer.send("lost")));
        Consumer<String> one = s.open("consumer", () -> s.consuming(topic).subscriptionType(SubscriptionType.Shared).subscribe());
        s.step("sent", () -> Scenario.places(s.send(producer, "m", 3)));
        s.say("received", s.receiveAll(one).stream().map(Scenario::show).toList());
        s.run("seek", () -> one.seek(MessageId.earliest));
        s.step("last ids", one::getLastMessageIds);
        s.run("negative", () -> one.negativeAcknowledge(MessageId.earliest));
        s.open("reader", () -> s.client.newReader().topic(topic).startMessageId(MessageId.earliest).create());
        s.open("exclusive producer", () -> s.producing(s.fleeting("e"))
            .accessMode(org.apache.pulsar.client.api.ProducerAccessMode.Exclusive).create());
        s.step("subscriptions", () -> s.admin.topics().getSubscriptions(topic).stream().filter("s"::equals).toList());
        s.run("terminate", () -> s.admin.topics().terminateTopic(topic));
        s.run("unsubscribe", one::unsubscribe);
        s.admin.topics().createPartitionedTopic(s.fleeting("p"), 2);
        Consumer<String> parts = s.open("partitions", () -> s.consuming(s.fleeting("p")).subscribe());
        Producer<String> spread = s.open("producer of partitions", () -> s.producing(s.fleeting("p")).create());
        s.send(spread, "m", 4);
        s.say("received of partitions", Scenario.texts(s.receiveAll(parts)).stream().sorted().toList());
        s.step("stats", () -> {
            var stats = s.admin.topics().getStats(topic);
            return stats.getMsgInCounter() + " " + stats.getPublishers().size() + " " + stats.getClass().getSimpleName();
        });
    }

    private static void noBroker(Scenario s) throws Exception {
        s.step("nothing listens", () -> {
            try (PulsarClient client = PulsarClient.builder().serviceUrl("pulsar://127.0.0.1:1").operationTimeout(2, TimeUnit.SECONDS)
                .lookupTimeout(2, TimeUnit.SECONDS).build()) {
                return client.newProducer().topic(s.topic("t")).create();
            }
        });
        s.step("an unknown listener", () -> {
            try (PulsarClient client = PulsarClient.builder().serviceUrl(s.serviceUrl).listenerName("absent")
                .operationTimeout(2, TimeUnit.SECONDS).lookupTimeout(2, TimeUnit.SECONDS).build()) {
                return client.newProducer().topic(s.topic("t")).create();
            }
        });
        s.step("a token where nobody is asked for one", () -> {
            try (PulsarClient client = PulsarClient.builder().serviceUrl(s.serviceUrl)
                .authentication(org.apache.pulsar.client.api.AuthenticationFactory.token("x")).build()) {
                return Scenario.place(client.newProducer(Schema.STRING).topic(s.topic("t")).create().send("m"));
            }
        });
        s.step("over HTTP lookup", () -> {
            try (PulsarClient client = PulsarClient.builder().serviceUrl(s.admin.getServiceUrl()).build();
                Producer<String> producer = client.newProducer(Schema.STRING).topic(s.topic("t")).create();
                Consumer<String> consumer = client.newConsumer(Schema.STRING).topicsPattern(s.namespace + "/.*")
                    .subscriptionName("h").subscribe()) {
                producer.send("by HTTP");
                return Scenario.texts(s.receive(consumer, 1));
            }
        });
    }
}
