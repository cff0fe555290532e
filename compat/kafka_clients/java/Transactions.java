import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.ProducerFencedException;

/** Transactions of Java's producers and consumers: BOOTSTRAP PREFIX. It fails with an exception. */
public final class Transactions {
  private final String bootstrap;
  private final String prefix;

  private Transactions(String bootstrap, String prefix) {
    this.bootstrap = bootstrap;
    this.prefix = prefix;
  }

  public static void main(String[] args) throws Exception {
    Transactions all = new Transactions(args[0], args[1]);
    all.committedAndAborted();
    all.manyInARow();
    all.fenced();
    all.late();
    for (String protocol : args[2].split(",")) {
      all.transformed(protocol);
    }
    System.out.println("done");
  }

  private KafkaProducer<String, String> producer(String id, Object... more) {
    KafkaProducer<String, String> made = new KafkaProducer<>(settings(
        "transactional.id", prefix + id, "linger.ms", 5, "max.block.ms", 30_000,
        "key.serializer", "org.apache.kafka.common.serialization.StringSerializer",
        "value.serializer", "org.apache.kafka.common.serialization.StringSerializer", more));
    made.initTransactions();
    return made;
  }

  private Properties settings(Object... pairs) {
    Properties made = new Properties();
    made.put("bootstrap.servers", bootstrap);
    for (int at = 0; at + 1 < pairs.length; at += 2) {
      made.put(pairs[at], pairs[at + 1]);
    }
    if (pairs.length % 2 == 1) {
      Object[] more = (Object[]) pairs[pairs.length - 1];
      for (int at = 0; at < more.length; at += 2) {
        made.put(more[at], more[at + 1]);
      }
    }
    return made;
  }

  private KafkaConsumer<String, String> consumer(Object... more) {
    return new KafkaConsumer<>(settings(
        "auto.offset.reset", "earliest", "enable.auto.commit", false,
        "key.deserializer", "org.apache.kafka.common.serialization.StringDeserializer",
        "value.deserializer", "org.apache.kafka.common.serialization.StringDeserializer", more));
  }

  /** All values of partition 0, up to the end that a reader of this level sees. */
  private List<String> read(String topic, String level) {
    try (KafkaConsumer<String, String> reader = consumer("isolation.level", level)) {
      TopicPartition at = new TopicPartition(topic, 0);
      reader.assign(List.of(at));
      reader.seekToBeginning(List.of(at));
      long end = reader.endOffsets(List.of(at)).get(at);
      List<String> found = new ArrayList<>();
      while (reader.position(at) < end) {
        for (ConsumerRecord<String, String> each : reader.poll(Duration.ofMillis(200))) {
          found.add(each.value());
        }
      }
      return found;
    }
  }

  private static void send(KafkaProducer<String, String> to, String topic, String... values) {
    for (String each : values) {
      to.send(new ProducerRecord<>(topic, 0, null, each));
    }
  }

  private static void expect(Object found, Object wanted) {
    if (!found.equals(wanted)) {
      throw new IllegalStateException(found + " is not " + wanted);
    }
  }

  private void committedAndAborted() {
    String topic = prefix + "ends";
    try (KafkaProducer<String, String> one = producer("ends")) {
      one.beginTransaction();
      send(one, topic, "a", "b");
      one.commitTransaction();
      one.beginTransaction();
      send(one, topic, "c");
      one.flush();
      expect(read(topic, "read_committed"), List.of("a", "b"));
      expect(read(topic, "read_uncommitted"), List.of("a", "b", "c"));
      one.abortTransaction();
      one.beginTransaction();
      one.abortTransaction();
      one.beginTransaction();
      one.commitTransaction();
      one.beginTransaction();
      send(one, topic, "d");
      one.commitTransaction();
    }
    expect(read(topic, "read_committed"), List.of("a", "b", "d"));
  }

  private void manyInARow() {
    List<String> wanted = new ArrayList<>();
    try (KafkaProducer<String, String> one = producer("many")) {
      for (int number = 0; number < 60; number++) {
        one.beginTransaction();
        for (String topic : List.of("many-a", "many-b")) {
          send(one, prefix + topic, number + " first", number + " second");
        }
        if (number % 3 == 2) {
          one.abortTransaction();
        } else {
          one.commitTransaction();
          wanted.addAll(List.of(number + " first", number + " second"));
        }
      }
    }
    expect(read(prefix + "many-a", "read_committed"), wanted);
    expect(read(prefix + "many-b", "read_committed"), wanted);
  }

  private void fenced() {
    String topic = prefix + "fenced";
    KafkaProducer<String, String> before = producer("fenced");
    before.beginTransaction();
    send(before, topic, "zombie");
    before.flush();
    try (KafkaProducer<String, String> heir = producer("fenced")) {
      heir.beginTransaction();
      send(heir, topic, "heir");
      try {
        send(before, topic, "late");
        before.commitTransaction();
        throw new IllegalStateException("a fenced producer has committed");
      } catch (ProducerFencedException | InvalidProducerEpochException expected) {
        before.close(Duration.ZERO);
      }
      heir.commitTransaction();
    }
    expect(read(topic, "read_committed"), List.of("heir"));
  }

  private void late() throws InterruptedException {
    String topic = prefix + "late";
    try (KafkaProducer<String, String> one = producer("late", "transaction.timeout.ms", 1_000)) {
      one.beginTransaction();
      send(one, topic, "late");
      one.flush();
      Thread.sleep(4_000);
      try {
        one.commitTransaction();
        throw new IllegalStateException("a transaction that took too long was committed");
      } catch (org.apache.kafka.common.KafkaException expected) {
        expect(read(topic, "read_committed"), List.of());
      }
    }
    try (KafkaProducer<String, String> next = producer("late")) {
      next.beginTransaction();
      send(next, topic, "next");
      next.commitTransaction();
    }
    expect(read(topic, "read_committed"), List.of("next"));
  }

  /** Consume, transform, produce, with the members of a group; every second one is aborted. */
  private void transformed(String protocol) {
    String from = prefix + "from", to = prefix + "to-" + protocol, group = prefix + protocol;
    try (KafkaProducer<String, String> source = producer("source")) {
      source.beginTransaction();
      for (int number = 0; number < 40; number++) {
        send(source, from, protocol + number);
      }
      source.commitTransaction();
    }
    Object[] more = protocol.equals("classic") ? new Object[] {} : new Object[] {"group.protocol", protocol};
    List<String> wanted = read(from, "read_committed");
    int sent = 0;
    int round = 0;
    try (KafkaConsumer<String, String> in = grouped(group, more);
        KafkaProducer<String, String> out = producer("out-" + protocol)) {
      in.subscribe(List.of(from));
      while (sent < wanted.size()) {
        List<ConsumerRecord<String, String>> got = new ArrayList<>();
        in.poll(Duration.ofMillis(200)).forEach(got::add);
        if (got.isEmpty()) {
          continue;
        }
        TopicPartition at = new TopicPartition(from, 0);
        long first = got.get(0).offset();
        List<ConsumerRecord<String, String>> part = got.subList(0, Math.min(7, got.size()));
        out.beginTransaction();
        part.forEach(each -> send(out, to, each.value()));
        ConsumerGroupMetadata member = in.groupMetadata();
        long next = part.get(part.size() - 1).offset() + 1;
        out.sendOffsetsToTransaction(Map.of(at, new OffsetAndMetadata(next)), member);
        if (round++ % 2 == 0) {
          out.abortTransaction();
          in.seek(at, first);
        } else {
          out.commitTransaction();
          sent += part.size();
          in.seek(at, next);
        }
      }
    }
    expect(read(to, "read_committed"), wanted);
  }

  private KafkaConsumer<String, String> grouped(String group, Object[] more) {
    Object[] all = new Object[more.length + 4];
    System.arraycopy(new Object[] {"group.id", group, "isolation.level", "read_committed"}, 0, all, 0, 4);
    System.arraycopy(more, 0, all, 4, more.length);
    return consumer(all);
  }
}
