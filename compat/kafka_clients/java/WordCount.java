import java.util.Arrays;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.KeyValueStore;

/** Counts words with Kafka Streams, exactly once, until it is killed: BOOTSTRAP STATE-FOLDER. */
public final class WordCount {
  public static void main(String[] args) throws Exception {
    Properties settings = new Properties();
    settings.put(StreamsConfig.APPLICATION_ID_CONFIG, "word-count");
    settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, args[0]);
    settings.put(StreamsConfig.STATE_DIR_CONFIG, args[1]);
    settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
    settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 100);
    settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 2);
    // Each count is sent, so that a record that counts twice is seen.
    settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
    settings.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
    settings.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
    settings.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
    settings.put(ConsumerConfig.SESSION_TIMEOUT_MS_CONFIG, 6_000);
    settings.put(ConsumerConfig.HEARTBEAT_INTERVAL_MS_CONFIG, 500);
    settings.put(ProducerConfig.TRANSACTION_TIMEOUT_CONFIG, 5_000);
    StreamsBuilder builder = new StreamsBuilder();
    builder.<String, String>stream("lines")
        .flatMapValues(line -> Arrays.asList(line.split(" ")))
        .groupBy((key, word) -> word, Grouped.with(Serdes.String(), Serdes.String()))
        .count(Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as("counts"))
        .toStream()
        .mapValues(count -> Long.toString(count))
        .to("word-counts", Produced.with(Serdes.String(), Serdes.String()));
    KafkaStreams streams = new KafkaStreams(builder.build(), settings);
    streams.setUncaughtExceptionHandler(
        error -> {
          System.out.println("replaced a thread: " + error);
          return StreamThreadExceptionResponse.REPLACE_THREAD;
        });
    streams.setStateListener((now, before) -> System.out.println(now));
    streams.start();
    Thread.sleep(Long.MAX_VALUE);
  }
}
