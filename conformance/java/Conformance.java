import java.io.IOException;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/**
 * What the Java client does to a broker, each check on topics and groups of its own.
 *
 * <p>Arguments: the bootstrap server, then `kafka` or `korvet`; these differ only in what is not served yet.
 * One line per check, in three parts with tabs between: `ok`, its name, the time it took; or `FAILED`, its name, why.
 * The exit status is the number of failures.
 */
public final class Conformance {
    private static final int LIMIT_S = 120;

    /** One check; it throws when the broker did anything unexpected. */
    interface Check {
        void run() throws Exception;
    }

    private final Map<String, Check> checks = new LinkedHashMap<>();

    /** Have a check run under this name. */
    void add(String name, Check check) {
        if (checks.put(name, check) != null) {
            throw new IllegalArgumentException("two checks are called " + name);
        }
    }

    public static void main(String[] arguments) throws IOException {
        var broker = new Broker(arguments[0], arguments[1].equals("kafka"));
        var conformance = new Conformance();
        new Producing(broker).addTo(conformance);
        new Transactions(broker).addTo(conformance);
        new Consuming(broker).addTo(conformance);
        new Groups(broker).addTo(conformance);
        new Migration(broker).addTo(conformance);
        new Administration(broker).addTo(conformance);
        new GroupAdministration(broker).addTo(conformance);
        conformance.runAndExit(arguments);
    }

    /** Run the checks that the arguments choose, and end the process. */
    void runAndExit(String[] arguments) throws IOException {
        int failures = run(List.of(arguments).subList(2, arguments.length));
        System.exit(Math.min(failures, 100)); // threads of a check that hangs must not keep the process
    }

    /** Run all checks, or those whose name contains one of these words; the number of failures. */
    private int run(List<String> words) throws IOException {
        String version = version();
        int failures = 0;
        for (var check : checks.entrySet()) {
            if (!words.isEmpty() && words.stream().noneMatch(check.getKey()::contains)) {
                continue;
            }
            long start = System.nanoTime();
            String fault = faultOf(check.getValue());
            failures += fault == null ? 0 : 1;
            String told = fault == null ? (System.nanoTime() - start) / 1_000_000 + " ms" : fault;
            String name = "Java client " + version + ", " + check.getKey();
            System.out.println(String.join("\t", fault == null ? "ok" : "FAILED", name, told));
        }
        return failures;
    }

    /** The version of the client; the class that has it is in another package since Kafka 4.4. */
    static String version() throws IOException {
        var properties = new Properties();
        try (var written = Conformance.class.getResourceAsStream("/kafka/kafka-version.properties")) {
            properties.load(written);
        }
        return properties.getProperty("version");
    }

    private static String faultOf(Check check) {
        var thread = Executors.newSingleThreadExecutor();
        try {
            thread.submit(() -> {
                check.run();
                return null;
            }).get(LIMIT_S, TimeUnit.SECONDS);
            return null;
        } catch (ExecutionException error) {
            return oneLine(error.getCause());
        } catch (TimeoutException | InterruptedException error) {
            return "not done after " + LIMIT_S + " s";
        } finally {
            thread.shutdownNow();
        }
    }

    private static String oneLine(Throwable error) {
        String place = "";
        for (var frame : error.getStackTrace()) {
            if (frame.getFileName() != null && !frame.getClassName().contains(".") && !frame.getClassName().equals("Expect")) {
                place = " (" + frame.getFileName() + ":" + frame.getLineNumber() + ")";
                break;
            }
        }
        String cause = error.getCause() == null || error instanceof AssertionError ? "" : ", since " + error.getCause();
        return (error + cause).replace('\n', ' ') + place;
    }
}
