/* Shared by the recording inner RMW and the caller. */
#ifndef RECORDING_H
#define RECORDING_H
#include <stddef.h>

#define BYTES_MAX 512
#define OUT_BYTES 24
#define OUTS_MAX 8

/* The last call that reached the inner RMW. */
struct record
{
  const char *name;
  /* Calls since the record was cleared. */
  unsigned count;
  /* The bytes of the arguments, concatenated. */
  unsigned char arguments[BYTES_MAX];
  size_t length;
  /* What the function wrote, and where. */
  struct
  {
    unsigned char *where;
    unsigned char bytes[OUT_BYTES];
  } outs[OUTS_MAX];
  unsigned out_count;
  /* The bytes of its result. */
  unsigned char result[8];
  /* If set, the layer's function that it calls once, with its own arguments, before it returns. */
  void *again;
  unsigned long long seed;
};

/* xorshift64: the same numbers in every run of one seed. */
static inline unsigned long long next_random(unsigned long long *state)
{
  *state ^= *state << 13;
  *state ^= *state >> 7;
  *state ^= *state << 17;
  return *state;
}

static inline void fill_random(unsigned long long *state, void *into, size_t bytes)
{
  for (size_t place = 0; place < bytes; place++) {
    ((unsigned char *)into)[place] = (unsigned char)(next_random(state) >> 32);
  }
}
#endif
