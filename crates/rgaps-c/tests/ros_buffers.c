/* The buffers of ROS messages, as the backend of rosidl::Buffer calls them, and wrong uses. The test is the middleware. */

#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#define BYTES UINT64_C(100000)
#define MARK ((void *)0x5a5a5a5a)

static const uint8_t FIRST[16] = {1}, SECOND[16] = {2}, UNKNOWN[16] = {9};

static int is_on_gpu(void) {
  const char *device = getenv("RGAPS_DEVICE");
  return device != NULL && strcmp(device, "cuda") == 0;
}

static rgaps_ros_buffers_statistics_t counted(void) {
  rgaps_ros_buffers_statistics_t statistics;
  OK(rgaps_ros_buffers_statistics(&statistics));
  return statistics;
}

static rgaps_ros_buffer_t *filled(uint8_t fill) {
  static uint8_t bytes[BYTES];
  rgaps_ros_buffer_t *buffer = NULL;
  memset(bytes, fill, BYTES);
  OK(rgaps_ros_buffer_allocate(BYTES, &buffer));
  CHECK(rgaps_ros_buffer_bytes(buffer) == BYTES);
  OK(rgaps_ros_buffer_copy_in(buffer, bytes, BYTES));
  return buffer;
}

static int is_filled(const rgaps_ros_buffer_t *buffer, uint8_t fill) {
  static uint8_t bytes[BYTES];
  OK(rgaps_ros_buffer_await(buffer));
  OK(rgaps_ros_buffer_copy_out(buffer, bytes, BYTES));
  for (uint64_t at = 0; at < BYTES; at++) {
    if (bytes[at] != fill) return 0;
  }
  return 1;
}

static rgaps_ros_buffer_t *sent_to(const uint8_t *gid, const rgaps_ros_buffer_t *buffer) {
  rgaps_ros_descriptor_t descriptor;
  rgaps_ros_buffer_t *received = NULL;
  OK(rgaps_ros_buffer_describe(buffer, gid, &descriptor));
  CHECK(descriptor.handle.payload_bytes == BYTES && memcmp(descriptor.subscription, gid, 16) == 0);
  OK(rgaps_ros_buffer_receive(&descriptor, &received));
  return received;
}

static void nothing_is_made_before_it_is_needed(void) {
  char metadata[128];
  CHECK(counted().allocated == 0 && counted().used_bytes == 0);
  OK(rgaps_ros_buffers_metadata(metadata, sizeof metadata));
  CHECK(strcmp(metadata, "1:-:-:") == 0);
  OK(rgaps_ros_buffers_subscription_created(FIRST, 0));
  OK(rgaps_ros_buffers_subscription_discovered(FIRST, metadata, NULL, 0));
  CHECK(rgaps_ros_buffers_publisher_discovered("cpu") == RGAPS_NO_MESSAGE);
  OK(rgaps_ros_buffers_metadata(metadata, sizeof metadata));
  CHECK(strcmp(metadata, "1:-:-:") == 0);
  /* This one may send buffers. */
  OK(rgaps_ros_buffers_publisher_discovered(metadata));
  OK(rgaps_ros_buffers_metadata(metadata, sizeof metadata));
  CHECK(strlen(metadata) > 36 && strncmp(metadata, "1:", 2) == 0 && strpbrk(metadata, ";= ") == NULL);
  OK(rgaps_ros_buffers_subscription_created(SECOND, 5));
  OK(rgaps_ros_buffers_subscription_discovered(SECOND, metadata, FIRST, 1));
  CHECK(rgaps_ros_buffers_subscription_discovered(UNKNOWN, "7:-:-:", NULL, 0) == RGAPS_NO_MESSAGE);
}

static void both_subscriptions_read_what_was_written(void) {
  for (uint8_t fill = 1; fill < 20; fill++) {
    rgaps_ros_buffer_t *buffer = filled(fill), *clone = NULL;
    rgaps_ros_access_t *access = NULL;
    rgaps_ros_buffer_t *received[] = {sent_to(FIRST, buffer), sent_to(SECOND, buffer)};
    const void *places[2] = {NULL, NULL};
    OK(rgaps_ros_buffer_clone(received[0], &clone));
    rgaps_ros_buffer_release(buffer);
    for (int of = 0; of < 2; of++) {
      CHECK(is_filled(received[of], fill));
      OK(rgaps_ros_buffer_begin_read(received[of], NULL, &places[of], &access));
      rgaps_ros_buffer_release(received[of]);
      /* The read keeps what it reads. */
      CHECK(counted().used_bytes > 0);
      OK(rgaps_ros_access_end(access, NULL));
    }
    CHECK(places[0] != NULL && places[1] != NULL);
    CHECK(is_filled(clone, fill));
    rgaps_ros_buffer_release(clone);
    while (counted().used_bytes > 0) sched_yield();
  }
  CHECK(counted().copied == 0 && counted().published == 38 && counted().received == 38 && counted().reached == 2);
}

static void a_write_after_the_publication_goes_to_a_copy(void) {
  rgaps_ros_buffer_t *buffer = filled(1), *received = sent_to(FIRST, buffer);
  void *place = NULL;
  rgaps_ros_access_t *access = NULL;
  OK(rgaps_ros_buffer_begin_write(buffer, NULL, &place, &access));
  CHECK(place != NULL);
  rgaps_device_t device = {0, 7};
  OK(rgaps_ros_access_device(access, &device));
  CHECK(device.device_type == (is_on_gpu() ? 2 : 1) && device.device_id == 0);
  OK(rgaps_ros_access_end(access, NULL));
  FAILS(rgaps_ros_access_device(access, &device), RGAPS_INVALID_HANDLE, "released");
  FAILS(rgaps_ros_access_end(access, NULL), RGAPS_INVALID_HANDLE, "released");
  CHECK(counted().copied == 1 && is_filled(buffer, 1) && is_filled(received, 1));
  rgaps_ros_buffer_release(received);
  rgaps_ros_buffer_release(buffer);
}

static void wrong_arguments_and_descriptors_are_errors(void) {
  rgaps_ros_buffer_t *buffer = filled(3), *made = MARK;
  rgaps_ros_descriptor_t descriptor;
  char text[8];
  uint8_t bytes[4];
  FAILS(rgaps_ros_buffers_metadata(NULL, 128), RGAPS_INVALID_ARGUMENT, "text is NULL");
  FAILS(rgaps_ros_buffers_metadata(text, sizeof text), RGAPS_INVALID_ARGUMENT, "8 B are too few");
  FAILS(rgaps_ros_buffers_subscription_created(NULL, 1), RGAPS_INVALID_ARGUMENT, "gid is NULL");
  FAILS(rgaps_ros_buffers_subscription_discovered(FIRST, NULL, NULL, 0), RGAPS_INVALID_ARGUMENT, "metadata is NULL");
  FAILS(rgaps_ros_buffers_subscription_discovered(FIRST, "1:", NULL, 1), RGAPS_INVALID_ARGUMENT, "others is NULL");
  FAILS(rgaps_ros_buffer_copy_in(buffer, bytes, 4), RGAPS_INVALID_ARGUMENT, "4 B were given for a buffer of 100000 B");
  FAILS(rgaps_ros_buffer_copy_out(buffer, NULL, BYTES), RGAPS_INVALID_ARGUMENT, "to is NULL");
  FAILS(rgaps_ros_buffer_describe(buffer, FIRST, NULL), RGAPS_INVALID_ARGUMENT, "descriptor is NULL");
  CHECK(rgaps_ros_buffer_describe(buffer, UNKNOWN, &descriptor) == RGAPS_NO_MESSAGE);
  CHECK(strstr(rgaps_error_text(), "is unknown here") != NULL);
  FAILS(rgaps_ros_buffer_receive(NULL, &made), RGAPS_INVALID_ARGUMENT, "descriptor is NULL");
  CHECK(made == MARK);
  for (int of = 0; of < 2; of++) {
    rgaps_ros_buffer_t *wrong = of == 0 ? NULL : (rgaps_ros_buffer_t *)&descriptor;
    FAILS(rgaps_ros_buffer_await(wrong), RGAPS_INVALID_HANDLE, "");
    FAILS(rgaps_ros_buffer_clone(wrong, &made), RGAPS_INVALID_HANDLE, "");
    FAILS(rgaps_ros_buffer_describe(wrong, FIRST, &descriptor), RGAPS_INVALID_HANDLE, "");
    CHECK(rgaps_ros_buffer_bytes(wrong) == 0);
    rgaps_ros_buffer_release(wrong);
  }
  memset(&descriptor, 0x5a, sizeof descriptor);
  OK(rgaps_ros_buffer_receive(&descriptor, &made));
  FAILS(rgaps_ros_buffer_await(made), RGAPS_STALE, "no subscription 5a5a");
  rgaps_ros_buffer_release(made);
  FAILS(rgaps_ros_buffer_await(made), RGAPS_INVALID_HANDLE, "released");
  rgaps_ros_buffer_release(buffer);
}

/* With AddressSanitizer its allocator may be locked in the child. CUDA cannot be used in a forked child. */
#ifndef __SANITIZE_ADDRESS__
static void a_forked_child_has_buffers_of_its_own(void) {
  rgaps_ros_buffer_t *buffer = filled(4);
  fflush(NULL);
  const pid_t child = fork();
  if (child == 0) {
    FAILS(rgaps_ros_buffer_await(buffer), RGAPS_FORKED, "parent process");
    rgaps_ros_buffer_t *own = filled(5);
    CHECK(is_filled(own, 5) && counted().allocated == 1);
    rgaps_ros_buffer_release(own);
    _exit(0);
  }
  int status = -1;
  CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
  CHECK(is_filled(buffer, 4));
  rgaps_ros_buffer_release(buffer);
}
#endif

int main(void) {
  nothing_is_made_before_it_is_needed();
  both_subscriptions_read_what_was_written();
  a_write_after_the_publication_goes_to_a_copy();
  wrong_arguments_and_descriptors_are_errors();
#ifndef __SANITIZE_ADDRESS__
  if (!is_on_gpu()) a_forked_child_has_buffers_of_its_own();
#endif
  puts("ros_buffers: ok");
  return 0;
}
