import io.aeron.Aeron;
import io.aeron.Image;
import io.aeron.Publication;
import io.aeron.Subscription;
import io.aeron.driver.MediaDriver;
import io.aeron.driver.ThreadingMode;
import io.aeron.logbuffer.FragmentHandler;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import org.agrona.BufferUtil;
import org.agrona.concurrent.SleepingMillisIdleStrategy;
import org.agrona.concurrent.UnsafeBuffer;

/**
 * Aeron IPC as a peer of the laboratory: round trips of two threads that spin, and messages from
 * one to the other. It reads commands from its standard input and writes a line for each:
 *
 * <pre>
 * trips MILLISECONDS BYTES     trips COUNT P50_NS P99_NS P999_NS
 * messages MILLISECONDS BYTES  messages COUNT NANOSECONDS
 * </pre>
 *
 * The arguments are a directory for its files, and the cores of the asking or receiving thread and
 * of the other one. It ends with its input.
 */
public final class AeronPeer {
    private static final String CHANNEL = "aeron:ipc?term-length=16m";
    private static final int PING = 1001;
    private static final int PONG = 1002;
    private static final int DATA = 1003;
    private static final long PATIENCE_NS = TimeUnit.SECONDS.toNanos(5);
    private static final int FRAGMENTS = 64;

    private AeronPeer() {
    }

    public static void main(final String[] args) throws Exception {
        final MediaDriver.Context driver = new MediaDriver.Context()
            .aeronDirectoryName(args[0])
            .dirDeleteOnStart(true)
            .dirDeleteOnShutdown(true)
            .threadingMode(ThreadingMode.SHARED)
            // The driver carries no message between two applications of a host.
            .sharedIdleStrategy(new SleepingMillisIdleStrategy(10))
            .clientLivenessTimeoutNs(TimeUnit.MINUTES.toNanos(10))
            .imageLivenessTimeoutNs(TimeUnit.MINUTES.toNanos(1))
            .publicationUnblockTimeoutNs(TimeUnit.MINUTES.toNanos(15))
            .driverTimeoutMs(TimeUnit.MINUTES.toMillis(10))
            .termBufferSparseFile(false);
        final String core = args[2];
        final BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        try (MediaDriver ignored = MediaDriver.launch(driver);
            Aeron aeron = Aeron.connect(new Aeron.Context()
                .aeronDirectoryName(args[0])
                .idleStrategy(new SleepingMillisIdleStrategy(10))
                .driverTimeoutMs(TimeUnit.MINUTES.toMillis(10)))) {
            try (Publication ping = aeron.addExclusivePublication(CHANNEL, PING);
                Subscription pinged = aeron.addSubscription(CHANNEL, PING);
                Publication pong = aeron.addExclusivePublication(CHANNEL, PONG);
                Subscription ponged = aeron.addSubscription(CHANNEL, PONG);
                Publication data = aeron.addExclusivePublication(CHANNEL, DATA);
                Subscription taken = aeron.addSubscription(CHANNEL, DATA)) {
                final Image pings = image(pinged);
                final Image pongs = image(ponged);
                final Image datas = image(taken);
                pin(args[1]);
                say("ready");
                for (String line = commands.readLine(); line != null; line = commands.readLine()) {
                    final String[] words = line.split(" ");
                    final long window = TimeUnit.MILLISECONDS.toNanos(Long.parseLong(words[1]));
                    final int bytes = Integer.parseInt(words[2]);
                    say(words[0].equals("trips")
                        ? trips(ping, pings, pong, pongs, window, bytes, core)
                        : messages(data, datas, window, bytes, core));
                }
            }
        }
    }

    private static void say(final String line) {
        System.out.println(line);
        System.out.flush();
    }

    /** Pins the calling thread to a core. */
    private static void pin(final String core) throws IOException, InterruptedException {
        final Path thread = Files.readSymbolicLink(Path.of("/proc/thread-self")).getFileName();
        final int status = new ProcessBuilder("taskset", "-p", "-c", core, thread.toString())
            .redirectOutput(ProcessBuilder.Redirect.DISCARD)
            .redirectError(ProcessBuilder.Redirect.INHERIT)
            .start()
            .waitFor();
        if (status != 0) {
            throw new IllegalStateException("taskset ended with status " + status);
        }
    }

    /** Starts a thread on a core, and waits until it runs there. */
    private static Thread start(final String core, final Runnable work) throws InterruptedException {
        final AtomicBoolean ready = new AtomicBoolean();
        final Thread thread = new Thread(() -> {
            try {
                pin(core);
            } catch (final IOException | InterruptedException error) {
                throw new IllegalStateException(error);
            }
            ready.set(true);
            work.run();
        });
        thread.setDaemon(true);
        thread.start();
        final long start = System.nanoTime();
        while (!ready.get()) {
            check(start);
            Thread.sleep(1);
        }
        return thread;
    }

    private static Image image(final Subscription subscription) {
        final long start = System.nanoTime();
        while (!subscription.isConnected()) {
            check(start);
            Thread.yield();
        }
        return subscription.imageAtIndex(0);
    }

    private static void check(final long since) {
        if (System.nanoTime() - since > PATIENCE_NS) {
            throw new IllegalStateException("no progress for 5 s");
        }
    }

    private static UnsafeBuffer buffer(final int bytes) {
        final ByteBuffer memory = BufferUtil.allocateDirectAligned(bytes, 64);
        return new UnsafeBuffer(memory);
    }

    private static void offer(final Publication to, final UnsafeBuffer bytes, final AtomicBoolean over) {
        long start = 0;
        while (to.offer(bytes, 0, bytes.capacity()) < 0) {
            if (over != null && over.get()) {
                return;
            }
            Thread.onSpinWait();
            if (start == 0) {
                start = System.nanoTime();
            }
            check(start);
        }
    }

    private static String trips(
        final Publication ping,
        final Image pings,
        final Publication pong,
        final Image pongs,
        final long window,
        final int bytes,
        final String core) throws InterruptedException {
        final AtomicBoolean over = new AtomicBoolean();
        final Thread answers = start(core, () -> {
            final UnsafeBuffer back = buffer(bytes);
            final FragmentHandler handler = (from, offset, length, header) -> {
                back.putBytes(0, from, offset, length);
                offer(pong, back, over);
            };
            while (!over.get()) {
                if (pings.poll(handler, FRAGMENTS) == 0) {
                    Thread.onSpinWait();
                }
            }
        });
        final UnsafeBuffer there = buffer(bytes);
        final UnsafeBuffer into = buffer(bytes);
        final FragmentHandler handler =
            (from, offset, length, header) -> into.putBytes(0, from, offset, length);
        // The first part is not counted: code is compiled, and memory comes into the caches.
        final long begin = System.nanoTime();
        final long counted = begin + window / 4;
        final long end = counted + window;
        final Histogram times = new Histogram();
        long start = begin;
        while (start < end) {
            offer(ping, there, null);
            int spins = 0;
            while (pongs.poll(handler, 1) == 0) {
                Thread.onSpinWait();
                if ((++spins & 0xfff) == 0) {
                    check(start);
                }
            }
            final long now = System.nanoTime();
            if (start >= counted) {
                times.add(now - start);
            }
            start = now;
        }
        over.set(true);
        answers.join();
        return "trips " + times.count + " " + times.quantile(0.5) + " " + times.quantile(0.99) + " "
            + times.quantile(0.999);
    }

    private static String messages(
        final Publication data,
        final Image taken,
        final long window,
        final int bytes,
        final String core) throws InterruptedException {
        final AtomicBoolean over = new AtomicBoolean();
        final UnsafeBuffer into = buffer(bytes);
        final FragmentHandler handler =
            (from, offset, length, header) -> into.putBytes(0, from, offset, length);
        final Thread sends = start(core, () -> {
            final UnsafeBuffer message = buffer(bytes);
            byte fill = 0;
            while (!over.get()) {
                message.setMemory(0, bytes, fill++);
                offer(data, message, over);
            }
        });
        final long begin = System.nanoTime();
        long counted = begin + window / 4;
        final long end = counted + window;
        boolean counts = false;
        long count = 0;
        long last = begin;
        long now = begin;
        while (now < end) {
            final int got = taken.poll(handler, FRAGMENTS);
            now = System.nanoTime();
            if (got > 0) {
                last = now;
            }
            check(last);
            if (counts) {
                count += got;
            } else if (now >= counted) {
                counts = true;
                counted = now;
            }
        }
        over.set(true);
        sends.join();
        // The next run finds an empty log.
        while (taken.poll(handler, FRAGMENTS) > 0) {
            Thread.onSpinWait();
        }
        return "messages " + count + " " + (now - counted);
    }

    /** Counts of nanoseconds: exact below 100 microseconds, by microseconds up to 100 milliseconds. */
    private static final class Histogram {
        private static final int FINE = 100_000;
        private final long[] fine = new long[FINE];
        private final long[] coarse = new long[FINE];
        private long count;

        void add(final long nanoseconds) {
            if (nanoseconds < FINE) {
                fine[(int) nanoseconds]++;
            } else {
                coarse[(int) Math.min(nanoseconds / 1000, FINE - 1)]++;
            }
            count++;
        }

        long quantile(final double quantile) {
            long left = Math.max(1, (long) Math.ceil(quantile * count));
            for (int at = 0; at < FINE; at++) {
                left -= fine[at];
                if (left <= 0) {
                    return at;
                }
            }
            for (int at = 0; at < FINE; at++) {
                left -= coarse[at];
                if (left <= 0) {
                    return at * 1000L;
                }
            }
            return FINE * 1000L;
        }
    }
}
