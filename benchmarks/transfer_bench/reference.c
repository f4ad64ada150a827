// The raw references of the transfer benchmark, written with public calls only: a copy from or to a shared mapping,
// process_vm_readv/writev in large vectors, and one or two plain TCP streams with one request frame per stream and
// operation. Also the pattern by which every side of the benchmark is checked. Compiled by reference.py.
// A block is named by its number: block i of size s starts at byte i * s.
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { kRead = 0, kWrite = 1 };
enum { kVmBlocks = 128, kStreamBlocks = 256, kStreams = 2 };

// --- the pattern -----------------------------------------------------------------------------------------------

static uint64_t word_at(uint64_t index, uint64_t salt) { return (index ^ salt << 40) * 0x9e3779b97f4a7c15ull; }

void fill_blocks(char* base, const uint32_t* blocks, size_t count, size_t size, uint64_t salt) {
  for (size_t i = 0; i < count; ++i) {
    uint64_t* to = (uint64_t*)(base + blocks[i] * size);
    uint64_t first = blocks[i] * size / sizeof(uint64_t);
    for (size_t k = 0; k < size / sizeof(uint64_t); ++k) to[k] = word_at(first + k, salt);
  }
}

// Position in `at` of the first block that does not hold the pattern of the block in `of`; -1 if all do.
int64_t check_blocks(const char* base, const uint32_t* at, const uint32_t* of, size_t count, size_t size,
                     uint64_t salt) {
  for (size_t i = 0; i < count; ++i) {
    const uint64_t* found = (const uint64_t*)(base + at[i] * size);
    uint64_t first = of[i] * size / sizeof(uint64_t), wrong = 0;
    for (size_t k = 0; k < size / sizeof(uint64_t); ++k) wrong |= found[k] ^ word_at(first + k, salt);
    if (wrong) return (int64_t)i;
  }
  return -1;
}

// --- shared mapping --------------------------------------------------------------------------------------------

void copy_blocks(char* to, const char* from, const uint32_t* to_blocks, const uint32_t* from_blocks, size_t count,
                 size_t size) {
  for (size_t i = 0; i < count; ++i) memcpy(to + to_blocks[i] * size, from + from_blocks[i] * size, size);
}

#if defined(__x86_64__)
int has_streaming_copy(void) { return __builtin_cpu_supports("avx2") != 0; }

__attribute__((target("avx2"))) void stream_blocks(char* to, const char* from, const uint32_t* to_blocks,
                                                   const uint32_t* from_blocks, size_t count, size_t size) {
  for (size_t i = 0; i < count; ++i) {
    __m256i* out = (__m256i*)(to + to_blocks[i] * size);
    const __m256i* in = (const __m256i*)(from + from_blocks[i] * size);
    for (size_t k = 0; k < size / 32; k += 4) {
      __m256i a = _mm256_loadu_si256(in + k), b = _mm256_loadu_si256(in + k + 1);
      __m256i c = _mm256_loadu_si256(in + k + 2), d = _mm256_loadu_si256(in + k + 3);
      _mm256_stream_si256(out + k, a);
      _mm256_stream_si256(out + k + 1, b);
      _mm256_stream_si256(out + k + 2, c);
      _mm256_stream_si256(out + k + 3, d);
    }
  }
  _mm_sfence();
}
#else
int has_streaming_copy(void) { return 0; }

void stream_blocks(char* to, const char* from, const uint32_t* to_blocks, const uint32_t* from_blocks, size_t count,
                   size_t size) {
  copy_blocks(to, from, to_blocks, from_blocks, count, size);
}
#endif

// --- foreign process -------------------------------------------------------------------------------------------

int vm_blocks(int pid, int op, char* here, char* there, const uint32_t* here_blocks, const uint32_t* there_blocks,
              size_t count, size_t size) {
  struct iovec local[kVmBlocks], remote[kVmBlocks];
  for (size_t first = 0; first < count; first += kVmBlocks) {
    size_t used = count - first < kVmBlocks ? count - first : kVmBlocks;
    for (size_t i = 0; i < used; ++i) {
      local[i] = (struct iovec){here + here_blocks[first + i] * size, size};
      remote[i] = (struct iovec){there + there_blocks[first + i] * size, size};
    }
    ssize_t moved = op == kRead ? process_vm_readv(pid, local, used, remote, used, 0)
                                : process_vm_writev(pid, local, used, remote, used, 0);
    if (moved != (ssize_t)(used * size)) return moved < 0 ? errno : EIO;
  }
  return 0;
}

// --- TCP streams -----------------------------------------------------------------------------------------------

struct frame {  // followed by `count` block numbers of the serving side, and the blocks themselves for kWrite
  uint32_t op, count;
  uint64_t size;
};

void prepare_stream(int fd) {
  int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5) != 0)
    setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);  // what an unprivileged process may choose
}

static int send_all(int fd, const void* data, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    ssize_t sent = send(fd, (const char*)data + done, bytes - done, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return -1;
    done += (size_t)sent;
  }
  return 0;
}

static int receive_all(int fd, void* data, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    ssize_t got = recv(fd, (char*)data + done, bytes - done, MSG_WAITALL);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return -1;
    done += (size_t)got;
  }
  return 0;
}

static int stream_move(int fd, int sending, char* base, const uint32_t* blocks, size_t count, size_t size) {
  struct iovec parts[kStreamBlocks];
  for (size_t done = 0; done < count * size;) {
    size_t block = done / size, skip = done % size;
    int used = 0;
    for (; block < count && used < kStreamBlocks; ++block, ++used)
      parts[used] = (struct iovec){base + blocks[block] * size, size};
    parts[0].iov_base = (char*)parts[0].iov_base + skip;
    parts[0].iov_len -= skip;
    ssize_t moved = sending ? writev(fd, parts, used) : readv(fd, parts, used);
    if (moved < 0 && errno == EINTR) continue;
    if (moved <= 0) return -1;
    done += (size_t)moved;
  }
  return 0;
}

// Answers requests on one connection until the other side closes it; `blocks_max` is what a frame may ask for.
void serve_stream(int fd, char* base, size_t blocks_max) {
  struct frame frame;
  uint32_t* blocks = malloc(blocks_max * sizeof *blocks);
  prepare_stream(fd);
  while (blocks && receive_all(fd, &frame, sizeof frame) == 0 && frame.count <= blocks_max) {
    if (receive_all(fd, blocks, frame.count * sizeof *blocks) != 0) break;
    if (stream_move(fd, frame.op == kRead, base, blocks, frame.count, frame.size) != 0) break;
    if (frame.op == kWrite && send_all(fd, &frame, sizeof frame.op) != 0) break;
  }
  free(blocks);
}

struct part {  // what one stream has to do of an operation
  struct frame frame;
  const uint32_t *here, *there;
  char* base;
};

static int stream_request(int fd, const struct part* part) {
  struct iovec start[2] = {{(void*)&part->frame, sizeof part->frame},
                           {(void*)part->there, part->frame.count * sizeof *part->there}};
  size_t wanted = start[0].iov_len + start[1].iov_len;
  int more = part->frame.op == kWrite ? MSG_MORE : 0;
  struct msghdr message = {.msg_iov = start, .msg_iovlen = 2};
  uint32_t answer;
  if (sendmsg(fd, &message, MSG_NOSIGNAL | more) != (ssize_t)wanted) return -1;
  if (stream_move(fd, part->frame.op == kWrite, part->base, part->here, part->frame.count, part->frame.size) != 0)
    return -1;
  return part->frame.op == kWrite ? receive_all(fd, &answer, sizeof answer) : 0;
}

struct streams {
  int fds[kStreams], count, result, busy, ending;
  struct part part;  // of the second stream, which a thread of its own works on
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t changed;
};

static void* second_stream(void* argument) {
  struct streams* streams = argument;
  pthread_mutex_lock(&streams->lock);
  while (!streams->ending) {
    if (!streams->busy) {
      pthread_cond_wait(&streams->changed, &streams->lock);
      continue;
    }
    pthread_mutex_unlock(&streams->lock);
    int result = stream_request(streams->fds[1], &streams->part);
    pthread_mutex_lock(&streams->lock);
    streams->result = result;
    streams->busy = 0;
    pthread_cond_signal(&streams->changed);
  }
  pthread_mutex_unlock(&streams->lock);
  return NULL;
}

struct streams* streams_open(const int* fds, int count) {
  struct streams* streams = calloc(1, sizeof *streams);
  if (!streams) return NULL;
  pthread_mutex_init(&streams->lock, NULL);
  pthread_cond_init(&streams->changed, NULL);
  streams->count = count;
  for (int i = 0; i < count; ++i) prepare_stream(streams->fds[i] = fds[i]);
  if (count == kStreams && pthread_create(&streams->thread, NULL, second_stream, streams) != 0) {
    free(streams);
    return NULL;
  }
  return streams;
}

int streams_move(struct streams* streams, int op, char* base, const uint32_t* here, const uint32_t* there, size_t count,
                 size_t size) {
  size_t second = streams->count == kStreams ? count / 2 : 0;
  struct part first = {{(uint32_t)op, (uint32_t)(count - second), size}, here + second, there + second, base};
  if (second == 0) return stream_request(streams->fds[0], &first);
  pthread_mutex_lock(&streams->lock);
  streams->part = (struct part){{(uint32_t)op, (uint32_t)second, size}, here, there, base};
  streams->busy = 1;
  pthread_cond_signal(&streams->changed);
  pthread_mutex_unlock(&streams->lock);
  int result = stream_request(streams->fds[0], &first);
  pthread_mutex_lock(&streams->lock);
  while (streams->busy) pthread_cond_wait(&streams->changed, &streams->lock);
  result |= streams->result;
  pthread_mutex_unlock(&streams->lock);
  return result;
}

// The connections stay the caller's.
void streams_close(struct streams* streams) {
  pthread_mutex_lock(&streams->lock);
  streams->ending = 1;
  pthread_cond_signal(&streams->changed);
  pthread_mutex_unlock(&streams->lock);
  if (streams->count == kStreams) pthread_join(streams->thread, NULL);
  free(streams);
}
