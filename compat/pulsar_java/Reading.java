// Readers and table views.

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.Range;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.ReaderBuilder;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.TableView;

final class Reading {
    static void register(Map<String, Scenario.Story> stories) {
        stories.put("reader-starts", Reading::starts);
        stories.put("reader-seeks", Reading::seeks);
        stories.put("reader-available", Reading::available);
        stories.put("reader-partitions", Reading::partitions);
        stories.put("reader-end", Reading::end);
        stories.put("table-view", Reading::tableView);
        stories.put("table-view-partitions", Reading::tableViewPartitions);
    }

    private static ReaderBuilder<String> reading(Scenario s, String topic) {
        return s.client.newReader(Schema.STRING).topic(topic);
    }

    private static void starts(Scenario s) throws Exception {
        String topic = s.topic("t");
        List<MessageId> ids = new ArrayList<>(s.send(s.producer(topic), "m", 3));
        ids.addAll(s.sendBatch(topic, "b", 4));
        Map<String, MessageId> places = new java.util.LinkedHashMap<>();
        places.put("earliest", MessageId.earliest);
        places.put("latest", MessageId.latest);
        places.put("second", ids.get(1));
        places.put("in the batch", ids.get(4));
        places.put("last of the batch", ids.get(6));
        places.forEach((name, id) -> {
            for (boolean inclusive : new boolean[] {false, true}) {
                s.step(name + (inclusive ? " inclusive" : ""), () -> {
                    ReaderBuilder<String> builder = reading(s, topic).startMessageId(id);
                    try (Reader<String> reader = (inclusive ? builder.startMessageIdInclusive() : builder).create()) {
                        return s.readAll(reader);
                    }
                });
            }
        });
        s.step("an hour ago", () -> s.readAll(s.keep(reading(s, topic).startMessageFromRollbackDuration(1, TimeUnit.HOURS).create())));
        s.step("its subscription", () -> s.admin.topics().getStats(topic).getSubscriptions().entrySet().stream()
            .map(one -> one.getKey().replaceAll("-.*", "") + " " + one.getValue().getType() + " " + one.getValue().isDurable()
                ).toList());
        s.step("with a name", () -> s.readAll(s.keep(reading(s, topic).subscriptionName("mine").readerName("r")
            .startMessageId(MessageId.earliest).create())));
        s.open("the name again", () -> reading(s, topic).subscriptionName("mine").startMessageId(MessageId.earliest).create());
        s.step("with a role prefix", () -> {
            s.keep(reading(s, topic).subscriptionRolePrefix("pre").startMessageId(MessageId.earliest).create());
            return s.admin.topics().getSubscriptions(topic).stream().filter(name -> name.startsWith("pre-reader")).count();
        });
        s.open("without a start", () -> reading(s, topic).create());
    }

    private static void seeks(Scenario s) throws Exception {
        String topic = s.topic("t");
        Producer<String> producer = s.producer(topic);
        List<MessageId> ids = new ArrayList<>(s.send(producer, "m", 3));
        Thread.sleep(30);
        long middle = System.currentTimeMillis();
        Thread.sleep(30);
        ids.addAll(s.sendBatch(topic, "b", 3));
        for (boolean inclusive : new boolean[] {false, true}) {
            ReaderBuilder<String> builder = reading(s, topic).startMessageId(MessageId.earliest);
            Reader<String> reader = s.keep((inclusive ? builder.startMessageIdInclusive() : builder).create());
            String label = inclusive ? "inclusive: " : "";
            s.say(label + "first", s.readAll(reader));
            for (int index : new int[] {1, 4, 5}) {
                s.run(label + "seek to " + index, () -> reader.seek(ids.get(index)));
                s.step(label + "then", () -> s.readAll(reader));
            }
            s.run(label + "seek to a time", () -> reader.seek(middle));
            s.step(label + "then", () -> s.readAll(reader));
            s.run(label + "seek to latest", () -> reader.seek(MessageId.latest));
            s.step(label + "available", reader::hasMessageAvailable);
            s.run(label + "seek to earliest", () -> reader.seek(MessageId.earliest));
            s.step(label + "then", () -> s.readAll(reader));
            s.run(label + "seek to the future", () -> reader.seek(System.currentTimeMillis() + 3_600_000));
            s.step(label + "available", reader::hasMessageAvailable);
        }
    }

    private static void available(Scenario s) throws Exception {
        String topic = s.topic("t");
        Reader<String> earliest = s.keep(reading(s, topic).startMessageId(MessageId.earliest).create());
        Reader<String> latest = s.keep(reading(s, topic).startMessageId(MessageId.latest).create());
        Reader<String> inclusive = s.keep(reading(s, topic).startMessageId(MessageId.latest).startMessageIdInclusive().create());
        for (int round = 0; round < 2; round++) {
            s.say("earliest", earliest.hasMessageAvailable());
            s.say("latest", latest.hasMessageAvailable());
            s.say("latest inclusive", inclusive.hasMessageAvailable());
            if (round == 0) {
                s.send(s.producer(topic), "m", 2);
            }
        }
        s.step("read from earliest", () -> s.readAll(earliest));
        s.step("read from latest", () -> s.readAll(latest));
        s.step("a late reader at latest", () -> {
            Reader<String> late = s.keep(reading(s, topic).startMessageId(MessageId.latest).startMessageIdInclusive().create());
            return s.readAll(late);
        });
        s.step("last ids", () -> Scenario.places(earliest.getLastMessageIds()));
        s.run("all but nothing kept", () -> s.admin.topics().truncate(topic));
        Reader<String> after = s.keep(reading(s, topic).startMessageId(MessageId.earliest).create());
        s.step("available after truncation", after::hasMessageAvailable);
        s.step("read after truncation", () -> after.readNext(Scenario.QUIET_MS, TimeUnit.MILLISECONDS) != null);
    }

    private static void partitions(Scenario s) throws Exception {
        String topic = s.topic("t");
        s.admin.topics().createPartitionedTopic(topic, 3);
        Producer<String> producer = s.producer(topic);
        s.send(producer, "m", 6);
        Reader<String> reader = s.keep(reading(s, topic).startMessageId(MessageId.earliest).create());
        s.say("all", s.readAll(reader).stream().sorted().toList());
        s.run("seek to a time", () -> reader.seek(0));
        s.say("again", s.readAll(reader).stream().sorted().toList());
        s.open("from an id of a partition", () -> reading(s, topic).startMessageId(producer.send("x")).create());
        for (int number = 0; number < 20; number++) {
            producer.newMessage().key("key" + number).value("k" + number).send();
        }
        Reader<String> half = s.keep(reading(s, topic).startMessageId(MessageId.earliest).keyHashRange(Range.of(0, 32767)).create());
        s.say("keys of half the hashes", s.readAll(half).stream().filter(text -> text.startsWith("k")).sorted().toList());
        s.step("several topics", () -> s.readAll(s.keep(s.client.newReader(Schema.STRING)
            .topics(List.of(topic + "-partition-0", topic + "-partition-1")).startMessageId(MessageId.earliest).create())).size() > 0);
    }

    private static void end(Scenario s) throws Exception {
        String topic = s.topic("t");
        s.send(s.producer(topic), "m", 2);
        Reader<String> reader = s.keep(reading(s, topic).startMessageId(MessageId.earliest).create());
        s.say("at first", reader.hasReachedEndOfTopic());
        s.admin.topics().terminateTopic(topic);
        s.step("terminated, read", () -> s.readAll(reader));
        s.step("the end", () -> Scenario.until(reader::hasReachedEndOfTopic, yes -> yes));
        s.step("a new reader", () -> {
            Reader<String> late = s.keep(reading(s, topic).startMessageId(MessageId.latest).create());
            return Scenario.until(late::hasReachedEndOfTopic, yes -> yes) + " " + late.hasMessageAvailable();
        });
    }

    private static void tableView(Scenario s) throws Exception {
        String topic = s.topic("t");
        Producer<String> producer = s.producer(topic);
        producer.newMessage().key("a").value("1").send();
        producer.newMessage().key("b").value("2").send();
        producer.newMessage().key("a").value("3").send();
        producer.newMessage().value("no key").send();
        TableView<String> view = s.keep(s.client.newTableView(Schema.STRING).topic(topic).create());
        s.say("at first", new TreeMap<>(Map.copyOf(asMap(view))));
        ConcurrentLinkedQueue<String> heard = new ConcurrentLinkedQueue<>();
        view.forEachAndListen((key, value) -> heard.add(key + "=" + value));
        producer.newMessage().key("c").value("4").send();
        producer.newMessage().key("a").value(null).send();
        s.step("changes", () -> Scenario.until(() -> List.copyOf(heard), found -> found.size() >= 4).stream().sorted().toList());
        s.step("refreshed", () -> {
            producer.newMessage().key("d").value("5").send();
            view.refreshAsync().get(Scenario.LONG_S, TimeUnit.SECONDS);
            return new TreeMap<>(asMap(view));
        });
        s.run("compact", () -> s.admin.topics().triggerCompaction(topic));
        s.step("compacted", () -> Scenario.until(() -> s.admin.topics().compactionStatus(topic).status.name(), "SUCCESS"::equals));
        s.step("a view of the compacted", () -> new TreeMap<>(asMap(s.keep(s.client.newTableView(Schema.STRING).topic(topic).create()))));
        s.step("of an empty topic", () -> s.keep(s.client.newTableView(Schema.STRING).topic(s.topic("empty")).create()).size());
    }

    private static Map<String, String> asMap(TableView<String> view) {
        Map<String, String> found = new TreeMap<>();
        view.forEach((key, value) -> found.put(String.valueOf(key), String.valueOf(value)));
        return found;
    }

    private static void tableViewPartitions(Scenario s) throws Exception {
        String topic = s.topic("t");
        s.admin.topics().createPartitionedTopic(topic, 2);
        Producer<String> producer = s.producer(topic);
        for (int number = 0; number < 12; number++) {
            producer.newMessage().key("k" + number % 6).value("m" + number).send();
        }
        TableView<String> view = s.keep(s.client.newTableView(Schema.STRING).topic(topic)
            .autoUpdatePartitionsInterval(1, TimeUnit.SECONDS).create());
        s.say("all partitions", asMap(view));
        s.admin.topics().updatePartitionedTopic(topic, 4);
        Producer<String> last = s.producer(topic + "-partition-3");
        last.newMessage().key("new").value("partition").send();
        s.step("a new partition", () -> Scenario.until(() -> view.get("new"), found -> found != null));
        Message<String> none = s.keep(reading(s, topic + "-partition-2").startMessageId(MessageId.earliest).create())
            .readNext(Scenario.QUIET_MS, TimeUnit.MILLISECONDS);
        s.say("an empty partition", none);
    }
}
