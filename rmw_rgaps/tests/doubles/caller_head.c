/* Calls each function of the layer from C with random arguments, and compares them with what the recording inner RMW received, wrote and
 * returned. The test generates the functions at the end from functions.def. */
#include "headers.h"
#include "recording.h"
#include <stdio.h>
#include <string.h>

#define PLACE_BYTES 1024

static unsigned long long seed = 88172645463325252ull;
_Alignas(16) static unsigned char places[OUTS_MAX][PLACE_BYTES];
static unsigned char expected_places[OUTS_MAX][PLACE_BYTES];
static unsigned char expected[BYTES_MAX];
static size_t expected_length;
static char complaint[512];

static const rosidl_message_type_support_t *no_other(const rosidl_message_type_support_t *handle, const char *identifier)
{
  (void)handle;
  (void)identifier;
  return NULL;
}

static const rosidl_message_type_support_t ordinary = {.typesupport_identifier = "of_the_test", .func = no_other};

static void begin(void)
{
  fill_random(&seed, places, sizeof places);
  memcpy(expected_places, places, sizeof places);
  expected_length = 0;
}

/* A handle: null, or memory filled with random bytes. */
static void *pointer(unsigned index)
{
  return next_random(&seed) % 4 == 0 ? NULL : places[index];
}

static const void *type_support(void)
{
  return next_random(&seed) % 4 == 0 ? NULL : &ordinary;
}

static void expect(const void *argument, size_t bytes)
{
  memcpy(expected + expected_length, argument, bytes);
  expected_length += bytes;
}

static void ready(struct record *record, void *again)
{
  record->count = 0;
  record->out_count = 0;
  record->again = again;
  fill_random(&seed, record->result, sizeof record->result);
  record->result[0] &= 1;
  next_random(&seed);
  record->seed = seed;
}

static const char *verdict(struct record *record, const char *name, unsigned count, const void *result, size_t bytes)
{
  if (!record->name || strcmp(record->name, name) != 0 || record->count != count) {
    snprintf(complaint, sizeof complaint, "%s: the inner RMW saw %u call(s), the last of %s", name, record->count,
      record->name ? record->name : "nothing");
    return complaint;
  }
  if (record->length != expected_length || memcmp(record->arguments, expected, expected_length) != 0) {
    snprintf(complaint, sizeof complaint, "%s: the arguments were changed", name);
    return complaint;
  }
  if (memcmp(record->result, result, bytes) != 0) {
    snprintf(complaint, sizeof complaint, "%s: the result was changed", name);
    return complaint;
  }
  for (unsigned out = 0; out < record->out_count; out++) {
    size_t place = (size_t)(record->outs[out].where - &places[0][0]);
    memcpy(&expected_places[0][0] + place, record->outs[out].bytes, OUT_BYTES);
  }
  if (memcmp(places, expected_places, sizeof places) != 0) {
    snprintf(complaint, sizeof complaint, "%s: what its arguments point to was changed", name);
    return complaint;
  }
  return NULL;
}
