import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;

/**
 * Runs Kafka's command line tools one after another, each by its main method as its script does, in one process:
 * starting a hundred would take longer than all they do.
 *
 * <p>A line of standard input is a run: the tool's class, what it is given on its standard input, its arguments, with
 * tabs between. A line of standard output is its answer: exit status, standard output, standard error. Within a part,
 * backslash, newline and tab are written as two characters.
 */
public final class Tools {
    /** Thrown where a tool wants the process to end. */
    private static final class Ended extends Error {
        Ended() {
            super(null, null, false, false);
        }
    }

    private static volatile Integer status;

    public static void main(String[] arguments) throws Exception {
        var answers = System.out;
        Class<?> exit = exit();
        Class<?> procedure = Class.forName(exit.getName() + "$Procedure");
        Object ending = Proxy.newProxyInstance(
                procedure.getClassLoader(), new Class<?>[] {procedure}, (proxy, method, values) -> end((int) values[0]));
        exit.getMethod("setExitProcedure", procedure).invoke(null, ending);
        exit.getMethod("setHaltProcedure", procedure).invoke(null, ending);
        var out = new ByteArrayOutputStream();
        var err = new ByteArrayOutputStream();
        System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8)); // once: Scala's Console keeps what it finds
        System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
        var runs = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = runs.readLine(); line != null; line = runs.readLine()) {
            String[] parts = line.split("\t", -1);
            for (int i = 0; i < parts.length; i++) {
                parts[i] = unescaped(parts[i]);
            }
            out.reset();
            err.reset();
            System.setIn(new ByteArrayInputStream(parts[1].getBytes(StandardCharsets.UTF_8)));
            int ended = run(parts[0], Arrays.copyOfRange(parts, 2, parts.length));
            answers.println(String.join("\t", Integer.toString(ended), escaped(out), escaped(err)));
            answers.flush();
        }
        Runtime.getRuntime().halt(0); // hooks of tools that ran before have nothing left to close
    }

    /** The first status the tool wanted to end with; 0 when its main method returned, 1 when it threw. */
    private static int run(String tool, String[] arguments) throws Exception {
        status = null;
        try {
            Class.forName(tool).getMethod("main", String[].class).invoke(null, (Object) arguments);
        } catch (InvocationTargetException thrown) {
            if (!(thrown.getCause() instanceof Ended)) {
                thrown.getCause().printStackTrace();
                status = status == null ? 1 : status;
            }
        }
        return status == null ? 0 : status;
    }

    /** The class by which Kafka ends its processes; Kafka 4.4 has moved it. */
    private static Class<?> exit() throws ClassNotFoundException {
        try {
            return Class.forName("org.apache.kafka.common.utils.internals.Exit");
        } catch (ClassNotFoundException older) {
            return Class.forName("org.apache.kafka.common.utils.Exit");
        }
    }

    private static Object end(int wanted) {
        if (status == null) {
            status = wanted;
        }
        throw new Ended();
    }

    private static String escaped(ByteArrayOutputStream bytes) {
        return bytes.toString(StandardCharsets.UTF_8).replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t");
    }

    private static String unescaped(String text) {
        var plain = new StringBuilder();
        for (int i = 0; i < text.length(); i++) {
            char character = text.charAt(i);
            if (character == '\\') {
                char next = text.charAt(++i);
                character = next == 'n' ? '\n' : next == 't' ? '\t' : next;
            }
            plain.append(character);
        }
        return plain.toString();
    }
}
