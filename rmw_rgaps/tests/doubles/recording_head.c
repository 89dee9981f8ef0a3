/* The recording inner RMW: each function records its arguments, writes random bytes where it may write, and returns the prepared result. The test
 * generates its functions from functions.def. */
#include "headers.h"
#include "recording.h"
#include <string.h>

static struct record record;

struct record *double_record(void)
{
  return &record;
}

static void begin(const char *name)
{
  record.name = name;
  record.count++;
  record.length = 0;
}

static void note(const void *argument, size_t bytes)
{
  if (record.length + bytes <= BYTES_MAX) {
    memcpy(record.arguments + record.length, argument, bytes);
  }
  record.length += bytes;
}

static void write_noise(void *where)
{
  if (where && record.out_count < OUTS_MAX) {
    unsigned char *bytes = record.outs[record.out_count].bytes;
    fill_random(&record.seed, bytes, OUT_BYTES);
    /* A bool for the layer must stay a valid bool. */
    bytes[0] &= 1;
    memcpy(where, bytes, OUT_BYTES);
    record.outs[record.out_count++].where = where;
  }
}
