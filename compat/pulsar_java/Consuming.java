// Consumers: acknowledgements, redelivery, dead letters, seek, positions.

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.BatchReceivePolicy;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.DeadLetterPolicy;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.impl.MultiplierRedeliveryBackoff;

final class Consuming {
    static void register(Map<String, Scenario.Story> stories) {
        stories.put("acknowledgements", Consuming::acknowledgements);
        stories.put("batch-acknowledgements", Consuming::batchAcknowledgements);
        stories.put("cumulative", Consuming::cumulative);
        stories.put("negative-acknowledgements", Consuming::negative);
        stories.put("acknowledgement-timeout", Consuming::timeout);
        stories.put("dead-letters", Consuming::deadLetters);
        stories.put("retry-letters", Consuming::retryLetters);
        stories.put("seek", Consuming::seek);
        stories.put("seek-partitions", Consuming::seekPartitions);
        stories.put("last-message-ids", Consuming::lastMessageIds);
        stories.put("pause", Consuming::pause);
        stories.put("small-queues", Consuming::smallQueues);
        stories.put("unacknowledged-limits", Consuming::unacknowledgedLimits);
        stories.put("batch-receive", Consuming::batchReceive);
    }

    private static long backlog(Scenario s, String topic) throws Exception {
        return s.admin.topics().getStats(topic).getSubscriptions().get("s").getMsgBacklog();
    }

    private static void acknowledgements(Scenario s) throws Exception {
        String topic = s.topic("t");
        Producer<String> producer = s.producer(topic);
        List<MessageId> ids = s.send(producer, "m", 10);
        Consumer<String> consumer = s.keep(s.consuming(topic).subscriptionType(SubscriptionType.Shared)
            .isAckReceiptEnabled(true).subscribe());
        List<Message<String>> found = s.receive(consumer, 10);
        s.run("one", () -> consumer.acknowledge(found.get(3)));
        s.run("one again", () -> consumer.acknowledge(found.get(3)));
        s.run("a list", () -> consumer.acknowledge(ids.subList(5, 8)));
        s.run("an id from sending", () -> consumer.acknowledge(ids.get(0)));
        s.run("earliest", () -> consumer.acknowledge(MessageId.earliest));
        s.run("cumulative on Shared", () -> consumer.acknowledgeCumulative(found.get(9)));
        s.step("backlog", () -> Scenario.until(() -> backlog(s, topic), n -> n == 5));
        consumer.close();
        s.run("when closed", () -> consumer.acknowledge(found.get(1)));
        s.run("negatively when closed", () -> consumer.negativeAcknowledge(found.get(1)));
        s.step("receive when closed", () -> consumer.receive(1, TimeUnit.SECONDS));
        Consumer<String> again = s.consumer(topic, SubscriptionType.Shared);
        s.say("the others", Scenario.counted(s.receiveAll(again)));
        s.step("internal stats", () -> {
            var cursor = s.admin.topics().getInternalStats(topic).cursors.get("s");
            return cursor.individuallyDeletedMessages.replaceAll("\\d+:", "L:") + " " + cursor.messagesConsumedCounter;
        });
    }

    private static void batchAcknowledgements(Scenario s) throws Exception {
        for (boolean byIndex : new boolean[] {false, true}) {
            String topic = s.topic("by-index-" + byIndex);
            s.sendBatch(topic, "m", 6);
            ConsumerBuilder<String> builder = s.consuming(topic).subscriptionType(SubscriptionType.Shared)
                .enableBatchIndexAcknowledgment(byIndex);
            Consumer<String> consumer = builder.subscribe();
            List<Message<String>> found = s.receive(consumer, 6);
            for (int index : new int[] {0, 2, 3}) {
                consumer.acknowledge(found.get(index));
            }
            s.step("backlog " + byIndex, () -> backlog(s, topic));
            consumer.close();
            Consumer<String> again = s.keep(builder.clone().subscribe());
            List<Message<String>> rest = s.receiveAll(again);
            s.say("the rest " + byIndex, Scenario.counted(rest));
            for (Message<String> message : rest) {
                again.acknowledge(message);
            }
            s.step("backlog at the end " + byIndex, () -> Scenario.until(() -> backlog(s, topic), n -> n == 0));
            s.sendBatch(topic, "n", 4);
            List<Message<String>> more = s.receive(again, 4);
            again.acknowledge(more.get(1));
            again.negativeAcknowledge(more.get(2));
            again.redeliverUnacknowledgedMessages();
            s.say("redelivered " + byIndex, Scenario.counted(s.receiveAll(again)));
        }
    }

    private static void cumulative(Scenario s) throws Exception {
        for (SubscriptionType type : List.of(SubscriptionType.Exclusive, SubscriptionType.Failover)) {
            String topic = s.topic(type.name());
            List<MessageId> ids = new ArrayList<>(s.send(s.producer(topic), "m", 3));
            ids.addAll(s.sendBatch(topic, "b", 4));
            Consumer<String> consumer = s.consuming(topic).subscriptionType(type).isAckReceiptEnabled(true).subscribe();
            List<Message<String>> found = s.receive(consumer, 7);
            s.run(type + ": second", () -> consumer.acknowledgeCumulative(found.get(1)));
            s.step(type + ": backlog", () -> backlog(s, topic));
            s.run(type + ": backwards", () -> consumer.acknowledgeCumulative(found.get(0)));
            s.run(type + ": into a batch", () -> consumer.acknowledgeCumulative(found.get(4)));
            s.step(type + ": backlog in the batch", () -> backlog(s, topic));
            consumer.close();
            Consumer<String> again = s.consumer(topic, type);
            s.say(type + ": the rest", Scenario.counted(s.receiveAll(again)));
            s.run(type + ": all", () -> again.acknowledgeCumulative(ids.get(6)));
            s.step(type + ": backlog at the end", () -> Scenario.until(() -> backlog(s, topic), n -> n == 0));
        }
    }

    private static void negative(Scenario s) throws Exception {
        for (SubscriptionType type : SubscriptionType.values()) {
            String topic = s.topic(type.name());
            Consumer<String> consumer = s.keep(s.consuming(topic).subscriptionType(type)
                .negativeAckRedeliveryBackoff(MultiplierRedeliveryBackoff.builder().minDelayMs(100).maxDelayMs(800).multiplier(2).build())
                .subscribe());
            s.send(s.producer(topic), "m", 3);
            List<String> seen = new ArrayList<>();
            for (int number = 0; number < 7; number++) {
                Message<String> message = consumer.receive(Scenario.LONG_S, TimeUnit.SECONDS);
                if (message.getValue().equals("m1") && number < 6) {
                    consumer.negativeAcknowledge(message);
                } else {
                    consumer.acknowledge(message);
                }
                seen.add(message.getValue() + " " + message.getRedeliveryCount());
            }
            s.say(type.name(), seen);
        }
        String topic = s.topic("batch");
        Consumer<String> consumer = s.keep(s.consuming(topic).subscriptionType(SubscriptionType.Shared)
            .negativeAckRedeliveryDelay(200, TimeUnit.MILLISECONDS).subscribe());
        s.sendBatch(topic, "b", 3);
        List<Message<String>> found = s.receive(consumer, 3);
        consumer.acknowledge(found.get(0));
        consumer.negativeAcknowledge(found.get(1));
        s.say("of a batch", Scenario.counted(s.receiveAll(consumer)));
    }

    private static void timeout(Scenario s) throws Exception {
        for (SubscriptionType type : List.of(SubscriptionType.Shared, SubscriptionType.Key_Shared, SubscriptionType.Failover)) {
            String topic = s.topic(type.name());
            Consumer<String> consumer = s.keep(s.consuming(topic).subscriptionType(type)
                .ackTimeout(1, TimeUnit.SECONDS).ackTimeoutTickTime(100, TimeUnit.MILLISECONDS).subscribe());
            s.send(s.producer(topic), "m", 3);
            List<Message<String>> found = s.receive(consumer, 3);
            consumer.acknowledge(found.get(1));
            List<Message<String>> again = s.receive(consumer, 2);
            s.say(type.name(), Scenario.counted(again));
            for (Message<String> message : again) {
                consumer.acknowledge(message);
            }
            s.say(type + " then", s.receiveAll(consumer).size());
        }
    }

    private static void deadLetters(Scenario s) throws Exception {
        for (SubscriptionType type : List.of(SubscriptionType.Shared, SubscriptionType.Key_Shared)) {
            String topic = s.topic(type.name());
            Consumer<String> consumer = s.keep(s.consuming(topic).subscriptionType(type)
                .negativeAckRedeliveryDelay(100, TimeUnit.MILLISECONDS)
                .deadLetterPolicy(DeadLetterPolicy.builder().maxRedeliverCount(2).initialSubscriptionName("first").build())
                .subscribe());
            s.producer(topic).newMessage().key("k").property("p", "1").value("bad").send();
            List<Integer> counts = new ArrayList<>();
            Message<String> message = consumer.receive(Scenario.LONG_S, TimeUnit.SECONDS);
            while (message != null) {
                counts.add(message.getRedeliveryCount());
                consumer.negativeAcknowledge(message);
                message = consumer.receive(2, TimeUnit.SECONDS);
            }
            s.say(type + ": redelivery counts", counts);
            s.step(type + ": topics", () -> s.admin.topics().getList(s.namespace).stream().sorted().toList());
            String dead = topic + "-s-DLQ";
            s.step(type + ": subscriptions of dead letters", () -> s.admin.topics().getSubscriptions(dead));
            Consumer<String> undertaker = s.keep(s.consuming(dead).subscriptionName("first").subscribe());
            Message<String> letter = undertaker.receive(Scenario.LONG_S, TimeUnit.SECONDS);
            Map<String, String> properties = new TreeMap<>(letter.getProperties());
            properties.computeIfPresent("ORIGIN_MESSAGE_ID", (name, id) -> id.replaceAll("^\\d+", "L"));
            s.say(type + ": dead letter", letter.getValue() + " key " + letter.getKey() + " " + properties);
            s.step(type + ": backlog", () -> Scenario.until(() -> backlog(s, topic), n -> n == 0));
        }
    }

    private static void retryLetters(Scenario s) throws Exception {
        String topic = s.topic("t");
        Consumer<String> consumer = s.keep(s.consuming(topic).subscriptionType(SubscriptionType.Shared).enableRetry(true)
            .deadLetterPolicy(DeadLetterPolicy.builder().maxRedeliverCount(2).build()).subscribe());
        s.producer(topic).newMessage().key("k").value("later").send();
        List<String> seen = new ArrayList<>();
        for (int number = 0; number < 3; number++) {
            Message<String> message = consumer.receive(Scenario.LONG_S, TimeUnit.SECONDS);
            Map<String, String> properties = new TreeMap<>(message.getProperties());
            properties.computeIfPresent("ORIGIN_MESSAGE_ID", (name, id) -> id.replaceAll("^\\d+", "L"));
            seen.add(message.getTopicName() + " " + message.getRedeliveryCount() + " " + properties);
            consumer.reconsumeLater(message, 500, TimeUnit.MILLISECONDS);
        }
        seen.forEach(one -> s.say("received", one));
        s.say("nothing more", Scenario.texts(s.receiveAll(consumer)));
        s.step("topics", () -> s.admin.topics().getList(s.namespace).stream().sorted().toList());
        Consumer<String> dead = s.keep(s.consuming(topic + "-s-DLQ").subscribe());
        s.say("dead letter", Scenario.texts(s.receive(dead, 1)));
    }

    private static void seek(Scenario s) throws Exception {
        String topic = s.topic("t");
        Producer<String> producer = s.producer(topic);
        List<MessageId> ids = new ArrayList<>(s.send(producer, "m", 4));
        Thread.sleep(30);
        long middle = System.currentTimeMillis();
        Thread.sleep(30);
        ids.addAll(s.sendBatch(topic, "b", 4));
        for (SubscriptionType type : List.of(SubscriptionType.Exclusive, SubscriptionType.Shared)) {
            for (boolean inclusive : new boolean[] {false, true}) {
                ConsumerBuilder<String> builder = s.consuming(topic).subscriptionName(type + "-" + inclusive).subscriptionType(type);
                Consumer<String> consumer = s.keep((inclusive ? builder.startMessageIdInclusive() : builder).subscribe());
                String label = type + (inclusive ? " inclusive" : "");
                s.say(label + " at first", Scenario.texts(s.receiveAll(consumer)));
                Map<String, Scenario.Action> seeks = new java.util.LinkedHashMap<>();
                seeks.put("to an id", () -> consumer.seek(ids.get(1)));
                seeks.put("into a batch", () -> consumer.seek(ids.get(5)));
                seeks.put("to the earliest", () -> consumer.seek(MessageId.earliest));
                seeks.put("to the latest", () -> consumer.seek(MessageId.latest));
                seeks.put("to a time", () -> consumer.seek(middle));
                seeks.put("to time 0", () -> consumer.seek(0));
                seeks.put("to the future", () -> consumer.seek(System.currentTimeMillis() + 3_600_000));
                seeks.put("by function to an id", () -> consumer.seek(partition -> ids.get(2)));
                seeks.put("by function to a time", () -> consumer.seek(partition -> middle));
                seeks.put("by function to something else", () -> consumer.seek(partition -> "x"));
                seeks.put("by function to nothing", () -> consumer.seek(partition -> null));
                seeks.forEach((name, action) -> {
                    s.run(label + " " + name, action);
                    s.step(label + " " + name + ", received", () -> Scenario.counted(s.receiveAll(consumer)));
                });
            }
        }
    }

    private static void seekPartitions(Scenario s) throws Exception {
        String topic = s.topic("t");
        s.admin.topics().createPartitionedTopic(topic, 3);
        Producer<String> producer = s.producer(topic);
        List<MessageId> ids = s.send(producer, "m", 6);
        Thread.sleep(30);
        long middle = System.currentTimeMillis();
        Thread.sleep(30);
        s.send(producer, "n", 6);
        Consumer<String> consumer = s.consumer(topic, SubscriptionType.Exclusive);
        s.say("at first", s.receiveAll(consumer).size());
        s.run("to a time", () -> consumer.seek(middle));
        s.say("received", s.receiveAll(consumer).stream().map(Message::getValue).sorted().toList());
        s.run("to an id of one partition", () -> consumer.seek(ids.get(1)));
        s.say("received of it", s.receiveAll(consumer).size() > 0);
        s.run("to the earliest", () -> consumer.seek(MessageId.earliest));
        s.say("received of all", s.receiveAll(consumer).size());
        s.run("by function", () -> consumer.seek(partition -> partition.endsWith("0") ? MessageId.earliest : MessageId.latest));
        s.say("received of the first", s.receiveAll(consumer).size());
        s.step("last ids", () -> consumer.getLastMessageIds().stream()
            .map(id -> id.getOwnerTopic() + " " + Scenario.place(id)).sorted().toList());
    }

    private static void lastMessageIds(Scenario s) throws Exception {
        String topic = s.topic("t");
        Consumer<String> consumer = s.consumer(topic, SubscriptionType.Exclusive);
        s.step("empty", () -> Scenario.places(consumer.getLastMessageIds()));
        s.send(s.producer(topic), "m", 2);
        s.step("two messages", () -> Scenario.places(consumer.getLastMessageIds()));
        s.sendBatch(topic, "b", 3);
        s.step("a batch", () -> Scenario.places(consumer.getLastMessageIds()));
        s.run("unload", () -> s.admin.topics().unload(topic));
        s.step("after unload", () -> Scenario.places(List.of(s.admin.topics().getLastMessageId(topic))));
        s.step("of an absent topic", () -> s.admin.topics().getLastMessageId(s.topic("absent")));
    }

    private static void pause(Scenario s) throws Exception {
        String topic = s.topic("t");
        Consumer<String> consumer = s.keep(s.consuming(topic).receiverQueueSize(2).startPaused(true).subscribe());
        Producer<String> producer = s.producer(topic);
        s.send(producer, "m", 6);
        s.say("while it starts paused", s.receiveAll(consumer).size());
        consumer.resume();
        s.say("resumed", s.take(consumer, 6));
        consumer.pause();
        s.send(producer, "n", 6);
        int early = s.receiveAll(consumer).size();
        s.say("paused, at most its queue", early <= 2);
        consumer.resume();
        s.say("all in the end", early + s.receiveAll(consumer).size());
    }

    private static void smallQueues(Scenario s) throws Exception {
        for (SubscriptionType type : SubscriptionType.values()) {
            String topic = s.topic(type.name());
            s.send(s.producer(topic), "m", 3);
            Consumer<String> consumer = s.keep(s.consuming(topic).subscriptionType(type).receiverQueueSize(0).subscribe());
            s.step(type + ": one by one", () -> List.of(consumer.receive().getValue(), consumer.receive().getValue(),
                consumer.receive().getValue()));
            s.sendBatch(topic, "b", 2);
            s.step(type + ": a batch with a queue of 0", () -> consumer.receive(2, TimeUnit.SECONDS));
        }
        String topic = s.topic("one");
        Consumer<String> consumer = s.keep(s.consuming(topic).receiverQueueSize(1).subscribe());
        s.sendBatch(topic, "b", 7);
        s.send(s.producer(topic), "m", 3);
        s.say("a queue of 1", s.take(consumer, 10));
    }

    private static void unacknowledgedLimits(Scenario s) throws Exception {
        String topic = s.topic("t");
        s.admin.topics().createNonPartitionedTopic(topic);
        s.admin.topicPolicies().setMaxUnackedMessagesOnConsumer(topic, 4);
        Scenario.until(() -> s.admin.topicPolicies().getMaxUnackedMessagesOnConsumer(topic), n -> n != null);
        Consumer<String> consumer = s.keep(s.consuming(topic).subscriptionType(SubscriptionType.Shared).receiverQueueSize(2).subscribe());
        s.send(s.producer(topic), "m", 12);
        List<Message<String>> found = s.receiveAll(consumer);
        s.say("until it is blocked", found.size());
        s.step("blocked in stats", () -> {
            var one = s.admin.topics().getStats(topic).getSubscriptions().get("s").getConsumers().get(0);
            return one.isBlockedConsumerOnUnackedMsgs() + " " + one.getUnackedMessages();
        });
        for (Message<String> message : found) {
            consumer.acknowledge(message);
        }
        s.say("then", s.receiveAll(consumer).size());
    }

    private static void batchReceive(Scenario s) throws Exception {
        String topic = s.topic("t");
        Consumer<String> consumer = s.keep(s.consuming(topic).batchReceivePolicy(
            BatchReceivePolicy.builder().maxNumMessages(4).timeout(300, TimeUnit.MILLISECONDS).build()).subscribe());
        s.send(s.producer(topic), "m", 6);
        Thread.sleep(300);
        for (int number = 0; number < 3; number++) {
            var messages = consumer.batchReceive();
            List<String> found = new ArrayList<>();
            messages.forEach(message -> found.add(message.getValue()));
            s.say("batch", found);
            consumer.acknowledge(messages);
        }
        s.step("backlog", () -> Scenario.until(() -> backlog(s, topic), n -> n == 0));
    }
}
