/* Messages of every kind between languages: the same program as exchange.rs, exchange.cpp and exchange.py, which can read its messages.
 *
 *   cc exchange.c $(pkg-config --cflags --libs rgaps) -o exchange
 *   exchange pub|sub bytes|image|point_cloud|tensor TOPIC COUNT
 */

#include <rgaps.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define WAIT_NS 10000000000u

/* Ends the program with the library's error text if a call failed. */
static void check(rgaps_status_t status, const char *what) {
  if (status != RGAPS_OK) {
    fprintf(stderr, "exchange: %s: %s\n", what, rgaps_error_text());
    exit(1);
  }
}

static void fail(const char *what, long where) {
  fprintf(stderr, "exchange: %s %ld\n", what, where);
  exit(1);
}

static uint32_t kind_of(const char *name) {
  static const char *names[] = {"bytes", "image", "point_cloud", "tensor"};
  for (uint32_t kind = 0; kind < 4; ++kind) {
    if (strcmp(name, names[kind]) == 0) return kind;
  }
  fprintf(stderr, "exchange: there is no kind '%s'\n", name);
  exit(2);
}

/* The metadata of message `n`. */
static rgaps_meta_t described(uint32_t kind, long n) {
  static const char *fields[] = {"x", "y", "z", "intensity"};
  const int64_t shape[] = {2, 3, 4};
  rgaps_meta_t meta;
  switch (kind) {
    case RGAPS_KIND_IMAGE: check(rgaps_meta_image(&meta, 64, 48, "rgb8"), "image"); break;
    case RGAPS_KIND_TENSOR: check(rgaps_meta_tensor(&meta, RGAPS_FLOAT, 32, 3, shape), "tensor"); break;
    case RGAPS_KIND_POINT_CLOUD:
      check(rgaps_meta_point_cloud(&meta, 100, 1, 16), "cloud");
      for (uint32_t i = 0; i < 4; ++i) check(rgaps_meta_add_field(&meta, fields[i], 4 * i, RGAPS_FLOAT32), fields[i]);
      break;
    default: check(rgaps_meta_bytes(&meta, 1000), "bytes"); break;
  }
  check(rgaps_meta_set_header(&meta, (uint64_t)n * 1000000000u, "exchange"), "header");
  return meta;
}

/* Fills the payload of message `n`, or checks it. */
static void content(uint32_t kind, long n, void *to, const void *from, uint64_t bytes) {
  const int has_floats = kind == RGAPS_KIND_POINT_CLOUD || kind == RGAPS_KIND_TENSOR;
  const uint64_t elements = has_floats ? bytes / sizeof(float) : bytes;
  for (uint64_t i = 0; i < elements; ++i) {
    const float number = (float)i + (float)n;
    const uint8_t byte = (uint8_t)(i * 7 + (uint64_t)n);
    if (to && has_floats) ((float *)to)[i] = number;
    else if (to) ((uint8_t *)to)[i] = byte;
    else if (has_floats ? ((const float *)from)[i] != number : ((const uint8_t *)from)[i] != byte) {
      fail("a wrong byte in message", n);
    }
  }
}

static void pause_1_ms(void) {
  const struct timespec ms = {0, 1000000};
  nanosleep(&ms, NULL);
}

static void publish(const rgaps_node_t *node, const char *kind_name, const char *topic, long count) {
  const uint32_t kind = kind_of(kind_name);
  const uint64_t deadline = rgaps_now() + WAIT_NS;
  rgaps_publisher_t *publisher;
  check(rgaps_publisher_create(node, topic, kind, NULL, &publisher), "publisher");
  while (rgaps_publisher_subscriber_count(publisher) == 0 && rgaps_now() < deadline) pause_1_ms();
  for (long n = 0; n < count; ++n) {
    const rgaps_meta_t meta = described(kind, n);
    rgaps_loan_t *loan;
    void *data;
    uint64_t bytes;
    check(rgaps_publisher_loan(publisher, &meta, &loan), "loan");
    check(rgaps_loan_data(loan, &data, &bytes), "data");
    content(kind, n, data, NULL, bytes);
    check(rgaps_loan_publish(loan, NULL, NULL), "publish");
  }
  printf("published %ld %s messages\n", count, kind_name);
  fflush(stdout);
  rgaps_publisher_statistics_t statistics;
  do {
    check(rgaps_publisher_statistics(publisher, &statistics), "statistics");
    pause_1_ms();
  } while (statistics.outstanding > 0 && rgaps_now() < deadline);
  rgaps_publisher_destroy(publisher);
}

static void subscribe(const rgaps_node_t *node, const char *kind_name, const char *topic, long count) {
  const uint32_t kind = kind_of(kind_name);
  rgaps_subscriber_t *subscriber;
  check(rgaps_subscriber_create(node, topic, kind, NULL, &subscriber), "subscriber");
  puts("ready");
  fflush(stdout);
  for (long n = 0; n < count; ++n) {
    const rgaps_meta_t expected = described(kind, n);
    rgaps_meta_t meta;
    rgaps_sample_t *message;
    const void *data;
    uint64_t bytes;
    check(rgaps_subscriber_wait(subscriber, WAIT_NS, &message), "wait");
    check(rgaps_sample_meta(message, &meta), "meta");
    if (memcmp(&meta, &expected, sizeof meta) != 0) fail("other metadata in message", n);
    check(rgaps_sample_data(message, &data, &bytes), "data");
    content(kind, n, NULL, data, bytes);
    check(rgaps_sample_release(message, NULL), "release");
  }
  printf("took %ld %s messages\n", count, kind_name);
  rgaps_subscriber_destroy(subscriber);
}

int main(int argc, char **argv) {
  if (argc != 5 || (strcmp(argv[1], "pub") != 0 && strcmp(argv[1], "sub") != 0)) {
    fputs("usage: exchange pub|sub bytes|image|point_cloud|tensor TOPIC COUNT\n", stderr);
    return 2;
  }
  rgaps_node_options_t options = rgaps_node_options_default();
  options.name = "exchange";
  rgaps_node_t *node;
  check(rgaps_node_create(&options, &node), "node");
  const long count = strtol(argv[4], NULL, 10);
  if (strcmp(argv[1], "pub") == 0) publish(node, argv[2], argv[3], count);
  else subscribe(node, argv[2], argv[3], count);
  rgaps_node_destroy(node);
  return 0;
}
