/* Publishes and takes every kind of message in every way. An argument such as "cuda:0" selects the device. */

#include <poll.h>

#include "check.h"

static rgaps_node_t *node;
static int is_on_host;

/* A publisher and a subscriber of one topic, and metadata of its kind. */
struct topic {
  rgaps_publisher_t *publisher;
  rgaps_subscriber_t *subscriber;
  rgaps_meta_t meta;
  uint64_t bytes;
};

static struct topic topic_of(const char *name, uint32_t kind) {
  const int64_t shape[] = {2, 3, 4};
  struct topic topic;
  switch (kind) {
    case RGAPS_KIND_BYTES:
      OK(rgaps_meta_bytes(&topic.meta, 1000));
      break;
    case RGAPS_KIND_IMAGE:
      OK(rgaps_meta_image(&topic.meta, 32, 20, "rgb8"));
      break;
    case RGAPS_KIND_POINT_CLOUD:
      OK(rgaps_meta_point_cloud(&topic.meta, 10, 2, 16));
      OK(rgaps_meta_add_field(&topic.meta, "x", 0, 7));
      OK(rgaps_meta_add_field(&topic.meta, "intensity", 12, 4));
      break;
    default:
      OK(rgaps_meta_tensor(&topic.meta, 2, 32, 3, shape));
  }
  CHECK(topic.meta.kind == kind);
  topic.bytes = rgaps_meta_payload_bytes(&topic.meta);
  topic.subscriber = subscriber_of(node, name, kind);
  topic.publisher = publisher_of(node, name, kind);
  return topic;
}

static void end(struct topic *topic) {
  rgaps_publisher_destroy(topic->publisher);
  rgaps_subscriber_destroy(topic->subscriber);
}

static void fill(void *to, uint64_t bytes, uint8_t seed) {
  for (uint64_t index = 0; index < bytes; index++) ((uint8_t *)to)[index] = (uint8_t)(index * 7 + seed);
}

static int is_filled(const void *from, uint64_t bytes, uint8_t seed) {
  for (uint64_t index = 0; index < bytes; index++) {
    if (((const uint8_t *)from)[index] != (uint8_t)(index * 7 + seed)) return 0;
  }
  return 1;
}

/* Checks the next message's metadata and bytes, and releases it. */
static rgaps_info_t take_and_look(const struct topic *topic, uint8_t seed) {
  rgaps_sample_t *message = next_of(topic->subscriber);
  rgaps_meta_t meta;
  rgaps_info_t info;
  const void *data = NULL, *pointer = NULL;
  uint64_t bytes = 0;
  uint32_t readiness = 99;
  OK(rgaps_sample_meta(message, &meta));
  CHECK(memcmp(&meta, &topic->meta, sizeof meta) == 0);
  OK(rgaps_sample_readiness(message, &readiness));
  CHECK(readiness == RGAPS_READINESS_READY);
  OK(rgaps_sample_data(message, &data, &bytes));
  CHECK(bytes == topic->bytes && is_filled(data, bytes, seed));
  bytes = 0;
  OK(rgaps_sample_device_pointer(message, &pointer, &bytes));
  CHECK(bytes == topic->bytes && pointer != NULL && (pointer == data) == is_on_host);
  OK(rgaps_sample_info(message, &info));
  CHECK(info.bytes == topic->bytes && info.kind == topic->meta.kind && info.route == 0);
  CHECK(info.published_ns > 0 && info.taken_ns >= info.published_ns);
  OK(rgaps_sample_release(message, NULL));
  return info;
}

static void every_kind_is_loaned_pushed_and_taken_as_it_was_described(void) {
  const char *names[] = {"/ctest/bytes", "/ctest/image", "/ctest/point_cloud", "/ctest/tensor"};
  for (uint32_t kind = 0; kind < 4; kind++) {
    struct topic topic = topic_of(names[kind], kind);
    uint8_t *buffer = malloc(topic.bytes);
    rgaps_loan_t *loan = NULL;
    rgaps_message_handle_t loaned, pushed;
    rgaps_info_t info;
    void *data = NULL;
    uint64_t bytes = 0;
    CHECK(buffer != NULL && rgaps_publisher_subscriber_count(topic.publisher) == 1);

    OK(rgaps_publisher_loan(topic.publisher, &topic.meta, &loan));
    OK(rgaps_loan_data(loan, &data, &bytes));
    CHECK(bytes == topic.bytes);
    fill(data, bytes, 1);
    OK(rgaps_meta_set_header(&topic.meta, rgaps_now(), "camera"));
    memcpy(topic.meta.as.header.user, "0123456789abcdef0123456789abcdef", 32);
    OK(rgaps_loan_set_meta(loan, &topic.meta));
    OK(rgaps_loan_publish(loan, NULL, &loaned));
    info = take_and_look(&topic, 1);
    CHECK(loaned.sequence == 1 && info.sequence == 1 && info.position == loaned.position);
    /* On a GPU, publishing copies what the CPU wrote. */
    CHECK(info.origin == (is_on_host ? 1 : 2));

    fill(buffer, topic.bytes, 2);
    OK(rgaps_publisher_push_host(topic.publisher, &topic.meta, buffer, topic.bytes, &pushed));
    fill(buffer, topic.bytes, 0);
    info = take_and_look(&topic, 2);
    CHECK(pushed.sequence == 2 && info.position == pushed.position && info.origin == 2 && info.copies_pushed == 1);

    if (is_on_host) {
      fill(buffer, topic.bytes, 3);
      OK(rgaps_publisher_push_on(topic.publisher, &topic.meta, buffer, topic.bytes, NULL, NULL));
      take_and_look(&topic, 3);
    }
    free(buffer);
    end(&topic);
  }
}

static void a_subscriber_at_its_limit_of_held_messages_releases_one_and_takes_the_next(void) {
  struct topic topic = topic_of("/ctest/held", RGAPS_KIND_BYTES);
  uint8_t *buffer = malloc(topic.bytes);
  rgaps_sample_t *held[4096] = {NULL};
  rgaps_status_t status;
  rgaps_info_t info;
  size_t count = 0;
  CHECK(buffer != NULL);
  fill(buffer, topic.bytes, 1);
  for (;;) {
    OK(rgaps_publisher_push_host(topic.publisher, &topic.meta, buffer, topic.bytes, NULL));
    if (rgaps_subscriber_take(topic.subscriber, &held[count]) != RGAPS_OK) break;
    CHECK(++count < sizeof held / sizeof held[0]);
  }
  FAILS(rgaps_subscriber_take(topic.subscriber, &held[count]), RGAPS_TOO_MANY_HELD, "drop some before the next take");
  CHECK(strcmp(rgaps_status_name(RGAPS_TOO_MANY_HELD), "RGAPS_TOO_MANY_HELD") == 0);
  OK(rgaps_sample_release(held[0], NULL));
  /* A device releases it after its work so far. */
  do {
    status = rgaps_subscriber_take(topic.subscriber, &held[0]);
  } while (status == RGAPS_TOO_MANY_HELD);
  CHECK(status == RGAPS_OK);
  OK(rgaps_sample_info(held[0], &info));
  CHECK(info.sequence == count + 1); /* None was lost. */
  for (size_t index = 0; index < count; index++) OK(rgaps_sample_release(held[index], NULL));
  free(buffer);
  end(&topic);
}

static void a_handle_names_the_message_that_is_taken(void) {
  struct topic topic = topic_of("/ctest/taken", RGAPS_KIND_IMAGE);
  uint8_t *buffer = malloc(topic.bytes);
  rgaps_message_handle_t handles[3], named, wrong;
  CHECK(buffer != NULL);
  for (int i = 0; i < 3; i++) {
    fill(buffer, topic.bytes, (uint8_t)(10 + i));
    OK(rgaps_publisher_push_host(topic.publisher, &topic.meta, buffer, topic.bytes, &handles[i]));
  }
  const int order[] = {2, 0, 1};
  for (int i = 0; i < 3; i++) {
    rgaps_sample_t *message = NULL;
    const void *data = NULL;
    const int taken = order[i];
    if (i == 1) {
      OK(rgaps_subscriber_take_by_handle_on(topic.subscriber, &handles[taken], 0, NULL, &message));
    } else {
      OK(rgaps_subscriber_take_by_handle(topic.subscriber, &handles[taken], 0, &message));
    }
    OK(rgaps_sample_data(message, &data, NULL));
    CHECK(is_filled(data, topic.bytes, (uint8_t)(10 + taken)));
    OK(rgaps_sample_handle(message, &named));
    CHECK(memcmp(&named, &handles[taken], sizeof named) == 0);
    OK(rgaps_sample_release(message, NULL));
  }
  rgaps_sample_t *none = NULL;
  FAILS(rgaps_subscriber_take_by_handle(topic.subscriber, &handles[0], UINT64_MAX, &none), RGAPS_STALE, "is not this subscriber's");
  wrong = handles[0], wrong.host_epoch--;
  FAILS(rgaps_subscriber_take_by_handle(topic.subscriber, &wrong, UINT64_MAX, &none), RGAPS_STALE, "earlier run");
  memset(&wrong, 0, sizeof wrong);
  FAILS(rgaps_subscriber_take_by_handle(topic.subscriber, &wrong, UINT64_MAX, &none), RGAPS_WRONG_VERSION, "layout version 0");
  wrong = handles[0], wrong.kind = RGAPS_KIND_TENSOR;
  FAILS(rgaps_subscriber_take_by_handle_on(topic.subscriber, &wrong, UINT64_MAX, NULL, &none), RGAPS_WRONG_KIND, "kind 3");
  FAILS(rgaps_subscriber_take_by_handle(topic.subscriber, NULL, 0, &none), RGAPS_INVALID_ARGUMENT, "handle is NULL");
  FAILS(rgaps_subscriber_take_by_handle(NULL, &handles[0], 0, &none), RGAPS_INVALID_HANDLE, "");
  FAILS(rgaps_sample_handle(NULL, &named), RGAPS_INVALID_HANDLE, "");
  rgaps_subscriber_t *late = subscriber_of(node, "/ctest/taken", RGAPS_KIND_IMAGE);
  OK(rgaps_subscriber_expect_handles_in_order(late));
  FAILS(rgaps_subscriber_take_by_handle(late, &handles[0], UINT64_MAX, &none), RGAPS_EARLY, "before this subscriber joined");
  CHECK(strcmp(rgaps_status_name(RGAPS_EARLY), "RGAPS_EARLY") == 0);
  rgaps_subscriber_destroy(late);
  FAILS(rgaps_subscriber_expect_handles_in_order(NULL), RGAPS_INVALID_HANDLE, "");
  CHECK(none == NULL);
  free(buffer);
  end(&topic);
}

static void metadata_has_the_values_it_was_created_with(void) {
  rgaps_meta_t meta;
  rgaps_point_field_t field;
  OK(rgaps_meta_image(&meta, 5, 3, "bgra8"));
  CHECK(meta.as.image.width == 5 && meta.as.image.height == 3 && meta.as.image.step == 20);
  CHECK(strcmp(rgaps_encoding_name(meta.as.image.encoding), "bgra8") == 0);
  CHECK(rgaps_encoding_code("bgra8") == meta.as.image.encoding && rgaps_encoding_name(0) == NULL);
  meta.as.image.step = 64;
  CHECK(rgaps_meta_payload_bytes(&meta) == 3 * 64);

  OK(rgaps_meta_point_cloud(&meta, 7, 1, 20));
  OK(rgaps_meta_add_field(&meta, "a name of thirty-two characters.", 16, 8 - 1));
  OK(rgaps_meta_field(&meta, "a name of thirty-two characters.", &field));
  CHECK(field.offset == 16 && field.datatype == 7 && field.count == 1);
  CHECK(memcmp(field.name, "a name of thirty-two characters.", 32) == 0);
  CHECK(meta.as.point_cloud.row_step == 140 && meta.as.point_cloud.is_dense == 1);

  OK(rgaps_meta_set_header(&meta, UINT64_C(1700000000123456789), NULL));
  CHECK(meta.as.header.sec == 1700000000 && meta.as.header.nanosec == 123456789 && meta.as.header.frame_id[0] == 0);
  OK(rgaps_meta_set_header(&meta, 0, "a frame of sixty-four characters, so that none is left for a 0.."));
  CHECK(meta.as.header.frame_id[63] == '.');
  CHECK(strcmp(rgaps_version(), "") != 0 && rgaps_abi_version() == RGAPS_ABI_VERSION);
}

static void an_empty_message_is_delivered(void) {
  rgaps_subscriber_t *subscriber = subscriber_of(node, "/ctest/empty", RGAPS_KIND_BYTES);
  rgaps_publisher_t *publisher = publisher_of(node, "ctest/empty", RGAPS_KIND_BYTES);
  rgaps_meta_t meta = bytes_meta(0);
  rgaps_loan_t *loan = NULL;
  void *data = &meta;
  OK(rgaps_publisher_push_host(publisher, &meta, NULL, 0, NULL));
  OK(rgaps_publisher_push_on(publisher, &meta, NULL, 0, NULL, NULL));
  OK(rgaps_publisher_loan(publisher, &meta, &loan));
  OK(rgaps_loan_data(loan, &data, NULL));
  OK(rgaps_loan_publish(loan, NULL, NULL));
  for (int count = 0; count < 3; count++) {
    rgaps_sample_t *message = next_of(subscriber);
    const void *read = NULL;
    uint64_t bytes = 1;
    OK(rgaps_sample_data(message, &read, &bytes));
    CHECK(bytes == 0);
    bytes = 1;
    OK(rgaps_sample_device_pointer(message, &read, &bytes));
    CHECK(bytes == 0 && read == NULL);
    OK(rgaps_sample_release(message, NULL));
  }
  rgaps_publisher_destroy(publisher);
  rgaps_subscriber_destroy(subscriber);
}

static void a_loan_that_is_discarded_is_not_published_and_its_block_is_free(void) {
  rgaps_publisher_t *publisher = publisher_of(node, "/ctest/discard", RGAPS_KIND_BYTES);
  rgaps_subscriber_t *subscriber = subscriber_of(node, "/ctest/discard", RGAPS_KIND_BYTES);
  rgaps_meta_t meta = bytes_meta(1 << 20);
  rgaps_publisher_statistics_t statistics;
  rgaps_sample_t *message = NULL;
  /* More bytes in total than the pool has. */
  for (int count = 0; count < 300; count++) {
    rgaps_loan_t *loan = NULL;
    OK(rgaps_publisher_loan(publisher, &meta, &loan));
    OK(rgaps_loan_discard(loan));
  }
  OK(rgaps_publisher_statistics(publisher, &statistics));
  CHECK(statistics.published == 0 && statistics.outstanding == 0 && statistics.used_bytes == 0);
  CHECK(rgaps_subscriber_take(subscriber, &message) == RGAPS_NO_MESSAGE && message == NULL);
  OK(rgaps_loan_discard(NULL));
  rgaps_publisher_destroy(publisher);
  rgaps_subscriber_destroy(subscriber);
}

static void ready_messages_are_taken_as_one_batch_and_counted(void) {
  rgaps_publisher_t *publisher = publisher_of(node, "/ctest/batch", RGAPS_KIND_BYTES);
  rgaps_subscriber_t *subscriber = subscriber_of(node, "/ctest/batch", RGAPS_KIND_BYTES);
  rgaps_sample_t *messages[20];
  rgaps_subscriber_statistics_t taken;
  rgaps_publisher_statistics_t published;
  uint64_t count = 99;
  OK(rgaps_subscriber_take_all(subscriber, messages, 20, &count));
  CHECK(count == 0);
  for (uint64_t number = 0; number < 15; number++) publish_number(publisher, number);
  OK(rgaps_subscriber_take_all(subscriber, messages, 4, &count));
  CHECK(count == 4);
  OK(rgaps_subscriber_take_all(subscriber, messages + 4, 16, &count));
  CHECK(count == 6);
  /* Keep-last 10, so that the first five of fifteen are lost. */
  for (uint64_t index = 0; index < 10; index++) CHECK(number_in(messages[index]) == 5 + index);
  OK(rgaps_subscriber_statistics(subscriber, &taken));
  CHECK(taken.taken == 10 && taken.lost == 5 && taken.held == 10 && taken.poisoned == 0);
  CHECK(taken.copied_bytes == (is_on_host ? 0 : 10 * sizeof(uint64_t)));
  OK(rgaps_publisher_statistics(publisher, &published));
  CHECK(published.published == 15 && published.published_bytes == 15 * sizeof(uint64_t) && published.pool_bytes > 0);
  for (int index = 0; index < 10; index++) OK(rgaps_sample_release(messages[index], NULL));
  /* A device releases it in stream order, a little later. */
  do OK(rgaps_subscriber_statistics(subscriber, &taken));
  while (taken.held > 0 && !is_on_host);
  CHECK(taken.held == 0);
  rgaps_publisher_destroy(publisher);
  rgaps_subscriber_destroy(subscriber);
}

static void loans_are_published_as_one_batch_and_those_that_are_not_stay(void) {
  rgaps_publisher_t *publisher = publisher_of(node, "/ctest/batch", RGAPS_KIND_BYTES);
  rgaps_publisher_t *other = publisher_of(node, "/ctest/other", RGAPS_KIND_BYTES);
  rgaps_subscriber_t *subscriber = subscriber_of(node, "/ctest/batch", RGAPS_KIND_BYTES);
  rgaps_meta_t meta = bytes_meta(sizeof(uint64_t));
  rgaps_publisher_statistics_t statistics;
  rgaps_message_handle_t handles[8];
  rgaps_loan_t *loans[8], *twice[2];
  uint64_t published = 99;
  void *data;
  for (uint64_t number = 0; number < 8; number++) {
    OK(rgaps_publisher_loan(number == 5 ? other : publisher, &meta, &loans[number]));
    OK(rgaps_loan_data(loans[number], &data, NULL));
    memcpy(data, &number, sizeof number);
  }
  /* A loan of another publisher, and one that is there twice: nothing is published, and every loan stays. */
  FAILS(rgaps_publisher_publish_all(publisher, loans, 8, handles, &published), RGAPS_INVALID_ARGUMENT, "loan 5 of the batch");
  twice[0] = twice[1] = loans[7];
  FAILS(rgaps_publisher_publish_all(publisher, twice, 2, NULL, NULL), RGAPS_INVALID_HANDLE, "loan 1 of the batch");
  CHECK(published == 0 && twice[0] == loans[7] && twice[1] == loans[7]);
  for (int index = 0; index < 8; index++) OK(rgaps_loan_data(loans[index], &data, NULL));
  OK(rgaps_publisher_publish_all(publisher, loans, 5, handles, &published));
  OK(rgaps_publisher_publish_all(publisher, loans + 6, 2, NULL, NULL));
  OK(rgaps_publisher_publish_all(publisher, NULL, 0, NULL, NULL));
  CHECK(published == 5);
  for (uint64_t index = 0; index < 8; index++) CHECK((loans[index] == NULL) == (index != 5));
  for (uint64_t index = 0; index < 5; index++) CHECK(handles[index].sequence == index + 1);
  for (uint64_t number = 0; number < 8; number++) CHECK(number == 5 || next_number(subscriber) == number);
  OK(rgaps_publisher_statistics(publisher, &statistics));
  CHECK(statistics.published == 7);
  OK(rgaps_loan_discard(loans[5]));
  rgaps_publisher_destroy(publisher);
  rgaps_publisher_destroy(other);
  rgaps_subscriber_destroy(subscriber);
}

static void a_file_descriptor_is_readable_while_a_message_may_be_ready(void) {
  rgaps_publisher_t *publisher = publisher_of(node, "/ctest/poll", RGAPS_KIND_BYTES);
  rgaps_subscriber_t *subscriber = subscriber_of(node, "/ctest/poll", RGAPS_KIND_BYTES);
  struct pollfd polled = {.fd = -1, .events = POLLIN};
  int32_t again = -1;
  uint64_t next = 0;
  OK(rgaps_subscriber_event_fd(subscriber, &polled.fd));
  OK(rgaps_subscriber_event_fd(subscriber, &again));
  CHECK(polled.fd >= 0 && again == polled.fd);
  for (int round = 0; round < 100; round++) {
    publish_number(publisher, 2 * (uint64_t)round);
    publish_number(publisher, 2 * (uint64_t)round + 1);
    while (next < 2 * (uint64_t)round + 2) {
      rgaps_sample_t *message = NULL;
      rgaps_status_t status;
      CHECK(poll(&polled, 1, -1) == 1 && polled.revents == POLLIN);
      while ((status = rgaps_subscriber_take(subscriber, &message)) == RGAPS_OK) {
        CHECK(number_in(message) == next++);
        OK(rgaps_sample_release(message, NULL));
      }
      CHECK(status == RGAPS_NO_MESSAGE);
    }
  }
  rgaps_publisher_destroy(publisher);
  rgaps_subscriber_destroy(subscriber);
}

static void late_joiners_get_what_a_transient_local_publisher_keeps(void) {
  rgaps_publisher_qos_t offered = rgaps_publisher_qos_default();
  rgaps_subscriber_qos_t wanted = rgaps_subscriber_qos_default();
  rgaps_publisher_t *publisher = NULL;
  rgaps_subscriber_t *late = NULL, *is_volatile;
  rgaps_sample_t *message = NULL;
  offered.durability = RGAPS_TRANSIENT_LOCAL;
  offered.history_depth = 3;
  wanted.durability = RGAPS_TRANSIENT_LOCAL;
  OK(rgaps_publisher_create(node, "/ctest/late", RGAPS_KIND_BYTES, &offered, &publisher));
  for (uint64_t number = 0; number < 7; number++) publish_number(publisher, number);
  OK(rgaps_subscriber_create(node, "/ctest/late", RGAPS_KIND_BYTES, &wanted, &late));
  is_volatile = subscriber_of(node, "/ctest/late", RGAPS_KIND_BYTES);
  publish_number(publisher, 7);
  for (uint64_t number = 4; number < 8; number++) CHECK(next_number(late) == number);
  CHECK(next_number(is_volatile) == 7);
  CHECK(rgaps_subscriber_take(is_volatile, &message) == RGAPS_NO_MESSAGE);
  rgaps_publisher_destroy(publisher);
  rgaps_subscriber_destroy(late);
  rgaps_subscriber_destroy(is_volatile);
}

static void keep_all_loses_nothing_and_the_publisher_times_out(void) {
  rgaps_publisher_qos_t offered = rgaps_publisher_qos_default();
  rgaps_subscriber_qos_t all = rgaps_subscriber_qos_default();
  rgaps_publisher_t *publisher = NULL;
  rgaps_subscriber_t *subscriber = NULL;
  rgaps_subscriber_statistics_t statistics;
  rgaps_meta_t meta = bytes_meta(sizeof(uint64_t));
  rgaps_status_t status = RGAPS_OK;
  uint64_t published = 0;
  offered.exhaustion = RGAPS_WAIT;
  offered.exhaustion_timeout_ms = 1;
  all.depth = 0;
  OK(rgaps_publisher_create(node, "/ctest/all", RGAPS_KIND_BYTES, &offered, &publisher));
  OK(rgaps_subscriber_create(node, "/ctest/all", RGAPS_KIND_BYTES, &all, &subscriber));
  while (status == RGAPS_OK && published < 1000000) {
    status = rgaps_publisher_push_host(publisher, &meta, &published, sizeof published, NULL);
    published += status == RGAPS_OK;
  }
  CHECK(status == RGAPS_TIMED_OUT && rgaps_error_status() == RGAPS_TIMED_OUT && published > 10);
  CHECK(strstr(rgaps_error_text(), "/ctest/all") != NULL);
  for (uint64_t number = 0; number < published; number++) CHECK(next_number(subscriber) == number);
  OK(rgaps_subscriber_statistics(subscriber, &statistics));
  CHECK(statistics.taken == published && statistics.lost == 0);
  publish_number(publisher, published);
  CHECK(next_number(subscriber) == published);
  rgaps_publisher_destroy(publisher);
  rgaps_subscriber_destroy(subscriber);
}

static void a_full_pool_does_what_the_qos_says(void) {
  rgaps_publisher_qos_t offered = rgaps_publisher_qos_default();
  rgaps_meta_t meta = bytes_meta(1 << 20);
  for (uint32_t exhaustion = RGAPS_WAIT; exhaustion <= RGAPS_REFUSE; exhaustion++) {
    rgaps_status_t expected = exhaustion == RGAPS_WAIT ? RGAPS_TIMED_OUT : RGAPS_NO_SPACE;
    rgaps_status_t status = RGAPS_OK;
    rgaps_loan_t *loans[8] = {NULL};
    rgaps_publisher_t *publisher = NULL;
    rgaps_publisher_statistics_t statistics;
    int count = 0;
    offered.exhaustion = exhaustion;
    offered.exhaustion_timeout_ms = 1;
    offered.pool_bytes = 4 << 20;
    OK(rgaps_publisher_create(node, "/ctest/full", RGAPS_KIND_BYTES, &offered, &publisher));
    while (count < 8 && (status = rgaps_publisher_loan(publisher, &meta, &loans[count])) == RGAPS_OK) count++;
    CHECK(status == expected && count >= 2 && count < 8 && loans[count] == NULL);
    CHECK(strstr(rgaps_error_text(), "1048576") != NULL);
    OK(rgaps_publisher_statistics(publisher, &statistics));
    CHECK(statistics.refused == 1 && statistics.outstanding == 0);
    while (count > 0) OK(rgaps_loan_discard(loans[--count]));
    rgaps_publisher_destroy(publisher);
  }
}

static void a_time_out_is_a_status(void) {
  rgaps_subscriber_t *subscriber = subscriber_of(node, "/ctest/silence", RGAPS_KIND_BYTES);
  rgaps_sample_t *message = NULL;
  FAILS(rgaps_subscriber_wait(subscriber, 0, &message), RGAPS_TIMED_OUT, "/ctest/silence");
  FAILS(rgaps_subscriber_wait(subscriber, 1000, &message), RGAPS_TIMED_OUT, "/ctest/silence");
  CHECK(rgaps_subscriber_take_on(subscriber, NULL, &message) == RGAPS_NO_MESSAGE && message == NULL);
  rgaps_subscriber_destroy(subscriber);
}

static void the_papers_calls_push_and_pull(void) {
  rgaps_subscriber_t *subscriber = rgaps_subscriber_init("/ctest/paper");
  rgaps_publisher_t *publisher = rgaps_publisher_init("/ctest/paper");
  const rgaps_sample_t *pulled;
  const void *data;
  rgaps_info_t info;
  CHECK(subscriber != NULL && publisher != NULL && rgaps_subscriber_pulled(subscriber) == NULL);
  CHECK(rgaps_subscriber_pull(subscriber) == NULL && rgaps_error_status() == RGAPS_TIMED_OUT);
  for (uint64_t number = 0; number < 50 && is_on_host; number++) {
    CHECK(rgaps_publisher_push(publisher, sizeof number, &number) == 0);
    data = rgaps_subscriber_pull(subscriber);
    CHECK(data != NULL && memcmp(data, &number, sizeof number) == 0);
    pulled = rgaps_subscriber_pulled(subscriber);
    OK(rgaps_sample_info(pulled, &info));
    CHECK(info.bytes == sizeof number && info.sequence == number + 1);
  }
  CHECK(rgaps_publisher_push(publisher, 0, NULL) == 0);
  CHECK(rgaps_subscriber_pull(subscriber) == NULL && rgaps_subscriber_pulled(subscriber) != NULL);
  rgaps_subscriber_destroy(subscriber);
  rgaps_publisher_destroy(publisher);
}

static void objects_outlive_the_objects_that_created_them(void) {
  rgaps_node_t *another = node_on(NULL);
  rgaps_publisher_t *publisher = publisher_of(another, "/ctest/outlive", RGAPS_KIND_BYTES);
  rgaps_subscriber_t *subscriber = subscriber_of(another, "/ctest/outlive", RGAPS_KIND_BYTES);
  rgaps_meta_t meta = bytes_meta(sizeof(uint64_t));
  rgaps_loan_t *loan = NULL;
  rgaps_sample_t *message;
  void *data = NULL;
  OK(rgaps_publisher_loan(publisher, &meta, &loan));
  rgaps_node_destroy(another);
  rgaps_publisher_destroy(publisher);
  OK(rgaps_loan_data(loan, &data, NULL));
  memset(data, 0x11, sizeof(uint64_t));
  OK(rgaps_loan_publish(loan, NULL, NULL));
  message = next_of(subscriber);
  rgaps_subscriber_destroy(subscriber);
  CHECK(number_in(message) == UINT64_C(0x1111111111111111));
  OK(rgaps_sample_release(message, NULL));
}

int main(int count, char **arguments) {
  rgaps_device_t device;
  node = node_on(count > 1 ? arguments[1] : NULL);
  OK(rgaps_node_device(node, &device));
  is_on_host = device.device_type == 1;
  CHECK(is_on_host == (count == 1));
  metadata_has_the_values_it_was_created_with();
  every_kind_is_loaned_pushed_and_taken_as_it_was_described();
  a_subscriber_at_its_limit_of_held_messages_releases_one_and_takes_the_next();
  a_handle_names_the_message_that_is_taken();
  an_empty_message_is_delivered();
  a_loan_that_is_discarded_is_not_published_and_its_block_is_free();
  ready_messages_are_taken_as_one_batch_and_counted();
  loans_are_published_as_one_batch_and_those_that_are_not_stay();
  a_file_descriptor_is_readable_while_a_message_may_be_ready();
  late_joiners_get_what_a_transient_local_publisher_keeps();
  keep_all_loses_nothing_and_the_publisher_times_out();
  a_full_pool_does_what_the_qos_says();
  a_time_out_is_a_status();
  the_papers_calls_push_and_pull();
  objects_outlive_the_objects_that_created_them();
  rgaps_node_destroy(node);
  return 0;
}
