import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.atomic.AtomicInteger;
import org.openjobspec.ojs.Job;
import org.openjobspec.ojs.OJSClient;
import org.openjobspec.ojs.OJSError.OJSException;
import org.openjobspec.ojs.OJSWorker;
import org.openjobspec.ojs.RetryPolicy;
import org.openjobspec.ojs.UniquePolicy;
import org.openjobspec.ojs.Workflow;
import org.openjobspec.ojs.transport.HttpTransport;
import org.openjobspec.ojs.transport.Transport;

/**
 * The official Java SDK of Open Job Spec, unmodified, with an Ojster server.
 *
 * <pre>
 * features URL                         try each feature; print "ok NAME" or "FAIL NAME: reason"
 * enqueue URL QUEUE COUNT TYPE...      enqueue COUNT jobs of each type; print their ids
 * work URL QUEUE COUNT SECONDS [all]   run COUNT jobs, for at most SECONDS; with "all", take all types
 * </pre>
 */
public final class Interop {
    private static final List<String> TYPES = List.of("java.greet", "interop.echo");

    /** Says which job types the worker has handlers for. The SDK does not, and would get jobs of every type. */
    private record Typed(Transport inner) implements Transport {
        @Override
        public Map<String, Object> get(String path) {
            return inner.get(path);
        }

        @Override
        public Map<String, Object> post(String path, Map<String, Object> body) {
            if (!path.equals("/workers/fetch")) {
                return inner.post(path, body);
            }
            var typed = new LinkedHashMap<>(body);
            typed.put("job_types", TYPES);
            return inner.post(path, typed);
        }

        @Override
        public Map<String, Object> delete(String path) {
            return inner.delete(path);
        }
    }

    private static OJSWorker worker(String url, String queue, Runnable done, boolean typed) {
        Transport http = HttpTransport.builder().url(url).build();
        var worker = OJSWorker.builder()
                .transport(typed ? new Typed(http) : http)
                .queues(List.of(queue))
                .pollInterval(Duration.ofMillis(100))
                .heartbeatInterval(Duration.ofSeconds(1))
                .build();
        worker.register("java.greet", context -> {
            done.run();
            return Map.of("by", "java", "greeting", "Hello, " + context.job().argsMap().get("name") + "!");
        });
        worker.register("interop.echo", context -> {
            done.run();
            return Map.of("by", "java", "echo", context.job().argsMap());
        });
        if (!typed) {
            worker.register("java.flaky", context -> {
                if (context.attempt() == 1) {
                    throw new IllegalStateException("the first attempt fails");
                }
                return Map.of("by", "java", "attempt", context.attempt());
            });
        }
        return worker;
    }

    private static Object expect(Object found, Object expected) {
        if (!String.valueOf(found).equals(String.valueOf(expected))) {
            throw new IllegalStateException(found + " instead of " + expected);
        }
        return found;
    }

    private static Job jobEnds(OJSClient client, String id) throws InterruptedException {
        for (int tries = 0; tries < 200; tries++) {
            var job = client.getJob(id);
            if (job.isTerminal()) {
                return job;
            }
            Thread.sleep(100);
        }
        throw new IllegalStateException("job " + id + " has not ended");
    }

    private static Object completes(OJSClient client, Workflow.Definition definition) throws InterruptedException {
        var workflow = client.createWorkflow(definition);
        for (int tries = 0; tries < 200; tries++) {
            var state = client.getWorkflow(workflow.id()).state();
            if (!List.of("pending", "running").contains(state)) {
                return expect(state, "completed");
            }
            Thread.sleep(100);
        }
        throw new IllegalStateException("workflow " + workflow.id() + " has not ended");
    }

    private static Workflow.Step step(String text) {
        // The SDK ignores the queue of a callback, which then runs in the queue "default".
        return Workflow.step("interop.echo", Map.of("text", text), "java-features");
    }

    private static Map<String, Callable<Object>> tries(OJSClient client) {
        var queue = "java-features";
        var tries = new LinkedHashMap<String, Callable<Object>>();
        tries.put("health", () -> expect(client.health().get("status"), "ok"));
        tries.put("manifest", () -> ((Map<?, ?>) client.manifest().get("capabilities")).get("workflows"));
        tries.put("enqueue", () -> {
            var job = client.enqueue("interop.echo", (Object) Map.of("text", "plain")).queue(queue).send();
            return expect(client.getJob(job.id()).argsMap(), Map.of("text", "plain"));
        });
        tries.put("options", () -> {
            var job = client.enqueue("interop.echo", (Object) Map.of("text", "options"))
                    .queue(queue)
                    .priority(5)
                    .tags(List.of("red"))
                    .meta(Map.of("trace", "t1"))
                    .timeout(Duration.ofSeconds(5))
                    .retry(RetryPolicy.builder().maxAttempts(7).build())
                    .send();
            var found = client.getJob(job.id());
            // The SDK does not read max_attempts; retry() of a job is null, because the server does not repeat the policy.
            var shown = List.of(found.queue(), found.priority(), found.tags(), found.meta().get("trace"));
            return expect(shown, List.of(queue, 5, List.of("red"), "t1"));
        });
        tries.put("delay", () -> {
            var later = client.enqueue("interop.echo", (Object) Map.of("text", "later")).delay(Duration.ofHours(1));
            return expect(later.queue(queue).send().state(), "scheduled");
        });
        tries.put("unique", () -> {
            var unique = UniquePolicy.builder().key(List.of("type", "queue", "args")).period(Duration.ofHours(1)).build();
            var request = client.enqueue("interop.echo", (Object) Map.of("text", "once")).queue("java-unique").unique(unique);
            request.send();
            try {
                return expect(request.send(), "a duplicate");
            } catch (OJSException duplicate) {
                return expect(duplicate.isDuplicate(), true);
            }
        });
        tries.put("batch-enqueue", () -> {
            var one = Map.<String, Object>of(
                    "type", "interop.echo", "args", List.of(Map.of("text", "one")), "options", Map.of("queue", queue));
            return expect(client.enqueueBatch(List.of(one, one)).size(), 2);
        });
        tries.put("cancel", () -> {
            var job = client.enqueue("interop.echo", (Object) Map.of("text", "cancel")).queue("java-cancel").send();
            return expect(client.cancelJob(job.id()).state(), "cancelled");
        });
        tries.put("queues", () -> {
            var names = client.listQueues().stream().map(found -> found.get("name")).toList();
            return expect(names.contains(queue), true);
        });
        tries.put("queue-stats", () -> {
            var stats = (Map<?, ?>) client.getQueueStats("java-unique").get("stats");
            return expect(stats.get("available"), 1);
        });
        tries.put("pause", () -> {
            client.pauseQueue("java-unique");
            client.resumeQueue("java-unique");
            return null;
        });
        tries.put("dead-letter", () -> client.listDeadLetterJobs(null, 10, 0));
        tries.put("cron", () -> {
            client.registerCronJob(Map.of(
                    "name", "java-cron", "cron", "0 3 * * *", "type", "interop.echo", "args", List.of(Map.of())));
            var listed = client.listCronJobs();
            client.unregisterCronJob("java-cron");
            return expect(listed.isEmpty(), false);
        });
        tries.put("worker", () -> {
            var job = client.enqueue("java.greet", (Object) Map.of("name", "Ada")).queue(queue).send();
            var result = (Map<?, ?>) jobEnds(client, job.id()).result();
            return expect(result.get("greeting"), "Hello, Ada!");
        });
        tries.put("retry", () -> {
            var policy = RetryPolicy.builder().maxAttempts(3).initialInterval(Duration.ofMillis(100)).jitter(false).build();
            var job = client.enqueue("java.flaky", (Object) Map.of()).queue(queue).retry(policy).send();
            return expect(((Map<?, ?>) jobEnds(client, job.id()).result()).get("attempt"), 2);
        });
        tries.put("chain", () -> completes(client, Workflow.chain("chain", step("one"), step("two"))));
        tries.put("group", () -> completes(client, Workflow.group("group", step("one"), step("two"))));
        tries.put("batch", () -> {
            var callbacks = Workflow.callbacks().onSuccess(step("after"));
            return completes(client, Workflow.batch("batch", callbacks, step("one"), step("two")));
        });
        return tries;
    }

    private static void features(OJSClient client, String url) throws InterruptedException {
        var workers = new ArrayList<OJSWorker>();
        for (var queue : List.of("java-features", "default")) { // "default" is for the callback of the batch
            var worker = worker(url, queue, () -> {}, false);
            Thread.startVirtualThread(worker::start);
            workers.add(worker);
        }
        tries(client).forEach((name, attempt) -> {
            try {
                attempt.call();
                System.out.println("ok " + name);
            } catch (Exception error) {
                System.out.println("FAIL " + name + ": " + String.valueOf(error).lines().findFirst().orElse(""));
            }
        });
        workers.forEach(OJSWorker::stop);
        Thread.sleep(500);
    }

    private static void enqueue(OJSClient client, String queue, int count, List<String> types) {
        for (int number = 0; number < count; number++) {
            for (var type : types) {
                Object args = Map.of("name", "Ada", "text", "java " + number);
                System.out.println(client.enqueue(type, args).queue(queue).send().id());
            }
        }
    }

    private static void work(String url, String queue, int count, int seconds, boolean typed) throws InterruptedException {
        var handled = new AtomicInteger();
        var worker = worker(url, queue, handled::incrementAndGet, typed);
        var running = Thread.startVirtualThread(worker::start);
        long end = System.nanoTime() + seconds * 1_000_000_000L;
        while (handled.get() < count && running.isAlive() && System.nanoTime() < end) {
            Thread.sleep(50);
        }
        worker.stop();
        running.join();
    }

    public static void main(String[] given) throws InterruptedException {
        var rest = List.of(given);
        try (var client = OJSClient.builder().url(rest.get(1)).build()) {
            switch (rest.get(0)) {
                case "features" -> features(client, rest.get(1));
                case "enqueue" -> enqueue(client, rest.get(2), Integer.parseInt(rest.get(3)), rest.subList(4, rest.size()));
                case "work" -> work(rest.get(1), rest.get(2), Integer.parseInt(rest.get(3)), Integer.parseInt(rest.get(4)),
                        !rest.contains("all"));
                default -> throw new IllegalArgumentException("give features, enqueue or work");
            }
        }
        System.exit(0);
    }
}
