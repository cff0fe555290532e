package orders;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** A broker in a process of its own, on a free port, with its messages in memory. */
final class Broker implements AutoCloseable {
    private final HttpClient http = HttpClient.newHttpClient();
    private final Process process;
    private final String httpUrl;
    final String serviceUrl;

    Broker() throws IOException {
        // Where pulsemark is installed, if not on the PATH.
        String program = System.getenv().getOrDefault("PULSEMARK", "pulsemark");
        process = new ProcessBuilder(
                program, "standalone", "--storage", "memory", "--port", "0", "--http-port", "0", "--json",
                "--test-controls", "--exit-on-stdin-close")
                .redirectError(ProcessBuilder.Redirect.INHERIT)
                .start();
        BufferedReader output =
                new BufferedReader(new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8));
        // The broker writes one line when it serves.
        String line = output.readLine();
        serviceUrl = address(line, "service_url");
        httpUrl = address(line, "http_url");
    }

    private String address(String line, String name) throws IOException {
        Matcher found = Pattern.compile("\"" + name + "\":\"([^\"]+)\"").matcher(line == null ? "" : line);
        if (!found.find()) {
            process.destroy();
            throw new IOException("the broker was not ready: " + line);
        }
        return found.group(1);
    }

    /** Makes a request to the broker's test controls, and returns the answer. */
    String control(String method, String path, String body) throws Exception {
        HttpRequest request = HttpRequest.newBuilder(URI.create(httpUrl + "/pulsemark/test/" + path))
                .method(method, HttpRequest.BodyPublishers.ofString(body))
                .build();
        HttpResponse<String> answer = http.send(request, HttpResponse.BodyHandlers.ofString());
        if (answer.statusCode() >= 300) {
            throw new AssertionError(method + " " + path + ": " + answer.statusCode() + " " + answer.body());
        }
        return answer.body();
    }

    @Override
    public void close() throws InterruptedException {
        process.destroy(); // SIGTERM
        process.waitFor();
    }
}
