// What the bench says to a process of a peer, and what the process answers: as in ../src/protocol.rs, for programs in C and C++.

#ifndef RGAPS_PEERS_PROTOCOL_H
#define RGAPS_PEERS_PROTOCOL_H

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CACHE_LINE 64
// Between the filling of a message and its publication, so that subscribers sleep again; as in the bench.
#define PACE_NS 300000
#define LINE_BYTES 64
#define ADDRESS_BYTES 16

// The command line: `versions`, `publisher SYSTEM ADDRESS --bytes N`, or `subscriber SYSTEM ADDRESS [--read]`. What it does not know is skipped: the
// bench also gives `--depth N`, for a middleware that asks for room in advance.
struct arguments {
    bool is_publisher;
    // The parts of the address DOMAIN/OWN/OTHER: the domain's number, and the IP addresses of this process and of those that it talks to.
    unsigned domain;
    char own[ADDRESS_BYTES];
    char other[ADDRESS_BYTES];
    size_t bytes;
    bool read;
};

static inline void fail(const char *what) {
    fprintf(stderr, "%s\n", what);
    exit(1);
}

// Prints the version and ends, if that is all that was asked for.
static inline struct arguments parse(int argc, char **argv, const char *name, const char *version) {
    struct arguments parsed = {false, 0, "", "", 0, false};
    if (argc == 2 && strcmp(argv[1], "versions") == 0) {
        printf("%s %s\n", name, version);
        exit(0);
    }
    if (argc < 4) fail("usage: versions | publisher SYSTEM ADDRESS --bytes N | subscriber SYSTEM ADDRESS [--read]");
    parsed.is_publisher = strcmp(argv[1], "publisher") == 0;
    if (sscanf(argv[3], "%u/%15[0-9.]/%15[0-9.]", &parsed.domain, parsed.own, parsed.other) != 3) {
        fail("an address is DOMAIN/OWN/OTHER");
    }
    for (int at = 4; at < argc; ++at) {
        if (strcmp(argv[at], "--read") == 0) parsed.read = true;
        if (strcmp(argv[at], "--bytes") == 0 && at + 1 < argc) parsed.bytes = strtoull(argv[at + 1], NULL, 10);
    }
    if (parsed.is_publisher && parsed.bytes < 2 * sizeof(uint64_t)) fail("a message has at least 16 bytes");
    return parsed;
}

static inline uint64_t monotonic_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline void say(const char *word, uint64_t number, uint64_t when) {
    printf("%s %" PRIu64 " %" PRIu64 "\n", word, number, when);
    fflush(stdout);
}

static inline void say_ready(void) {
    puts("ready");
    fflush(stdout);
}

// A message begins with its number, and a word that is not 0 if it is to be reported.
static inline void fill(uint8_t *bytes, size_t length, uint64_t number, bool is_reported) {
    uint64_t words[2] = {number, is_reported};
    memset(bytes, (uint8_t)number, length);
    memcpy(bytes, words, sizeof words);
}

// Reports a message that a subscriber has, after reading it if it should.
static inline void got(const uint8_t *bytes, size_t length, bool read) {
    uint64_t words[2];
    if (length < sizeof words) fail("a message is too short");
    memcpy(words, bytes, sizeof words);
    if (read) {
        uint64_t sum = 0;
        for (size_t at = 0; at < length; at += CACHE_LINE) sum += bytes[at];
        // Keeps the reads: the compiler does not know what a volatile is for.
        volatile uint64_t kept = sum;
        (void)kept;
    }
    if (words[1] != 0) say("got", words[0], monotonic_ns());
}

// Publishes what is in the buffer as standard input says, until it ends.
static inline void serve(uint8_t *bytes, size_t length, void (*publish)(void *), void *context) {
    char line[LINE_BYTES];
    uint64_t number = 0;
    say_ready();
    while (fgets(line, sizeof line, stdin) != NULL) {
        uint64_t count;
        if (sscanf(line, "publish %" SCNu64, &count) != 1 || count == 0) fail("unknown command");
        uint64_t start = monotonic_ns();
        if (count == 1) {
            struct timespec pace = {0, PACE_NS};
            fill(bytes, length, number + 1, true);
            nanosleep(&pace, NULL);
            start = monotonic_ns();
            publish(context);
        } else {
            for (uint64_t of_burst = 1; of_burst <= count; ++of_burst) {
                fill(bytes, length, number + of_burst, of_burst == count);
                publish(context);
            }
        }
        number += count;
        say("sent", number, start);
    }
}

// Returns when standard input ends: the bench has ended.
static inline void wait_for_the_end(void) {
    while (getchar() != EOF) {
    }
}

#endif
