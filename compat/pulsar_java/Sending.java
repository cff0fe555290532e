// What is sent: batches, chunks, compression, encryption, delays, fields of messages, routing.

import java.nio.charset.StandardCharsets;
import java.security.KeyPair;
import java.security.KeyPairGenerator;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.BatcherBuilder;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerCryptoFailureAction;
import org.apache.pulsar.client.api.CryptoKeyReader;
import org.apache.pulsar.client.api.EncryptionKeyInfo;
import org.apache.pulsar.client.api.HashingScheme;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.MessageRoutingMode;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;

final class Sending {
    static void register(Map<String, Scenario.Story> stories) {
        stories.put("batches", Sending::batches);
        stories.put("key-based-batches", Sending::keyBasedBatches);
        stories.put("chunks", Sending::chunks);
        stories.put("chunks-shared", Sending::chunksShared);
        stories.put("compression", Sending::compression);
        stories.put("encryption", Sending::encryption);
        stories.put("delayed", Sending::delayed);
        stories.put("message-fields", Sending::fields);
        stories.put("routing", Sending::routing);
        stories.put("large-batches", Sending::largeBatches);
    }

    private static void batches(Scenario s) throws Exception {
        String topic = s.topic("t");
        Consumer<String> consumer = s.consumer(topic, SubscriptionType.Exclusive);
        Producer<String> producer = s.keep(s.client.newProducer(Schema.STRING).topic(topic).producerName("p")
            .batchingMaxMessages(5).batchingMaxPublishDelay(1, TimeUnit.HOURS).create());
        List<CompletableFuture<MessageId>> sent = new ArrayList<>();
        for (int number = 0; number < 12; number++) {
            sent.add(producer.newMessage().key("k" + number % 3).property("n", "" + number).value("m" + number).sendAsync());
        }
        producer.flush();
        for (CompletableFuture<MessageId> one : sent) {
            s.say("sent", Scenario.place(one.get()));
        }
        for (Message<String> message : s.receive(consumer, 12)) {
            s.say("received", Scenario.show(message));
        }
        s.step("stats", () -> {
            var stats = s.admin.topics().getStats(topic, true, true, true);
            var mine = stats.getSubscriptions().get("s");
            return List.of(stats.getMsgInCounter(), mine.getMsgBacklog(), mine.getUnackedMessages(),
                mine.getMsgOutCounter(), mine.getType(), mine.getConsumers().get(0).getAvailablePermits());
        });
    }

    private static void keyBasedBatches(Scenario s) throws Exception {
        String topic = s.topic("t");
        Producer<String> producer = s.keep(s.client.newProducer(Schema.STRING).topic(topic)
            .batcherBuilder(BatcherBuilder.KEY_BASED).batchingMaxPublishDelay(1, TimeUnit.HOURS).create());
        Consumer<String> one = s.keep(s.consuming(topic).subscriptionType(SubscriptionType.Key_Shared).consumerName("a").subscribe());
        Consumer<String> two = s.keep(s.consuming(topic).subscriptionType(SubscriptionType.Key_Shared).consumerName("b").subscribe());
        for (int number = 0; number < 24; number++) {
            producer.newMessage().key("k" + number % 4).value("m" + number).sendAsync();
        }
        producer.flush();
        for (Consumer<String> consumer : List.of(one, two)) {
            List<String> found = s.receiveAll(consumer).stream()
                .map(message -> message.getKey() + " " + message.getValue() + " at " + Scenario.place(message.getMessageId()))
                .toList();
            s.say(consumer.getConsumerName(), found);
        }
    }

    private static String large(int size) {
        StringBuilder text = new StringBuilder();
        for (int number = 0; text.length() < size; number++) {
            text.append(number).append(' ');
        }
        return text.substring(0, size);
    }

    private static String sum(Message<String> message) {
        return message.getValue().length() + " bytes, hash " + message.getValue().hashCode() + " at "
            + Scenario.place(message.getMessageId()) + " index " + message.getIndex().orElse(null)
            + " again " + message.getRedeliveryCount();
    }

    private static void chunks(Scenario s) throws Exception {
        String topic = s.topic("t");
        Producer<String> producer = s.keep(s.producing(topic).enableChunking(true).chunkMaxMessageSize(10_000)
            .compressionType(CompressionType.NONE).create());
        Consumer<String> consumer = s.consumer(topic, SubscriptionType.Exclusive);
        List<MessageId> ids = new ArrayList<>();
        for (int size : new int[] {100, 50_000, 9_990, 25_000}) {
            ids.add(producer.newMessage().key("k").property("size", "" + size).value(large(size)).send());
        }
        s.say("sent", Scenario.places(ids));
        for (Message<String> message : s.receive(consumer, 4)) {
            s.say("received", sum(message));
        }
        consumer.seek(ids.get(1));
        s.say("after seek to chunks", s.receive(consumer, 2).stream().map(Sending::sum).toList());
        for (boolean inclusive : new boolean[] {false, true}) {
            var builder = s.client.newReader(Schema.STRING).topic(topic).startMessageId(ids.get(1));
            Reader<String> reader = s.keep((inclusive ? builder.startMessageIdInclusive() : builder).create());
            s.say("reader at chunks, inclusive " + inclusive, sum(reader.readNext(Scenario.LONG_S, TimeUnit.SECONDS)));
        }
        s.run("acknowledge the last", () -> consumer.acknowledgeCumulative(ids.get(3)));
        s.step("backlog", () -> s.admin.topics().getStats(topic).getSubscriptions().get("s").getMsgBacklog());
        s.step("last id", () -> Scenario.places(consumer.getLastMessageIds().stream().map(id -> (MessageId) id).toList()));
    }

    private static void chunksShared(Scenario s) throws Exception {
        String topic = s.topic("t");
        Consumer<String> one = s.consumer(topic, SubscriptionType.Shared);
        Consumer<String> two = s.consumer(topic, SubscriptionType.Shared);
        List<CompletableFuture<MessageId>> sent = new ArrayList<>();
        for (int number = 0; number < 2; number++) {
            Producer<String> producer = s.keep(s.producing(topic).enableChunking(true).chunkMaxMessageSize(5_000).create());
            for (int message = 0; message < 8; message++) {
                sent.add(producer.sendAsync(large(12_000 + 100 * message)));
            }
        }
        for (CompletableFuture<MessageId> id : sent) {
            id.get();
        }
        List<Message<String>> found = new ArrayList<>(s.receiveAll(one));
        one.negativeAcknowledge(found.get(0));
        int ofOne = found.size();
        one.close();
        List<Message<String>> others = s.receiveAll(two);
        s.say("each consumer had some, and the one that stays gets all", ofOne > 0 && ofOne < 16 && others.size() == 16);
        s.say("whole", others.stream().allMatch(m -> m.getValue().length() % 100 == 0));
        for (Message<String> message : others) {
            two.acknowledge(message);
        }
        s.step("backlog", () -> Scenario.until(
            () -> s.admin.topics().getStats(topic).getSubscriptions().get("s").getMsgBacklog(), n -> n == 0));
    }

    private static void compression(Scenario s) throws Exception {
        for (CompressionType type : CompressionType.values()) {
            String topic = s.topic(type.name());
            Consumer<String> consumer = s.consumer(topic, SubscriptionType.Shared);
            for (boolean batched : new boolean[] {false, true}) {
                try (Producer<String> producer = s.client.newProducer(Schema.STRING).topic(topic).compressionType(type)
                    .enableBatching(batched).batchingMaxPublishDelay(1, TimeUnit.HOURS).create()) {
                    for (int number = 0; number < 3; number++) {
                        producer.sendAsync(large(1000 + number));
                    }
                    producer.flush();
                }
                s.say(type + (batched ? " batched" : ""), s.receive(consumer, 3).stream().map(Sending::sum).toList());
            }
            // Batches have the time of their first message in them, so their size varies.
            s.step(type + " stored", () -> s.admin.topics().getInternalStats(topic).totalSize / 100);
        }
    }

    /** A pair of keys in memory, under any name. */
    private static final class Keys implements CryptoKeyReader {
        private final KeyPair pair;

        Keys() throws Exception {
            KeyPairGenerator generator = KeyPairGenerator.getInstance("RSA");
            generator.initialize(2048);
            pair = generator.generateKeyPair();
        }

        private static EncryptionKeyInfo pem(String kind, byte[] key) {
            String text = "-----BEGIN " + kind + "-----\n" + Base64.getMimeEncoder(64, new byte[] {'\n'}).encodeToString(key)
                + "\n-----END " + kind + "-----\n";
            return new EncryptionKeyInfo(text.getBytes(StandardCharsets.US_ASCII), Map.of("version", "1"));
        }

        @Override
        public EncryptionKeyInfo getPublicKey(String name, Map<String, String> metadata) {
            return pem("PUBLIC KEY", pair.getPublic().getEncoded());
        }

        @Override
        public EncryptionKeyInfo getPrivateKey(String name, Map<String, String> metadata) {
            return pem("PRIVATE KEY", pair.getPrivate().getEncoded());
        }
    }

    private static void encryption(Scenario s) throws Exception {
        Keys keys = new Keys();
        for (String kind : List.of("single", "batched", "chunked")) {
            String topic = s.topic(kind);
            Consumer<String> consumer = s.keep(s.consuming(topic).cryptoKeyReader(keys).subscribe());
            Map<ConsumerCryptoFailureAction, Consumer<byte[]>> blind = new java.util.TreeMap<>();
            for (ConsumerCryptoFailureAction action : ConsumerCryptoFailureAction.values()) {
                if (kind.equals("chunked") && action == ConsumerCryptoFailureAction.CONSUME) {
                    // Client 4.0.8 writes encrypted chunks into a buffer that is too small for them, fails, and
                    // closes its connection.
                    continue;
                }
                blind.put(action, s.keep(s.client.newConsumer().topic(topic).subscriptionName(action.name())
                    .cryptoFailureAction(action).subscribe()));
            }
            try (Producer<String> producer = s.client.newProducer(Schema.STRING).topic(topic).addEncryptionKey("key")
                .cryptoKeyReader(keys).enableBatching(kind.equals("batched")).enableChunking(kind.equals("chunked"))
                .chunkMaxMessageSize(kind.equals("chunked") ? 3000 : -1).compressionType(CompressionType.ZLIB)
                .batchingMaxPublishDelay(1, TimeUnit.HOURS).create()) {
                for (int number = 0; number < 3; number++) {
                    producer.sendAsync(large(10_000 + number));
                }
                producer.flush();
            }
            s.say(kind, s.receive(consumer, 3).stream().map(Sending::sum).toList());
            blind.forEach((action, one) -> s.step(kind + " without a key, " + action, () ->
                s.receiveAll(one).stream().map(message -> Scenario.place(message.getMessageId()) + " keys "
                    + message.getEncryptionCtx().map(found -> found.getKeys().keySet() + " " + found.getCompressionType()
                        + " batch " + found.getBatchSize().orElse(-1)).orElse("none")).toList()));
            s.step(kind + " backlogs", () -> {
                var all = s.admin.topics().getStats(topic).getSubscriptions();
                return new java.util.TreeMap<>(Map.of("FAIL", all.get("FAIL").getMsgBacklog(),
                    "DISCARD", Scenario.until(() -> s.admin.topics().getStats(topic).getSubscriptions()
                        .get("DISCARD").getMsgBacklog(), n -> n == 0)));
            });
        }
        s.admin.namespaces().setEncryptionRequiredStatus(s.namespace, true);
        s.open("no encryption where it is required", () -> s.producing(s.topic("required")).create());
        s.open("encryption where it is required", () -> s.client.newProducer().topic(s.topic("required"))
            .addEncryptionKey("key").cryptoKeyReader(keys).create());
    }

    private static void delayed(Scenario s) throws Exception {
        String topic = s.topic("t");
        Consumer<String> shared = s.consumer(topic, SubscriptionType.Shared);
        Consumer<String> exclusive = s.keep(s.consuming(topic).subscriptionName("e").subscribe());
        Producer<String> producer = s.producer(topic);
        long began = System.currentTimeMillis();
        producer.newMessage().value("after 3 s").deliverAfter(3, TimeUnit.SECONDS).send();
        producer.newMessage().value("now").send();
        producer.newMessage().value("after 1.5 s").deliverAt(began + 1500).send();
        producer.newMessage().value("in the past").deliverAt(began - 1500).send();
        s.say("exclusive", Scenario.texts(s.receive(exclusive, 4)));
        List<String> arrived = new ArrayList<>();
        for (Message<String> message : s.receive(shared, 4)) {
            long waited = System.currentTimeMillis() - began;
            // Pulsar's tick is a second: a message may come so much early.
            arrived.add(message.getValue() + (message.getValue().startsWith("after")
                ? " waited " + (waited >= (message.getValue().contains("3 s") ? 1900 : 400)) : ""));
        }
        s.say("shared", arrived.stream().sorted().toList());
        s.step("not early by more than a tick", () -> s.admin.topics().getStats(topic).getSubscriptions().get("s").getMsgDelayed());
        s.admin.topics().createNonPartitionedTopic(s.topic("off"));
        s.admin.topicPolicies().setDelayedDeliveryPolicy(s.topic("off"),
            org.apache.pulsar.common.policies.data.DelayedDeliveryPolicies.builder().active(false).tickTime(1000).build());
        Scenario.until(() -> s.admin.topicPolicies().getDelayedDeliveryPolicy(s.topic("off")), found -> found != null);
        s.producer(s.topic("off")).newMessage().value("not delayed").deliverAfter(1, TimeUnit.HOURS).send();
        s.say("delays off", Scenario.texts(s.receiveAll(s.consumer(s.topic("off"), SubscriptionType.Shared))));
    }

    private static void fields(Scenario s) throws Exception {
        String topic = s.topic("t");
        Consumer<String> consumer = s.consumer(topic, SubscriptionType.Exclusive);
        Producer<String> producer = s.keep(s.producing(topic).producerName("p").property("role", "test").create());
        producer.newMessage().value("all").key("k").orderingKey("o".getBytes()).eventTime(12345).property("a", "1")
            .properties(Map.of("b", "2", "c", "")).sequenceId(7).send();
        producer.newMessage().value("").send();
        producer.newMessage().value(null).key("tombstone").send();
        producer.newMessage().keyBytes(new byte[] {0, 1, (byte) 0xff}).value("bytes as key").send();
        producer.newMessage().value("not replicated").disableReplication().send();
        producer.newMessage().value("replicated to one").replicationClusters(List.of("standalone")).send();
        producer.newMessage().key("").value("an empty key").property("", "no name").send();
        for (Message<String> message : s.receive(consumer, 7)) {
            s.say("received", Scenario.show(message) + " by " + message.getProducerName() + " from " + message.getTopicName());
        }
        s.step("the producer's metadata", () -> s.admin.topics().getStats(topic).getPublishers().get(0).getMetadata());
    }

    private static void routing(Scenario s) throws Exception {
        String topic = s.topic("t");
        s.admin.topics().createPartitionedTopic(topic, 3);
        for (HashingScheme scheme : HashingScheme.values()) {
            try (Producer<String> producer = s.producing(topic).hashingScheme(scheme).create()) {
                List<String> found = new ArrayList<>();
                for (int number = 0; number < 6; number++) {
                    found.add(Scenario.place(producer.newMessage().key("key" + number).value("m").send()));
                }
                s.say("by key " + scheme, found);
            }
        }
        try (Producer<String> producer = s.producing(topic).messageRoutingMode(MessageRoutingMode.SinglePartition).create()) {
            s.say("single partition", s.send(producer, "m", 4).stream()
                .map(id -> ((org.apache.pulsar.client.api.MessageIdAdv) id).getPartitionIndex()).distinct().count());
        }
        try (Producer<String> producer = s.producing(topic).messageRouter(
            new org.apache.pulsar.client.api.MessageRouter() {
                @Override
                public int choosePartition(Message<?> message, org.apache.pulsar.client.api.TopicMetadata metadata) {
                    return metadata.numPartitions() - 1;
                }
            }).create()) {
            s.say("own router", s.send(producer, "m", 2).stream()
                .map(id -> ((org.apache.pulsar.client.api.MessageIdAdv) id).getPartitionIndex()).toList());
        }
        Consumer<String> consumer = s.keep(s.consuming(topic).subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe());
        s.say("received", s.take(consumer, 24).size());
    }

    private static void largeBatches(Scenario s) throws Exception {
        String topic = s.topic("t");
        Consumer<String> consumer = s.keep(s.consuming(topic).receiverQueueSize(10).subscribe());
        List<MessageId> ids = s.sendBatch(topic, "m", 900);
        s.say("sent", Scenario.place(ids.get(899)));
        List<String> found = s.take(consumer, 900);
        s.say("received", found.size() + " from " + found.get(0) + " to " + found.get(899));
        s.say("nothing more", s.receiveAll(consumer).size());
    }
}
