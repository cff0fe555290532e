package orders;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** A broker in a process of its own, on a free port, with its messages in memory. */
final class Broker implements AutoCloseable {
    private static final Pattern SERVICE_URL = Pattern.compile("\"service_url\":\"([^\"]+)\"");

    private final Process process;
    final String serviceUrl;

    Broker() throws IOException {
        // Where pulsemark is installed, if not on the PATH.
        String program = System.getenv().getOrDefault("PULSEMARK", "pulsemark");
        process = new ProcessBuilder(
                program, "standalone", "--storage", "memory", "--port", "0", "--http-port", "0", "--json")
                .redirectError(ProcessBuilder.Redirect.INHERIT)
                .start();
        BufferedReader output =
                new BufferedReader(new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8));
        // The broker writes one line when it serves.
        String line = output.readLine();
        Matcher found = SERVICE_URL.matcher(line == null ? "" : line);
        if (!found.find()) {
            process.destroy();
            throw new IOException("the broker was not ready: " + line);
        }
        serviceUrl = found.group(1);
    }

    @Override
    public void close() throws InterruptedException {
        process.destroy(); // SIGTERM
        process.waitFor();
    }
}
