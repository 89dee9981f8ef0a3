/* A pool that publishers of several topics share, and wrong uses of it. An argument such as "cuda:0" selects the device. */

#include <sched.h>

#include "check.h"

#define BYTES UINT64_C(100000)
#define MARK ((void *)0x5a5a5a5a)

static rgaps_node_t *node;

static rgaps_pool_t *pool_of(uint64_t bytes) {
  rgaps_publisher_qos_t qos = rgaps_publisher_qos_default();
  rgaps_pool_t *pool = NULL;
  qos.exhaustion = RGAPS_REFUSE;
  OK(rgaps_pool_create(node, bytes, &qos, &pool));
  return pool;
}

static rgaps_publisher_t *publisher_in(const rgaps_pool_t *pool, const char *topic) {
  rgaps_publisher_t *publisher = NULL;
  OK(rgaps_publisher_create_in_pool(pool, topic, RGAPS_KIND_BYTES, NULL, &publisher));
  return publisher;
}

static rgaps_buffer_t *filled(const rgaps_pool_t *pool, uint8_t fill) {
  rgaps_buffer_t *buffer = NULL;
  void *data = NULL;
  uint64_t bytes = 0;
  OK(rgaps_pool_allocate(pool, BYTES, &buffer));
  OK(rgaps_buffer_data(buffer, &data, &bytes));
  CHECK(bytes == BYTES);
  memset(data, fill, bytes);
  OK(rgaps_buffer_freeze(buffer, NULL));
  return buffer;
}

/* Waits until the streams that released messages have done so. */
static void until_used_is_below(const rgaps_pool_t *pool, uint64_t bytes) {
  while (rgaps_pool_used_bytes(pool) >= bytes) sched_yield();
}

static void subscribers_of_two_topics_get_one_buffer(void) {
  rgaps_pool_t *pool = pool_of(4 * BYTES);
  rgaps_publisher_t *publishers[] = {publisher_in(pool, "left"), publisher_in(pool, "right")};
  rgaps_subscriber_t *subscribers[] = {subscriber_of(node, "left", RGAPS_KIND_BYTES),
                                       subscriber_of(node, "right", RGAPS_KIND_BYTES)};
  rgaps_meta_t meta = bytes_meta(BYTES);
  for (uint8_t fill = 1; fill < 20; fill++) {
    rgaps_buffer_t *buffer = filled(pool, fill);
    rgaps_message_handle_t handle;
    for (int of = 0; of < 2; of++) {
      OK(rgaps_publisher_publish_buffer(publishers[of], &meta, buffer, NULL, &handle));
      CHECK(handle.payload_bytes == BYTES && handle.sequence == fill);
    }
    rgaps_buffer_release(buffer);
    until_used_is_below(pool, 2 * BYTES);
    for (int of = 0; of < 2; of++) {
      rgaps_sample_t *sample = next_of(subscribers[of]);
      const void *data = NULL;
      uint64_t bytes = 0;
      OK(rgaps_sample_data(sample, &data, &bytes));
      CHECK(bytes == BYTES);
      for (uint64_t at = 0; at < bytes; at++) CHECK(((const uint8_t *)data)[at] == fill);
      OK(rgaps_sample_release(sample, NULL));
    }
  }
  /* Publishers and their pushes work on after the pool's handle is gone. */
  rgaps_pool_destroy(pool);
  publish_number(publishers[0], 7);
  CHECK(next_number(subscribers[0]) == 7);
  for (int of = 0; of < 2; of++) {
    rgaps_publisher_destroy(publishers[of]);
    rgaps_subscriber_destroy(subscribers[of]);
  }
}

static void a_buffer_is_filled_then_frozen_then_published(void) {
  rgaps_pool_t *pool = pool_of(4 * BYTES);
  rgaps_publisher_t *publisher = publisher_in(pool, "order");
  rgaps_meta_t meta = bytes_meta(BYTES), other = bytes_meta(BYTES - 1);
  rgaps_message_handle_t handle = {.sequence = 77};
  rgaps_buffer_t *buffer = NULL;
  void *data = MARK, *pointer = NULL;
  OK(rgaps_pool_allocate(pool, BYTES, &buffer));
  OK(rgaps_buffer_device_pointer(buffer, &pointer));
  CHECK(pointer != NULL);
  FAILS(rgaps_publisher_publish_buffer(publisher, &meta, buffer, NULL, &handle), RGAPS_INVALID_ARGUMENT, "is not frozen");
  OK(rgaps_buffer_freeze(buffer, NULL));
  FAILS(rgaps_buffer_freeze(buffer, NULL), RGAPS_INVALID_ARGUMENT, "is frozen");
  FAILS(rgaps_buffer_data(buffer, &data, NULL), RGAPS_INVALID_ARGUMENT, "is frozen");
  OK(rgaps_buffer_device_pointer(buffer, &pointer));
  FAILS(rgaps_publisher_publish_buffer(publisher, &other, buffer, NULL, &handle), RGAPS_INVALID_ARGUMENT, "describes 99999 B");
  CHECK(data == MARK && handle.sequence == 77);
  OK(rgaps_publisher_publish_buffer(publisher, &meta, buffer, NULL, NULL));
  rgaps_buffer_release(buffer);
  rgaps_publisher_destroy(publisher);
  rgaps_pool_destroy(pool);
}

static void a_full_pool_and_another_pool_are_refused(void) {
  rgaps_pool_t *pool = pool_of(4 * BYTES);
  rgaps_publisher_t *own = publisher_of(node, "own", RGAPS_KIND_BYTES);
  rgaps_meta_t meta = bytes_meta(BYTES);
  rgaps_buffer_t *buffer = filled(pool, 7), *second = MARK;
  FAILS(rgaps_publisher_publish_buffer(own, &meta, buffer, NULL, NULL), RGAPS_INVALID_ARGUMENT, "another pool");
  FAILS(rgaps_pool_allocate(pool, 3 * BYTES + BYTES / 2, &second), RGAPS_NO_SPACE, "the pool is full");
  CHECK(second == MARK);
  rgaps_buffer_release(buffer);
  OK(rgaps_pool_allocate(pool, 3 * BYTES + BYTES / 2, &second));
  rgaps_buffer_release(second);
  CHECK(rgaps_pool_used_bytes(pool) == 0);
  rgaps_publisher_destroy(own);
  rgaps_pool_destroy(pool);
}

static void wrong_handles_and_null_are_errors(void) {
  rgaps_pool_t *pool = pool_of(BYTES), *made = MARK;
  rgaps_publisher_t *advertised = MARK;
  rgaps_buffer_t *buffer = MARK;
  rgaps_meta_t meta = bytes_meta(8);
  void *data = MARK;
  FAILS(rgaps_pool_create(node, 0, NULL, &made), RGAPS_REFUSED, "a pool of 0 B");
  FAILS(rgaps_pool_create(node, BYTES, NULL, NULL), RGAPS_INVALID_ARGUMENT, "pool is NULL");
  FAILS(rgaps_pool_allocate(pool, 8, NULL), RGAPS_INVALID_ARGUMENT, "buffer is NULL");
  FAILS(rgaps_publisher_create_in_pool(pool, NULL, 0, NULL, &advertised), RGAPS_INVALID_ARGUMENT, "topic is NULL");
  FAILS(rgaps_publisher_create_in_pool(pool, "t", 77, NULL, &advertised), RGAPS_INVALID_ARGUMENT, "77");
  void *wrong[] = {NULL, node, (void *)1};
  for (int index = 0; index < 3; index++) {
    FAILS(rgaps_pool_create(index == 1 ? (void *)pool : wrong[index], BYTES, NULL, &made), RGAPS_INVALID_HANDLE, "");
    FAILS(rgaps_pool_allocate(wrong[index], 8, &buffer), RGAPS_INVALID_HANDLE, "");
    FAILS(rgaps_publisher_create_in_pool(wrong[index], "t", 0, NULL, &advertised), RGAPS_INVALID_HANDLE, "");
    FAILS(rgaps_buffer_data(wrong[index], &data, NULL), RGAPS_INVALID_HANDLE, "");
    FAILS(rgaps_buffer_device_pointer(wrong[index], &data), RGAPS_INVALID_HANDLE, "");
    FAILS(rgaps_buffer_freeze(wrong[index], NULL), RGAPS_INVALID_HANDLE, "");
    CHECK(rgaps_pool_used_bytes(wrong[index]) == 0 && rgaps_error_status() == RGAPS_INVALID_HANDLE);
    rgaps_buffer_release(wrong[index]);
    rgaps_pool_destroy(wrong[index]);
  }
  CHECK(made == MARK && advertised == MARK && buffer == MARK && data == MARK);
  advertised = publisher_in(pool, "t");
  FAILS(rgaps_publisher_publish_buffer(advertised, &meta, NULL, NULL, NULL), RGAPS_INVALID_HANDLE, "");
  OK(rgaps_pool_allocate(pool, 8, &buffer));
  FAILS(rgaps_publisher_publish_buffer(NULL, &meta, buffer, NULL, NULL), RGAPS_INVALID_HANDLE, "");
  FAILS(rgaps_publisher_publish_buffer(advertised, NULL, buffer, NULL, NULL), RGAPS_INVALID_ARGUMENT, "meta is NULL");
  rgaps_buffer_release(buffer);
  FAILS(rgaps_buffer_freeze(buffer, NULL), RGAPS_INVALID_HANDLE, "");
  rgaps_publisher_destroy(advertised);
  rgaps_pool_destroy(pool);
}

int main(int count, char **arguments) {
  node = node_on(count > 1 ? arguments[1] : NULL);
  subscribers_of_two_topics_get_one_buffer();
  a_buffer_is_filled_then_frozen_then_published();
  a_full_pool_and_another_pool_are_refused();
  wrong_handles_and_null_are_errors();
  rgaps_node_destroy(node);
  puts("pools: ok");
  return 0;
}
