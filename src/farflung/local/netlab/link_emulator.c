/* The line emulator of line.py, compiled: the same decisions for each packet, at many times its speed.
 *
 *   line FD_HOME FD_UPSTREAM (RATE DELAY JITTER QUEUE ENTER STAY SEED) x 2     up, then down; see Terms in line.py
 *   line trace RATE DELAY JITTER QUEUE ENTER STAY SEED     reads "TIME LENGTH PACKETS" lines, prints the fate of each
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { OVERHEAD = 38, BATCH = 64, LARGEST = 2048, LEAST = 300, MOST_PACKETS = 400000 };
enum { HEADER = 10, LARGEST_TRAIN = 65600, PACKETS_OF = 0x7f }; /* struct virtio_net_hdr; PACKETS_OF: but for ECN */
static const int64_t SECOND = 1000000000, LOST = -1, FULL = -2;

struct terms { uint64_t rate, delay, jitter, queue, enter, stay, seed; };
struct counters { uint64_t arrived, delivered, lost, full, cut, refused, bytes; };
struct packet { int64_t due; uint64_t length, packets, bytes; }; /* as it is read; what it is on the line */
struct line {
    struct terms terms;
    struct counters counters;
    uint64_t state;
    int is_bad;
    int64_t busy, last;
    int source, target;
    struct packet *ring;      /* from first to last, both counted on and on; a place is the count modulo size */
    uint8_t *data;            /* of each place, `largest` bytes; one place more, for what has none */
    uint64_t size, first, past, largest, header;
};

static int64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * SECOND + time.tv_nsec;
}

static uint64_t draw(struct line *line)
{
    uint64_t mixed = line->state += 0x9E3779B97F4A7C15ull;
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9ull;
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EBull;
    return (mixed ^ mixed >> 31) >> 32;
}

static int64_t fate(struct line *line, int64_t now, uint64_t bytes, uint64_t packets)
{
    const struct terms *terms = &line->terms;
    if (terms->enter) {
        line->is_bad = draw(line) < (line->is_bad ? terms->stay : terms->enter);
        if (line->is_bad)
            return LOST;
    }
    int64_t start = now > line->busy ? now : line->busy;
    if (terms->rate) {
        if (start - now > (int64_t)terms->queue)
            return FULL;
        start += (bytes + packets * OVERHEAD) * 8 * SECOND / terms->rate;
        line->busy = start;
    }
    int64_t due = start + terms->delay + (terms->jitter ? draw(line) * terms->jitter >> 32 : 0);
    if (due > line->last)
        line->last = due;
    return line->last;
}

/* What a train is on the line: its packets, each with the headers of the first. Else one packet is what it is. */
static void weigh(struct packet *packet, const uint8_t *data, uint64_t header)
{
    uint16_t size, begins;
    packet->packets = 1;
    packet->bytes = packet->length - header;
    if (!header || !(data[1] & PACKETS_OF))
        return;
    memcpy(&size, data + 4, sizeof size);     /* gso_size */
    memcpy(&begins, data + 6, sizeof begins); /* csum_start: where TCP's header does */
    if (!size || begins + 13u > packet->bytes)
        return;
    uint64_t heads = begins + (data[header + begins + 12] >> 4) * 4u;
    if (heads >= packet->bytes)
        return;
    packet->packets = (packet->bytes - heads + size - 1) / size;
    packet->bytes += (packet->packets - 1) * heads;
}

static void take(struct line *line, int is_cut)
{
    for (int i = 0; i < BATCH; i++) {
        int has_room = line->past - line->first < line->size;
        uint64_t place = has_room ? line->past % line->size : line->size;
        struct packet *packet = &line->ring[place];
        uint8_t *data = line->data + place * line->largest;
        ssize_t length = read(line->source, data, line->largest);
        if (length <= (ssize_t)line->header)
            return;
        packet->length = (uint64_t)length;
        weigh(packet, data, line->header);
        line->counters.arrived += packet->packets;
        if (is_cut) {
            line->counters.cut += packet->packets;
            continue;
        }
        int64_t due = has_room ? fate(line, now(), packet->bytes, packet->packets) : FULL;
        if (due == LOST)
            line->counters.lost += packet->packets;
        else if (due == FULL)
            line->counters.full += packet->packets;
        else {
            packet->due = due;
            line->past++;
        }
    }
}

static void give(struct line *line)
{
    int64_t time = now();
    for (; line->first != line->past; line->first++) {
        uint64_t place = line->first % line->size;
        const struct packet *packet = &line->ring[place];
        if (packet->due > time)
            return;
        if (write(line->target, line->data + place * line->largest, packet->length) == (ssize_t)packet->length) {
            line->counters.delivered += packet->packets;
            line->counters.bytes += packet->bytes;
        } else
            line->counters.refused += packet->packets;
    }
}

static void answer(const struct line *lines)
{
    for (int i = 0; i < 2; i++) {
        const struct counters *c = &lines[i].counters;
        printf("%s\"%s\": {\"arrived\": %" PRIu64 ", \"delivered\": %" PRIu64 ", \"lost\": %" PRIu64
               ", \"full\": %" PRIu64 ", \"cut\": %" PRIu64 ", \"refused\": %" PRIu64 ", \"bytes\": %" PRIu64 "}",
               i ? ", " : "{", i ? "down" : "up", c->arrived, c->delivered, c->lost, c->full, c->cut, c->refused,
               c->bytes);
    }
    printf("}\n");
    fflush(stdout);
}

static void read_terms(struct line *line, char **words)
{
    uint64_t *fields[] = {&line->terms.rate, &line->terms.delay, &line->terms.jitter, &line->terms.queue,
                          &line->terms.enter, &line->terms.stay, &line->terms.seed};
    for (int i = 0; i < 7; i++)
        *fields[i] = strtoull(words[i], NULL, 10);
    line->state = line->terms.seed;
}

/* Whether each packet of the device begins with a header that tells of trains. */
static int has_header(int device)
{
    struct ifreq told;
    memset(&told, 0, sizeof told);
    return !ioctl(device, TUNGETIFF, &told) && told.ifr_flags & IFF_VNET_HDR;
}

/* Places for all packets that fit into the line at once, if they are not tiny. */
static int make_room(struct line *line)
{
    line->header = has_header(line->source) ? HEADER : 0;
    line->largest = line->header ? LARGEST_TRAIN : LARGEST;
    double held = (double)(line->terms.delay + line->terms.jitter + line->terms.queue) / 1e9;
    double rate = line->terms.rate ? (double)line->terms.rate : 2e9;
    double packets = 4096 + held * rate / 8 / LEAST;
    line->size = packets < MOST_PACKETS ? (uint64_t)packets : MOST_PACKETS;
    line->ring = malloc((line->size + 1) * sizeof *line->ring);
    line->data = malloc((line->size + 1) * line->largest); /* pages that nothing is written to take no memory */
    return line->ring != NULL && line->data != NULL;
}

static int trace(char **words)
{
    struct line line;
    memset(&line, 0, sizeof line);
    read_terms(&line, words);
    int64_t time;
    uint64_t bytes, packets;
    while (scanf("%" SCNd64 " %" SCNu64 " %" SCNu64, &time, &bytes, &packets) == 3)
        printf("%" PRId64 "\n", fate(&line, time, bytes, packets));
    return 0;
}

static void rest(struct pollfd *watched, const struct line *lines)
{
    int64_t due = INT64_MAX, time = now();
    for (int i = 0; i < 2; i++)
        if (lines[i].first != lines[i].past && lines[i].ring[lines[i].first % lines[i].size].due < due)
            due = lines[i].ring[lines[i].first % lines[i].size].due;
    int64_t wait = due > time ? due - time : 0;
    struct timespec left = {wait / SECOND, wait % SECOND};
    if (ppoll(watched, 3, due == INT64_MAX ? NULL : &left, NULL) < 0 && errno != EINTR)
        exit(1);
}

int main(int count, char **words)
{
    if (count == 9 && !strcmp(words[1], "trace"))
        return trace(words + 2);
    if (count != 17)
        return 2;
    struct line lines[2];
    memset(lines, 0, sizeof lines);
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
    for (int i = 0; i < 2; i++) {
        lines[i].source = atoi(words[1 + i]);
        lines[i].target = atoi(words[2 - i]);
        read_terms(&lines[i], words + 3 + 7 * i);
        if (!make_room(&lines[i]) || fcntl(lines[i].source, F_SETFL, O_NONBLOCK))
            return 1;
    }
    for (int is_cut = 0;;) {
        struct pollfd watched[3] = {{lines[0].source, POLLIN, 0}, {lines[1].source, POLLIN, 0}, {0, POLLIN, 0}};
        rest(watched, lines);
        if (watched[2].revents) {
            char command;
            if (read(0, &command, 1) != 1)
                return 0;
            is_cut = command == 'c' ? 1 : command == 'r' ? 0 : is_cut;
            answer(lines);
        }
        for (int i = 0; i < 2; i++) {
            if (watched[i].revents & (POLLERR | POLLNVAL))
                return 1; /* the device is gone */
            take(&lines[i], is_cut);
            give(&lines[i]);
        }
    }
}
