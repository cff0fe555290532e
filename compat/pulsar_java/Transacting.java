// Transactions: what is sent and acknowledged in them, and how they end. The peer needs
// transactionCoordinatorEnabled=true.

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.DeadLetterPolicy;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.transaction.Transaction;
import org.apache.pulsar.client.api.transaction.TransactionCoordinatorClient;
import org.apache.pulsar.client.api.transaction.TxnID;
import org.apache.pulsar.client.impl.PulsarClientImpl;

final class Transacting {
    static void register(Map<String, Scenario.Story> stories) {
        stories.put("txn-send", s -> new Transacting(s).send());
        stories.put("txn-order", s -> new Transacting(s).order());
        for (SubscriptionType type : SubscriptionType.values()) {
            for (boolean isBatch : new boolean[] {false, true}) {
                String name = type + (isBatch ? "-batch" : "");
                stories.put("txn-ack-" + name, s -> new Transacting(s).ack(type, isBatch));
                stories.put("txn-cumulative-" + name, s -> new Transacting(s).cumulative(type, isBatch));
            }
        }
        stories.put("txn-conflict", s -> new Transacting(s).conflict());
        stories.put("txn-states", s -> new Transacting(s).states());
        stories.put("txn-timeout", s -> new Transacting(s).timeout());
        stories.put("txn-unknown", s -> new Transacting(s).unknown());
        stories.put("txn-vanish", s -> new Transacting(s).vanish());
        stories.put("txn-topics", s -> new Transacting(s).topics());
        stories.put("txn-readers", s -> new Transacting(s).readers());
        stories.put("txn-dead-letters", s -> new Transacting(s).deadLetters());
        stories.put("txn-delayed", s -> new Transacting(s).delayed());
        stories.put("txn-stats", s -> new Transacting(s).stats());
        stories.put("txn-admin", s -> new Transacting(s).admin());
        stories.put("txn-unload", s -> new Transacting(s).unload());
        stories.put("txn-backlog", s -> new Transacting(s).backlog());
        stories.put("txn-deduplication", s -> new Transacting(s).deduplication());
        stories.put("txn-chunks", s -> new Transacting(s).chunks());
        stories.put("txn-compaction", s -> new Transacting(s).compaction());
        stories.put("txn-keys", s -> new Transacting(s).keys());
        stories.put("txn-deleted", s -> new Transacting(s).deleted());
    }

    private final Scenario s;
    private final PulsarClient client;

    private Transacting(Scenario s) throws Exception {
        this.s = s;
        this.client = s.keep(connect());
    }

    private PulsarClient connect() throws Exception {
        return PulsarClient.builder().serviceUrl(s.serviceUrl).operationTimeout(10, TimeUnit.SECONDS)
            .enableTransaction(true).build();
    }

    // -- parts ----------------------------------------------------------------------------------

    private Transaction begin() throws Exception {
        return begin(60_000);
    }

    private Transaction begin(int timeoutMs) throws Exception {
        return client.newTransaction().withTransactionTimeout(timeoutMs, TimeUnit.MILLISECONDS).build().get();
    }

    private Producer<String> producer(String topic) throws Exception {
        return s.keep(client.newProducer(Schema.STRING).topic(topic).enableBatching(false)
            .sendTimeout(0, TimeUnit.SECONDS).create());
    }

    private ConsumerBuilder<String> consuming(String topic, SubscriptionType type) {
        return client.newConsumer(Schema.STRING).topic(topic).subscriptionName("s").subscriptionType(type)
            .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
            .acknowledgmentGroupTime(0, TimeUnit.MILLISECONDS).enableBatchIndexAcknowledgment(true)
            .isAckReceiptEnabled(true);
    }

    private Consumer<String> consumer(String topic, SubscriptionType type) throws Exception {
        return s.keep(consuming(topic, type).subscribe());
    }

    private static MessageId send(Producer<String> producer, Transaction txn, String value) throws Exception {
        return producer.newMessage(txn).value(value).send();
    }

    private void commit(String label, Transaction txn) {
        s.run(label, () -> txn.commit().get());
    }

    private void abort(String label, Transaction txn) {
        s.run(label, () -> txn.abort().get());
    }

    private void ack(String label, Consumer<String> consumer, Message<?> message, Transaction txn) {
        s.run(label, () -> consumer.acknowledgeAsync(message.getMessageId(), txn).get());
    }

    private void ackUpTo(String label, Consumer<String> consumer, Message<?> message, Transaction txn) {
        s.run(label, () -> consumer.acknowledgeCumulativeAsync(message.getMessageId(), txn).get());
    }

    /** What comes now, of which nothing is acknowledged. */
    private void receives(String label, Consumer<String> consumer) throws Exception {
        s.say(label, Scenario.counted(s.receiveAll(consumer)));
    }

    /** What a consumer gets that subscribes anew: what is not acknowledged. */
    private void left(String label, String topic, SubscriptionType type) throws Exception {
        try (Consumer<String> later = consuming(topic, type).subscribe()) {
            s.say(label, Scenario.texts(s.receiveAll(later)));
        }
    }

    private void fill(String topic, int count, boolean isBatch) throws Exception {
        if (isBatch) {
            s.sendBatch(topic, "m", count);
        } else {
            s.send(s.producer(topic), "m", count);
        }
    }

    // -- sending --------------------------------------------------------------------------------

    private void send() throws Exception {
        for (boolean isBatch : new boolean[] {false, true}) {
            for (boolean commits : new boolean[] {true, false}) {
                String name = (isBatch ? "batch " : "single ") + (commits ? "commit" : "abort");
                String topic = s.topic(name.replace(' ', '-'));
                Consumer<String> consumer = consumer(topic, SubscriptionType.Exclusive);
                Producer<String> producer = s.keep(client.newProducer(Schema.STRING).topic(topic).enableBatching(isBatch)
                    .batchingMaxPublishDelay(1, TimeUnit.SECONDS).sendTimeout(0, TimeUnit.SECONDS).create());
                Transaction txn = begin();
                List<CompletableFuture<MessageId>> sent = new ArrayList<>();
                for (int number = 0; number < 3; number++) {
                    sent.add(producer.newMessage(txn).key("k").value("m" + number).sendAsync());
                }
                for (CompletableFuture<MessageId> one : sent) {
                    s.say(name + " sent", Scenario.place(one.get()));
                }
                receives(name + " open", consumer);
                s.run(name, () -> (commits ? txn.commit() : txn.abort()).get());
                s.say(name + " state", txn.getState());
                s.say(name + " ended", s.receiveAll(consumer).stream().map(Scenario::show).toList());
                s.step(name + " after", () -> {
                    CompletableFuture<MessageId> after = producer.sendAsync("after");
                    producer.flush();
                    return Scenario.place(after.get());
                });
                receives(name + " then", consumer);
            }
        }
    }

    private void order() throws Exception {
        String topic = s.topic("t");
        Consumer<String> consumer = consumer(topic, SubscriptionType.Shared);
        Producer<String> plain = s.producer(topic);
        Producer<String> producer = producer(topic);
        Transaction first = begin();
        Transaction second = begin();
        plain.send("a");
        send(producer, first, "first-0");
        plain.send("b");
        send(producer, second, "second-0");
        send(producer, first, "first-1");
        plain.send("c");
        receives("both open", consumer);
        commit("second", second);
        receives("first open", consumer);
        abort("first", first);
        receives("none open", consumer);
        left("left", topic, SubscriptionType.Shared);
    }

    // -- acknowledging --------------------------------------------------------------------------

    private void ack(SubscriptionType type, boolean isBatch) throws Exception {
        String topic = s.topic("t");
        Consumer<String> consumer = consumer(topic, type);
        fill(topic, 4, isBatch);
        List<Message<String>> found = s.receive(consumer, 4);
        Transaction txn = begin();
        ack("ack 0", consumer, found.get(0), txn);
        ack("ack 2", consumer, found.get(2), txn);
        ack("ack 2 again", consumer, found.get(2), txn);
        consumer.redeliverUnacknowledgedMessages();
        receives("pending", consumer);
        abort("abort", txn);
        consumer.redeliverUnacknowledgedMessages();
        List<Message<String>> again = s.receiveAll(consumer);
        s.say("aborted", Scenario.texts(again).stream().sorted().toList());
        Transaction next = begin();
        for (Message<String> message : again) {
            if (!Scenario.text(message).equals("m3")) {
                ack("ack " + Scenario.text(message), consumer, message, next);
            }
        }
        commit("commit", next);
        ack("ack m0 once more", consumer, found.get(0), begin());
        consumer.redeliverUnacknowledgedMessages();
        s.say("committed", Scenario.texts(s.receiveAll(consumer)));
        consumer.close();
        left("left", topic, type);
    }

    private void cumulative(SubscriptionType type, boolean isBatch) throws Exception {
        String topic = s.topic("t");
        Consumer<String> consumer = consumer(topic, type);
        fill(topic, 5, isBatch);
        List<Message<String>> found = s.receive(consumer, 5);
        Transaction txn = begin();
        ackUpTo("up to 1", consumer, found.get(1), txn);
        ackUpTo("up to 2", consumer, found.get(2), txn);
        ackUpTo("up to 0", consumer, found.get(0), txn);
        ackUpTo("other up to 3", consumer, found.get(3), begin());
        consumer.redeliverUnacknowledgedMessages();
        s.say("pending", Scenario.texts(s.receiveAll(consumer)));
        abort("abort", txn);
        consumer.redeliverUnacknowledgedMessages();
        s.say("aborted", Scenario.texts(s.receiveAll(consumer)));
        Transaction next = begin();
        ackUpTo("next up to 3", consumer, found.get(3), next);
        commit("commit", next);
        ackUpTo("up to 2 once more", consumer, found.get(2), begin());
        consumer.redeliverUnacknowledgedMessages();
        s.say("committed", Scenario.texts(s.receiveAll(consumer)));
        consumer.close();
        left("left", topic, type);
    }

    private void conflict() throws Exception {
        for (boolean isBatch : new boolean[] {false, true}) {
            for (boolean commits : new boolean[] {true, false}) {
                String name = (isBatch ? "batch " : "single ") + (commits ? "commit" : "abort");
                String topic = s.topic(name.replace(' ', '-'));
                Consumer<String> consumer = consumer(topic, SubscriptionType.Shared);
                fill(topic, 3, isBatch);
                List<Message<String>> found = s.receive(consumer, 3);
                Transaction first = begin();
                Transaction second = begin();
                ack(name + " first 0", consumer, found.get(0), first);
                ack(name + " second 0", consumer, found.get(0), second);
                ack(name + " second 1", consumer, found.get(1), second);
                s.run(name + " plain 0", () -> consumer.acknowledge(found.get(0)));
                s.run(name + " first ends", () -> (commits ? first.commit() : first.abort()).get());
                ack(name + " second 0 then", consumer, found.get(0), second);
                commit(name + " second ends", second);
                s.run(name + " plain 2", () -> consumer.acknowledge(found.get(2)));
                ack(name + " third 2", consumer, found.get(2), begin());
                consumer.close();
                left(name + " left", topic, SubscriptionType.Shared);
            }
        }
    }

    // -- how they end ---------------------------------------------------------------------------

    private void states() throws Exception {
        String topic = s.topic("t");
        Consumer<String> consumer = consumer(topic, SubscriptionType.Shared);
        Producer<String> producer = producer(topic);
        s.send(s.producer(topic), "m", 1);
        Message<String> message = s.receive(consumer, 1).get(0);
        for (boolean commits : new boolean[] {true, false}) {
            String name = commits ? "committed" : "aborted";
            Transaction txn = begin();
            send(producer, txn, name);
            s.run(name, () -> (commits ? txn.commit() : txn.abort()).get());
            s.say(name + " state", txn.getState());
            commit(name + ", commit", txn);
            abort(name + ", abort", txn);
            s.run(name + ", send", () -> send(producer, txn, "late"));
            ack(name + ", ack", consumer, message, txn);
            s.say(name + " then", txn.getState());
        }
        Transaction empty = begin();
        commit("empty commit", empty);
        abort("empty abort", begin());
        s.run("without a timeout", () -> client.newTransaction().build().get().commit().get());
        s.say("received", Scenario.texts(s.receiveAll(consumer)));
    }

    private void timeout() throws Exception {
        String topic = s.topic("t");
        Consumer<String> consumer = consumer(topic, SubscriptionType.Shared);
        Producer<String> producer = producer(topic);
        s.send(s.producer(topic), "m", 2);
        List<Message<String>> found = s.receive(consumer, 2);
        Transaction txn = begin(3_000);
        send(producer, txn, "late");
        ack("ack", consumer, found.get(0), txn);
        producer.send("after");
        List<String> released = new ArrayList<>();
        Scenario.until(() -> released.addAll(Scenario.texts(s.receiveAll(consumer))), any -> released.size() >= 2);
        s.say("released", released.stream().sorted().toList());
        s.say("state", Scenario.until(txn::getState, state -> state != Transaction.State.OPEN));
        commit("commit", txn);
        abort("abort", txn);
        s.run("send", () -> send(producer, txn, "later"));
        ack("ack late", consumer, found.get(1), txn);
        consumer.close();
        left("left", topic, SubscriptionType.Shared);
        for (long timeoutMs : new long[] {0, -1, 1L << 40}) {
            s.run("timeout of " + timeoutMs, () -> client.newTransaction()
                .withTransactionTimeout(timeoutMs, TimeUnit.MILLISECONDS).build().get());
        }
    }

    private void unknown() throws Exception {
        TransactionCoordinatorClient coordinator = ((PulsarClientImpl) client).getTcClient();
        String topic = s.topic("t");
        for (TxnID id : List.of(new TxnID(0, 1L << 50), new TxnID(1, 0), new TxnID(0, -1))) {
            String name = id.getMostSigBits() + " " + id.getLeastSigBits();
            s.run(name + " commit", () -> coordinator.commit(id));
            s.run(name + " abort", () -> coordinator.abort(id));
            s.run(name + " topic", () -> coordinator.addPublishPartitionToTxn(id, List.of(topic)));
            s.run(name + " subscription", () -> coordinator.addSubscriptionToTxn(id, topic, "s"));
        }
        Transaction txn = begin();
        TxnID id = txn.getTxnID();
        s.run("no topics", () -> coordinator.addPublishPartitionToTxn(id, List.of()));
        s.run("a topic", () -> coordinator.addPublishPartitionToTxn(id, List.of(topic)));
        s.run("an absent subscription", () -> coordinator.addSubscriptionToTxn(id, s.topic("none"), "none"));
        s.run("commit", () -> coordinator.commit(id));
        s.run("commit again", () -> coordinator.commit(id));
        s.run("abort then", () -> coordinator.abort(id));
        commit("the client's", txn);
    }

    private void vanish() throws Exception {
        String topic = s.topic("t");
        Consumer<String> consumer = consumer(topic, SubscriptionType.Shared);
        s.send(s.producer(topic), "m", 1);
        Message<String> message = s.receive(consumer, 1).get(0);
        PulsarClient other = connect();
        Transaction txn = other.newTransaction().withTransactionTimeout(4, TimeUnit.SECONDS).build().get();
        other.newProducer(Schema.STRING).topic(topic).create().newMessage(txn).value("lost").send();
        consumer.close();
        try (Consumer<String> its = other.newConsumer(Schema.STRING).topic(topic).subscriptionName("s")
            .subscriptionType(SubscriptionType.Shared).subscribe()) {
            its.acknowledgeAsync(its.receive().getMessageId(), txn).get();
        }
        other.shutdown();
        s.producer(topic).send("after");
        Consumer<String> next = consumer(topic, SubscriptionType.Shared);
        List<String> found = new ArrayList<>();
        Scenario.until(() -> found.addAll(Scenario.texts(s.receiveAll(next))), any -> found.size() >= 2);
        s.say("released", found);
        s.say("known", Scenario.text(message));
    }

    private void topics() throws Exception {
        s.admin.topics().createPartitionedTopic(s.topic("parts"), 3);
        List<String> topics = List.of(s.topic("a"), s.topic("b"), s.topic("parts"));
        for (boolean commits : new boolean[] {true, false}) {
            String name = commits ? "commit" : "abort";
            Transaction txn = begin();
            for (String topic : topics) {
                Producer<String> producer = producer(topic);
                for (int number = 0; number < 6; number++) {
                    producer.newMessage(txn).value(name + number).key("k" + number).send();
                }
            }
            s.run(name, () -> (commits ? txn.commit() : txn.abort()).get());
        }
        for (String topic : topics) {
            try (Consumer<String> consumer = consumer(topic, SubscriptionType.Exclusive)) {
                s.say("of " + topic.replaceAll(".*/", ""), Scenario.texts(s.receiveAll(consumer)).stream().sorted().toList());
            }
        }
        try (Consumer<String> all = s.keep(client.newConsumer(Schema.STRING).topics(topics).subscriptionName("all")
            .subscriptionType(SubscriptionType.Shared).subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
            .acknowledgmentGroupTime(0, TimeUnit.MILLISECONDS).subscribe())) {
            List<Message<String>> found = s.receiveAll(all);
            Transaction txn = begin();
            for (Message<String> message : found) {
                all.acknowledgeAsync(message.getMessageId(), txn).get();
            }
            s.say("acknowledged", found.size());
            commit("acks", txn);
            all.redeliverUnacknowledgedMessages();
            receives("left", all);
        }
    }

    private void readers() throws Exception {
        String topic = s.topic("t");
        Producer<String> plain = s.producer(topic);
        Producer<String> producer = producer(topic);
        plain.send("before");
        Transaction open = begin();
        for (String state : List.of("open", "aborted", "committed")) {
            Transaction txn = state.equals("open") ? open : begin();
            send(producer, txn, state);
            if (state.equals("aborted")) {
                abort("open", open);
                abort(state, txn);
            } else if (!state.equals("open")) {
                commit(state, txn);
            }
            try (Reader<String> reader = client.newReader(Schema.STRING).topic(topic).startMessageId(MessageId.earliest).create()) {
                s.step(state + " last id", () -> Scenario.places(reader.getLastMessageIds().stream().map(each -> (MessageId) each).toList()));
                s.step(state + " read", () -> s.readAll(reader));
            }
            s.step(state + " last id over REST", () -> Scenario.place(s.admin.topics().getLastMessageId(topic)));
            s.step(state + " peeked", () -> {
                s.consumer(topic, SubscriptionType.Shared).close();
                return Scenario.texts(new ArrayList<>(s.admin.topics().peekMessages(topic, "s", 10)));
            });
        }
        try (Reader<String> reader = client.newReader(Schema.STRING).topic(topic).startMessageId(MessageId.latest)
            .startMessageIdInclusive().create()) {
            s.step("from the latest, inclusive", () -> s.readAll(reader));
        }
    }

    private void deadLetters() throws Exception {
        String topic = s.topic("t");
        Consumer<String> consumer = s.keep(consuming(topic, SubscriptionType.Shared)
            .negativeAckRedeliveryDelay(100, TimeUnit.MILLISECONDS)
            .deadLetterPolicy(DeadLetterPolicy.builder().maxRedeliverCount(2).deadLetterTopic(s.topic("dead")).build()).subscribe());
        Consumer<String> dead = consumer(s.topic("dead"), SubscriptionType.Shared);
        s.send(s.producer(topic), "m", 2);
        List<String> counts = new ArrayList<>();
        for (int round = 0; round < 3; round++) {
            List<Message<String>> found = s.receive(consumer, 2);
            Transaction txn = begin();
            for (Message<String> message : found) {
                consumer.acknowledgeAsync(message.getMessageId(), txn).get();
            }
            txn.abort().get();
            counts.addAll(Scenario.counted(found));
            found.forEach(consumer::negativeAcknowledge);
        }
        s.say("received", counts);
        s.say("dead", Scenario.texts(s.receiveAll(dead)).stream().sorted().toList());
        receives("left", consumer);
    }

    private void delayed() throws Exception {
        String topic = s.topic("t");
        Consumer<String> consumer = consumer(topic, SubscriptionType.Shared);
        Producer<String> producer = producer(topic);
        Transaction txn = begin();
        producer.newMessage(txn).value("late").deliverAfter(5, TimeUnit.SECONDS).send();
        producer.newMessage(txn).value("now").send();
        commit("commit", txn);
        s.say("first", Scenario.texts(s.receiveAll(consumer)));
        s.say("then", Scenario.texts(s.receive(consumer, 1)));
    }

    // -- what operators see and do --------------------------------------------------------------

    private void counts(String label, String topic) {
        s.step(label, () -> {
            var stats = s.admin.topics().getStats(topic, true, true, true);
            var mine = stats.getSubscriptions().get("s");
            return List.of(stats.getMsgInCounter(), mine.getMsgBacklog(), mine.getUnackedMessages(),
                mine.getMsgOutCounter());
        });
    }

    private void stats() throws Exception {
        String topic = s.topic("t");
        Consumer<String> consumer = consumer(topic, SubscriptionType.Shared);
        s.send(s.producer(topic), "m", 4);
        List<Message<String>> found = s.receive(consumer, 4);
        counts("received", topic);
        Producer<String> producer = producer(topic);
        for (boolean commits : new boolean[] {false, true}) {
            String name = commits ? "commit" : "abort";
            Transaction txn = begin();
            ack(name + " ack", consumer, found.get(0), txn);
            ack(name + " ack", consumer, found.get(1), txn);
            counts(name + " pending", topic);
            send(producer, txn, name);
            counts(name + " sent", topic);
            s.run(name, () -> (commits ? txn.commit() : txn.abort()).get());
            counts(name + " ended", topic);
        }
        consumer.close();
        counts("closed", topic);
        left("left", topic, SubscriptionType.Shared);
    }

    private void admin() throws Exception {
        String topic = s.topic("t");
        Consumer<String> consumer = consumer(topic, SubscriptionType.Shared);
        Producer<String> producer = producer(topic);
        s.send(s.producer(topic), "m", 2);
        Message<String> first = s.receive(consumer, 2).get(0);
        Transaction txn = begin();
        TxnID id = txn.getTxnID();
        send(producer, txn, "open");
        ack("ack", consumer, first, txn);
        var transactions = s.admin.transactions();
        s.step("metadata", () -> {
            var found = transactions.getTransactionMetadata(id);
            return new TreeMap<>(Map.of("status", found.status, "timeout", found.timeoutAt, "owner", String.valueOf(found.owner),
                "sent", found.producedPartitions.keySet(), "acknowledged", found.ackedPartitions.keySet()));
        });
        s.step("in the topic", () -> transactions.getTransactionInBufferStats(id, topic).aborted);
        s.step("in the subscription", () -> transactions.getTransactionInPendingAckStats(id, topic, "s").cumulativeAckPosition);
        s.step("buffer", () -> transactions.getTransactionBufferStats(topic).state);
        s.step("buffer's transactions", () -> transactions.getTransactionBufferStats(topic).ongoingTxnSize);
        s.step("pending", () -> transactions.getPendingAckStats(topic, "s").state);
        s.step("an absent subscription", () -> transactions.getPendingAckStats(topic, "none"));
        s.step("an absent transaction", () -> transactions.getTransactionMetadata(new TxnID(0, 1L << 50)));
        s.step("slow", () -> transactions.getSlowTransactions(1, TimeUnit.HOURS).containsKey(id.toString()));
        s.step("slow from 1 ms", () -> transactions.getSlowTransactions(1, TimeUnit.MILLISECONDS).containsKey(id.toString()));
        s.run("abort by an operator", () -> transactions.abortTransaction(id));
        commit("commit then", txn);
        s.step("metadata then", () -> transactions.getTransactionMetadata(id));
        consumer.redeliverUnacknowledgedMessages();
        receives("left", consumer);
    }

    private void unload() throws Exception {
        for (boolean commits : new boolean[] {true, false}) {
            String name = commits ? "commit" : "abort";
            String topic = s.topic(name);
            Consumer<String> consumer = consumer(topic, SubscriptionType.Shared);
            Producer<String> producer = producer(topic);
            s.send(s.producer(topic), "m", 3);
            List<Message<String>> found = s.receive(consumer, 3);
            Transaction txn = begin();
            send(producer, txn, "open");
            ack(name + " ack", consumer, found.get(0), txn);
            s.run(name + " unload", () -> s.admin.topics().unload(topic));
            s.say(name + " again", Scenario.texts(s.receiveAll(consumer)));
            s.run(name + " send", () -> send(producer, txn, "open too"));
            s.run(name, () -> (commits ? txn.commit() : txn.abort()).get());
            consumer.close();
            left(name + " left", topic, SubscriptionType.Shared);
        }
    }

    private void backlog() throws Exception {
        String topic = s.topic("t");
        Consumer<String> consumer = consumer(topic, SubscriptionType.Shared);
        s.send(s.producer(topic), "m", 4);
        List<Message<String>> found = s.receive(consumer, 4);
        Transaction txn = begin();
        ack("ack 1", consumer, found.get(1), txn);
        consumer.close();
        s.run("skip 1", () -> s.admin.topics().skipMessages(topic, "s", 1));
        left("skipped", topic, SubscriptionType.Shared);
        s.run("clear", () -> s.admin.topics().skipAllMessages(topic, "s"));
        abort("abort", txn);
        left("aborted", topic, SubscriptionType.Shared);
        Transaction next = begin();
        Producer<String> producer = producer(topic);
        send(producer, next, "open");
        s.run("clear with an open one", () -> s.admin.topics().skipAllMessages(topic, "s"));
        commit("commit", next);
        left("committed", topic, SubscriptionType.Shared);
        s.run("reset", () -> s.admin.topics().resetCursor(topic, "s", MessageId.earliest));
        left("reset", topic, SubscriptionType.Shared);
    }

    private void deduplication() throws Exception {
        String topic = s.topic("t");
        s.admin.namespaces().setDeduplicationStatus(s.namespace, true);
        Consumer<String> consumer = consumer(topic, SubscriptionType.Shared);
        Producer<String> producer = s.keep(client.newProducer(Schema.STRING).topic(topic).producerName("p").enableBatching(false)
            .sendTimeout(0, TimeUnit.SECONDS).create());
        for (String name : List.of("aborted", "committed")) {
            Transaction txn = begin();
            for (int sequence : new int[] {5, 5, 6}) {
                s.step(name + " " + sequence, () -> Scenario.place(producer.newMessage(txn).sequenceId(sequence).value(name + sequence).send()));
            }
            s.run(name, () -> (name.equals("committed") ? txn.commit() : txn.abort()).get());
        }
        s.say("received", Scenario.texts(s.receiveAll(consumer)));
    }

    private void chunks() throws Exception {
        String topic = s.topic("t");
        Consumer<String> consumer = consumer(topic, SubscriptionType.Exclusive);
        Producer<String> producer = s.keep(client.newProducer(Schema.STRING).topic(topic).enableBatching(false)
            .enableChunking(true).chunkMaxMessageSize(1000).sendTimeout(0, TimeUnit.SECONDS).create());
        for (boolean commits : new boolean[] {false, true}) {
            Transaction txn = begin();
            s.step("send", () -> Scenario.place(send(producer, txn, (commits ? "c" : "a").repeat(3000))));
            s.run(commits ? "commit" : "abort", () -> (commits ? txn.commit() : txn.abort()).get());
        }
        s.say("received", s.receiveAll(consumer).stream().map(one -> one.getValue().length() + one.getValue().substring(0, 1)).toList());
    }

    private void compaction() throws Exception {
        String topic = s.topic("t");
        Producer<String> producer = producer(topic);
        producer.newMessage().key("a").value("a0").send();
        producer.newMessage().key("b").value("b0").send();
        for (boolean commits : new boolean[] {true, false}) {
            Transaction txn = begin();
            producer.newMessage(txn).key(commits ? "a" : "b").value("txn").send();
            s.run(commits ? "commit" : "abort", () -> (commits ? txn.commit() : txn.abort()).get());
        }
        producer.newMessage().key("c").value("c0").send();
        s.run("compact", () -> s.admin.topics().triggerCompaction(topic));
        s.say("status", Scenario.until(() -> s.admin.topics().compactionStatus(topic).status, status -> status.name().equals("SUCCESS")));
        try (Reader<String> reader = s.keep(client.newReader(Schema.STRING).topic(topic).startMessageId(MessageId.earliest)
            .readCompacted(true).create())) {
            s.step("compacted", () -> s.readAll(reader));
        }
    }

    private void keys() throws Exception {
        String topic = s.topic("t");
        Consumer<String> consumer = consumer(topic, SubscriptionType.Key_Shared);
        Producer<String> producer = producer(topic);
        for (boolean commits : new boolean[] {false, true}) {
            Transaction txn = begin();
            for (int number = 0; number < 6; number++) {
                producer.newMessage(txn).key("k" + number % 2).value((commits ? "c" : "a") + number).send();
            }
            s.run(commits ? "commit" : "abort", () -> (commits ? txn.commit() : txn.abort()).get());
        }
        List<Message<String>> found = s.receiveAll(consumer);
        s.say("received", Scenario.texts(found));
        Transaction txn = begin();
        for (Message<String> message : found.subList(0, Math.min(3, found.size()))) {
            ack("ack", consumer, message, txn);
        }
        consumer.close();
        Consumer<String> next = consumer(topic, SubscriptionType.Key_Shared);
        s.say("pending", Scenario.texts(s.receiveAll(next)));
        abort("abort", txn);
        next.close();
        left("aborted", topic, SubscriptionType.Key_Shared);
    }

    private void deleted() throws Exception {
        String topic = s.topic("t");
        String kept = s.topic("kept");
        Consumer<String> consumer = consumer(topic, SubscriptionType.Shared);
        s.send(s.producer(topic), "m", 1);
        Transaction txn = begin();
        for (String name : Arrays.asList(topic, kept)) {
            try (Producer<String> producer = client.newProducer(Schema.STRING).topic(name).enableBatching(false).create()) {
                send(producer, txn, "sent");
            }
        }
        ack("ack", consumer, s.receive(consumer, 1).get(0), txn);
        consumer.close();
        s.run("unsubscribe", () -> s.admin.topics().deleteSubscription(topic, "s"));
        s.run("delete", () -> s.admin.topics().delete(topic, true));
        commit("commit", txn);
        left("kept", kept, SubscriptionType.Shared);
        left("deleted", topic, SubscriptionType.Shared);
    }
}
