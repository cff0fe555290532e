// What an application sees of a broker through the official Java client and its PulsarAdmin.
//
//     PulsarClients SERVICE_URL ADMIN_URL TENANT THREADS [REGULAR_EXPRESSION_OF_NAMES]
//
// Runs the scenarios of the other classes, each in a namespace of its own in the tenant, which it
// makes and deletes. Prints a line "= SCENARIO | STEP: OUTCOME" for each step. Libraries may write
// to standard output, too, so other lines are not outcomes.

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.admin.PulsarAdminException;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.common.policies.data.TenantInfo;

public class PulsarClients {
    public static void main(String[] arguments) throws Exception {
        Map<String, Scenario.Story> stories = new LinkedHashMap<>();
        Producing.register(stories);
        Sending.register(stories);
        Consuming.register(stories);
        Subscribing.register(stories);
        Topics.register(stories);
        Reading.register(stories);
        Schemas.register(stories);
        SchemaRules.register(stories);
        Administering.register(stories);
        Transacting.register(stories);
        if (arguments.length > 4) {
            stories.keySet().removeIf(name -> !name.matches(arguments[4]));
        }
        try (PulsarAdmin admin = PulsarAdmin.builder().serviceHttpUrl(arguments[1]).build()) {
            admin.tenants().createTenant(arguments[2], TenantInfo.builder().allowedClusters(Set.of("standalone")).build());
            try {
                runAll(stories, admin, arguments[0], arguments[2], Integer.parseInt(arguments[3]));
            } finally {
                cleanUp(admin, arguments[2]);
            }
        }
        System.out.println("= end");
        System.exit(0);
    }

    private static void runAll(Map<String, Scenario.Story> stories, PulsarAdmin admin, String url, String tenant,
        int threads) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(threads);
        List<Future<List<String>>> results = new ArrayList<>();
        stories.forEach((name, story) -> results.add(pool.submit(() -> play(name, story, admin, url, tenant))));
        for (Future<List<String>> result : results) {
            result.get().forEach(System.out::println);
        }
        pool.shutdown();
    }

    private static List<String> play(String name, Scenario.Story story, PulsarAdmin admin, String url, String tenant)
        throws Exception {
        String namespace = tenant + "/" + name;
        admin.namespaces().createNamespace(namespace);
        PulsarClient client = PulsarClient.builder().serviceUrl(url).operationTimeout(10, TimeUnit.SECONDS)
            .enableTransaction(false).build();
        Scenario scenario = new Scenario(client, admin, url, namespace);
        try {
            story.run(scenario);
        } catch (Exception error) {
            scenario.say("ended early", Scenario.failure(error));
        } finally {
            scenario.close();
            client.close();
        }
        return scenario.lines.stream()
            .map(line -> "= " + name + " | " + line.replace(tenant, "TENANT").replace("\n", " ")).toList();
    }

    private static void cleanUp(PulsarAdmin admin, String tenant) {
        try {
            for (String namespace : admin.namespaces().getNamespaces(tenant)) {
                for (String topic : admin.topics().getPartitionedTopicList(namespace)) {
                    quietly(() -> admin.topics().deletePartitionedTopic(topic, true));
                }
                for (String topic : admin.topics().getList(namespace)) {
                    quietly(() -> admin.topics().delete(topic, true));
                }
                quietly(() -> admin.namespaces().deleteNamespace(namespace));
            }
            admin.tenants().deleteTenant(tenant);
        } catch (PulsarAdminException error) {
            System.err.println("not cleaned up: " + error.getMessage());
        }
    }

    private static void quietly(Scenario.Action action) {
        try {
            action.run();
        } catch (Exception error) {
            // What is left stays in the broker, in this run's tenant.
        }
    }
}
