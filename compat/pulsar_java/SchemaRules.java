// What the schema policies of a namespace or topic allow.

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.schema.GenericRecord;
import org.apache.pulsar.common.policies.data.SchemaCompatibilityStrategy;
import org.apache.pulsar.common.protocol.schema.PostSchemaPayload;
import org.apache.pulsar.common.schema.SchemaType;

final class SchemaRules {
    static void register(Map<String, Scenario.Story> stories) {
        stories.put("schema-strategies", SchemaRules::strategies);
        stories.put("schema-types", SchemaRules::types);
        stories.put("schema-enforced", SchemaRules::enforced);
        stories.put("schema-admin", SchemaRules::admin);
    }

    private static Schema<GenericRecord> with(boolean age, boolean needed) {
        Map<String, SchemaType> fields = new LinkedHashMap<>(Map.of("name", SchemaType.STRING));
        if (age) {
            fields.put("age", SchemaType.INT32);
        }
        return Schemas.generic(SchemaType.AVRO, fields, needed ? "" : "age");
    }

    private static void strategies(Scenario s) throws Exception {
        for (SchemaCompatibilityStrategy strategy : SchemaCompatibilityStrategy.values()) {
            s.step(strategy + " set", () -> {
                s.admin.namespaces().setSchemaCompatibilityStrategy(s.namespace, strategy);
                return s.admin.namespaces().getSchemaCompatibilityStrategy(s.namespace);
            });
            Map<String, List<Schema<GenericRecord>>> pairs = new LinkedHashMap<>();
            pairs.put("a needed field comes", List.of(with(false, true), with(true, true)));
            pairs.put("a needed field goes", List.of(with(true, true), with(false, true)));
            pairs.put("an optional field comes", List.of(with(false, true), with(true, false)));
            pairs.put("an optional field goes", List.of(with(true, false), with(false, true)));
            pairs.put("the same", List.of(with(true, true), with(true, true)));
            pairs.forEach((name, pair) -> {
                String topic = s.topic(strategy + "-" + name.replace(' ', '-'));
                s.open(strategy + ": " + name + ", first", () -> s.client.newProducer(pair.get(0)).topic(topic).create());
                s.open(strategy + ": " + name + ", consumer", () -> s.client.newConsumer(pair.get(1)).topic(topic).subscriptionName("s").subscribe());
                s.open(strategy + ": " + name, () -> s.client.newProducer(pair.get(1)).topic(topic).create());
            });
            s.close();
        }
    }

    private static void types(Scenario s) throws Exception {
        Map<String, Schema<?>> all = new LinkedHashMap<>();
        all.put("BYTES", Schema.BYTES);
        all.put("STRING", Schema.STRING);
        all.put("INT32", Schema.INT32);
        all.put("AVRO", Schema.AVRO(Schemas.Person.class));
        all.put("JSON", Schema.JSON(Schemas.Person.class));
        all.put("AUTO", Schema.AUTO_PRODUCE_BYTES());
        all.forEach((first, one) -> all.forEach((second, two) -> {
            String topic = s.topic(first + "-" + second);
            s.open(first + " first", () -> s.client.newProducer(one).topic(topic).create());
            s.open(second + " after " + first, () -> s.client.newProducer(two).topic(topic).create());
            Schema<?> reading = second.equals("AUTO") ? Schema.AUTO_CONSUME() : two;
            s.open(second + " consumer after " + first, () -> s.client.newConsumer(reading).topic(topic)
                .subscriptionName("s").subscribe());
            s.close();
        }));
    }

    private static void enforced(Scenario s) throws Exception {
        String topic = s.topic("t");
        s.run("no automatic versions", () -> s.admin.namespaces().setIsAllowAutoUpdateSchema(s.namespace, false));
        s.open("a producer with a new schema", () -> s.client.newProducer(Schema.AVRO(Schemas.Person.class)).topic(topic).create());
        s.open("a consumer with a new schema", () -> s.client.newConsumer(Schema.AVRO(Schemas.Person.class)).topic(topic)
            .subscriptionName("s").subscribe());
        s.run("uploaded", () -> s.admin.schemas().createSchema(topic, Schema.AVRO(Schemas.Person.class).getSchemaInfo()));
        s.open("a producer with the uploaded schema", () -> s.client.newProducer(Schema.AVRO(Schemas.Person.class)).topic(topic).create());
        s.open("a producer with a wider schema", () -> s.client.newProducer(Schema.AVRO(Schemas.Citizen.class)).topic(topic).create());
        s.run("enforced", () -> s.admin.namespaces().setSchemaValidationEnforced(s.namespace, true));
        s.open("a producer without schema", () -> s.client.newProducer().topic(topic).create());
        s.open("a consumer without schema", () -> s.client.newConsumer().topic(topic).subscriptionName("x").subscribe());
        s.open("a producer without schema on a new topic", () -> s.client.newProducer().topic(s.topic("new")).create());
    }

    private static void admin(Scenario s) throws Exception {
        String topic = s.topic("t");
        s.step("of an absent topic", () -> s.admin.schemas().getSchemaInfo(topic));
        s.run("first", () -> s.admin.schemas().createSchema(topic, with(false, true).getSchemaInfo()));
        s.run("second", () -> s.admin.schemas().createSchema(topic, with(true, false).getSchemaInfo()));
        s.run("incompatible", () -> s.admin.schemas().createSchema(topic, with(true, true).getSchemaInfo()));
        s.step("is it compatible", () -> s.admin.schemas().testCompatibility(topic, with(true, true).getSchemaInfo()));
        s.step("version of the first", () -> s.admin.schemas().getVersionBySchema(topic,
            new PostSchemaPayload("AVRO", with(false, true).getSchemaInfo().getSchemaDefinition(), Map.of())));
        s.step("version 0", () -> s.admin.schemas().getSchemaInfo(topic, 0).getSchemaDefinition());
        s.step("version 7", () -> s.admin.schemas().getSchemaInfo(topic, 7));
        s.step("with version", () -> s.admin.schemas().getSchemaInfoWithVersion(topic).getVersion());
        s.step("all", () -> s.admin.schemas().getAllSchemas(topic).size());
        s.run("no schema at all", () -> s.admin.schemas().createSchema(topic, new PostSchemaPayload("AVRO", "{", Map.of())));
        s.run("deleted", () -> s.admin.schemas().deleteSchema(topic));
        s.step("then", () -> s.admin.schemas().getSchemaInfo(topic));
        s.run("deleted again", () -> s.admin.schemas().deleteSchema(topic));
    }
}
