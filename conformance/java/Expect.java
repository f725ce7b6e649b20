import java.util.Objects;
import java.util.concurrent.ExecutionException;
import java.util.function.BooleanSupplier;

/** What a check may say about an answer. */
final class Expect {
    private Expect() {}

    static void equal(Object expected, Object actual) {
        if (!Objects.equals(expected, actual)) {
            throw new AssertionError("expected " + shortened(expected) + ", got " + shortened(actual));
        }
    }

    static void that(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }

    /** The call fails with this class of error, which is returned; where a future wraps it, unwrapped. */
    static <E extends Throwable> E error(Class<E> kind, Conformance.Check call) {
        try {
            call.run();
        } catch (Throwable thrown) {
            Throwable error = thrown instanceof ExecutionException ? thrown.getCause() : thrown;
            if (kind.isInstance(error)) {
                return kind.cast(error);
            }
            throw new AssertionError("expected " + kind.getSimpleName() + ", got " + error, error);
        }
        throw new AssertionError("expected " + kind.getSimpleName() + ", but nothing failed");
    }

    /** Wait, at most 60 s, until this holds. */
    static void eventually(String what, BooleanSupplier holds) throws InterruptedException {
        long limit = System.nanoTime() + 60_000_000_000L;
        while (!holds.getAsBoolean()) {
            that(System.nanoTime() < limit, "not within 60 s: " + what);
            Thread.sleep(20);
        }
    }

    private static String shortened(Object value) {
        String text = String.valueOf(value);
        return text.length() <= 300 ? text : text.substring(0, 300) + "… (" + text.length() + " characters)";
    }
}
