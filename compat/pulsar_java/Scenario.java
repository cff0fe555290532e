// One scenario: topics in a namespace of its own, and a line for each outcome.

import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Deque;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.admin.PulsarAdminException;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.MessageIdAdv;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.impl.ChunkMessageIdImpl;

final class Scenario {
    /** What a scenario does. */
    interface Story {
        void run(Scenario scenario) throws Exception;
    }

    /** How long something may take that must come. */
    static final int LONG_S = 15;
    /** After this time without a message there is none. */
    static final int QUIET_MS = 2000;
    private static final Pattern SAID = Pattern.compile("\"errorMsg\":\"(.*?)\",\"reqId\"", Pattern.DOTALL);

    final PulsarClient client;
    final PulsarAdmin admin;
    final String serviceUrl;
    final String namespace;
    final List<String> lines = new ArrayList<>();
    private final Deque<AutoCloseable> open = new ArrayDeque<>();

    Scenario(PulsarClient client, PulsarAdmin admin, String serviceUrl, String namespace) {
        this.client = client;
        this.admin = admin;
        this.serviceUrl = serviceUrl;
        this.namespace = namespace;
    }

    String topic(String name) {
        return "persistent://" + namespace + "/" + name;
    }

    String fleeting(String name) {
        return "non-persistent://" + namespace + "/" + name;
    }

    // -- lines ----------------------------------------------------------------------------------

    void say(String label, Object value) {
        lines.add(label + ": " + value);
    }

    /** Do something; the line has what it returned or how it failed. */
    void step(String label, Callable<?> action) {
        try {
            say(label, action.call());
        } catch (Exception error) {
            say(label, failure(error));
        }
    }

    /** Do something that returns nothing. */
    void run(String label, Action action) {
        step(label, () -> {
            action.run();
            return "done";
        });
    }

    interface Action {
        void run() throws Exception;
    }

    /** Open something that is closed at the end; null if that failed. */
    <T extends AutoCloseable> T open(String label, Callable<T> action) {
        try {
            T found = keep(action.call());
            say(label, "open");
            return found;
        } catch (Exception error) {
            say(label, failure(error));
            return null;
        }
    }

    <T extends AutoCloseable> T keep(T found) {
        open.push(found);
        return found;
    }

    void close() {
        while (!open.isEmpty()) {
            try {
                open.pop().close();
            } catch (Exception error) {
                // It may be closed already.
            }
        }
    }

    /** What a future has become: its value, its failure, or that it waits. */
    String state(CompletableFuture<?> future, int waitMs) throws InterruptedException {
        try {
            return String.valueOf(shown(future.get(waitMs, TimeUnit.MILLISECONDS)));
        } catch (TimeoutException error) {
            return "waits";
        } catch (ExecutionException error) {
            return failure(error);
        }
    }

    private static Object shown(Object value) {
        return value instanceof Producer || value instanceof Consumer ? "open" : value;
    }

    static String failure(Throwable error) {
        Throwable cause = error;
        while ((cause instanceof ExecutionException || cause instanceof CompletionException) && cause.getCause() != null) {
            cause = cause.getCause();
        }
        String text = String.valueOf(cause.getMessage());
        if (cause instanceof PulsarAdminException refused) {
            text = refused.getStatusCode() + " " + refused.getHttpError();
        }
        Matcher said = SAID.matcher(text);
        text = said.find() ? said.group(1) : text.lines().findFirst().orElse("");
        return "! " + cause.getClass().getName().replaceAll(".*[.]", "") + ": " + text;
    }

    // -- clients --------------------------------------------------------------------------------

    ProducerBuilder<String> producing(String topic) {
        return client.newProducer(Schema.STRING).topic(topic).enableBatching(false);
    }

    Producer<String> producer(String topic) throws Exception {
        return keep(producing(topic).create());
    }

    ConsumerBuilder<String> consuming(String topic) {
        return client.newConsumer(Schema.STRING).topic(topic).subscriptionName("s")
            .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
            .acknowledgmentGroupTime(0, TimeUnit.MILLISECONDS);
    }

    Consumer<String> consumer(String topic, SubscriptionType type) throws Exception {
        return keep(consuming(topic).subscriptionType(type).subscribe());
    }

    List<MessageId> send(Producer<String> producer, String name, int count) throws Exception {
        List<MessageId> ids = new ArrayList<>();
        for (int number = 0; number < count; number++) {
            ids.add(producer.send(name + number));
        }
        return ids;
    }

    /** Publish so many messages as one batch. */
    List<MessageId> sendBatch(String topic, String name, int count) throws Exception {
        List<CompletableFuture<MessageId>> sent = new ArrayList<>();
        try (Producer<String> producer = client.newProducer(Schema.STRING).topic(topic)
            .batchingMaxPublishDelay(1, TimeUnit.HOURS).batchingMaxMessages(1000).create()) {
            for (int number = 0; number < count; number++) {
                sent.add(producer.sendAsync(name + number));
            }
            producer.flush();
        }
        List<MessageId> ids = new ArrayList<>();
        for (CompletableFuture<MessageId> one : sent) {
            ids.add(one.get());
        }
        return ids;
    }

    /** Receive up to so many messages, and acknowledge them. */
    List<String> take(Consumer<?> consumer, int count) throws Exception {
        List<String> found = new ArrayList<>();
        for (Message<?> message : receive(consumer, count)) {
            consumer.acknowledge(message);
            found.add(text(message));
        }
        return found;
    }

    /** Receive up to so many messages. */
    <T> List<Message<T>> receive(Consumer<T> consumer, int count) throws Exception {
        List<Message<T>> found = new ArrayList<>();
        while (found.size() < count) {
            Message<T> message = consumer.receive(LONG_S, TimeUnit.SECONDS);
            if (message == null) {
                break;
            }
            found.add(message);
        }
        return found;
    }

    /** Receive until nothing comes any more. */
    <T> List<Message<T>> receiveAll(Consumer<T> consumer) throws Exception {
        List<Message<T>> found = new ArrayList<>();
        for (Message<T> message = consumer.receive(QUIET_MS, TimeUnit.MILLISECONDS); message != null;
            message = consumer.receive(QUIET_MS, TimeUnit.MILLISECONDS)) {
            found.add(message);
        }
        return found;
    }

    List<String> readAll(Reader<?> reader) throws Exception {
        List<String> found = new ArrayList<>();
        while (reader.hasMessageAvailable()) {
            Message<?> message = reader.readNext(LONG_S, TimeUnit.SECONDS);
            found.add(message == null ? "nothing" : text(message));
            if (message == null) {
                break;
            }
        }
        return found;
    }

    // -- what messages are like -----------------------------------------------------------------

    static String text(Message<?> message) {
        try {
            Object value = message.getValue();
            if (value instanceof byte[] bytes) {
                return new String(bytes, StandardCharsets.UTF_8);
            }
            return String.valueOf(value);
        } catch (RuntimeException error) {
            return failure(error);
        }
    }

    static <T> List<String> texts(Collection<Message<T>> messages) {
        return messages.stream().map(Scenario::text).toList();
    }

    static <T> List<String> counted(Collection<Message<T>> messages) {
        return messages.stream().map(one -> text(one) + " again " + one.getRedeliveryCount()).toList();
    }

    /** An id without its ledger, which differs from broker to broker. */
    static String place(MessageId id) {
        if (id instanceof ChunkMessageIdImpl chunks) {
            return place(chunks.getFirstChunkMessageId()) + ".." + chunks.getEntryId();
        }
        MessageIdAdv found = (MessageIdAdv) id;
        String ledger = found.getLedgerId() == -1 ? "no ledger " : "";
        String batch = found.getBatchIndex() < 0 ? "" : " " + found.getBatchIndex() + "/" + found.getBatchSize();
        String partition = found.getPartitionIndex() < 0 ? "" : " of " + found.getPartitionIndex();
        return ledger + found.getEntryId() + batch + partition;
    }

    static List<String> places(Collection<? extends MessageId> ids) {
        return ids.stream().map(Scenario::place).toList();
    }

    /** Everything that a client sees of a message. */
    static String show(Message<?> message) {
        Map<String, Object> facts = new TreeMap<>();
        facts.put("at", place(message.getMessageId()));
        facts.put("size", message.size());
        facts.put("key", message.getKey() + (message.hasBase64EncodedKey() ? " base64" : ""));
        facts.put("ordering key", message.hasOrderingKey() ? new String(message.getOrderingKey()) : "none");
        facts.put("properties", new TreeMap<>(message.getProperties()));
        facts.put("event time", message.getEventTime());
        facts.put("sequence", message.getSequenceId());
        facts.put("again", message.getRedeliveryCount());
        facts.put("index", message.getIndex().map(String::valueOf).orElse("none"));
        facts.put("broker time", message.hasBrokerPublishTime());
        facts.put("replicated", message.isReplicated());
        facts.put("schema", message.getSchemaVersion() == null ? "none"
            : java.util.HexFormat.of().formatHex(message.getSchemaVersion()));
        return text(message) + " " + facts;
    }

    /** Try until a value is as wanted, or time is over; the last value. */
    static <T> T until(Callable<T> look, java.util.function.Predicate<T> wanted) throws Exception {
        long giveUp = System.nanoTime() + TimeUnit.SECONDS.toNanos(LONG_S);
        T found = look.call();
        while (!wanted.test(found) && System.nanoTime() < giveUp) {
            Thread.sleep(50);
            found = look.call();
        }
        return found;
    }
}
