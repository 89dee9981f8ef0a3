/* Misuse of every call: each returns an error with a reason and does not write its outputs, and the program continues. */

#include <limits.h>

#include "check.h"

static rgaps_node_t *node;
static rgaps_publisher_t *publisher;
static rgaps_subscriber_t *subscriber;
static rgaps_loan_t *loan;
static rgaps_sample_t *message;
static rgaps_meta_t meta;

/* The value of outputs before a call, which must not change. */
#define MARK ((void *)0x5a5a5a5a)

/* Handles of other kinds, non-handles and released handles, for use in any call. */
struct wrong {
  void *handle;
  const char *said;
};

static void a_call_says_which_argument_is_null(void) {
  rgaps_node_t *made = MARK;
  rgaps_publisher_t *advertised = MARK;
  rgaps_subscriber_t *subscribed = MARK;
  rgaps_loan_t *loaned = MARK;
  rgaps_sample_t *taken = MARK;
  rgaps_point_field_t field;
  const int64_t shape[] = {2, 2};
  uint64_t number = 7;
  void *pointer = MARK;
  const void *read = MARK;
  rgaps_meta_t cloud, untouched;

  FAILS(rgaps_node_create(NULL, NULL), RGAPS_INVALID_ARGUMENT, "node is NULL");
  FAILS(rgaps_node_device(node, NULL), RGAPS_INVALID_ARGUMENT, "device is NULL");
  FAILS(rgaps_node_topics(node, NULL, 1, &number), RGAPS_INVALID_ARGUMENT, "topics is NULL");
  FAILS(rgaps_node_topics(node, NULL, 0, NULL), RGAPS_INVALID_ARGUMENT, "count is NULL");
  FAILS(rgaps_publisher_create(node, NULL, 0, NULL, &advertised), RGAPS_INVALID_ARGUMENT, "topic is NULL");
  FAILS(rgaps_publisher_create(node, "/t", 0, NULL, NULL), RGAPS_INVALID_ARGUMENT, "publisher is NULL");
  FAILS(rgaps_subscriber_create(node, NULL, 0, NULL, &subscribed), RGAPS_INVALID_ARGUMENT, "topic is NULL");
  FAILS(rgaps_subscriber_create(node, "/t", 0, NULL, NULL), RGAPS_INVALID_ARGUMENT, "subscriber is NULL");
  FAILS(rgaps_publisher_loan(publisher, NULL, &loaned), RGAPS_INVALID_ARGUMENT, "meta is NULL");
  FAILS(rgaps_publisher_loan(publisher, &meta, NULL), RGAPS_INVALID_ARGUMENT, "loan is NULL");
  FAILS(rgaps_publisher_publish_all(publisher, NULL, 1, NULL, NULL), RGAPS_INVALID_ARGUMENT, "loans is NULL");
  FAILS(rgaps_publisher_push_host(publisher, NULL, &number, 8, NULL), RGAPS_INVALID_ARGUMENT, "meta is NULL");
  FAILS(rgaps_publisher_push_host(publisher, &meta, NULL, 8, NULL), RGAPS_INVALID_ARGUMENT, "data is NULL");
  FAILS(rgaps_publisher_push_on(publisher, NULL, &number, 8, NULL, NULL), RGAPS_INVALID_ARGUMENT, "meta is NULL");
  FAILS(rgaps_publisher_push_on(publisher, &meta, NULL, 8, NULL, NULL), RGAPS_INVALID_ARGUMENT, "data is NULL");
  FAILS(rgaps_publisher_statistics(publisher, NULL), RGAPS_INVALID_ARGUMENT, "statistics is NULL");
  CHECK(rgaps_publisher_push(publisher, 8, NULL) == RGAPS_INVALID_ARGUMENT);
  CHECK(strcmp(rgaps_error_text(), "device_pointer is NULL") == 0);
  CHECK(rgaps_publisher_init(NULL) == NULL && rgaps_error_status() == RGAPS_INVALID_ARGUMENT);
  CHECK(rgaps_subscriber_init(NULL) == NULL && rgaps_error_status() == RGAPS_INVALID_ARGUMENT);

  FAILS(rgaps_loan_data(loan, NULL, &number), RGAPS_INVALID_ARGUMENT, "data is NULL");
  FAILS(rgaps_loan_device_pointer(loan, NULL), RGAPS_INVALID_ARGUMENT, "pointer is NULL");
  FAILS(rgaps_loan_set_meta(loan, NULL), RGAPS_INVALID_ARGUMENT, "meta is NULL");
  FAILS(rgaps_loan_dlpack(loan, NULL, NULL), RGAPS_INVALID_ARGUMENT, "tensor is NULL");
  FAILS(rgaps_subscriber_take(subscriber, NULL), RGAPS_INVALID_ARGUMENT, "message is NULL");
  FAILS(rgaps_subscriber_take_on(subscriber, NULL, NULL), RGAPS_INVALID_ARGUMENT, "message is NULL");
  FAILS(rgaps_subscriber_take_all(subscriber, NULL, 1, &number), RGAPS_INVALID_ARGUMENT, "messages is NULL");
  FAILS(rgaps_subscriber_take_all(subscriber, &taken, 1, NULL), RGAPS_INVALID_ARGUMENT, "count is NULL");
  FAILS(rgaps_subscriber_wait(subscriber, 0, NULL), RGAPS_INVALID_ARGUMENT, "message is NULL");
  FAILS(rgaps_subscriber_event_fd(subscriber, NULL), RGAPS_INVALID_ARGUMENT, "fd is NULL");
  FAILS(rgaps_subscriber_statistics(subscriber, NULL), RGAPS_INVALID_ARGUMENT, "statistics is NULL");
  FAILS(rgaps_sample_meta(message, NULL), RGAPS_INVALID_ARGUMENT, "meta is NULL");
  FAILS(rgaps_sample_info(message, NULL), RGAPS_INVALID_ARGUMENT, "info is NULL");
  FAILS(rgaps_sample_data(message, NULL, &number), RGAPS_INVALID_ARGUMENT, "data is NULL");
  FAILS(rgaps_sample_device_pointer(message, NULL, &number), RGAPS_INVALID_ARGUMENT, "pointer is NULL");
  FAILS(rgaps_sample_readiness(message, NULL), RGAPS_INVALID_ARGUMENT, "readiness is NULL");
  FAILS(rgaps_sample_dlpack(message, NULL, NULL, NULL), RGAPS_INVALID_ARGUMENT, "tensor is NULL");

  OK(rgaps_meta_point_cloud(&cloud, 2, 1, 8));
  untouched = cloud;
  FAILS(rgaps_meta_bytes(NULL, 8), RGAPS_INVALID_ARGUMENT, "meta is NULL");
  FAILS(rgaps_meta_image(NULL, 1, 1, "rgb8"), RGAPS_INVALID_ARGUMENT, "meta is NULL");
  FAILS(rgaps_meta_image(&cloud, 1, 1, NULL), RGAPS_INVALID_ARGUMENT, "encoding is NULL");
  FAILS(rgaps_meta_point_cloud(NULL, 1, 1, 8), RGAPS_INVALID_ARGUMENT, "meta is NULL");
  FAILS(rgaps_meta_add_field(NULL, "x", 0, 7), RGAPS_INVALID_ARGUMENT, "meta is NULL");
  FAILS(rgaps_meta_add_field(&cloud, NULL, 0, 7), RGAPS_INVALID_ARGUMENT, "name is NULL");
  FAILS(rgaps_meta_tensor(NULL, 2, 32, 2, shape), RGAPS_INVALID_ARGUMENT, "meta is NULL");
  FAILS(rgaps_meta_tensor(&cloud, 2, 32, 2, NULL), RGAPS_INVALID_ARGUMENT, "shape is NULL");
  FAILS(rgaps_meta_set_header(NULL, 0, "x"), RGAPS_INVALID_ARGUMENT, "meta is NULL");
  FAILS(rgaps_meta_field(NULL, "x", &field), RGAPS_INVALID_ARGUMENT, "meta is NULL");
  FAILS(rgaps_meta_field(&cloud, NULL, &field), RGAPS_INVALID_ARGUMENT, "name is NULL");
  FAILS(rgaps_meta_field(&cloud, "x", NULL), RGAPS_INVALID_ARGUMENT, "field is NULL");
  CHECK(rgaps_meta_payload_bytes(NULL) == 0 && strcmp(rgaps_error_text(), "meta is NULL") == 0);
  CHECK(rgaps_encoding_code(NULL) == 0 && strcmp(rgaps_error_text(), "encoding is NULL") == 0);

  CHECK(made == MARK && advertised == MARK && subscribed == MARK && loaned == MARK && taken == MARK);
  CHECK(number == 7 && pointer == MARK && read == MARK && memcmp(&cloud, &untouched, sizeof cloud) == 0);

  /* NULL where NULL is allowed. */
  rgaps_node_destroy(NULL);
  rgaps_publisher_destroy(NULL);
  rgaps_subscriber_destroy(NULL);
  OK(rgaps_loan_discard(NULL));
  OK(rgaps_subscriber_take_all(subscriber, NULL, 0, &number));
  CHECK(number == 0);
  OK(rgaps_sample_data(message, &read, NULL));
  OK(rgaps_loan_data(loan, &pointer, NULL));
  OK(rgaps_meta_tensor(&cloud, 2, 32, 0, NULL));
}

/* Every call with a handle parameter of this kind, with an invalid handle. */
static void no_node_is(struct wrong wrong) {
  rgaps_publisher_t *advertised = MARK;
  rgaps_subscriber_t *subscribed = MARK;
  rgaps_device_t device = {77, 77};
  uint64_t count = 77;
  FAILS(rgaps_node_topics(wrong.handle, NULL, 0, &count), RGAPS_INVALID_HANDLE, wrong.said);
  CHECK(count == 77);
  FAILS(rgaps_node_device(wrong.handle, &device), RGAPS_INVALID_HANDLE, wrong.said);
  FAILS(rgaps_publisher_create(wrong.handle, "/t", 0, NULL, &advertised), RGAPS_INVALID_HANDLE, wrong.said);
  FAILS(rgaps_subscriber_create(wrong.handle, "/t", 0, NULL, &subscribed), RGAPS_INVALID_HANDLE, wrong.said);
  CHECK(advertised == MARK && subscribed == MARK && device.device_type == 77 && device.device_id == 77);
  rgaps_node_destroy(wrong.handle);
}

static void no_publisher_is(struct wrong wrong) {
  rgaps_loan_t *loaned = MARK;
  rgaps_message_handle_t handle = {.sequence = 77, .position = 77};
  rgaps_publisher_statistics_t statistics = {.published = 77};
  rgaps_loan_t *one = loan;
  uint64_t number = 0;
  FAILS(rgaps_publisher_loan(wrong.handle, &meta, &loaned), RGAPS_INVALID_HANDLE, wrong.said);
  FAILS(rgaps_publisher_publish_all(wrong.handle, &one, 1, &handle, NULL), RGAPS_INVALID_HANDLE, wrong.said);
  FAILS(rgaps_publisher_push_host(wrong.handle, &meta, &number, 8, &handle), RGAPS_INVALID_HANDLE, wrong.said);
  FAILS(rgaps_publisher_push_on(wrong.handle, &meta, &number, 8, NULL, &handle), RGAPS_INVALID_HANDLE, wrong.said);
  FAILS((rgaps_status_t)rgaps_publisher_push(wrong.handle, 8, &number), RGAPS_INVALID_HANDLE, wrong.said);
  FAILS(rgaps_publisher_statistics(wrong.handle, &statistics), RGAPS_INVALID_HANDLE, wrong.said);
  CHECK(rgaps_publisher_subscriber_count(wrong.handle) == 0 && rgaps_error_status() == RGAPS_INVALID_HANDLE);
  CHECK(loaned == MARK && one == loan && handle.sequence == 77 && handle.position == 77 && statistics.published == 77);
  rgaps_publisher_destroy(wrong.handle);
}

static void no_subscriber_is(struct wrong wrong) {
  rgaps_sample_t *taken = MARK;
  rgaps_subscriber_statistics_t statistics = {.taken = 77};
  uint64_t count = 77;
  int32_t fd = 77;
  FAILS(rgaps_subscriber_take(wrong.handle, &taken), RGAPS_INVALID_HANDLE, wrong.said);
  FAILS(rgaps_subscriber_take_on(wrong.handle, NULL, &taken), RGAPS_INVALID_HANDLE, wrong.said);
  FAILS(rgaps_subscriber_take_all(wrong.handle, &taken, 1, &count), RGAPS_INVALID_HANDLE, wrong.said);
  FAILS(rgaps_subscriber_wait(wrong.handle, UINT64_MAX, &taken), RGAPS_INVALID_HANDLE, wrong.said);
  FAILS(rgaps_subscriber_event_fd(wrong.handle, &fd), RGAPS_INVALID_HANDLE, wrong.said);
  FAILS(rgaps_subscriber_interrupt(wrong.handle), RGAPS_INVALID_HANDLE, wrong.said);
  FAILS(rgaps_subscriber_statistics(wrong.handle, &statistics), RGAPS_INVALID_HANDLE, wrong.said);
  CHECK(rgaps_subscriber_pull(wrong.handle) == NULL && rgaps_error_status() == RGAPS_INVALID_HANDLE);
  CHECK(rgaps_subscriber_pulled(wrong.handle) == NULL && rgaps_error_status() == RGAPS_INVALID_HANDLE);
  CHECK(taken == MARK && count == 77 && fd == 77 && statistics.taken == 77);
  rgaps_subscriber_destroy(wrong.handle);
}

static void no_loan_is(struct wrong wrong) {
  void *data = MARK;
  uint64_t bytes = 77;
  rgaps_message_handle_t handle = {.sequence = 77, .position = 77};
  struct DLManagedTensorVersioned *tensor = MARK;
  rgaps_loan_t *one = wrong.handle;
  FAILS(rgaps_loan_data(wrong.handle, &data, &bytes), RGAPS_INVALID_HANDLE, wrong.said);
  FAILS(rgaps_loan_device_pointer(wrong.handle, &data), RGAPS_INVALID_HANDLE, wrong.said);
  FAILS(rgaps_loan_set_meta(wrong.handle, &meta), RGAPS_INVALID_HANDLE, wrong.said);
  FAILS(rgaps_loan_dlpack(wrong.handle, NULL, &tensor), RGAPS_INVALID_HANDLE, wrong.said);
  FAILS(rgaps_loan_publish(wrong.handle, NULL, &handle), RGAPS_INVALID_HANDLE, wrong.said);
  FAILS(rgaps_publisher_publish_all(publisher, &one, 1, &handle, NULL), RGAPS_INVALID_HANDLE, wrong.said);
  CHECK(one == wrong.handle && data == MARK && bytes == 77 && tensor == MARK && handle.sequence == 77);
  if (wrong.handle != NULL) FAILS(rgaps_loan_discard(wrong.handle), RGAPS_INVALID_HANDLE, wrong.said);
}

static void no_message_is(struct wrong wrong) {
  const void *data = MARK;
  uint64_t bytes = 77;
  uint32_t readiness = 77;
  rgaps_meta_t told;
  rgaps_info_t info;
  struct DLManagedTensorVersioned *tensor = MARK;
  memset(&told, 0x77, sizeof told);
  memset(&info, 0x77, sizeof info);
  FAILS(rgaps_sample_meta(wrong.handle, &told), RGAPS_INVALID_HANDLE, wrong.said);
  FAILS(rgaps_sample_info(wrong.handle, &info), RGAPS_INVALID_HANDLE, wrong.said);
  FAILS(rgaps_sample_data(wrong.handle, &data, &bytes), RGAPS_INVALID_HANDLE, wrong.said);
  FAILS(rgaps_sample_device_pointer(wrong.handle, &data, &bytes), RGAPS_INVALID_HANDLE, wrong.said);
  FAILS(rgaps_sample_readiness(wrong.handle, &readiness), RGAPS_INVALID_HANDLE, wrong.said);
  FAILS(rgaps_sample_dlpack(wrong.handle, NULL, NULL, &tensor), RGAPS_INVALID_HANDLE, wrong.said);
  FAILS(rgaps_sample_release(wrong.handle, NULL), RGAPS_INVALID_HANDLE, wrong.said);
  CHECK(data == MARK && bytes == 77 && readiness == 77 && tensor == MARK);
  CHECK(told.kind == 0x77777777 && info.position == UINT64_C(0x7777777777777777));
}

static void every_call_refuses_an_invalid_handle(void) {
  char text[64] = "a pointer to memory";
  void *foreign[] = {text, text + 1, (void *)1, (void *)UINTPTR_MAX, (void *)((uintptr_t)node ^ UINT64_C(1) << 40),
                     (void *)((uintptr_t)node | UINT64_C(0x3fffff) << 10)};
  void *objects[] = {node, publisher, subscriber, loan, message};
  const char *names[] = {"node", "publisher", "subscriber", "loan", "message"};
  for (size_t index = 0; index < 5; index++) {
    char said[40];
    struct wrong null = {NULL, " is NULL"}, other = {objects[index], said};
    snprintf(said, sizeof said, "handle of a %s", names[index]);
    no_node_is(null), no_publisher_is(null), no_subscriber_is(null), no_loan_is(null), no_message_is(null);
    if (index != 0) no_node_is(other);
    if (index != 1) no_publisher_is(other);
    if (index != 2) no_subscriber_is(other);
    if (index != 3) no_loan_is(other);
    if (index != 4) no_message_is(other);
  }
  for (size_t index = 0; index < sizeof foreign / sizeof *foreign; index++) {
    struct wrong wrong = {foreign[index], ""};
    no_node_is(wrong), no_publisher_is(wrong), no_subscriber_is(wrong), no_loan_is(wrong), no_message_is(wrong);
  }
  CHECK(strcmp(text, "a pointer to memory") == 0);
}

static void a_released_handle_is_refused_by_every_call_and_its_place_serves_another(void) {
  const char *released = "has been released or destroyed";
  for (int round = 0; round < 3; round++) {
    rgaps_node_t *own = node_on(NULL);
    rgaps_publisher_t *advertised = publisher_of(own, "/ctest/released", RGAPS_KIND_BYTES);
    rgaps_subscriber_t *subscribed = subscriber_of(own, "/ctest/released", RGAPS_KIND_BYTES);
    rgaps_loan_t *loaned = NULL, *discarded = NULL;
    rgaps_sample_t *taken;
    OK(rgaps_publisher_loan(advertised, &meta, &loaned));
    OK(rgaps_publisher_loan(advertised, &meta, &discarded));
    CHECK(loaned != discarded);
    OK(rgaps_loan_publish(loaned, NULL, NULL));
    OK(rgaps_loan_discard(discarded));
    taken = next_of(subscribed);
    OK(rgaps_sample_release(taken, NULL));
    rgaps_subscriber_destroy(subscribed);
    rgaps_publisher_destroy(advertised);
    rgaps_node_destroy(own);
    no_node_is((struct wrong){own, released});
    no_publisher_is((struct wrong){advertised, released});
    no_subscriber_is((struct wrong){subscribed, released});
    no_loan_is((struct wrong){loaned, released});
    no_loan_is((struct wrong){discarded, released});
    no_message_is((struct wrong){taken, released});
  }
}

static void an_argument_out_of_range_is_refused_with_numbers(void) {
  rgaps_publisher_qos_t offered = rgaps_publisher_qos_default();
  rgaps_subscriber_qos_t wanted = rgaps_subscriber_qos_default();
  rgaps_node_options_t options = rgaps_node_options_default();
  rgaps_publisher_t *advertised = MARK;
  rgaps_subscriber_t *subscribed = MARK;
  rgaps_node_t *made = MARK;
  rgaps_meta_t wrong;
  const int64_t shape[] = {1, 1, 1, 1, 1, 1, 1, 1, 1}, negative[] = {2, -1}, huge[] = {INT64_MAX, INT64_MAX};

  FAILS(rgaps_publisher_create(node, "/t", 4, NULL, &advertised), RGAPS_INVALID_ARGUMENT, "'4'");
  FAILS(rgaps_subscriber_create(node, "/t", UINT32_MAX, NULL, &subscribed), RGAPS_INVALID_ARGUMENT, "'4294967295'");
  offered.reliability = 2;
  FAILS(rgaps_publisher_create(node, "/t", 0, &offered, &advertised), RGAPS_INVALID_ARGUMENT, "reliability is 2");
  offered = rgaps_publisher_qos_default();
  offered.durability = 3;
  FAILS(rgaps_publisher_create(node, "/t", 0, &offered, &advertised), RGAPS_INVALID_ARGUMENT, "durability is 3");
  offered = rgaps_publisher_qos_default();
  offered.exhaustion = 4;
  FAILS(rgaps_publisher_create(node, "/t", 0, &offered, &advertised), RGAPS_INVALID_ARGUMENT, "exhaustion is 4");
  wanted.reliability = 5;
  FAILS(rgaps_subscriber_create(node, "/t", 0, &wanted, &subscribed), RGAPS_INVALID_ARGUMENT, "reliability is 5");
  wanted = rgaps_subscriber_qos_default();
  wanted.durability = 6;
  FAILS(rgaps_subscriber_create(node, "/t", 0, &wanted, &subscribed), RGAPS_INVALID_ARGUMENT, "durability is 6");

  options.domain = INT64_C(1) << 32;
  FAILS(rgaps_node_create(&options, &made), RGAPS_INVALID_ARGUMENT, "domain is 4294967296");
  options.domain = -2;
  FAILS(rgaps_node_create(&options, &made), RGAPS_INVALID_ARGUMENT, "domain is -2");
  options = rgaps_node_options_default();
  options.device = "a potato";
  FAILS(rgaps_node_create(&options, &made), RGAPS_DEVICE_ERROR, "a potato");
  options.device = "cuda:99";
  FAILS(rgaps_node_create(&options, &made), RGAPS_DEVICE_ERROR, "");

  FAILS(rgaps_meta_image(&wrong, 1, 1, "rgb9"), RGAPS_INVALID_ARGUMENT, "'rgb9'");
  FAILS(rgaps_meta_image(&wrong, 0, 1, "rgb8"), RGAPS_INVALID_ARGUMENT, "0 x 1");
  FAILS(rgaps_meta_image(&wrong, UINT32_MAX, 1, "rgba8"), RGAPS_INVALID_ARGUMENT, "17179869180");
  FAILS(rgaps_meta_image(&wrong, 3, 3, "nv12"), RGAPS_INVALID_ARGUMENT, "3 x 3");
  FAILS(rgaps_meta_tensor(&wrong, 2, 32, 9, shape), RGAPS_INVALID_ARGUMENT, "9");
  FAILS(rgaps_meta_tensor(&wrong, 2, 32, UINT32_MAX, shape), RGAPS_INVALID_ARGUMENT, "4294967295");
  FAILS(rgaps_meta_tensor(&wrong, 2, 32, 2, negative), RGAPS_INVALID_ARGUMENT, "-1");
  FAILS(rgaps_meta_tensor(&wrong, 2, 32, 2, huge), RGAPS_INVALID_ARGUMENT, "");
  FAILS(rgaps_meta_tensor(&wrong, 256, 32, 1, shape), RGAPS_INVALID_ARGUMENT, "256");
  FAILS(rgaps_meta_tensor(&wrong, 2, 7, 1, shape), RGAPS_INVALID_ARGUMENT, "7 bits");
  CHECK(rgaps_meta_point_cloud(&wrong, UINT32_MAX, UINT32_MAX, UINT32_MAX) == RGAPS_INVALID_ARGUMENT);
  OK(rgaps_meta_point_cloud(&wrong, 2, 1, 8));
  FAILS(rgaps_meta_add_field(&wrong, "x", 0, 9), RGAPS_INVALID_ARGUMENT, "datatype is 9");
  FAILS(rgaps_meta_add_field(&wrong, "x", 0, 0), RGAPS_INVALID_ARGUMENT, "datatype is 0");
  FAILS(rgaps_meta_add_field(&wrong, "x", 5, 7), RGAPS_INVALID_ARGUMENT, "");
  FAILS(rgaps_meta_add_field(&wrong, "x", UINT32_MAX, 7), RGAPS_INVALID_ARGUMENT, "");
  CHECK(wrong.as.point_cloud.field_count == 0);
  rgaps_meta_t twice = wrong;
  OK(rgaps_meta_add_field(&twice, "twice", 0, RGAPS_FLOAT32));
  FAILS(rgaps_meta_add_field(&twice, "twice", 0, RGAPS_FLOAT32), RGAPS_INVALID_ARGUMENT, "'twice' already");
  for (int index = 0; index < 16; index++) {
    char name[16];
    snprintf(name, sizeof name, "f%d", index);
    OK(rgaps_meta_add_field(&wrong, name, 0, 7));
  }
  FAILS(rgaps_meta_add_field(&wrong, "y", 0, 7), RGAPS_INVALID_ARGUMENT, "17");
  {
    rgaps_point_field_t field;
    FAILS(rgaps_meta_field(&wrong, "z", &field), RGAPS_INVALID_ARGUMENT, "f0, f1");
  }
  CHECK(rgaps_encoding_code("no such") == 0 && rgaps_encoding_name(UINT32_MAX) == NULL);
  CHECK(strcmp(rgaps_status_name(-1), "unknown") == 0 && strcmp(rgaps_status_name(INT_MAX), "unknown") == 0);
  CHECK(advertised == MARK && subscribed == MARK && made == MARK);
}

static void invalid_metadata_is_refused(void) {
  rgaps_publisher_t *images = publisher_of(node, "/ctest/lies", RGAPS_KIND_IMAGE);
  rgaps_loan_t *loaned = MARK;
  rgaps_meta_t wrong;
  uint64_t number = 0;
  OK(rgaps_meta_image(&wrong, 4, 4, "rgb8"));
  wrong.kind = 9;
  FAILS(rgaps_publisher_loan(images, &wrong, &loaned), RGAPS_INVALID_ARGUMENT, "'9'");
  wrong.kind = RGAPS_KIND_IMAGE;
  wrong.as.image.step = 3;
  FAILS(rgaps_publisher_loan(images, &wrong, &loaned), RGAPS_INVALID_ARGUMENT, "12 B");
  CHECK(rgaps_meta_payload_bytes(&wrong) == 0);
  wrong.as.image.step = 12;
  wrong.as.image.encoding = 12345;
  FAILS(rgaps_publisher_loan(images, &wrong, &loaned), RGAPS_INVALID_ARGUMENT, "12345");
  OK(rgaps_meta_image(&wrong, 4, 4, "rgb8"));
  wrong.as.image.is_bigendian = 2;
  FAILS(rgaps_publisher_loan(images, &wrong, &loaned), RGAPS_INVALID_ARGUMENT, "2");
  OK(rgaps_meta_image(&wrong, 4, 4, "rgb8"));
  wrong.as.header.nanosec = 1000000000;
  FAILS(rgaps_publisher_loan(images, &wrong, &loaned), RGAPS_INVALID_ARGUMENT, "1000000000");
  memset(&wrong.as, 0xff, sizeof wrong.as);
  FAILS(rgaps_publisher_loan(images, &wrong, &loaned), RGAPS_INVALID_ARGUMENT, "");

  FAILS(rgaps_publisher_loan(images, &meta, &loaned), RGAPS_WRONG_KIND, "/ctest/lies");
  FAILS(rgaps_publisher_push_host(publisher, &meta, &number, 7, NULL), RGAPS_INVALID_ARGUMENT, "7 B");
  OK(rgaps_meta_image(&wrong, 4, 4, "rgb8"));
  FAILS(rgaps_loan_set_meta(loan, &wrong), RGAPS_WRONG_KIND, "");
  wrong = bytes_meta(9);
  FAILS(rgaps_loan_set_meta(loan, &wrong), RGAPS_INVALID_ARGUMENT, "9");
  CHECK(loaned == MARK);
  rgaps_publisher_destroy(images);
}

static void a_kind_other_than_the_topics_is_refused(void) {
  rgaps_publisher_t *advertised = MARK;
  rgaps_subscriber_t *subscribed = MARK;
  struct DLManagedTensorVersioned *tensor = MARK;
  rgaps_point_field_t field;
  rgaps_meta_t image;
  FAILS(rgaps_publisher_create(node, "/ctest/wrong", RGAPS_KIND_TENSOR, NULL, &advertised), RGAPS_WRONG_KIND, "/ctest/wrong");
  FAILS(rgaps_subscriber_create(node, "/ctest/wrong", RGAPS_KIND_IMAGE, NULL, &subscribed), RGAPS_WRONG_KIND, "/ctest/wrong");
  FAILS(rgaps_sample_dlpack(message, "x", NULL, &tensor), RGAPS_WRONG_KIND, "");
  FAILS(rgaps_loan_dlpack(loan, "x", &tensor), RGAPS_WRONG_KIND, "");
  OK(rgaps_meta_image(&image, 2, 2, "mono8"));
  FAILS(rgaps_meta_add_field(&image, "x", 0, 7), RGAPS_WRONG_KIND, "image");
  FAILS(rgaps_meta_field(&image, "x", &field), RGAPS_WRONG_KIND, "image");
  CHECK(advertised == MARK && subscribed == MARK && tensor == MARK);
}

static void invalid_and_too_long_texts_are_refused(void) {
  const char *crooked = "caf\xe9";
  rgaps_node_options_t options = rgaps_node_options_default();
  rgaps_node_t *made = MARK;
  rgaps_publisher_t *advertised = MARK;
  rgaps_subscriber_t *subscribed = MARK;
  rgaps_meta_t cloud;
  char lengthy[5000];
  options.name = crooked;
  FAILS(rgaps_node_create(&options, &made), RGAPS_INVALID_ARGUMENT, "name is not UTF-8");
  options.name = NULL;
  options.device = crooked;
  FAILS(rgaps_node_create(&options, &made), RGAPS_INVALID_ARGUMENT, "device is not UTF-8");
  options.device = NULL;
  memset(lengthy, 'a', sizeof lengthy);
  lengthy[0] = '/';
  lengthy[sizeof lengthy - 1] = 0;
  options.runtime_dir = lengthy;
  CHECK(rgaps_node_create(&options, &made) != RGAPS_OK && made == MARK);
  FAILS(rgaps_publisher_create(node, lengthy, 0, NULL, &advertised), RGAPS_INVALID_ARGUMENT, "255");
  FAILS(rgaps_subscriber_create(node, lengthy, 0, NULL, &subscribed), RGAPS_INVALID_ARGUMENT, "255");
  FAILS(rgaps_publisher_create(node, "", 0, NULL, &advertised), RGAPS_INVALID_ARGUMENT, "topic name");
  FAILS(rgaps_publisher_create(node, "/a//b", 0, NULL, &advertised), RGAPS_INVALID_ARGUMENT, "topic name");
  FAILS(rgaps_publisher_create(node, crooked, 0, NULL, &advertised), RGAPS_INVALID_ARGUMENT, "topic is not UTF-8");
  FAILS(rgaps_subscriber_create(node, crooked, 0, NULL, &subscribed), RGAPS_INVALID_ARGUMENT, "topic is not UTF-8");
  CHECK(rgaps_publisher_init(crooked) == NULL && strcmp(rgaps_error_text(), "topic_name is not UTF-8") == 0);
  CHECK(rgaps_subscriber_init(lengthy) == NULL && rgaps_error_status() == RGAPS_INVALID_ARGUMENT);
  OK(rgaps_meta_point_cloud(&cloud, 2, 1, 8));
  FAILS(rgaps_meta_set_header(&cloud, 0, crooked), RGAPS_INVALID_ARGUMENT, "frame_id is not UTF-8");
  FAILS(rgaps_meta_set_header(&cloud, 0, lengthy), RGAPS_INVALID_ARGUMENT, "4999 B");
  FAILS(rgaps_meta_add_field(&cloud, lengthy, 0, 7), RGAPS_INVALID_ARGUMENT, "4999 B");
  FAILS(rgaps_meta_add_field(&cloud, crooked, 0, 7), RGAPS_INVALID_ARGUMENT, "name is not UTF-8");
  FAILS(rgaps_meta_image(&cloud, 1, 1, crooked), RGAPS_INVALID_ARGUMENT, "encoding is not UTF-8");
  CHECK(advertised == MARK && subscribed == MARK && cloud.kind == RGAPS_KIND_POINT_CLOUD);
  CHECK(cloud.as.header.frame_id[0] == 0 && cloud.as.point_cloud.field_count == 0);
  /* The longest valid names. */
  lengthy[255] = 0;
  OK(rgaps_publisher_create(node, lengthy, 0, NULL, &advertised));
  rgaps_publisher_destroy(advertised);
}

static void another_version_of_the_abi_is_refused_by_number(void) {
  rgaps_node_t *made = MARK;
  FAILS(rgaps_node_create_abi(RGAPS_ABI_VERSION + 1, NULL, &made), RGAPS_WRONG_VERSION, "ABI 3");
  FAILS(rgaps_node_create_abi(0, NULL, &made), RGAPS_WRONG_VERSION, "ABI 0");
  CHECK(made == MARK);
  CHECK(rgaps_publisher_init_abi(77, "/t") == NULL && rgaps_error_status() == RGAPS_WRONG_VERSION);
  CHECK(rgaps_subscriber_init_abi(77, "/t") == NULL && strstr(rgaps_error_text(), "ABI 77") != NULL);
}

static void sizes_beyond_all_memory_are_refused(void) {
  const uint64_t sizes[] = {UINT64_MAX, UINT64_MAX - 4095, (uint64_t)INT64_MAX + 1, INT64_MAX, UINT64_C(1) << 40, UINT64_C(1) << 28};
  rgaps_publisher_qos_t offered = rgaps_publisher_qos_default();
  rgaps_publisher_t *advertised = MARK;
  rgaps_sample_t *taken = MARK;
  uint64_t count = 77, number = 0;
  for (size_t index = 0; index < sizeof sizes / sizeof *sizes; index++) {
    rgaps_loan_t *loaned = MARK;
    rgaps_meta_t huge = bytes_meta(sizes[index]);
    FAILS(rgaps_publisher_loan(publisher, &huge, &loaned), RGAPS_NO_SPACE, "larger than the pool");
    CHECK(loaned == MARK);
  }
  {
    rgaps_meta_t huge = bytes_meta(UINT64_MAX);
    FAILS(rgaps_publisher_push_host(publisher, &huge, &number, UINT64_MAX, NULL), RGAPS_INVALID_ARGUMENT, "18446744073709551615");
    FAILS(rgaps_publisher_push_on(publisher, &huge, &number, UINT64_MAX, NULL, NULL), RGAPS_INVALID_ARGUMENT, "");
    CHECK(rgaps_publisher_push(publisher, SIZE_MAX, &number) == RGAPS_INVALID_ARGUMENT);
  }
  FAILS(rgaps_node_topics(node, MARK, UINT64_MAX, &count), RGAPS_INVALID_ARGUMENT, "18446744073709551615");
  FAILS(rgaps_subscriber_take_all(subscriber, &taken, UINT64_MAX, &count), RGAPS_INVALID_ARGUMENT, "18446744073709551615");
  CHECK(taken == MARK && count == 77);
  offered.pool_bytes = UINT64_MAX;
  CHECK(rgaps_publisher_create(node, "/ctest/huge", 0, &offered, &advertised) == RGAPS_REFUSED);
  offered.pool_bytes = 1;
  if (rgaps_publisher_create(node, "/ctest/tiny", 0, &offered, &advertised) == RGAPS_OK) rgaps_publisher_destroy(advertised);
  /* Every number of a QoS at its limit. */
  offered = rgaps_publisher_qos_default();
  offered.durability = RGAPS_TRANSIENT_LOCAL;
  offered.history_depth = UINT32_MAX;
  offered.exhaustion_timeout_ms = UINT64_MAX;
  OK(rgaps_publisher_create(node, "/ctest/limits", 0, &offered, &advertised));
  for (number = 0; number < 100; number++) publish_number(advertised, number);
  rgaps_publisher_destroy(advertised);
  {
    rgaps_subscriber_qos_t wanted = rgaps_subscriber_qos_default();
    rgaps_subscriber_t *deep = NULL;
    wanted.depth = UINT32_MAX;
    advertised = publisher_of(node, "/ctest/deep", 0);
    OK(rgaps_subscriber_create(node, "/ctest/deep", 0, &wanted, &deep));
    for (number = 0; number < 20; number++) publish_number(advertised, number);
    for (number = 0; number < 20; number++) CHECK(next_number(deep) == number);
    rgaps_subscriber_destroy(deep);
    rgaps_publisher_destroy(advertised);
  }
}

static void a_depth_that_is_granted_in_part_is_said_on_standard_error(void) {
  rgaps_subscriber_qos_t wanted = rgaps_subscriber_qos_default();
  rgaps_subscriber_t *deep = NULL;
  char said[1024] = "";
  size_t count = 0;
  int ends[2], standard_error = dup(STDERR_FILENO);
  CHECK(standard_error >= 0 && pipe(ends) == 0 && dup2(ends[1], STDERR_FILENO) >= 0);
  wanted.depth = UINT32_MAX;
  OK(rgaps_subscriber_create(node, "/ctest/said", 0, &wanted, &deep));
  while (strstr(said, "/ctest/said: a depth of 4294967295 is more than a topic keeps") == NULL) {
    ssize_t more = read(ends[0], said + count, sizeof said - 1 - count);
    CHECK(more > 0);
    count += (size_t)more;
    said[count] = 0;
  }
  CHECK(dup2(standard_error, STDERR_FILENO) >= 0 && close(standard_error) == 0 && close(ends[0]) == 0 && close(ends[1]) == 0);
  CHECK(strstr(said, " WARN rgaps: ") != NULL);
  rgaps_subscriber_destroy(deep);
}

static void objects_still_work_after_misuse(void) {
  void *data = NULL;
  OK(rgaps_loan_data(loan, &data, NULL));
  memset(data, 0x22, sizeof(uint64_t));
  CHECK(number_in(message) == 1);
  OK(rgaps_sample_release(message, NULL));
  OK(rgaps_loan_publish(loan, NULL, NULL));
  CHECK(next_number(subscriber) == UINT64_C(0x2222222222222222));
  publish_number(publisher, 3);
  CHECK(next_number(subscriber) == 3);
  rgaps_subscriber_destroy(subscriber);
  rgaps_publisher_destroy(publisher);
  rgaps_node_destroy(node);
}

int main(void) {
  node = node_on(NULL);
  publisher = publisher_of(node, "/ctest/wrong", RGAPS_KIND_BYTES);
  subscriber = subscriber_of(node, "/ctest/wrong", RGAPS_KIND_BYTES);
  meta = bytes_meta(sizeof(uint64_t));
  publish_number(publisher, 1);
  message = next_of(subscriber);
  OK(rgaps_publisher_loan(publisher, &meta, &loan));

  a_call_says_which_argument_is_null();
  every_call_refuses_an_invalid_handle();
  a_released_handle_is_refused_by_every_call_and_its_place_serves_another();
  an_argument_out_of_range_is_refused_with_numbers();
  invalid_metadata_is_refused();
  a_kind_other_than_the_topics_is_refused();
  invalid_and_too_long_texts_are_refused();
  another_version_of_the_abi_is_refused_by_number();
  sizes_beyond_all_memory_are_refused();
  a_depth_that_is_granted_in_part_is_said_on_standard_error();
  objects_still_work_after_misuse();
  return 0;
}
