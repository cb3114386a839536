// What programs of checks share: each static method whose name begins with "check" is one, with one line
// of outcome. The first argument of a program are the bootstrap servers.

import java.lang.reflect.Method;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.ExecutionException;
import java.util.function.BooleanSupplier;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.common.errors.TimeoutException;

public class Checks {
    static final Duration WAIT = Duration.ofSeconds(60);
    static String servers;
    static Admin admin;

    interface Action {
        void run() throws Exception;
    }

    static void run(Class<?> program, String bootstrapServers) {
        servers = bootstrapServers;
        admin = Admin.create(Map.of("bootstrap.servers", servers));
        Method[] methods = program.getDeclaredMethods();
        Arrays.sort(methods, Comparator.comparing(Method::getName));
        for (Method method : methods) {
            if (!method.getName().startsWith("check")) continue;
            String name = method.getName().substring("check".length());
            try {
                method.invoke(null);
                System.out.println("ok " + name);
            } catch (Exception error) {
                Throwable cause = error.getCause() == null ? error : error.getCause();
                System.out.println("failed " + name + ": " + cause);
                cause.printStackTrace(System.err);
            }
        }
        admin.close();
        System.exit(0);
    }

    static void until(BooleanSupplier done) throws TimeoutException {
        long end = System.nanoTime() + WAIT.toNanos();
        while (!done.getAsBoolean())
            if (System.nanoTime() > end) throw new TimeoutException("not within " + WAIT);
    }

    static void require(boolean what, String otherwise) {
        if (!what) throw new AssertionError(otherwise);
    }

    static void requireThrows(Class<? extends Exception> expected, Action action) throws Exception {
        try {
            action.run();
        } catch (ExecutionException error) {
            require(expected.isInstance(error.getCause()), "" + error.getCause());
            return;
        } catch (Exception error) {
            require(expected.isInstance(error), "" + error);
            return;
        }
        throw new AssertionError(expected.getSimpleName() + " was expected");
    }
}
