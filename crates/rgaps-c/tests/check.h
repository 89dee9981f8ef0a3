/* Helpers of the tests: checks that print what failed, and common calls. */

#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rgaps.h"

/* Maximum wait in ns for what must arrive. No test depends on timing; the script `run` ends a test that hangs. */
#define LONG_NS UINT64_C(60000000000)

/* Fails the test with place and reason. _exit, because other threads may still run and atexit handlers must not. */
#define CHECK(condition)                                                                                        \
  do {                                                                                                          \
    if (!(condition)) {                                                                                         \
      fprintf(stderr, "%s:%d: does not hold: %s\n  last error: %s: %s\n", __FILE__, __LINE__, #condition,        \
              rgaps_status_name((int32_t)rgaps_error_status()), rgaps_error_text());                            \
      fflush(NULL);                                                                                             \
      _exit(1);                                                                                                 \
    }                                                                                                           \
  } while (0)

/* A call that must succeed. */
#define OK(call) CHECK((call) == RGAPS_OK)

/* A call that must fail with this status and a text that contains this part. */
#define FAILS(call, expected, part)                                                                             \
  do {                                                                                                          \
    CHECK((call) == (expected));                                                                                \
    CHECK(rgaps_error_status() == (expected));                                                                  \
    CHECK(strstr(rgaps_error_text(), (part)) != NULL);                                                          \
  } while (0)

/* A node, on the device that the test selects, if any. */
static inline rgaps_node_t *node_on(const char *device) {
  rgaps_node_options_t options = rgaps_node_options_default();
  rgaps_node_t *node = NULL;
  options.name = "ctest";
  options.device = device;
  OK(rgaps_node_create(&options, &node));
  CHECK(node != NULL);
  return node;
}

static inline rgaps_publisher_t *publisher_of(const rgaps_node_t *node, const char *topic, uint32_t kind) {
  rgaps_publisher_t *publisher = NULL;
  OK(rgaps_publisher_create(node, topic, kind, NULL, &publisher));
  return publisher;
}

static inline rgaps_subscriber_t *subscriber_of(const rgaps_node_t *node, const char *topic, uint32_t kind) {
  rgaps_subscriber_t *subscriber = NULL;
  OK(rgaps_subscriber_create(node, topic, kind, NULL, &subscriber));
  return subscriber;
}

static inline rgaps_meta_t bytes_meta(uint64_t bytes) {
  rgaps_meta_t meta;
  OK(rgaps_meta_bytes(&meta, bytes));
  return meta;
}

/* Publishes a number. */
static inline void publish_number(const rgaps_publisher_t *publisher, uint64_t number) {
  rgaps_meta_t meta = bytes_meta(sizeof number);
  OK(rgaps_publisher_push_host(publisher, &meta, &number, sizeof number, NULL));
}

/* The number in a message's payload. */
static inline uint64_t number_in(const rgaps_sample_t *message) {
  const void *data = NULL;
  uint64_t bytes = 0, number = 0;
  OK(rgaps_sample_data(message, &data, &bytes));
  CHECK(bytes == sizeof number);
  memcpy(&number, data, sizeof number);
  return number;
}

/* Waits for a message. */
static inline rgaps_sample_t *next_of(const rgaps_subscriber_t *subscriber) {
  rgaps_sample_t *message = NULL;
  OK(rgaps_subscriber_wait(subscriber, LONG_NS, &message));
  CHECK(message != NULL);
  return message;
}

/* Waits for a message, and returns the number in it. */
static inline uint64_t next_number(const rgaps_subscriber_t *subscriber) {
  rgaps_sample_t *message = next_of(subscriber);
  uint64_t number = number_in(message);
  OK(rgaps_sample_release(message, NULL));
  return number;
}

#endif /* CHECK_H */
