/* Many connections, one request each at a time: `connections PORT CONNECTIONS SECONDS <frames`.

   The frames on standard input are whole requests, their sizes in front; connection i sends frame i modulo their number
   again and again, each time when the last answer is there. After SECONDS nothing more is sent, and what is under way is
   waited for. Prints how many were answered, the microseconds it took, and the 50th and 99th percentile of the
   microseconds an answer took. What an answer says is not looked at: whoever starts this counts records afterwards. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MOST_FRAMES 4096
#define RECEIVE_BYTES 65536
#define SLOTS 1000000 /* of the histogram: one a microsecond, the last for all that took longer */

struct connection {
        int fd;
        const unsigned char *frame;
        size_t frame_bytes;
        int64_t sent_us;
        unsigned char head[4];
        size_t got;    /* bytes of this answer, its size in front included */
        size_t wanted; /* how many it has; 4 until the size is known */
};

static uint32_t histogram[SLOTS + 1];

static void die(const char *what) {
        perror(what);
        exit(1);
}

static int64_t now_us(void) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static uint32_t size_of(const unsigned char *bytes) {
        uint32_t size;
        memcpy(&size, bytes, 4);
        return ntohl(size);
}

static void send_request(struct connection *to) {
        to->sent_us = now_us();
        to->got = 0;
        to->wanted = 4;
        if (send(to->fd, to->frame, to->frame_bytes, MSG_NOSIGNAL) != (ssize_t)to->frame_bytes)
                die("send");
}

/* Take what has arrived; whether the answer is whole. */
static int receive(struct connection *from) {
        static unsigned char buffer[RECEIVE_BYTES];
        ssize_t received = recv(from->fd, buffer, RECEIVE_BYTES, 0);
        if (received <= 0) {
                if (received < 0 && (errno == EAGAIN || errno == EINTR))
                        return 0;
                fprintf(stderr, "the broker closed a connection\n");
                exit(1);
        }
        for (ssize_t i = 0; i < received && from->got + i < 4; i++)
                from->head[from->got + i] = buffer[i];
        from->got += received;
        if (from->got >= 4)
                from->wanted = 4 + (size_t)size_of(from->head);
        return from->got >= 4 && from->got == from->wanted;
}

static void connect_to(struct connection *connection, int port, int epoll) {
        struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = connection};
        int one = 1;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        connection->fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(connection->fd, (struct sockaddr *)&address, sizeof address) != 0)
                die("connect");
        setsockopt(connection->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        if (epoll_ctl(epoll, EPOLL_CTL_ADD, connection->fd, &event) != 0)
                die("epoll_ctl");
}

static int64_t percentile(int64_t answered, double share) {
        int64_t seen = 0;
        int slot = 0;
        while (slot < SLOTS && (seen += histogram[slot]) < answered * share)
                slot++;
        return slot;
}

static size_t read_frames(const unsigned char **frames) {
        static unsigned char input[1 << 24];
        size_t have = fread(input, 1, sizeof input, stdin), at = 0, count = 0;
        while (at + 4 <= have && count < MOST_FRAMES) {
                frames[count++] = input + at;
                at += 4 + size_of(input + at);
        }
        return count;
}

int main(int argc, char **argv) {
        static const unsigned char *frames[MOST_FRAMES];
        struct epoll_event events[256];
        if (argc != 4)
                return fprintf(stderr, "usage: connections PORT CONNECTIONS SECONDS <frames\n"), 2;
        int port = atoi(argv[1]), count = atoi(argv[2]), epoll = epoll_create1(0);
        size_t frame_count = read_frames(frames);
        if (count < 1 || frame_count == 0)
                return fprintf(stderr, "one connection and one frame at least\n"), 2;
        struct connection *all = calloc(count, sizeof *all);
        for (int i = 0; i < count; i++) {
                all[i].frame = frames[i % frame_count];
                all[i].frame_bytes = 4 + (size_t)size_of(all[i].frame);
                connect_to(&all[i], port, epoll);
        }
        int64_t started_us = now_us(), end_us = started_us + (int64_t)(atof(argv[3]) * 1e6), answered = 0;
        int under_way = count;
        for (int i = 0; i < count; i++)
                send_request(&all[i]);
        while (under_way > 0) {
                int ready = epoll_wait(epoll, events, 256, 60000);
                if (ready <= 0)
                        return fprintf(stderr, "no answer for a minute\n"), 1;
                for (int i = 0; i < ready; i++) {
                        struct connection *one = events[i].data.ptr;
                        if (!receive(one))
                                continue;
                        int64_t took_us = now_us() - one->sent_us;
                        histogram[took_us < SLOTS ? took_us : SLOTS]++;
                        answered++;
                        if (now_us() < end_us)
                                send_request(one);
                        else
                                under_way--;
                }
        }
        printf("%ld %ld %ld %ld\n", (long)answered, (long)(now_us() - started_us), (long)percentile(answered, 0.5),
               (long)percentile(answered, 0.99));
        return 0;
}
