// Schemas: what each kind carries, and how it evolves.

import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.util.ArrayList;
import java.util.Date;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import com.google.protobuf.Duration;
import com.google.protobuf.Timestamp;
import org.apache.avro.reflect.Nullable;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.schema.Field;
import org.apache.pulsar.client.api.schema.GenericRecord;
import org.apache.pulsar.client.api.schema.RecordSchemaBuilder;
import org.apache.pulsar.client.api.schema.SchemaBuilder;
import org.apache.pulsar.common.schema.KeyValue;
import org.apache.pulsar.common.schema.KeyValueEncodingType;
import org.apache.pulsar.common.schema.SchemaType;

final class Schemas {
    /** The first version of a record. */
    public static class Person {
        public String name;
        public int age;

        static Person of(String name, int age) {
            Person made = new Person();
            made.name = name;
            made.age = age;
            return made;
        }

        @Override
        public String toString() {
            return name + " " + age;
        }
    }

    /** With an optional field more. */
    public static class Citizen {
        public String name;
        public int age;
        @Nullable
        public String city;

        @Override
        public String toString() {
            return name + " " + age + " " + city;
        }
    }

    /** Another type of a field. */
    public static class Stranger {
        public String name;
        public String age;
    }

    static void register(Map<String, Scenario.Story> stories) {
        stories.put("schema-primitives", Schemas::primitives);
        stories.put("schema-records", Schemas::records);
        stories.put("schema-evolution", Schemas::evolution);
        stories.put("schema-protobuf", Schemas::protobuf);
        stories.put("schema-key-value", Schemas::keyValue);
        stories.put("schema-auto-consume", Schemas::autoConsume);
        stories.put("schema-auto-produce", Schemas::autoProduce);
        stories.put("schema-per-message", Schemas::perMessage);
    }

    /** One value through a topic, and what the registry has then. */
    private static <T> void pass(Scenario s, String name, Schema<T> schema, T value) throws Exception {
        String topic = s.topic(name.toLowerCase());
        s.step(name, () -> {
            try (Consumer<T> consumer = s.client.newConsumer(schema).topic(topic).subscriptionName("s").subscribe();
                Producer<T> producer = s.client.newProducer(schema).topic(topic).create()) {
                producer.send(value);
                Message<T> found = consumer.receive(Scenario.LONG_S, TimeUnit.SECONDS);
                return Scenario.text(found) + " version " + (found.getSchemaVersion() == null ? "none"
                    : HexFormat.of().formatHex(found.getSchemaVersion()));
            }
        });
        s.step(name + " in the registry", () -> {
            var info = s.admin.schemas().getSchemaInfo(topic);
            return info.getType() + " " + info.getName().replaceAll(".*/", "") + " " + info.getProperties().keySet().stream()
                .sorted().toList() + " " + info.getSchemaDefinition().replaceAll("\\s", "").hashCode();
        });
    }

    private static void primitives(Scenario s) throws Exception {
        pass(s, "BYTES", Schema.BYTES, "bytes".getBytes());
        pass(s, "STRING", Schema.STRING, "text");
        pass(s, "BOOL", Schema.BOOL, true);
        pass(s, "INT8", Schema.INT8, (byte) -5);
        pass(s, "INT16", Schema.INT16, (short) -500);
        pass(s, "INT32", Schema.INT32, -50000);
        pass(s, "INT64", Schema.INT64, -5_000_000_000L);
        pass(s, "FLOAT", Schema.FLOAT, 1.5f);
        pass(s, "DOUBLE", Schema.DOUBLE, -2.25);
        pass(s, "DATE", Schema.DATE, new Date(1_700_000_000_000L));
        pass(s, "TIME", Schema.TIME, new java.sql.Time(1000));
        pass(s, "TIMESTAMP", Schema.TIMESTAMP, new java.sql.Timestamp(1_700_000_000_000L));
        pass(s, "INSTANT", Schema.INSTANT, Instant.ofEpochSecond(1_700_000_000, 5));
        pass(s, "LOCAL_DATE", Schema.LOCAL_DATE, LocalDate.of(2024, 2, 29));
        pass(s, "LOCAL_TIME", Schema.LOCAL_TIME, LocalTime.of(1, 2, 3));
        pass(s, "LOCAL_DATE_TIME", Schema.LOCAL_DATE_TIME, LocalDateTime.of(2024, 2, 29, 1, 2, 3));
    }

    private static void records(Scenario s) throws Exception {
        pass(s, "AVRO", Schema.AVRO(Person.class), Person.of("Ada", 36));
        pass(s, "JSON", Schema.JSON(Person.class), Person.of("Ada", 36));
        pass(s, "PROTOBUF", Schema.PROTOBUF(Timestamp.class), Timestamp.newBuilder().setSeconds(5).build());
        pass(s, "PROTOBUF_NATIVE", Schema.PROTOBUF_NATIVE(Timestamp.class), Timestamp.newBuilder().setSeconds(5).build());
        pass(s, "NATIVE_AVRO", Schema.NATIVE_AVRO(new org.apache.avro.Schema.Parser().parse(definition("age", "int", null))),
            new byte[] {6, 'A', 'd', 'a', 72});
    }

    /** An Avro record with a name and one other field. */
    static String definition(String field, String type, String defaultValue) {
        return "{\"type\":\"record\",\"name\":\"Person\",\"fields\":[{\"name\":\"name\",\"type\":\"string\"},{\"name\":\"" + field
            + "\",\"type\":" + (type.startsWith("[") ? type : "\"" + type + "\"")
            + (defaultValue == null ? "" : ",\"default\":" + defaultValue) + "}]}";
    }

    static Schema<GenericRecord> generic(SchemaType type, Map<String, SchemaType> fields, String optional) {
        RecordSchemaBuilder builder = SchemaBuilder.record("Person");
        fields.forEach((name, kind) -> {
            if (name.equals(optional)) {
                builder.field(name).type(kind).optional().defaultValue(null);
            } else {
                builder.field(name).type(kind);
            }
        });
        return Schema.generic(builder.build(type));
    }

    private static Map<String, SchemaType> fields(Object... pairs) {
        Map<String, SchemaType> found = new LinkedHashMap<>();
        for (int at = 0; at < pairs.length; at += 2) {
            found.put((String) pairs[at], (SchemaType) pairs[at + 1]);
        }
        return found;
    }

    private static void evolution(Scenario s) throws Exception {
        for (SchemaType type : List.of(SchemaType.AVRO, SchemaType.JSON)) {
            String topic = s.topic(type.name());
            Schema<GenericRecord> first = generic(type, fields("name", SchemaType.STRING, "age", SchemaType.INT32), "");
            Schema<GenericRecord> wider = generic(type,
                fields("name", SchemaType.STRING, "age", SchemaType.INT32, "city", SchemaType.STRING), "city");
            Map<String, Schema<GenericRecord>> changes = new LinkedHashMap<>();
            changes.put("the first", first);
            changes.put("an optional field more", wider);
            changes.put("the first again", first);
            changes.put("a needed field more", generic(type,
                fields("name", SchemaType.STRING, "age", SchemaType.INT32, "zip", SchemaType.INT32), ""));
            changes.put("a field less", generic(type, fields("name", SchemaType.STRING), ""));
            changes.put("another type", generic(type, fields("name", SchemaType.STRING, "age", SchemaType.STRING), ""));
            changes.forEach((name, schema) -> {
                s.open(type + ": a producer with " + name, () -> s.client.newProducer(schema).topic(topic).create());
                s.open(type + ": a consumer with " + name, () -> s.client.newConsumer(schema).topic(topic)
                    .subscriptionName(name).subscribe());
            });
            s.step(type + ": versions", () -> s.admin.schemas().getAllSchemas(topic).stream()
                .map(info -> info.getSchemaDefinition().replaceAll("\\s", "")).toList());
        }
        reading(s, SchemaType.AVRO);
        reading(s, SchemaType.JSON);
    }

    /** Messages of two versions, read with either class. */
    private static void reading(Scenario s, SchemaType type) throws Exception {
        String topic = s.topic("read-" + type);
        boolean isAvro = type == SchemaType.AVRO;
        Schema<GenericRecord> first = generic(type, fields("name", SchemaType.STRING, "age", SchemaType.INT32), "");
        Schema<GenericRecord> wider = generic(type,
            fields("name", SchemaType.STRING, "age", SchemaType.INT32, "city", SchemaType.STRING), "city");
        var avro = (org.apache.pulsar.client.api.schema.GenericSchema<GenericRecord>) first;
        var avroWider = (org.apache.pulsar.client.api.schema.GenericSchema<GenericRecord>) wider;
        s.step(type + ": written", () -> {
            try (Producer<GenericRecord> one = s.client.newProducer(first).topic(topic).create();
                Producer<GenericRecord> two = s.client.newProducer(wider).topic(topic).create()) {
                one.send(avro.newRecordBuilder().set("name", "Ada").set("age", 36).build());
                two.send(avroWider.newRecordBuilder().set("name", "Bob").set("age", 40).set("city", "Oslo").build());
            }
            return "both";
        });
        Schema<Citizen> citizen = isAvro ? Schema.AVRO(Citizen.class) : Schema.JSON(Citizen.class);
        Schema<Person> person = isAvro ? Schema.AVRO(Person.class) : Schema.JSON(Person.class);
        Schema<Stranger> stranger = isAvro ? Schema.AVRO(Stranger.class) : Schema.JSON(Stranger.class);
        for (Schema<?> schema : List.of(citizen, person, stranger)) {
            s.step(type + ": read as " + schema.getClass().getSimpleName(), () -> {
                try (Reader<?> reader = s.client.newReader(schema).topic(topic).startMessageId(MessageId.earliest).create()) {
                    return s.readAll(reader);
                }
            });
        }
    }

    private static void protobuf(Scenario s) throws Exception {
        for (boolean isNative : new boolean[] {false, true}) {
            String topic = s.topic("native-" + isNative);
            Schema<Timestamp> one = isNative ? Schema.PROTOBUF_NATIVE(Timestamp.class) : Schema.PROTOBUF(Timestamp.class);
            Schema<Duration> two = isNative ? Schema.PROTOBUF_NATIVE(Duration.class) : Schema.PROTOBUF(Duration.class);
            s.open("first, native " + isNative, () -> s.client.newProducer(one).topic(topic).create());
            s.open("the same", () -> s.client.newConsumer(one).topic(topic).subscriptionName("s").subscribe());
            s.open("another message", () -> s.client.newProducer(two).topic(topic).create());
            s.open("a consumer of another message", () -> s.client.newConsumer(two).topic(topic).subscriptionName("x").subscribe());
            s.open("text", () -> s.client.newProducer(Schema.STRING).topic(topic).create());
        }
    }

    private static void keyValue(Scenario s) throws Exception {
        for (KeyValueEncodingType encoding : KeyValueEncodingType.values()) {
            Schema<KeyValue<Person, Integer>> schema = Schema.KeyValue(Schema.AVRO(Person.class), Schema.INT32, encoding);
            String topic = s.topic(encoding.name());
            Consumer<KeyValue<Person, Integer>> consumer = s.keep(s.client.newConsumer(schema).topic(topic).subscriptionName("s").subscribe());
            Producer<KeyValue<Person, Integer>> producer = s.keep(s.client.newProducer(schema).topic(topic).create());
            producer.send(new KeyValue<>(Person.of("Ada", 36), 7));
            producer.send(new KeyValue<>(null, 8));
            producer.send(new KeyValue<>(Person.of("Bob", 40), null));
            for (var message : s.receive(consumer, 3)) {
                KeyValue<Person, Integer> found = message.getValue();
                s.say(encoding.name(), found.getKey() + " = " + found.getValue() + ", the message's key "
                    + message.hasKey() + " " + message.size());
            }
            s.step(encoding + " in the registry", () -> s.admin.schemas().getSchemaInfo(topic).getSchemaDefinition().replaceAll("\\s", ""));
            s.open(encoding + ": the other encoding", () -> s.client.newProducer(Schema.KeyValue(Schema.AVRO(Person.class), Schema.INT32,
                encoding == KeyValueEncodingType.INLINE ? KeyValueEncodingType.SEPARATED : KeyValueEncodingType.INLINE)).topic(topic).create());
            s.open(encoding + ": another value", () -> s.client.newProducer(
                Schema.KeyValue(Schema.AVRO(Person.class), Schema.STRING, encoding)).topic(topic).create());
            s.step(encoding + ": auto", () -> s.readAll(s.keep(s.client.newReader(Schema.AUTO_CONSUME()).topic(topic)
                .startMessageId(MessageId.earliest).create())).size());
        }
    }

    private static String record(GenericRecord record) {
        if (record.getFields() == null || record.getFields().isEmpty()) {
            return record.getSchemaType() + " " + record.getNativeObject();
        }
        List<String> found = new ArrayList<>();
        for (Field field : record.getFields()) {
            found.add(field.getName() + "=" + record.getField(field));
        }
        return record.getSchemaType() + " " + found;
    }

    private static void autoConsume(Scenario s) throws Exception {
        String topic = s.topic("t");
        Consumer<GenericRecord> early = s.open("before there is a schema", () -> s.client.newConsumer(Schema.AUTO_CONSUME()).topic(topic)
            .subscriptionName("early").subscribe());
        Producer<Person> people = s.keep(s.client.newProducer(Schema.AVRO(Person.class)).topic(topic).create());
        people.send(Person.of("Ada", 36));
        s.say("received", s.receive(early, 1).stream().map(one -> record(one.getValue())).toList());
        for (SchemaType type : List.of(SchemaType.STRING, SchemaType.JSON, SchemaType.PROTOBUF_NATIVE)) {
            String other = s.topic(type.name());
            Schema<?> schema = type == SchemaType.STRING ? Schema.STRING
                : type == SchemaType.JSON ? Schema.JSON(Person.class) : Schema.PROTOBUF_NATIVE(Timestamp.class);
            Object value = type == SchemaType.STRING ? "text"
                : type == SchemaType.JSON ? Person.of("Bob", 40) : Timestamp.newBuilder().setSeconds(9).build();
            s.step(type.name(), () -> {
                @SuppressWarnings("unchecked")
                Producer<Object> producer = (Producer<Object>) (Producer<?>) s.keep(s.client.newProducer(schema).topic(other).create());
                producer.send(value);
                Consumer<GenericRecord> auto = s.keep(s.client.newConsumer(Schema.AUTO_CONSUME()).topic(other).subscriptionName("a")
                    .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe());
                return s.receive(auto, 1).stream().map(one -> record(one.getValue())).toList();
            });
        }
        String plain = s.topic("plain");
        s.keep(s.client.newProducer().topic(plain).create()).send("bytes".getBytes());
        s.step("of bytes", () -> s.receive(s.keep(s.client.newConsumer(Schema.AUTO_CONSUME()).topic(plain).subscriptionName("a")
            .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe()), 1).stream()
            .map(one -> one.getValue().getSchemaType()).toList());
    }

    private static void autoProduce(Scenario s) throws Exception {
        String topic = s.topic("t");
        s.open("before there is a schema", () -> s.client.newProducer(Schema.AUTO_PRODUCE_BYTES()).topic(s.topic("none")).create());
        s.keep(s.client.newProducer(Schema.AVRO(Person.class)).topic(topic).create());
        Producer<byte[]> producer = s.open("with a schema", () -> s.client.newProducer(Schema.AUTO_PRODUCE_BYTES()).topic(topic).create());
        Consumer<Person> consumer = s.keep(s.client.newConsumer(Schema.AVRO(Person.class)).topic(topic).subscriptionName("s").subscribe());
        s.step("good bytes", () -> Scenario.place(producer.send(Schema.AVRO(Person.class).encode(Person.of("Ada", 36)))));
        s.step("bad bytes", () -> producer.send(new byte[] {(byte) 0xff}));
        s.say("received", Scenario.texts(s.receive(consumer, 1)));
        s.open("of another schema", () -> s.client.newProducer(Schema.AUTO_PRODUCE_BYTES(Schema.JSON(Person.class))).topic(topic).create());
    }

    private static void perMessage(Scenario s) throws Exception {
        String topic = s.topic("t");
        Producer<Person> producer = s.keep(s.client.newProducer(Schema.AVRO(Person.class)).topic(topic).enableBatching(false).create());
        Consumer<GenericRecord> consumer = s.keep(s.client.newConsumer(Schema.AUTO_CONSUME()).topic(topic).subscriptionName("s").subscribe());
        producer.send(Person.of("Ada", 36));
        s.step("a wider schema for one message", () -> {
            Citizen citizen = new Citizen();
            citizen.name = "Bob";
            citizen.city = "Oslo";
            return Scenario.place(producer.newMessage(Schema.AVRO(Citizen.class)).value(citizen).send());
        });
        s.step("an incompatible one", () -> producer.newMessage(Schema.STRING).value("x").send());
        s.step("received", () -> s.receiveAll(consumer).stream()
            .map(one -> record(one.getValue()) + " " + HexFormat.of().formatHex(one.getSchemaVersion())).toList());
        s.step("versions", () -> s.admin.schemas().getAllSchemas(topic).size());
    }
}
