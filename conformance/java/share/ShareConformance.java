import java.io.IOException;

/**
 * What the Java client's share consumers and its admin client do to share groups, from release 4.2 on. Arguments and
 * output are those of {@link Conformance}.
 */
public final class ShareConformance {
    public static void main(String[] arguments) throws IOException {
        var broker = new Broker(arguments[0], arguments[1].equals("kafka"));
        var checks = new Conformance();
        new Sharing(broker).addTo(checks);
        new ShareAdministration(broker).addTo(checks);
        checks.runAndExit(arguments);
    }
}
