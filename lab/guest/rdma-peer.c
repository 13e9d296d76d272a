/*
 * The other end of an RDMA connection: a program of librdmacm and libibverbs, whose device is the kernel's
 * soft-RoCE (rdma_rxe) in the small guest of tests/rdma.
 *
 *   rdma-peer [OPTION...] serve ADDRESS PORT
 *   rdma-peer [OPTION...] connect ADDRESS PORT SOURCE
 *
 * One reliable connection (RC). Each side has a buffer of 1 MiB for the other's reads, writes and atomics. Both
 * send a greeting of 64 bytes as their first SEND: "TPRD", the buffer's address (8 bytes), its key (4) and its
 * length (4), in network order, and zeros.
 *
 * Then the side that connects writes a pattern of each size to the start of the other's buffer and reads it back,
 * writes BLOCK bytes with an immediate, which the side that serves compares, and sends 64 bytes, which that side
 * sends back. Options of the side that connects add steps. It ends the connection.
 *
 * A line on standard output for each step that was right. The exit status is 0 if all were, 1 if one was not, and 2
 * for a wrong command line.
 */

#include <endian.h>
#include <errno.h>
#include <getopt.h>
#include <netdb.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

enum {
    BUFFER = 1 << 20,
    GREETING = 64,
    BLOCK = 65536,
    DEPTH = 16,
    RECEIVES = 16,
    /* Of receives: the length of each, which is that of a greeting. */
    SLOT = GREETING,
    IMMEDIATE = 0x11223344,
    /* What a peer may have under way of reads and atomics. */
    READS = 4,
};

static const uint32_t sizes[] = {1, 8, 64, 255, 256, 4096, 4097, 65536, BUFFER};

/* What a wrong request must end with. */
enum expected { NOT_TRIED, DONE, REFUSED };

static struct {
    bool serves;
    const char *address, *port, *source;
    enum expected atomic;
    bool wrong_key;
    bool broken;
    bool polls;
    long bandwidth, latency;
    int limit_ms;
} options = {.limit_ms = 30000};

static struct {
    struct rdma_event_channel *events;
    struct rdma_cm_id *id;
    struct ibv_pd *pd;
    /* Separate, so that a wait for the one takes nothing of the other. */
    struct ibv_comp_channel *sent_channel, *received_channel;
    struct ibv_cq *sent, *received;
    /* The buffer for the peer; the pattern that this side sends; what it has read; the slots of receives. */
    uint8_t *shared, *local, *read, *slots;
    struct ibv_mr *shared_mr, *local_mr, *read_mr, *slots_mr;
    uint64_t peer_address;
    uint32_t peer_key;
} my;

static void fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

static void fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "rdma-peer: ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    exit(1);
}

/* Fails with errno, which a call has set or returned. */
static void check(int failed, const char *what)
{
    if (failed)
        fail("%s: %s", what, strerror(failed > 0 ? failed : errno));
}

static void *checked(void *made, const char *what)
{
    check(made ? 0 : -1, what);
    return made;
}

static double now_us(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

/* The pattern of a seed: no byte repeats at a distance of 256, of 4096 or of a packet. */
static void fill(uint8_t *bytes, size_t length, uint32_t seed)
{
    uint32_t state = seed * 2654435761u + 1;
    for (size_t at = 0; at < length; at++) {
        state = state * 1664525u + 1013904223u;
        bytes[at] = state >> 24;
    }
}

static void compare(const uint8_t *bytes, size_t length, uint32_t seed, const char *what)
{
    uint8_t *right = checked(malloc(length), "malloc");
    fill(right, length, seed);
    for (size_t at = 0; at < length; at++)
        if (bytes[at] != right[at])
            fail("%s: byte %zu of %zu is %02x, not %02x", what, at, length, bytes[at], right[at]);
    free(right);
}

/* Connections. */

/* Waits for an event of the connection. The caller acknowledges it. */
static struct rdma_cm_event *next_event(const char *what)
{
    struct pollfd wait = {.fd = my.events->fd, .events = POLLIN};
    int ready = poll(&wait, 1, options.limit_ms);
    check(ready < 0 ? -1 : 0, "poll");
    if (ready == 0)
        fail("%s: nothing within %d ms", what, options.limit_ms);
    struct rdma_cm_event *event;
    check(rdma_get_cm_event(my.events, &event), "rdma_get_cm_event");
    return event;
}

static struct rdma_cm_event *wait_for(enum rdma_cm_event_type type, const char *what)
{
    struct rdma_cm_event *event = next_event(what);
    if (event->event == RDMA_CM_EVENT_REJECTED)
        fail("%s: the peer rejected the connection, reason %d", what, event->status);
    if (event->event != type)
        fail("%s: the event is %s, status %d, not %s", what, rdma_event_str(event->event),
             event->status, rdma_event_str(type));
    return event;
}

static void pass_event(enum rdma_cm_event_type type, const char *what)
{
    check(rdma_ack_cm_event(wait_for(type, what)), "rdma_ack_cm_event");
}

static struct rdma_addrinfo *resolve(const char *address, const char *port, int flags)
{
    struct rdma_addrinfo hints = {.ai_flags = flags | RAI_NUMERICHOST, .ai_port_space = RDMA_PS_TCP};
    struct rdma_addrinfo *found;
    int failed = rdma_getaddrinfo(address, port, &hints, &found);
    if (failed)
        fail("%s port %s: %s", address, port ? port : "any",
             failed == -1 ? strerror(errno) : gai_strerror(failed));
    return found;
}

static uint8_t *memory(size_t length)
{
    uint8_t *bytes = checked(aligned_alloc(4096, length), "aligned_alloc");
    memset(bytes, 0, length);
    return bytes;
}

static void post_receive(uint64_t slot)
{
    struct ibv_sge part = {(uintptr_t)my.slots + slot * SLOT, SLOT, my.slots_mr->lkey};
    struct ibv_recv_wr request = {.wr_id = slot, .sg_list = &part, .num_sge = 1}, *bad;
    check(ibv_post_recv(my.id->qp, &request, &bad), "ibv_post_recv");
}

/* Makes what a connection needs, on the device that my.id has. */
static void prepare(void)
{
    int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE |
              IBV_ACCESS_REMOTE_ATOMIC;
    my.pd = checked(ibv_alloc_pd(my.id->verbs), "ibv_alloc_pd");
    my.sent_channel = checked(ibv_create_comp_channel(my.id->verbs), "ibv_create_comp_channel");
    my.received_channel = checked(ibv_create_comp_channel(my.id->verbs), "ibv_create_comp_channel");
    my.sent = checked(ibv_create_cq(my.id->verbs, 2 * DEPTH, NULL, my.sent_channel, 0), "ibv_create_cq");
    my.received =
        checked(ibv_create_cq(my.id->verbs, 2 * RECEIVES, NULL, my.received_channel, 0), "ibv_create_cq");
    my.shared = memory(BUFFER);
    my.local = memory(BUFFER);
    my.read = memory(BUFFER);
    my.slots = memory(4096);
    my.shared_mr = checked(ibv_reg_mr(my.pd, my.shared, BUFFER, all), "ibv_reg_mr");
    my.local_mr = checked(ibv_reg_mr(my.pd, my.local, BUFFER, 0), "ibv_reg_mr");
    my.read_mr = checked(ibv_reg_mr(my.pd, my.read, BUFFER, IBV_ACCESS_LOCAL_WRITE), "ibv_reg_mr");
    my.slots_mr = checked(ibv_reg_mr(my.pd, my.slots, 4096, IBV_ACCESS_LOCAL_WRITE), "ibv_reg_mr");
    struct ibv_qp_init_attr attributes = {
        .send_cq = my.sent,
        .recv_cq = my.received,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = DEPTH + 1, .max_recv_wr = RECEIVES, .max_send_sge = 1, .max_recv_sge = 1},
    };
    check(rdma_create_qp(my.id, my.pd, &attributes), "rdma_create_qp");
    /* Before the connection: the peer may send as soon as it is there. */
    for (uint64_t slot = 0; slot < RECEIVES; slot++)
        post_receive(slot);
}

static struct rdma_conn_param parameters(void)
{
    return (struct rdma_conn_param){
        .responder_resources = READS, .initiator_depth = READS, .retry_count = 7, .rnr_retry_count = 7};
}

static void serve_connection(void)
{
    struct rdma_addrinfo *at = resolve(options.address, options.port, RAI_PASSIVE);
    struct rdma_cm_id *listener;
    check(rdma_create_id(my.events, &listener, NULL, RDMA_PS_TCP), "rdma_create_id");
    check(rdma_bind_addr(listener, at->ai_src_addr), "rdma_bind_addr");
    rdma_freeaddrinfo(at);
    check(rdma_listen(listener, 1), "rdma_listen");
    printf("listens on %s port %s\n", options.address, options.port);
    struct rdma_cm_event *event =
        wait_for(RDMA_CM_EVENT_CONNECT_REQUEST, "a connection's request");
    my.id = event->id;
    struct rdma_conn_param asked = event->param.conn, answer = parameters();
    check(rdma_ack_cm_event(event), "rdma_ack_cm_event");
    prepare();
    /* What the peer asks for, as far as this side has it. */
    if (asked.initiator_depth < READS)
        answer.responder_resources = asked.initiator_depth;
    if (asked.responder_resources < READS)
        answer.initiator_depth = asked.responder_resources;
    check(rdma_accept(my.id, &answer), "rdma_accept");
    pass_event(RDMA_CM_EVENT_ESTABLISHED, "the connection's start");
}

static void make_connection(void)
{
    struct rdma_addrinfo *from = resolve(options.source, NULL, RAI_PASSIVE);
    struct rdma_addrinfo *to = resolve(options.address, options.port, 0);
    check(rdma_create_id(my.events, &my.id, NULL, RDMA_PS_TCP), "rdma_create_id");
    check(rdma_resolve_addr(my.id, from->ai_src_addr, to->ai_dst_addr, options.limit_ms / 2),
          "rdma_resolve_addr");
    pass_event(RDMA_CM_EVENT_ADDR_RESOLVED, "the peer's address");
    rdma_freeaddrinfo(from);
    rdma_freeaddrinfo(to);
    check(rdma_resolve_route(my.id, options.limit_ms / 2), "rdma_resolve_route");
    pass_event(RDMA_CM_EVENT_ROUTE_RESOLVED, "the route to the peer");
    prepare();
    struct rdma_conn_param asks = parameters();
    check(rdma_connect(my.id, &asks), "rdma_connect");
    pass_event(RDMA_CM_EVENT_ESTABLISHED, "the connection's start");
}

static void report_connection(void)
{
    struct ibv_qp_attr has;
    struct ibv_qp_init_attr unused;
    int mask = IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_TIMEOUT | IBV_QP_MAX_QP_RD_ATOMIC |
               IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    check(ibv_query_qp(my.id->qp, &has, mask, &unused), "ibv_query_qp");
    printf("connected: %s, queue pair %u to %u, path MTU %d, reads %u out and %u in, timeout %u, RNR timer %u\n",
           ibv_get_device_name(my.id->verbs->device), my.id->qp->qp_num, has.dest_qp_num,
           128 << has.path_mtu, has.max_rd_atomic, has.max_dest_rd_atomic, has.timeout,
           has.min_rnr_timer);
}

/* Requests and their completions. */

static void post(enum ibv_wr_opcode opcode, struct ibv_mr *mr, size_t offset, uint32_t length)
{
    struct ibv_sge part = {(uintptr_t)mr->addr + offset, length, mr->lkey};
    struct ibv_send_wr request = {
        .sg_list = &part, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED};
    struct ibv_send_wr *bad;
    if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        request.wr.atomic.remote_addr = my.peer_address + offset;
        request.wr.atomic.rkey = my.peer_key;
        request.wr.atomic.compare_add = 1;
    } else if (opcode != IBV_WR_SEND) {
        request.wr.rdma.remote_addr = my.peer_address + offset;
        request.wr.rdma.rkey = my.peer_key;
        request.imm_data = htobe32(IMMEDIATE);
    }
    check(ibv_post_send(my.id->qp, &request, &bad), "ibv_post_send");
}

/* Takes a completion if there is one. */
static bool take(struct ibv_cq *queue, struct ibv_wc *done, const char *what)
{
    int count = ibv_poll_cq(queue, 1, done);
    if (count < 0)
        fail("%s: ibv_poll_cq returned %d", what, count);
    return count > 0;
}

/* Sleeps until the channel or the connection has an event. Returns `true` if the channel has one. */
static bool wait_for_completion(struct ibv_comp_channel *channel, double end_us, const char *what)
{
    struct pollfd waits[] = {{.fd = channel->fd, .events = POLLIN},
                             {.fd = my.events->fd, .events = POLLIN}};
    double left_us = end_us - now_us();
    int ready = poll(waits, 2, left_us < 0 ? 0 : left_us / 1e3 + 1);
    check(ready < 0 ? -1 : 0, "poll");
    if (ready == 0)
        fail("%s: nothing within %d ms", what, options.limit_ms);
    if (!waits[0].revents)
        return false;
    struct ibv_cq *queue;
    void *unused;
    check(ibv_get_cq_event(channel, &queue, &unused), "ibv_get_cq_event");
    ibv_ack_cq_events(queue, 1);
    return true;
}

/* Waits for the completion of a request: asleep, or polling. */
static struct ibv_wc completion(bool polls, const char *what)
{
    double end = now_us() + options.limit_ms * 1e3;
    struct ibv_wc done;
    while (!take(my.sent, &done, what)) {
        if (polls) {
            if (now_us() > end)
                fail("%s: no completion within %d ms", what, options.limit_ms);
            continue;
        }
        check(ibv_req_notify_cq(my.sent, 0), "ibv_req_notify_cq");
        if (take(my.sent, &done, what))
            break;
        if (!wait_for_completion(my.sent_channel, end, what)) {
            pass_event(RDMA_CM_EVENT_DISCONNECTED, what);
            fail("%s: the peer ended the connection", what);
        }
    }
    return done;
}

/* Waits for the completion of a request, and fails unless it succeeded. */
static void completes_by(bool polls, const char *what)
{
    struct ibv_wc done = completion(polls, what);
    if (done.status != IBV_WC_SUCCESS)
        fail("%s: %s (%d, vendor %u)", what, ibv_wc_status_str(done.status), done.status,
             done.vendor_err);
}

static void completes(const char *what)
{
    completes_by(true, what);
}

static void fails_with(enum ibv_wc_status status, const char *what)
{
    struct ibv_wc done = completion(true, what);
    if (done.status != status)
        fail("%s: the completion has the status %s (%d), not %s", what,
             ibv_wc_status_str(done.status), done.status, ibv_wc_status_str(status));
    printf("%s refused: %s\n", what, ibv_wc_status_str(done.status));
}

/* Takes a completion of a receive, for which it sleeps. Returns `false` if the connection has ended before. */
static bool receive(struct ibv_wc *done, const char *what)
{
    double end = now_us() + options.limit_ms * 1e3;
    for (;;) {
        check(ibv_req_notify_cq(my.received, 0), "ibv_req_notify_cq");
        if (take(my.received, done, what))
            return true;
        if (!wait_for_completion(my.received_channel, end, what)) {
            pass_event(RDMA_CM_EVENT_DISCONNECTED, what);
            return false;
        }
    }
}

/* Takes a SEND of 64 bytes. Returns its slot. */
static uint8_t *receive_send(const char *what)
{
    struct ibv_wc done;
    if (!receive(&done, what))
        fail("%s: the peer ended the connection", what);
    if (done.status != IBV_WC_SUCCESS)
        fail("%s: %s", what, ibv_wc_status_str(done.status));
    if (done.opcode != IBV_WC_RECV || done.wc_flags & IBV_WC_WITH_IMM || done.byte_len != GREETING)
        fail("%s: opcode %d, flags %#x, %u bytes", what, done.opcode, done.wc_flags, done.byte_len);
    return my.slots + done.wr_id * SLOT;
}

static void put(uint8_t *to, uint64_t value, int length)
{
    while (length-- > 0) {
        to[length] = value;
        value >>= 8;
    }
}

static uint64_t get(const uint8_t *from, int length)
{
    uint64_t value = 0;
    while (length-- > 0)
        value = value << 8 | *from++;
    return value;
}

static void greet(void)
{
    memset(my.local, 0, GREETING);
    memcpy(my.local, "TPRD", 4);
    put(my.local + 4, (uintptr_t)my.shared, 8);
    put(my.local + 12, my.shared_mr->rkey, 4);
    put(my.local + 16, BUFFER, 4);
    post(IBV_WR_SEND, my.local_mr, 0, GREETING);
    completes("the greeting");
    uint8_t *said = receive_send("the peer's greeting");
    if (memcmp(said, "TPRD", 4) != 0)
        fail("the peer's greeting begins with %02x%02x%02x%02x", said[0], said[1], said[2], said[3]);
    my.peer_address = get(said + 4, 8);
    my.peer_key = get(said + 12, 4);
    uint64_t length = get(said + 16, 4);
    if (length != BUFFER)
        fail("the peer's buffer has %llu bytes, not %d", (unsigned long long)length, BUFFER);
    printf("greeted: address %#llx, key %#x\n", (unsigned long long)my.peer_address, my.peer_key);
}

/* The side that connects. */

static void write_and_read(void)
{
    for (size_t at = 0; at < sizeof sizes / sizeof *sizes; at++) {
        char step[32];
        fill(my.local, sizes[at], sizes[at]);
        snprintf(step, sizeof step, "write %u", sizes[at]);
        post(IBV_WR_RDMA_WRITE, my.local_mr, 0, sizes[at]);
        completes(step);
        printf("%s ok\n", step);
        snprintf(step, sizeof step, "read %u", sizes[at]);
        memset(my.read, 0, sizes[at]);
        post(IBV_WR_RDMA_READ, my.read_mr, 0, sizes[at]);
        completes(step);
        compare(my.read, sizes[at], sizes[at], step);
        printf("%s ok\n", step);
    }
}

static void write_with_immediate(void)
{
    fill(my.local, BLOCK, IMMEDIATE);
    post(IBV_WR_RDMA_WRITE_WITH_IMM, my.local_mr, 0, BLOCK);
    completes("write with immediate");
    printf("write with immediate ok\n");
}

static void echo(void)
{
    fill(my.local, GREETING, 1);
    post(IBV_WR_SEND, my.local_mr, 0, GREETING);
    completes("send");
    compare(receive_send("the echo"), GREETING, 1, "the echo");
    printf("echo ok\n");
}

static void measure_bandwidth(long count)
{
    long posted = 0, done = 0;
    double start = now_us();
    while (done < count) {
        while (posted < count && posted - done < DEPTH)
            post(IBV_WR_RDMA_WRITE, my.local_mr, posted++ % DEPTH * BLOCK, BLOCK);
        completes_by(options.polls, "bandwidth");
        done++;
    }
    printf("bandwidth: %ld writes of %d bytes, %d at once: %.1f MB/s\n", count, BLOCK, DEPTH,
           (double)BLOCK * count / (now_us() - start));
}

static int by_value(const void *one, const void *other)
{
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

static void measure_latency(long count)
{
    double *times = checked(malloc(count * sizeof *times), "malloc");
    for (long at = 0; at < count; at++) {
        double start = now_us();
        post(IBV_WR_RDMA_WRITE, my.local_mr, 0, 8);
        completes("latency");
        times[at] = now_us() - start;
    }
    qsort(times, count, sizeof *times, by_value);
    printf("latency: %ld writes of 8 bytes: least %.1f, median %.1f, 99 %% %.1f us\n", count, times[0],
           times[count / 2], times[count * 99 / 100]);
    free(times);
}

/* Adds 1 to the first 8 bytes of the peer's buffer, in the byte order of its processor. */
static void add(void)
{
    if (options.atomic == REFUSED) {
        post(IBV_WR_ATOMIC_FETCH_AND_ADD, my.read_mr, 0, 8);
        fails_with(IBV_WC_REM_INV_REQ_ERR, "fetch and add");
        return;
    }
    uint64_t before = 41, value;
    memcpy(my.local, &before, 8);
    post(IBV_WR_RDMA_WRITE, my.local_mr, 0, 8);
    completes("write before fetch and add");
    for (uint64_t expected = 41; expected < 43; expected++) {
        post(IBV_WR_ATOMIC_FETCH_AND_ADD, my.read_mr, 0, 8);
        completes("fetch and add");
        memcpy(&value, my.read, 8);
        if (value != expected)
            fail("fetch and add: the value before was %llu, not %llu", (unsigned long long)value,
                 (unsigned long long)expected);
    }
    printf("fetch and add ok\n");
}

static void run_connect(void)
{
    write_and_read();
    write_with_immediate();
    echo();
    if (options.bandwidth > 0)
        measure_bandwidth(options.bandwidth);
    if (options.latency > 0)
        measure_latency(options.latency);
    if (options.atomic != NOT_TRIED)
        add();
    if (options.wrong_key) {
        my.peer_key ^= 0x55;
        post(IBV_WR_RDMA_WRITE, my.local_mr, 0, 8);
        fails_with(IBV_WC_REM_ACCESS_ERR, "write with a wrong key");
    }
    check(rdma_disconnect(my.id), "rdma_disconnect");
    pass_event(RDMA_CM_EVENT_DISCONNECTED, "the connection's end");
    printf("disconnected\n");
}

/* The side that serves. */

static void send_back(const uint8_t *said)
{
    memcpy(my.local, said, GREETING);
    post(IBV_WR_SEND, my.local_mr, 0, GREETING);
    completes("the echo");
    printf("echoed\n");
}

static void run_serve(void)
{
    struct ibv_wc done;
    int immediates = 0, echoes = 0;
    bool broken = false;
    while (receive(&done, "the peer's next message")) {
        if (done.status != IBV_WC_SUCCESS) {
            if (!broken)
                printf("broken: %s\n", ibv_wc_status_str(done.status));
            broken = true;
        } else if (done.opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
            if (be32toh(done.imm_data) != IMMEDIATE || done.byte_len != BLOCK)
                fail("write with immediate: %#x, %u bytes", be32toh(done.imm_data), done.byte_len);
            compare(my.shared, BLOCK, IMMEDIATE, "write with immediate");
            printf("immediate ok\n");
            immediates++;
            post_receive(done.wr_id);
        } else if (done.byte_len == GREETING) {
            send_back(my.slots + done.wr_id * SLOT);
            echoes++;
            post_receive(done.wr_id);
        } else {
            fail("a message of %u bytes", done.byte_len);
        }
    }
    printf("disconnected\n");
    if (immediates != 1 || echoes != 1)
        fail("%d writes with immediate and %d echoes, not one of each", immediates, echoes);
    if (broken && !options.broken)
        fail("the peer's last request was wrong; --broken if it is to be");
    check(rdma_disconnect(my.id), "rdma_disconnect");
}

static void finish(void)
{
    rdma_destroy_qp(my.id);
    struct ibv_mr *mrs[] = {my.shared_mr, my.local_mr, my.read_mr, my.slots_mr};
    for (size_t at = 0; at < sizeof mrs / sizeof *mrs; at++)
        check(ibv_dereg_mr(mrs[at]), "ibv_dereg_mr");
    check(ibv_destroy_cq(my.sent), "ibv_destroy_cq");
    check(ibv_destroy_cq(my.received), "ibv_destroy_cq");
    check(ibv_destroy_comp_channel(my.sent_channel), "ibv_destroy_comp_channel");
    check(ibv_destroy_comp_channel(my.received_channel), "ibv_destroy_comp_channel");
    check(ibv_dealloc_pd(my.pd), "ibv_dealloc_pd");
    check(rdma_destroy_id(my.id), "rdma_destroy_id");
}

static void usage(void) __attribute__((noreturn));

static void usage(void)
{
    fprintf(stderr,
            "rdma-peer [OPTION...] serve ADDRESS PORT\n"
            "rdma-peer [OPTION...] connect ADDRESS PORT SOURCE\n"
            "  --limit SECONDS          the longest wait; 30\n"
            "serve:\n"
            "  --broken                 the peer's last request may be wrong\n"
            "connect:\n"
            "  --bandwidth COUNT        so many writes of 64 KiB, 16 at once\n"
            "  --polls                  polls for the completions of --bandwidth, instead of sleeping; the\n"
            "                           other steps always poll\n"
            "  --latency COUNT          so many writes of 8 bytes, one at a time\n"
            "  --atomic done|refused    a fetch and add, and how it ends\n"
            "  --wrong-key              a write with a wrong key, which must be refused\n"
            "A refused request ends the connection, so there is at most one.\n");
    exit(2);
}

static long number(const char *text)
{
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno || *end || end == text || value < 1 || value > 1000000)
        usage();
    return value;
}

static void read_options(int count, char **words)
{
    static const struct option known[] = {
        {"limit", required_argument, NULL, 't'},  {"broken", no_argument, NULL, 'b'},
        {"bandwidth", required_argument, NULL, 'w'}, {"latency", required_argument, NULL, 'l'},
        {"atomic", required_argument, NULL, 'a'}, {"wrong-key", no_argument, NULL, 'k'},
        {"polls", no_argument, NULL, 'p'}, {0},
    };
    int option;
    while ((option = getopt_long(count, words, "", known, NULL)) != -1) {
        switch (option) {
        case 't': options.limit_ms = number(optarg) * 1000; break;
        case 'b': options.broken = true; break;
        case 'w': options.bandwidth = number(optarg); break;
        case 'l': options.latency = number(optarg); break;
        case 'k': options.wrong_key = true; break;
        case 'p': options.polls = true; break;
        case 'a':
            if (strcmp(optarg, "done") != 0 && strcmp(optarg, "refused") != 0)
                usage();
            options.atomic = strcmp(optarg, "done") == 0 ? DONE : REFUSED;
            break;
        default: usage();
        }
    }
    words += optind;
    count -= optind;
    bool polls_in_vain = options.polls && options.bandwidth == 0;
    if (count < 1 || options.limit_ms > 1000000 || polls_in_vain ||
        (options.wrong_key && options.atomic == REFUSED))
        usage();
    options.serves = strcmp(words[0], "serve") == 0;
    if (!options.serves && strcmp(words[0], "connect") != 0)
        usage();
    if (count != (options.serves ? 3 : 4))
        usage();
    options.address = words[1];
    options.port = words[2];
    options.source = options.serves ? NULL : words[3];
}

int main(int count, char **words)
{
    read_options(count, words);
    /* A script reads the lines while this runs. */
    setvbuf(stdout, NULL, _IOLBF, 0);
    my.events = checked(rdma_create_event_channel(), "rdma_create_event_channel");
    if (options.serves)
        serve_connection();
    else
        make_connection();
    report_connection();
    greet();
    if (options.serves)
        run_serve();
    else
        run_connect();
    finish();
    return 0;
}
